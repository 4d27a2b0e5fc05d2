"""Print tables of docs/validation.md, or write them: python -m validation.page WHAT [--write].

    python -m validation.page WHAT [DATA] [--write]

    summary    what can be claimed, class by class, and what the constants stand on
    plans      every set, and published steps of language models; as shipped and left out
    unnamed    steps of language models whose stack is taken away: as where nobody names one
    devices    ops and steps of devices, each left out of the fit in turn; then 60 of its rows
               calibrate it, five times
    networks   whole transformers on devices left out of the fit; printed alone
    all        summary, plans, unnamed and devices

DATA is a folder with the data sets of others, ../shared/reference beside the clone if it is not
said. With --write the tables take the place of those in docs/validation.md, each as soon as it is
made. Parts share what they predict: `all` takes less than its parts one by one.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from validation.fitting import devices, networks, plans
from validation.left_out import BESIDE

PAGE = Path(__file__).parents[1] / "docs/validation.md"
score = cache(plans.Score)
PARTS: Mapping[str, Callable[[Path], str]] = {
    "summary": lambda data: plans.summary(score(data)),
    "plans": lambda data: plans.page(score(data)),
    "unnamed": plans.unnamed,
    "devices": devices.page,
}
ALL = "all"


def marks(part: str) -> tuple[str, str]:
    """Return the lines between which a part of the page stands."""
    return (
        f"<!-- python -m validation.page {part} writes from here -->",
        f"<!-- to here, {part} -->",
    )


def written(page: str, part: str, text: str) -> str:
    """Return a page with a part of it written anew."""
    begin, end = marks(part)
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}"


def main(arguments: Sequence[str]) -> int:
    """Print or write what is asked for, and return the exit code."""
    words = [one for one in arguments if one != "--write"]
    what, data = (*words, ALL)[0] if words else "", Path(words[1]) if words[1:] else BESIDE
    if what not in (*PARTS, ALL, "networks"):
        print(__doc__, file=sys.stderr)
        return 2
    if what == "networks":
        networks.table(data, lambda line: print(line, flush=True))
        return 0
    for part in PARTS if what == ALL else (what,):
        text = PARTS[part](data)
        if "--write" in arguments:
            PAGE.write_text(written(PAGE.read_text("utf-8"), part, text), "utf-8")
        else:
            print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
