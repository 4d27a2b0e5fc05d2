"""Inference of language models: prefill and decode, memory, and what serving takes.

A phase is the kernels of one rank, priced as those of every other prediction.
"""
