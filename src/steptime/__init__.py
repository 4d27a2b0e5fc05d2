"""How long a training step takes, how long it would take elsewhere, and why."""

__version__ = "0.4.0"
