"""Profiler traces: events, ops and their kernels."""
