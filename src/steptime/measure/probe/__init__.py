"""Probing: the ceilings of a device and the link between processes, measured and kept as files."""
