"""The question `calibrate`: what predictions need of this machine."""
