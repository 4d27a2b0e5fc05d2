"""Tables of measured training steps: columns named as the options of `steptime plan`, and `step_s`.

A table is recognised by its columns, never by its name. A row becomes a `Question`: texts
(`model`), numbers (`tensor`), and measured quantities.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, prod
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.json_types import JsonObject
from steptime.core.tables.table_files import table_rows
from steptime.core.values import MAX_COUNT, parse_truth
from steptime.core.workload import FULL_TRAINING, Plan, Tuning
from steptime.hardware import catalog
from steptime.network import families as models
from steptime.planning.answer import compute_mfu, fits
from steptime.planning.assumed_stack import widen_over_stacks
from steptime.planning.faults import check_step
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.site import DEFAULT_PER_NODE, Site, default_site
from steptime.planning.request import Request, make_plan
from steptime.planning.step import PlanTime, time_plan
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method

COLUMNS = (
    *("set", "model", "device", "device_count", "length", "microbatch", "global_batch", "tensor"),
    *("pipeline", "virtual", "recompute", "sequence_parallel", "dtype", "stack", "step_s"),
)
COUNT_COLUMNS = ("device_count", "devices")  # one of them marks a table of trainings
NUMBERS = ("device_count", "length", "microbatch", "global_batch", "tensor", "pipeline", "virtual")
OPTIONAL_NUMBERS = (  # optional columns
    *("context", "expert", "expert_tensor", "data", "zero", "shard", "gradients"),
    *("per_node", "links_per_node", "recompute_layers"),
)
TEXTS = ("model", "device", "dtype", "stack", "recompute")
OPTIONAL_TEXTS = ("inside", "link", "offload")  # optional columns
SPLIT = (
    *("tensor", "context", "expert", "expert_tensor", "data", "pipeline", "virtual"),
    *("zero", "shard", "recompute_layers"),
)
SIZES = ("microbatch", "global_batch", "length", "gradients")
PARTS = ("compute_s", "recompute_s", "exposed_s", "host_s", "bubble_s", "update_s")
DEFAULTS = {"tensor": 1, "pipeline": 1, "virtual": 1, "microbatch": 1, "zero": 0}
MIXED_DTYPES = {"bfloat16": "bfloat16-mixed", "float16": "float16-mixed"}  # meant by trainings
ZERO_COLUMNS = ("zero", "shard", "recompute_layers")  # whole numbers from 0, others from 1
SET_NAME = "steps"  # of rows without a set
MAX_MISSING_SHARE = 0.25  # of the columns of a table that is still a table of steps


@dataclass(frozen=True)
class Reply:
    """The prediction for a row.

    Attributes:
        values: the predicted quantities by name.
        device_count: the number of devices.
        stack: the software, "" for none.
        fits: whether the plan fits into memory, None if unknown.
        parts: seconds of the parts of the step.
        form: the name of the interval of its times.
    """

    values: Mapping[str, Interval]
    device_count: int = 1
    stack: str = ""
    fits: bool | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    form: str = "serve"


@dataclass(frozen=True)
class Question:
    """A row of a table: a setting and its measured quantities.

    Attributes:
        set: the set of rows that it belongs to.
        place: file and line.
        answer: predicts the row by a method.
        texts: texts by column.
        numbers: numbers by column, None for an empty cell.
        measured: measured quantities by name.
        ran: whether it ran, rather than run out of memory.
        campaign: the repository and who measured, "" if unknown.
    """

    set: str
    place: str
    answer: Callable[["Question", str | Method], Reply]
    texts: Mapping[str, str]
    numbers: Mapping[str, Any]
    measured: Mapping[str, float]
    ran: bool = True
    campaign: str = ""

    def reply(self, method: str | Method) -> Reply:
        """Predict the row by a method.

        Raises:
            InputError: if the method cannot predict the row.
        """
        return self.answer(self, method)


def columns_of(path: Path) -> set[str]:
    """Return the columns of a CSV or TSV file; of another file none."""
    is_table = path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
    if not is_table:
        return set()
    _, first_row = next(table_rows(path), (0, {}))
    return set(first_row)


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return the files among the paths, and the tables of the folders."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob("*.[ct]sv*")) if path.is_dir() else [path]
    return files


def tables_in(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the tables of steps among files and in folders, and all other files."""
    files = files_in(paths)
    tables = [file for file in files if columns_of(file).issuperset(COLUMNS)]
    return tables, [file for file in files if file not in tables]


def describe_missing_columns(path: Path) -> str | None:
    """Return a message on the columns that a table of steps lacks, None for another table.

    It is a table of steps if it has most of the columns, or a number of devices.
    """
    columns = columns_of(path)
    missing = [name for name in COLUMNS if name not in columns]
    if len(missing) <= MAX_MISSING_SHARE * len(COLUMNS):
        return f"{path.name}: columns of {SET_NAME}, without {', '.join(missing)}"
    if columns.isdisjoint(COUNT_COLUMNS) or "seconds" in columns:  # no table of trainings
        return None
    hint = "no column 'seconds'; --map MAP.toml says what columns mean"
    return f"{path.name}: {hint}. As a table of trainings it lacks {', '.join(missing)}"


