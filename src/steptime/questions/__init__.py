"""What people ask of predictions: choose, fit, scale, plan, serve, why; a file or folder each."""
