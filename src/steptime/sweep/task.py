"""The name of a task in the batch scripts of version 0.4, which may still wait in a queue."""

import runpy

if __name__ == "__main__":
    runpy.run_module("steptime.cluster.task", run_name="__main__")