def read_questions(path: Path) -> Iterator[tuple[str, str, Question | InputError]]:
    """Yield set and place of each row, and its question or the reason why it has none."""
    for line, row in table_rows(path):
        place = f"{path.name}:{line}"
        set_name = str(row["set"]) or SET_NAME
        try:
            yield set_name, place, _make_question(row, set_name, place)
        except InputError as error:
            yield set_name, place, error


def _make_question(row: Mapping[str, Any], set_name: str, place: str) -> Question:
    """Return the question of a row; raises `InputError` for an unknown model or a bad cell."""
    texts = {name: str(row[name]).strip() for name in (*TEXTS, *OPTIONAL_TEXTS) if name in row}
    texts["model"] = resolve_model(texts["model"])
    texts["device"] = catalog.device(texts["device"]).name
    cells = {name: row.get(name) for name in (*NUMBERS, *OPTIONAL_NUMBERS)}
    empty_columns = [name for name, cell in cells.items() if not cell]
    defaults = {name: DEFAULTS[name] for name in empty_columns if name in DEFAULTS}
    numbers = {**cells, **defaults}
    numbers["sequence"] = parse_truth(row["sequence_parallel"], "sequence_parallel")
    step_s = row["step_s"]
    is_time = isinstance(step_s, int | float) and 0 < step_s < inf
    if not is_time:
        raise InputError("step_s is no positive number")
    return Question(
        set=set_name,
        place=place,
        answer=predict_step,
        texts=texts,
        numbers=numbers,
        measured={"step_s": float(step_s)},
    )


def resolve_model(text: str) -> str:
    """Return the model of a usual name (`LLAMA3.1-405B`), or a text with hyperparameters."""
    if ":" in text:  # a text with hyperparameters, which is read later
        return text
    name = models.find_network_name(text.partition("(")[0].strip())
    if name not in models.list_names():
        raise InputError(f"no model is named {shorten(text)}")
    return name


def row_of(question: Question, reply: Reply, quantity: str) -> JsonObject:
    """Return a measured quantity of a row, in SI units, with its prediction.

    `fits` says whether the prediction of memory is right, `block` in what the row differs from
    those that its stack was fitted on.
    """
    measured = question.measured[quantity]
    prediction = reply.values[quantity]
    return {
        "set": question.set,
        "place": question.place,
        **{name: question.texts.get(name) for name in ("model", "device", "dtype")},
        "stack": reply.stack or None,
        "device_count": reply.device_count,
        "block": _block_of(question, reply),
        "quantity": quantity,
        "measured": measured,
        "predicted": prediction.value,
        "low": prediction.low,
        "high": prediction.high,
        "ratio": prediction.value / measured,
        "fits": None if reply.fits is None else reply.fits == question.ran,
        "parts": dict(reply.parts),
    }


def _block_of(question: Question, reply: Reply) -> str | None:
    """Return in what a row differs from those that its stack was fitted on: "unseen model"."""
    if not reply.stack:  # a method without stacks
        return None
    fitted_rows = catalog.stack(reply.stack).fitted_on
    if not fitted_rows:
        return "not said"
    for name in ("model", "device"):
        if name in question.texts and question.texts[name] not in fitted_rows.get(f"{name}s", ()):
            return f"unseen {name}"
    max_devices = fitted_rows.get("most_devices", reply.device_count)
    return "larger scale" if reply.device_count > max_devices else "seen"


def predict_step(question: Question, method: str | Method) -> Reply:
    """Predict the step of a training plan: `step_s`, `memory_bytes`, `mfu`, `device_w`."""
    problem, plan = prepare_plan(question, method)
    return reply_of(question, problem, time_plan(problem, plan))


def prepare_plan(
    question: Question, method: str | Method, tuning: Tuning | None = None
) -> tuple[PlanProblem, PlanStep]:
    """Return the problem of a row and its checked plan.

    `data` follows from `device_count`. Empty cells have the defaults of `steptime plan`. A type of
    16 bit means mixed precision, except for fine-tuning.

    Args:
        question: the row.
        method: the method of prediction.
        tuning: the fine-tuning, None for full training.

    Raises:
        InputError: if the devices of a replica do not divide all devices, or the plan is invalid.
    """
    texts = question.texts
    sizes = _integers_of(question, SIZES)
    device_count = integer_of(question, "device_count")
    plan = _plan_of(question, device_count)
    # Whole trainings in a type of 16 bit mean the mixed one; a fine-tuning means its own type.
    dtype = texts["dtype"] if tuning else MIXED_DTYPES.get(texts["dtype"], texts["dtype"])
    stack = texts["stack"]
    split = {field: value for field, value in vars(plan).items() if field != "microbatches"}
    problem = problem_of(
        texts["model"],
        site_of(question),
        dtype,
        stack,
        device_count,
        method,
        length=sizes.get("length"),
        gradients=sizes.get("gradients"),
        split=() if stack else tuple(split.items()),  # which decides the usual stack
        tuning=tuning or FULL_TRAINING,
    )
    microbatch = sizes.get("microbatch", 1)
    global_batch = sizes.get("global_batch", microbatch * plan.data)
    return problem, check_step(problem.shape, PlanStep(plan, microbatch, global_batch))


