"""Why a cell has no number: one word each, and what tries the cell again."""

from typing import NamedTuple

from steptime.core.toml_files import packaged


class Cause(NamedTuple):
    """What a word means, and what tries a cell again that failed so."""

    meaning: str
    again: str


CAUSES = {word: Cause(*row) for word, row in packaged("causes.toml").items()}


def again(status: str, cause: str) -> str:
    """Return what tries a cell of this status again, in a few words."""
    if status != "failed":
        return f"only --retry {status}"
    return CAUSES[cause].again if cause in CAUSES else "the next sweep"
