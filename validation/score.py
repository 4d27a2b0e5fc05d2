"""How far predictions are off on published tables, each read by its layout."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from steptime.calibration.cases import Case
from steptime.calibration.evaluate import Scored, score
from steptime.calibration.mapping import cases_of, mapping
from steptime.calibration.plan_errors import PlanErrors, Predicted, errors_of, replies
from steptime.calibration.plan_rows import Question, Reply
from steptime.core.errors import InputError
from steptime.prediction import cost_model
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method
from validation.layouts import Layout, questions

WITHOUT_STACK = ("ops", "parameters")  # kinds of rows


def evaluate_tables(tables: Mapping[Path, Layout], method: str, **options: Any) -> PlanErrors:
    """Return how far a method is off on published tables; `options` are those of `errors_of`."""
    return errors_of(predicted(tables, method), method, **options)


def predicted(
    tables: Mapping[Path, Layout], method: str, stack: str | None = None
) -> Iterator[Predicted]:
    """Yield set and place of each row, and what is predicted of it or why it cannot be asked.

    A `stack` takes the place of that of the rows. Raises `InputError` where rows have none.
    """
    for path, layout in tables.items():
        if stack is not None and layout.kind in WITHOUT_STACK:
            raise InputError(f"--stack: {path}: rows of {layout.name} run under none")
        if layout.kind == "ops":
            yield from _ops(path, layout, method)
        else:
            yield from replies(questions(path, layout, stack), method)


def _ops(path: Path, layout: Layout, method: str) -> Iterator[Predicted]:
    said = mapping({**layout.rows, "words": layout.words}, layout.name)
    for one in _scored(cases_of(path, said), method):
        label, place = f"{layout.name}, {one.case.kind}", one.case.place
        texts, measured = {"device": one.case.device.name}, {"seconds": one.case.seconds}
        question = Question(label, place, _Op(one.case), texts, {}, measured)
        yield label, place, (question, _reply(one)) if one.value > 0 else InputError("a size is 0")


class _Op:
    """The answer to the question of a single op."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, _: Question, method: str | Method) -> Reply:
        return _reply(_scored([self.case], method)[0])


def _scored(cases: Iterable[Case], method: str | Method) -> list[Scored]:
    return score([*cases], cost_model(method))


def _reply(one: Scored) -> Reply:
    return Reply({"seconds": Interval(one.value, one.low, one.high)})
