"""The question `run`: a network measured on this machine."""
