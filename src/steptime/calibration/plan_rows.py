"""Tables of steps of trainings: columns named as the options of `steptime plan`, and `step_s`.

A table is known by its columns, never by its name. A row becomes a `Question`: texts (`model`),
numbers (`tensor`), and what was measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.table_files import table_rows
from steptime.core.values import MAX_COUNT, parse_truth
from steptime.core.workload import FULL_TRAINING, Tuning
from steptime.hardware import catalog
from steptime.network import families as models
from steptime.planning.answer import fits, mfu
from steptime.planning.faults import Asked, checked
from steptime.planning.meant import meant
from steptime.planning.planner import Planner
from steptime.planning.request import Request, Site, shape_of, split_of, usual_site
from steptime.planning.step import PlanTime, plan_time
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method

COLUMNS = (
    "set", "model", "device", "device_count", "length", "microbatch", "global_batch", "tensor",
    "pipeline", "virtual", "recompute", "sequence_parallel", "dtype", "stack", "step_s",
)  # fmt: skip
COUNT_COLUMNS = ("device_count", "devices")  # by which a table of trainings is known
NUMBERS = ("device_count", "length", "microbatch", "global_batch", "tensor", "pipeline", "virtual")
MORE_NUMBERS = (  # that a table may have, too
    "context", "expert", "expert_tensor", "data", "zero", "shard", "gradients", "per_node",
    "links_per_node",
)  # fmt: skip
TEXTS, MORE_TEXTS = ("model", "device", "dtype", "stack", "recompute"), ("inside", "link")
SPLIT = (
    "tensor", "context", "expert", "expert_tensor", "data", "pipeline", "virtual", "zero", "shard",
)  # fmt: skip
SIZES = ("microbatch", "global_batch", "length", "gradients")
PARTS = ("compute_s", "recompute_s", "exposed_s", "host_s", "bubble_s", "update_s")
MIXED = {
    name: f"{name}-mixed" for name in ("bfloat16", "float16")
}  # as tables of trainings mean it
NAME = "steps"


@dataclass(frozen=True)
class Reply:
    """What is predicted for a row: quantities by name, whether it fits, what time is made of.

    `form` names the interval of its times.
    """

    values: Mapping[str, Interval]
    device_count: int = 1
    stack: str = ""
    fits: bool | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    form: str = "serve"


@dataclass(frozen=True)
class Question:
    """A row, as it is asked: texts, numbers, what was measured by quantity, whether it ran.

    `answer` predicts it by a method; `campaign` is the repository and who measured, where a table
    says it.
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
        """Return what a method predicts for the row; raises `InputError`."""
        return self.answer(self, method)


def columns_of(path: Path) -> set[str]:
    """Return the columns of a file of cells; of another file none."""
    is_table = path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
    return {*next(table_rows(path), (0, {}))[1]} if is_table else set()


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return files, and the tables of folders."""
    inside = (sorted(path.glob("*.[ct]sv*")) if path.is_dir() else [path] for path in paths)
    return [*chain.from_iterable(inside)]


def tables_in(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return which files, and which of folders, are tables of steps, and which are not."""
    files = files_in(paths)
    tables = [file for file in files if columns_of(file).issuperset(COLUMNS)]
    return tables, [file for file in files if file not in tables]


def lacking(path: Path) -> str | None:
    """Return what a table lacks that has most columns, or is of several devices; else None."""
    columns = columns_of(path)
    left = [name for name in COLUMNS if name not in columns]
    if len(left) <= len(COLUMNS) / 4:
        return f"{path.name}: columns of {NAME}, without {', '.join(left)}"
    if columns.isdisjoint(COUNT_COLUMNS) or "seconds" in columns:
        return None
    words = "no column 'seconds'; --map MAP.toml says what columns mean. As a table of trainings"
    return f"{path.name}: {words} it lacks {', '.join(left)}"


def questions(path: Path) -> Iterator[tuple[str, str, Question | InputError]]:
    """Yield set and place of each row, and what it asks or why it cannot be asked."""
    for line, row in table_rows(path):
        place = f"{path.name}:{line}"
        label = str(row["set"]) or NAME
        try:
            yield label, place, _question(row, label, place)
        except InputError as error:
            yield label, place, error


def _question(row: Mapping[str, Any], label: str, place: str) -> Question:
    words = {name: str(row[name]).strip() for name in (*TEXTS, *MORE_TEXTS) if name in row}
    texts = {**words, "model": model_named(words["model"])}
    texts["device"] = catalog.device(texts["device"]).name
    usual = {"tensor": 1, "pipeline": 1, "virtual": 1, "microbatch": 1, "zero": 0}
    given = {name: row.get(name) for name in (*NUMBERS, *MORE_NUMBERS)}
    numbers = {name: one or usual.get(name, one) for name, one in given.items()}
    numbers["sequence"] = parse_truth(row["sequence_parallel"], "sequence_parallel")
    seconds = row["step_s"]
    if not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise InputError("no step_s is told")
    return Question(label, place, step, texts, numbers, {"step_s": float(seconds)})


def model_named(text: str) -> str:
    """Return the network that people call so (`LLAMA3.1-405B`), or a text with hyperparameters."""
    if ":" in text:
        return text
    name = models.named(text.partition("(")[0].strip())
    if name not in models.names():
        raise InputError(f"no model is named {shorten(text)}")
    return name


