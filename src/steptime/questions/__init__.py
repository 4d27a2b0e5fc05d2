"""What people ask of predictions: choose, fit, scale, plan, serve, why, what if; a file or folder each."""
