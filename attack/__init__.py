"""Attacks on the whole: kills, disks, writers, inputs, texts, archives, mutants; `python -m attack`.

They import `steptime` and what the tests share; neither imports them.
"""
