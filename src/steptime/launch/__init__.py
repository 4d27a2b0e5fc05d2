"""Read launch commands and recipes of other tools as settings of a question.

`reader.read_launch` takes a command line, a script or a configuration file and returns a
`job.LaunchJob`. Each tool has one module under `tools`, with a table from its options to facts.
"""
