"""The command line: parse, call, print."""

import os
from time import monotonic

START_CLOCK_S = monotonic()  # what takes longer than a second from here on says so

# pydantic would look through every installed package for plugins of its own
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
