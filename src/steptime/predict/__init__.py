"""Cost models: graph, workload and cluster -> records. Blind to every measurement."""