def row_of(question: Question, reply: Reply, quantity: str) -> dict[str, Any]:
    """Return a quantity of a row, in SI, beside what is predicted of it.

    `fits` says whether that is rightly said, `block` what its stack has not seen.
    """
    measured, found = question.measured[quantity], reply.values[quantity]
    return {
        "set": question.set,
        "place": question.place,
        **{name: question.texts.get(name) for name in ("model", "device", "dtype")},
        "stack": reply.stack or None,
        "device_count": reply.device_count,
        "block": _block(question, reply),
        "quantity": quantity,
        "measured": measured,
        "predicted": found.value,
        "low": found.low,
        "high": found.high,
        "ratio": found.value / measured,
        "fits": None if reply.fits is None else reply.fits == question.ran,
        "parts": dict(reply.parts),
    }


def _block(question: Question, reply: Reply) -> str | None:
    """Return what of a row the constants of its stack were not fitted on."""
    seen = catalog.stack(reply.stack).fitted_on if reply.stack else None
    if not seen:
        return None if seen is None else "not said"
    for name in ("model", "device"):
        if name in question.texts and question.texts[name] not in seen.get(f"{name}s", ()):
            return f"unseen {name}"
    return (
        "larger scale"
        if reply.device_count > seen.get("most_devices", reply.device_count)
        else "seen"
    )


def step(question: Question, method: str | Method) -> Reply:
    """Return the step of a training plan: `step_s`, `memory_bytes`, `mfu`, `device_w`."""
    planner, sound = planned(question, method)
    return step_reply(question, planner, plan_time(planner, sound))


def planned(
    question: Question, method: str | Method, tuning: Tuning | None = None
) -> tuple[Planner, Asked]:
    """Return what prices a row's plan, and the plan, of a fine-tuning where one is said.

    `data` follows from `device_count`. Empty cells have the defaults of `steptime plan`. Rows of
    other trainings mean mixed precision by a type of 16 bit.
    """
    numbers, texts = question.numbers, question.texts
    split = {name: whole(question, name) for name in SPLIT if numbers.get(name) not in (None, "")}
    device_count = whole(question, "device_count")
    if "data" not in split:
        of = split.get("tensor", 1) * split.get("context", 1) * split.get("pipeline", 1)
        if device_count % of:
            raise InputError(f"{of} devices of a replica do not divide {device_count}")
        split["data"] = device_count // of
    sequence = bool(numbers.get("sequence")) and split.get("tensor", 1) > 1
    recompute = texts.get("recompute") or "none"
    plan = split_of({**split, "sequence": sequence, "recompute": recompute})
    sizes = {name: whole(question, name) for name in SIZES if numbers.get(name) not in (None, "")}
    dtype = texts["dtype"] if tuning else MIXED.get(texts["dtype"], texts["dtype"])
    stack = texts["stack"]
    length = sizes.get("length")
    gradients = sizes.get("gradients")
    asked = texts["model"], site_of(question), dtype, stack, device_count, method, length, gradients
    parts = () if stack else tuple(one for one in vars(plan).items() if one[0] != "microbatches")
    planner = planner_of(*asked, parts, tuning or FULL_TRAINING)
    micro = sizes.get("microbatch", 1)
    return planner, checked(
        planner.shape, Asked(plan, micro, sizes.get("global_batch", micro * plan.data))
    )


def step_reply(question: Question, planner: Planner, found: PlanTime) -> Reply:
    """Return what is told of a row's step."""
    device_count = whole(question, "device_count")
    found = meant(planner, found)[0]
    values = {
        "step_s": Interval(found.step_s, found.low_s, found.high_s),
        "memory_bytes": Interval(found.memory[found.fullest].total),
        "mfu": Interval(mfu(planner, found)["full"] or 0.0),
    }
    if found.energy_j is not None:
        values["device_w"] = Interval(found.energy_j / found.step_s / device_count)
    form = "experts" if planner.shape.experts else "plan"
    stack = planner.method.settings.stack
    parts = {name: getattr(found, name) for name in PARTS}
    return Reply(values, device_count, stack, fits(planner, found), parts, form)


@lru_cache(maxsize=512)
def planner_of(
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
) -> Planner:
    """Return what prices the plans of a model on devices; a type or a stack "" is the usual one.

    The usual stack is that of such a `split`.
    """
    one = Request(
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
    return one.planner(shape_of(model, length), device_count)


def site_of(question: Question) -> Site:
    """Return where a row runs: as it says, else as devices of its kind are usually joined."""
    texts = question.texts
    usual = usual_site(texts["device"])
    usual |= {name: texts[name] for name in MORE_TEXTS if texts.get(name)}
    for name in ("per_node", "links_per_node"):
        if question.numbers.get(name):
            usual[name] = whole(question, name)
    return Site(texts["device"], **usual)


def whole(question: Question, name: str) -> int:
    """Return a number of a row that is a whole one; raises `InputError`."""
    value = question.numbers[name]
    least = 0 if name in ("zero", "shard") else 1
    if not isinstance(value, int | float) or not least <= value <= MAX_COUNT or value % 1:
        raise InputError(f"{name} is a whole number of at least {least}, not {value!r}")
    return int(value)
