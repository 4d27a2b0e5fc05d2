"""The command `evaluate`: how far predictions are from what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from steptime.calibration.evaluation import Evaluation
from steptime.cli.picture import drawn, picture
from steptime.core.errors import InputError, shorten
from steptime.core.progress import note
from steptime.core.question import File, Text, argument, flag, option, optional, question, whole
from steptime.core.table import Answer
from steptime.prediction import DEFAULT, cost_model
from steptime.questions.options import price_of, refuse

UNLIKELY = 50  # times longer or shorter than all methods say: more is a wrong unit


@question(long="predicting what was measured")
def evaluate(
    paths: Annotated[
        list[Path],
        argument(
            "DIR|FILE",
            "A folder of records, or a .csv, .tsv, .jsonl or .json (.gz) of cases; or tables of "
            "steps of trainings.",
        ),
    ],
    method: str = option(
        "M", "A method, or FILE.py:NAME, a price (kernel, device) -> seconds.", DEFAULT
    ),
    calibrate_with: int | None = whole(
        "N", "Calibrate each device with N of its cases; score the rest."
    ),
    by: Text = optional(
        "NAMES",
        "Groups: kind, device, family, condition, regime; of trainings model, device, "
        "block, stack, dtype, device_count.",
    ),
    mapping: File = optional("--map --mapping MAP.toml", "What the columns of a table mean."),
    draws: int = whole("K", "With --calibrate-with: draws of the N cases.", 5),
    most: int | None = whole("--rows N", "With --map: score N rows of each kind on each device."),
    worst: int = whole("K", "Show the K cases that are missed by most.", 5, at_least=0),
    strict: bool = flag("Refuse the table at the first row that cannot be asked."),
    out: File = picture("A picture"),
) -> Evaluation | Answer:
    """Hold predictions against what was measured.

    Errors by MAPE, median, 90th percentile, bias (mean ln of predicted / measured) and factor;
    coverage and width of the intervals; beside other methods and published predictions. Python
    also takes rows themselves (mappings, a DataFrame), and a function as method.
    """
    from steptime.calibration import evaluation
    from steptime.calibration.evaluate import by_group
    from steptime.calibration.mapped import cases
    from steptime.calibration.plan_rows import lacking, tables_in
    from steptime.reports.charts.evaluated import chart

    price = price_of(method)
    chosen = price or cost_model(method)
    name = str(getattr(method, "__name__", getattr(method, "name", method)))
    names = [word.strip() for word in by.split(",")] if by else []
    every: Any = paths
    is_typed = isinstance(every, list) and all(isinstance(one, Path) for one in every)
    tables, others = tables_in(paths) if is_typed and not mapping else ([], [])
    if tables:
        refuse(
            {"--rows": most, "--strict": strict},
            "steps of trainings are scored as they are: leave out {}",
        )
        if calibrate_with and name != "calibrated":
            raise InputError("--calibrate-with: steps of trainings calibrate --method calibrated")
        how = {"worst": worst, "points": calibrate_with, "draws": draws}
        answer = _trainings(tables, name, names, how, out)
        read = {"path": str(paths[0]) if len(paths) == 1 else ""}
        unread = [f"note: {one}: no table of steps of trainings" for one in others]
        return replace(answer, document=read | answer.document, notes=[*unread, *answer.notes])
    if is_typed and len(paths) > 1:
        raise InputError(
            f"{len(paths)} paths: {shorten(paths[-1])} is no table of steps of trainings"
        )
    path: Any = paths[0] if is_typed and paths else paths
    by_group([], names)  # refuses unknown groups before anything is read
    if is_typed and paths and not mapping and (said := lacking(path)):
        raise InputError(said)
    unasked: list[tuple[str, str]] | None = None if strict else []
    found = cases(path, mapping, most=most, warn=note, unasked=unasked)
    made = evaluation.evaluate(
        found, chosen, name, calibrate_with, names, draws, worst, unasked or ()
    )
    notes = []
    if unasked:
        both = len(found) + len(unasked)
        notes.append(f"note: {len(unasked):,} of {both:,} rows cannot be asked; --strict refuses")
    if made.compared_cases < len(made.scored):
        count = f"{made.compared_cases:,} of {len(found):,} cases"
        notes.append(f"note: methods are compared on the {count} that all of them predict")
    if out is not None:
        every = [evaluation.case_row(one) for one in made.scored]
        notes.append(drawn(chart(every, name), out))
    least = min(row["factor"] for row in made.rows if "(published)" not in row["method"])
    if least > UNLIKELY:
        notes.append(f"note: all are off by a factor of {least:,.0f} or more: is the unit right?")
    known = {case.device.name: case.device.calibration for case in found}
    for device, told in sorted(known.items()):
        if "source" in told and "measured_points" not in told:
            notes.append(f"note: {device} was calibrated with {told['source']}: they are no check")
    left = len(found) - len(made.scored)
    if left:
        notes.append(f"note: {name} predicts nothing for {left:,} of {len(found):,} cases")
    return replace(made, path=str(path) if is_typed else "", says=tuple(notes))


def _trainings(
    tables: list[Path], method: str, by: list[str], options: Any, out: Path | None
) -> Answer:
    from steptime.calibration.plan_errors import evaluate_tables
    from steptime.reports.charts.evaluated import chart

    if ".py:" in method:
        where = f"--method {shorten(method)}"
        raise InputError(f"{where}: steps of trainings need a method of the house")
    found = evaluate_tables(tables, method, by=by or ("block",), **options)
    notes = [] if out is None else [drawn(chart(found.times, method), out)]
    return Answer(found.document, found.tables(), notes)
