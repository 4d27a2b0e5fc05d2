"""Worker processes: put workloads before one, and tell how it died."""
