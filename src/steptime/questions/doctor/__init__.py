"""The question `doctor`: what this machine is and lacks."""
