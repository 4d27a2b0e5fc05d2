"""JAX: a step is one program that XLA compiles, on CPUs, GPUs and TPUs."""
