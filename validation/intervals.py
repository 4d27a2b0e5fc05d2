"""Write `data/intervals.toml` and the page of results: python -m validation.intervals [DATA].

    python -m validation.intervals [DATA] [--write] [--shipped] [--without CAMPAIGN]
                                   [--residuals FILE]

Reads the tables of DATA (../shared/reference beside the clone), fits the widths of intervals to
campaigns and leaves each campaign out in turn. With --write it renews the data file of the package
and the tables of docs/validation.md; without, it prints them. --without CAMPAIGN prints how the
widths of all other campaigns hold the rows of one. --shipped takes rows that told constants as
they are predicted, which is quick; without it their sets are left out of the constants. Residuals
are read from FILE where it is, and kept there where it is not.
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from steptime.core.toml_files import DATA, toml_text
from steptime.prediction import conformal as shipped
from validation.campaign_tables import campaign_table, page_text, readme_table
from validation.conformal import (
    ASSUMED,
    Widths,
    fit_widths,
    leave_each_out,
    leave_out,
    measured_devices,
)
from validation.left_out import BESIDE
from validation.page import PAGE
from validation.residuals import Residual, collect_residuals

BEGIN = "<!-- python -m validation.intervals writes from here -->"
END = "<!-- to here, campaigns -->"
README = PAGE.parents[1] / "README.md"
PLACES = 3  # of a number in the file
COMMAND = "python -m validation.intervals ../shared/reference --write"
ABOUT = "How far 80 % of measurements lie from predictions, in ln; made by a script: do not edit."


def read_options(arguments: Sequence[str]) -> Namespace:
    """Return the options of a command line."""
    parser = ArgumentParser("python -m validation.intervals", description=__doc__)
    add = parser.add_argument
    add("data", nargs="?", type=Path, default=BESIDE, help="a folder of reference data")
    add("--write", action="store_true", help="renew the data file and the page")
    add("--shipped", action="store_true", help="do not leave sets out of the constants")
    add("--without", metavar="CAMPAIGN", help="score one campaign by the widths of the others")
    add("--residuals", type=Path, metavar="FILE", help="where residuals are kept (JSON)")
    return parser.parse_args(arguments)


def load_residuals(options: Namespace) -> list[Residual]:
    """Return the residuals of a file, or those of the tables, which are kept there."""
    path: Path | None = options.residuals
    if path is not None and path.exists():
        return [Residual(*row) for row in json.loads(path.read_text("utf-8"))]
    residuals = collect_residuals(options.data, is_left_out=not options.shipped)
    if path is not None:
        path.write_text(json.dumps(residuals), "utf-8")
    return residuals


def format_file(widths: Widths, residuals: Sequence[Residual], date: str) -> str:
    """Return the text of `data/intervals.toml`."""
    kinds: dict[str, dict[str, Any]] = {}
    for kind in shipped.KINDS:
        own = [one for one in residuals if one.kind == kind]
        ends = widths.ends[kind]
        kinds[kind] = {
            "below": round(ends.below, PLACES),
            "above": round(ends.above, PLACES),
            "rows": len(own),
            "campaigns": sorted({one.campaign for one in own}),
            "is_pooled": kind in widths.pooled,
        }
        if kind in shipped.SCALED:
            half_widths = [(one.below + one.above) / 2 for one in own]
            kinds[kind]["half_width"] = round(median(half_widths), PLACES)
    document = {
        "source": COMMAND,
        "date": date,
        "devices": measured_devices(residuals),
        "scales": {
            "family": round(widths.scales["family"], PLACES),
            "unmeasured": round(widths.scales["neither"], PLACES),
            "assumed_software": round(widths.scales[ASSUMED], PLACES),
        },
        "close_memory": {
            "below": round(widths.close.below, PLACES),
            "above": round(widths.close.above, PLACES),
        },
        "kinds": kinds,
    }
    return f"# {ABOUT}\n\n{toml_text(document)}"


def write_part(page: str, text: str) -> str:
    """Return a page with the text between its marks renewed."""
    before, _, after = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n\n{END}{after.partition(END)[2]}"


def main(arguments: Sequence[str]) -> int:
    """Fit, print or write, and return the exit code: 2 for an unknown campaign."""
    options = read_options(arguments)
    residuals = load_residuals(options)
    if options.without:
        held = leave_out(residuals, options.without)
        if not held:
            names = ", ".join(sorted({one.campaign for one in residuals}))
            print(f"--without: no campaign {options.without!r}; there are {names}", file=sys.stderr)
            return 2
        print(campaign_table(held))
        return 0
    widths = fit_widths(residuals, measured_devices(residuals))
    text = format_file(widths, residuals, f"{datetime.now(UTC):%Y-%m-%d}")
    held = leave_each_out(residuals)
    page = page_text(held, widths, is_left_out=not options.shipped)
    if options.write:
        (DATA / shipped.FILE).write_text(text, "utf-8")
        for path, part in ((PAGE, page), (README, readme_table(held))):
            path.write_text(write_part(path.read_text("utf-8"), part), "utf-8")
    else:
        print(text, page, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
