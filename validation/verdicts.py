"""How often `fit` says yes, no or too close to call of runs whose end is known.

python -m validation.verdicts [DATA]
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from steptime.calibration.plan_errors import predict_rows
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.prediction.conformal import TOO_CLOSE, judge_memory
from validation.blind import trainings
from validation.blind.tables import TABLES
from validation.fitting.plans import files, table
from validation.layouts import tables_in
from validation.left_out import BESIDE, answered, labelled
from validation.residuals import FINE_TUNING_TABLE, METHOD
from validation.ways import Row

NEEDED = ("needed_bytes", "memory_bytes")  # the first that is predicted
KINDS = ("step", "fine_tuning", "tune", "tune_peak")  # answers that say how much memory is needed
VERDICTS = ("yes", TOO_CLOSE, "no")
METERS = ("allocated", "active")  # that leave out what a process holds beside its tensors


def read_rows(data: Path) -> Iterator[tuple[Row, bool]]:
    """Yield rows of which it is known whether they ran, and whether they told no constant."""
    tables = tables_in([*files(data), FINE_TUNING_TABLE])[0]
    steps = {
        path: layout
        for path, layout in tables.items()
        if layout.kind not in ("ops", "cases", "serve", "exchange", "parameters")
    }
    for row in answered(labelled(steps, METHOD, is_drawn=True)):
        yield row, False
    for blind in TABLES:
        if blind.reader.__module__ != trainings.__name__:
            continue
        for _, _, answer in predict_rows(blind.read(data), METHOD):
            if not isinstance(answer, InputError):
                yield Row("blind", *answer), True


def count_verdicts(data: Path) -> dict[tuple[str, bool], Counter[str]]:
    """Return the verdicts on rows, by whether they were blind and whether they ran."""
    counts: dict[tuple[str, bool], Counter[str]] = {}
    for row, is_blind in read_rows(data):
        if getattr(row.question.answer, "__name__", "") not in KINDS:
            continue
        verdict = judge_row(row)
        if verdict:
            name = "blind" if is_blind else "fitted"
            counts.setdefault((name, row.question.ran), Counter())[verdict] += 1
    return counts


def judge_row(row: Row) -> str:
    """Return the verdict on a row, "" where the memory is not predicted as a process needs it."""
    device = catalog.device(row.question.texts["device"])
    name = next((one for one in NEEDED if one in row.reply.values), "")
    is_part = name == "memory_bytes" and row.question.texts.get("meter") in METERS
    if not name or is_part or device.datasheet.usable_bytes is None:
        return ""
    needed_bytes = row.reply.values[name].value
    return judge_memory(needed_bytes, device.datasheet.usable_bytes, device).verdict


def verdict_table(data: Path) -> str:
    """Return a table of the verdicts."""
    rows = []
    for (name, has_run), counts in sorted(count_verdicts(data).items()):
        end = "ran" if has_run else "out of memory"
        rows.append([name, end, *(str(counts[verdict]) for verdict in VERDICTS)])
    return table(("rows", "what happened", *VERDICTS), rows)


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    print(verdict_table(Path(arguments[0]) if arguments else BESIDE))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
