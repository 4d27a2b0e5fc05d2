"""Steps of one network at any batch: graphs, kernels, and lines between batches."""
