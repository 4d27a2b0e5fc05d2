"""Many steps at once: grids of models, devices and batches, replicas, folders of records."""
