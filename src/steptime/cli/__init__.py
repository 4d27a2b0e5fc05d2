"""The command line: parse, call, print."""

import os

# Typer imports pydantic, which would look through every installed package for plugins of its own
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
