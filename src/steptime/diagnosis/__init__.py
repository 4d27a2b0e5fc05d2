"""What holds a step back, and what other hardware would change: predictions beside records."""
