"""One module per launch tool: its options, its documented defaults, and what they mean here."""
