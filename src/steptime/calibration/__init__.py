"""Fit constants to measured rows, and evaluate predictions on them."""
