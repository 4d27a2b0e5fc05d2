"""The question `scale`: training on many replicas."""
