"""What people ask of predictions: predict, fit, choose, scale, why; a file each."""
