"""Measured steps held against expectations: references or predictions, with limits."""
