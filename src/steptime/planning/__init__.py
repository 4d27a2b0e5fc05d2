"""Parallel plans: step time, memory and search for training split over many devices.

One rank's graph (`network.ops.builder`) is priced part by part by a method of prediction
(`pieces`); a step is arithmetic over the parts (`step`), its pipeline a graph of stages,
microbatches and directions (`pipeline`).
"""
