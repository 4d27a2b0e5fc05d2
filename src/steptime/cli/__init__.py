"""The command line: parse, call, print."""

import os
from time import monotonic

BEGAN = monotonic()  # what takes longer than a second from here on says so

# Typer imports pydantic, which would look through every installed package for plugins of its own
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
# --install-completion takes the name of a shell, where Typer would ask the processes above
os.environ.setdefault("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
