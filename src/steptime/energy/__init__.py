"""What operations, systolic arrays and published chips cost; nothing here knows a step."""