def _plan_of(question: Question, device_count: int) -> Plan:
    """Return the parallel plan of a row; data parallelism follows from the number of devices."""
    split = _integers_of(question, SPLIT)
    if "data" not in split:
        replica_axes = ("tensor", "context", "pipeline")
        replica_devices = prod(split.get(name, 1) for name in replica_axes)
        if device_count % replica_devices:
            raise InputError(f"{replica_devices} devices of a replica do not divide {device_count}")
        split["data"] = device_count // replica_devices
    asks_for_sequence = bool(question.numbers.get("sequence"))
    has_sequence_parallel = asks_for_sequence and split.get("tensor", 1) > 1
    words = {name: question.texts.get(name) or "none" for name in ("recompute", "offload")}
    return make_plan({**split, **words, "sequence": has_sequence_parallel})


def _integers_of(question: Question, names: Iterable[str]) -> dict[str, int]:
    """Return the whole numbers of the columns that are not empty."""
    return {
        name: integer_of(question, name)
        for name in names
        if question.numbers.get(name) not in (None, "")
    }


def reply_of(question: Question, problem: PlanProblem, priced: PlanTime) -> Reply:
    """Return the prediction of a row from its priced plan.

    If the row names no stack, the interval of the step covers every stack of its time. Power is
    left out where no energy is known.
    """
    device_count = integer_of(question, "device_count")
    step, _ = widen_over_stacks(problem, priced)
    values = {
        "step_s": Interval(step.step_s, step.low_s, step.high_s),
        "memory_bytes": Interval(step.peak_memory.total),
        "mfu": Interval(compute_mfu(problem, step)["full"] or 0.0),
    }
    if step.energy_j is not None:
        values["device_w"] = Interval(step.energy_j / step.step_s / device_count)
    return Reply(
        values,
        device_count,
        problem.method.settings.stack,
        fits(problem, step),
        parts={name: getattr(step, name) for name in PARTS},
        form="experts" if problem.shape.experts else "plan",
    )


@lru_cache(maxsize=512)
def problem_of(
    model: str,
    site: Site,
    dtype: str,
    stack: str,
    device_count: int,
    method: str | Method,
    length: int | None = None,
    gradients: int | None = None,
    split: tuple[tuple[str, Any], ...] = (),
    tuning: Tuning = FULL_TRAINING,
) -> PlanProblem:
    """Return the problem of a model on devices.

    Args:
        model: the network.
        site: the devices and how they are joined.
        dtype: the type, "" for the usual one.
        stack: the software, "" for the usual one of such a `split`.
        device_count: the number of devices.
        method: the method of prediction.
        length: tokens of a sequence, None for the model's.
        gradients: bytes of a gradient, None for the stack's.
        split: fields of the plan, as items.
        tuning: the fine-tuning, or full training.
    """
    request = Request(
        model,
        site,
        length=length,
        gradients=gradients,
        dtype=dtype or None,
        stack=stack or None,
        method=method,
        split=dict(split),
        tuning=tuning,
    )
    return request.make_problem(read_language_model(model, length), device_count)


def site_of(question: Question) -> Site:
    """Return the site of a row: as the row says, else as devices of its kind are usually joined."""
    texts = question.texts
    device = texts["device"]
    defaults = default_site(device)
    per_node = defaults.get("per_node", DEFAULT_PER_NODE)
    links_per_node = defaults.get("links_per_node")
    if question.numbers.get("per_node"):
        per_node = integer_of(question, "per_node")
    if question.numbers.get("links_per_node"):
        links_per_node = integer_of(question, "links_per_node")
    inside = texts.get("inside") or defaults.get("inside")
    link = texts.get("link") or defaults.get("link")
    host_link = defaults.get("host_link")
    return Site(device, per_node, inside, link, links_per_node, host_link=host_link)


def integer_of(question: Question, name: str) -> int:
    """Return a whole number of a row.

    Raises:
        InputError: if the cell holds no whole number, or one out of range.
    """
    value = question.numbers[name]
    minimum = 0 if name in ZERO_COLUMNS else 1
    if not isinstance(value, int | float) or not minimum <= value <= MAX_COUNT or value % 1:
        raise InputError(f"{name} is a whole number of at least {minimum}, not {value!r}")
    return int(value)
