"""Expressions and formulas that users write, and amounts with units."""
