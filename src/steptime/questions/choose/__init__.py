"""The question `choose`: devices side by side for one training."""
