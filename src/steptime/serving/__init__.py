"""Inference servers of language models: prefill, decode, memory, load, search.

A phase is the kernels of one rank, priced as those of every other prediction.
"""
