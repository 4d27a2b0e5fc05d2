"""Launchers: put workloads before a worker, here or in a job, and collect its records."""
