"""The hyperparameters that a quantity depends on: regressions, importance, and their words."""
