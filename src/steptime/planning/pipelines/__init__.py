"""Schedules of pipelines: stages, their microbatches, and bounds of the step."""
