"""Measure on this machine; frameworks are imported only in worker processes."""
