"""Energy and latency of published accelerators, systolic arrays and single operations."""
