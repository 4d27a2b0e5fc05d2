"""How far predictions are off on rows of others: one `Residual` a row and quantity.

Rows that told constants are predicted without what their set told (`left_out.py`); rows of blind
tables told none. Nothing of the rows is kept but their residuals.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

from steptime.calibration.plan_errors import predict_rows
from steptime.calibration.plan_rows import Question, Reply
from steptime.core.errors import InputError
from steptime.core.toml_files import read_packaged_toml
from steptime.hardware import catalog
from steptime.prediction.conformal import (
    COLLECTIVES,
    DEVICE_STEPS,
    FILE,
    FINE_TUNINGS,
    FIRST_TOKENS,
    KERNELS,
    LOW_KERNELS,
    MEMORY,
    MIXTURE_SERVINGS,
    MIXTURE_TRAININGS,
    POWER,
    SCALED,
    SERVINGS,
    TRAININGS,
)
from validation.blind.kernels import read_products
from validation.blind.tables import ADDED, TABLES
from validation.fitting.plans import files
from validation.layouts import tables_in
from validation.left_out import answered, labelled, left_out
from validation.score import CaseAnswer
from validation.ways import Row

METHOD = "calibrated"
FINE_TUNING_TABLE = Path(__file__).parents[1] / "docs/examples/fine-tuning.csv"
BLIND_FILES = ("aic_serving_third.csv",)  # of tables that have fitted files, too
UNLEFT = ("aiconfigurator",)  # servings: leaving out takes minutes, and changes the median by 0.8 %
RATES = ("mfu", "tokens_per_s_per_device")  # quantities that fall where the time grows
MEMORY_OF = ("memory_bytes", "allocated_bytes")
FIRST = ("ttft_s", "prefill_s", "burst_s")  # what waits for prompts
LOADS = frozenset(("concurrency", "rate", "requests"))  # numbers of servers where requests queue
LATER = ("tpot_s", "request_s", "tokens_per_s_per_device")
UNNAMED = "trainings, software assumed"
BY_QUANTITY = {
    "exchange_s": COLLECTIVES,
    "device_w": POWER,
    **dict.fromkeys(MEMORY_OF, MEMORY),
    **dict.fromkeys(FIRST, FIRST_TOKENS),
}


class Residual(NamedTuple):
    """How far a quantity of a row is off.

    Attributes:
        kind: kind of work.
        campaign: repository and who measured.
        group: network and device, whose rows are alike.
        place: where the row stands.
        quantity: what was measured.
        off: ln(measured / predicted), of a rate ln(predicted / measured).
        below: how far the present interval reaches below the prediction, in ln; 0 without one. Of
            kernels it is their half-width, without the factor of the shipped file.
        above: how far it reaches above.
        device: the device's name.
        added: the month in which rows came that told no constant; "" for rows that did.
    """

    kind: str
    campaign: str
    group: str
    place: str
    quantity: str
    off: float
    below: float
    above: float
    device: str
    added: str

    @property
    def is_blind(self) -> bool:
        """Whether the row told no constant."""
        return bool(self.added)


def collect_residuals(data: Path, is_left_out: bool = True) -> list[Residual]:
    """Return the residuals of all tables, fitted ones left out."""
    return [*read_blind(data), *read_fitted(data, is_left_out), *read_unnamed(data)]


def read_fitted(data: Path, is_left_out: bool) -> Iterator[Residual]:
    """Yield residuals of the tables that tell constants."""
    tables = tables_in([*files(data), FINE_TUNING_TABLE])[0]
    for is_left in (True, False):
        part = {
            path: layout for path, layout in tables.items() if (layout.key in UNLEFT) != is_left
        }
        rows = answered(labelled(part, METHOD, is_drawn=True))
        after = left_out(rows, METHOD, data) if is_left and is_left_out else rows
        for row in after:
            added = ADDED if row.question.place.startswith(BLIND_FILES) else ""
            yield from residuals_of(row, added)


def read_unnamed(data: Path) -> Iterator[Residual]:
    """Yield residuals of steps of trainings whose stack nobody names."""
    tables = tables_in(files(data))[0]
    steps = {path: layout for path, layout in tables.items() if layout.kind == "step"}
    for row in answered(labelled(steps, METHOD, "", is_drawn=True)):
        for residual in residuals_of(row, ""):
            if residual.kind == TRAININGS:
                yield residual._replace(kind=UNNAMED)


def read_blind(data: Path) -> Iterator[Residual]:
    """Yield residuals of the blind tables."""
    for table in TABLES:
        for row in _answer(predict_rows(table.read(data), METHOD)):
            for residual in residuals_of(row, table.added):
                is_fitted = table.is_fitted(residual.quantity, residual.device)
                yield residual._replace(added="") if is_fitted else residual
    for row in read_products(data, METHOD):
        yield from residuals_of(row, ADDED)


def _answer(rows: Iterable[tuple[str, str, tuple[Question, Reply] | InputError]]) -> Iterator[Row]:
    for _, _, answer in rows:
        if not isinstance(answer, InputError):
            yield Row("blind", *answer)


def residuals_of(row: Row, added: str) -> Iterator[Residual]:
    """Yield the residuals of the quantities of a row that are predicted."""
    question, reply = row.question, row.reply
    device = question.texts.get("device", "")
    network = question.texts.get("model") or question.set
    for quantity, measured in question.measured.items():
        interval = reply.values.get(quantity)
        kind = kind_of(row, quantity)
        if interval is None or not interval.value > 0 or not kind:
            continue
        sign = -1 if quantity in RATES else 1
        ends = [log(end / interval.value) if end else 0.0 for end in (interval.low, interval.high)]
        below, above = (-ends[0], ends[1]) if sign > 0 else (ends[1], -ends[0])
        if kind in SCALED:
            shipped = read_packaged_toml(FILE)["kinds"][kind]
            below, above = below / shipped["below"], above / shipped["above"]
        yield Residual(
            kind,
            question.campaign or question.set,
            f"{network} {device}",
            question.place,
            quantity,
            sign * log(measured / interval.value),
            below,
            above,
            device,
            added,
        )


def kind_of(row: Row, quantity: str) -> str:
    """Return the kind of work of a quantity, "" for one that no interval is of."""
    answer, form = row.question.answer, row.reply.form
    question_numbers = row.question.numbers
    if isinstance(answer, CaseAnswer):
        if not answer.case.is_single_op:
            return DEVICE_STEPS
        return LOW_KERNELS if answer.case.has_low_operands else KERNELS
    is_prefill = quantity in FIRST and not LOADS & question_numbers.keys()
    if quantity in BY_QUANTITY and not is_prefill:
        return BY_QUANTITY[quantity]
    if quantity in LATER or is_prefill:
        return MIXTURE_SERVINGS if form.endswith("experts") else SERVINGS
    if quantity == "seconds":
        return DEVICE_STEPS
    if quantity not in ("step_s", "mfu"):
        return ""
    if getattr(answer, "__name__", "") == "fine_tuning":
        return FINE_TUNINGS
    return MIXTURE_TRAININGS if form == "experts" else TRAININGS


@lru_cache(maxsize=4096)
def device_class(device: str, measured: frozenset[str]) -> str:
    """Return whether a device was measured, one of its architecture was, or neither."""
    if device in measured:
        return "measured"
    architectures = {_architecture(name) for name in measured}
    return "family" if _architecture(device) in architectures else "neither"


@lru_cache(maxsize=1024)
def _architecture(device: str) -> str | None:
    return catalog.device(device).datasheet.architecture
