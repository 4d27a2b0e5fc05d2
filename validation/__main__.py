"""Score predictions on published tables: python -m validation TABLE ... (--help says more)."""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from steptime.calibration.evaluate import DRAWS
from steptime.calibration.evaluation import WORST
from steptime.calibration.plan_errors import GROUPS, PlanErrors, errors_of
from steptime.cli.printing import print_answer
from steptime.core.errors import InputError, OutsideError
from steptime.core.progress import print_note
from steptime.core.tables.table import Printout
from steptime.prediction import DEFAULT
from validation import sets
from validation.layouts import layouts, tables_in
from validation.left_out import BESIDE, rows_left_out
from validation.score import predicted

ABOUT = """\
Hold predictions against steps, servings, exchanges and ops that others published.

A table (.csv or .tsv, also .gz) is known by its columns, whatever its name; of a folder all tables
are taken. Errors are printed by source and quantity, then by group, with the rows that are missed
by most, and those that could not be asked, counted by reason."""


def options(arguments: Sequence[str]) -> Namespace:
    """Return the options of a command line."""
    names = "; ".join(sorted(one.name for one in layouts()))
    parser = ArgumentParser(
        "python -m validation",
        description=ABOUT,
        epilog=f"Tables that are known: {names}.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("tables", nargs="*", type=Path, metavar="TABLE", help="a table, or a folder of tables")
    add("--method", default=DEFAULT, metavar="M", help=f"a method (default: {DEFAULT})")
    under = "predict every row under this stack, whatever it says; '': as where nobody names one"
    add("--stack", metavar="NAME", help=under)
    add(
        "--left-out",
        action="store_true",
        help="each row without the constants that its set told, as their `rows` say: of steps its "
        "set is left out, of servings its model and its device, of ops its device; the others of "
        "these tables, and of the stages of the fit, say what they are then",
    )
    add("--data", type=Path, default=BESIDE, help="reference data for --left-out of ops")
    add("--without", metavar="CAMPAIGN", help="score a campaign by the intervals of the others")
    add("--sets", action="store_true", help="print the sets, and how many constants each told")
    add("--by", default="block", metavar="NAMES", help=f"groups, of {', '.join(GROUPS)}")
    add("--worst", type=int, default=WORST, metavar="K", help=f"rows shown (default: {WORST})")
    add(
        "--calibrate-with",
        type=int,
        metavar="N",
        help="calibrate each device and stack with N of its rows; score the others, too",
    )
    add("--draws", type=int, default=DRAWS, metavar="K", help=f"of the N rows (default: {DRAWS})")
    add("--out", type=Path, metavar="FILE", help="a picture: .png, .svg, .pdf or .html")
    add("--json", action="store_true", help="print one JSON document, every row in `cases`")
    return parser.parse_args(arguments)


def answer(given: Namespace) -> Printout:
    """Return how far predictions are off on the tables of a command line."""
    for name, least in (("worst", 0), ("draws", 1), ("calibrate_with", 1)):
        if (value := getattr(given, name)) is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')}: must be at least {least}, not {value}")
    if given.calibrate_with and (given.left_out or given.method != DEFAULT):
        other = "--left-out" if given.left_out else f"--method {given.method}"
        raise InputError(f"--calibrate-with goes with --method {DEFAULT}, not with {other}")
    if given.left_out and given.method != DEFAULT:
        raise InputError(f"--left-out goes with --method {DEFAULT}, not with {given.method}")
    if given.sets:
        return Printout({"owners": sets.census(), "sets": sets.by_set()}, sets.tables(), [])
    tables, unread = tables_in(given.tables)
    if not tables:
        raise InputError(f"{[*unread, *given.tables, 'TABLE'][0]}: no table that is known")
    asked = tables, given.method, given.stack
    rows = rows_left_out(*asked, given.data) if given.left_out else [*predicted(*asked)]
    group_names = [word.strip() for word in given.by.split(",") if word.strip()]
    found = errors_of(
        rows,
        given.method,
        group_names=group_names,
        worst=given.worst,
        points=given.calibrate_with,
        draws=given.draws,
    )
    notes = [f"note: {one}: no table that is known" for one in unread]
    if given.out is not None:
        notes.append(_picture(found, given.method, given.out))
    path = str(given.tables[0]) if len(given.tables) == 1 else ""
    return Printout({"path": path, **found.document}, found.tables(), notes)


def _picture(found: PlanErrors, method: str, out: Path) -> str:
    from steptime.reports.charts.evaluated import chart
    from steptime.reports.files import save

    if not found.times:
        raise InputError("--out: none of these rows says a time")
    save(chart(found.times, method), out)
    return f"picture: {out}"


def main(arguments: Sequence[str]) -> int:
    """Score, print, and return the exit code: 2 for wrong input, 1 for what else fails."""
    given = options(arguments)
    if given.without:
        from validation import intervals

        return intervals.main([str(given.data), "--without", given.without])
    try:
        print_answer(answer(given), "json" if given.json else "text")
    except (InputError, OutsideError) as error:
        print_note(f"validation: {error}")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
