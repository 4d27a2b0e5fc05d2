"""Causes for which a cell has no number, one word each, and the command that retries the cell."""

from typing import NamedTuple

from steptime.core.toml_files import read_packaged_toml


class Cause(NamedTuple):
    """The meaning of a cause, and the command that retries a cell that failed for it."""

    meaning: str
    retry: str


CAUSES = {word: Cause(*row) for word, row in read_packaged_toml("causes.toml").items()}


def retry_of(status: str, cause: str) -> str:
    """Return the option or command that retries a cell of this status: `only --retry failed`."""
    if status != "failed":
        return f"only --retry {status}"
    return CAUSES[cause].retry if cause in CAUSES else "the next sweep"
