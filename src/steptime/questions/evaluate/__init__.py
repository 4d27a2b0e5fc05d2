"""The question `evaluate`: predictions held against measurements."""
