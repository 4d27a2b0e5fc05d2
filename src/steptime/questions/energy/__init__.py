"""The question `energy`: latency and energy on published accelerators."""
