"""Print tables of docs/validation.md, or write them: python -m validation.page WHAT PATH ...

    devices DATA [--write]       ops and steps of devices, each left out of the fit in turn; then 60
                                 of its rows calibrate it, five times
    plans TABLE ... [--write]    published steps of language models; folders of tables, too
    networks DATA                whole transformers on devices left out of the fit

DATA is a folder with the data sets of others. With --write the tables take the place of those in
docs/validation.md.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from validation.fitting import devices, networks, plans


def _networks(arguments: Sequence[str]) -> int:
    networks.table(Path(arguments[0]), lambda line: print(line, flush=True))
    return 0


PAGES: Mapping[str, Callable[[Sequence[str]], int]] = {
    "devices": devices.main,
    "plans": plans.main,
    "networks": _networks,
}


def main(arguments: Sequence[str]) -> int:
    """Print or write what is asked for, and return the exit code."""
    if len(arguments) < 2 or arguments[0] not in PAGES:
        print(__doc__, file=sys.stderr)
        return 2
    return PAGES[arguments[0]](arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
