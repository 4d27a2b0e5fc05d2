"""How far predictions are off on published tables, each read by its layout."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from steptime.calibration.cases import Case
from steptime.calibration.evaluate import Scored, score
from steptime.calibration.mapped import cases_of
from steptime.calibration.plan_errors import PlanErrors, PredictedRow, errors_of, predict_rows
from steptime.calibration.plan_rows import Question, Reply
from steptime.core.errors import InputError
from steptime.prediction import cost_model
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method
from steptime.records.readers.mapping import mapping_of
from validation.fitting import (
    aiconfigurator,
    catapult,
    cnn_gpu,
    deepbench,
    neusight,
    neusight_models,
    paradnn,
)
from validation.layouts import Layout, questions

WITHOUT_STACK = ("ops", "cases", "parameters")  # kinds of rows
OF_OPS = WITHOUT_STACK[:2]
READERS: Mapping[str, Callable[[Path, str], Iterable[Case]]] = {  # of tables of `cases`, by set
    "neusight_matmul": neusight.products,
    "neusight_vector": neusight.vectors,
    "neusight_conv": neusight.convolutions,
    "neusight_models": neusight_models.models,
    "aiconfigurator_products": aiconfigurator.products,
    "deepbench_gemm": deepbench.products,
    "deepbench_conv": deepbench.convolutions,
    "deepbench_rnn": deepbench.recurrent,
    "catapult_conv": catapult.convolutions,
    "catapult_dense": catapult.dense,
    "paradnn_pytorch": paradnn.steps,
    "cnn_gpu": cnn_gpu.steps,
}


def evaluate_tables(tables: Mapping[Path, Layout], method: str, **options: Any) -> PlanErrors:
    """Return how far a method is off on published tables; `options` are those of `errors_of`."""
    return errors_of(predicted(tables, method), method, **options)


def predicted(
    tables: Mapping[Path, Layout],
    method: str,
    stack: str | None = None,
    is_drawn: bool = False,
) -> Iterator[PredictedRow]:
    """Yield set and place of each row, and what is predicted of it or why it cannot be asked.

    Where the rows are drawn, one of `Layout.draw` is asked. A `stack` takes the place of that of
    the rows. Raises `InputError` where rows have none.
    """
    for path, layout in tables.items():
        if stack is not None and layout.kind in WITHOUT_STACK:
            raise InputError(f"--stack: {path}: rows of {layout.name} run under none")
        draw = layout.draw if is_drawn else 1
        if layout.kind in OF_OPS:
            yield from _ops(path, layout, method, draw)
        else:
            yield from predict_rows(islice(questions(path, layout, stack), 0, None, draw), method)


def _ops(path: Path, layout: Layout, method: str, draw: int) -> Iterator[PredictedRow]:
    if layout.kind == "ops":
        said = mapping_of({**layout.rows, "words": layout.words}, layout.name)
        cases: Iterable[Case] = cases_of(path, said)
    else:
        cases = READERS[layout.key](path.parent, path.name)
    for one in _scored(islice(cases, 0, None, draw), method):
        label, place = f"{layout.name}, {one.case.kind}", one.case.place or path.name
        texts, measured = {"device": one.case.device.name}, {"seconds": one.case.seconds}
        question = Question(
            label, place, CaseAnswer(one.case), texts, {}, measured, campaign=layout.campaign
        )
        answer = question, op_reply(one.value, one.low, one.high)
        yield label, place, answer if one.value > 0 else InputError("a size is 0")


class CaseAnswer:
    """The answer to the question of a single op, or of a network as a list of ops."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, _: Question, method: str | Method) -> Reply:
        """Return what a method predicts of the case."""
        [one] = _scored([self.case], method)
        return op_reply(one.value, one.low, one.high)


def _scored(cases: Iterable[Case], method: str | Method) -> list[Scored]:
    return score([*cases], cost_model(method))


def op_reply(value: float, low: float | None, high: float | None) -> Reply:
    """Return what is told of an op: `seconds`."""
    return Reply({"seconds": Interval(value, low, high)})
