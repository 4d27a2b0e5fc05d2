"""Attacks on the whole: kills, disks, writers, inputs, texts, archives, mutants.

`python -m attack` runs them and writes docs/reliability.md. They import `steptime` and what the
tests share; neither imports them.
"""
