"""What is predicted for the rows of published tables: a function a kind of question."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from steptime.calibration.published import Question, Told, site_of, stack_at
from steptime.core.errors import InputError, one_of
from steptime.core.ranges import LARGEST
from steptime.core.workload import Plan
from steptime.prediction.collectives import EXCHANGES
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method
from steptime.questions.plan.answer import fits, mfu
from steptime.questions.plan.faults import Asked, checked
from steptime.questions.plan.planner import Planner, Shape
from steptime.questions.plan.request import Request, Site, shape_of, split_of
from steptime.questions.plan.step import plan_time
from steptime.questions.serve.answer import Request as Service
from steptime.questions.serve.answer import loaded, memory_of, times_of
from steptime.questions.serve.load import ROUNDS, Demand
from steptime.questions.serve.phases import Phases

SPLIT = ("tensor", "context", "expert", "data", "pipeline", "virtual", "zero", "shard")
PARTS = ("compute_s", "recompute_s", "exposed_s", "host_s", "bubble_s", "update_s")
PARALLEL = ("tensor", "pipeline", "data", "expert")
UNDER = ("concurrency", "max_batch", "prefill_replicas", "prefill_tensor")
MIXED = {
    name: f"{name}-mixed" for name in ("bfloat16", "float16")
}  # as tables of trainings mean it
COLLECTIVES = ("all_reduce", *EXCHANGES)
SIZES = ("micro_batch", "batch", "length", "gradients")
MOST_RUN = 20_000  # requests that an event loop runs for a row


def step(asked: Question, method: str | Method) -> Told:
    """Return the step of a training plan: `step_s`, `memory_bytes`.

    `data` follows from `devices`; of what is not said, the defaults of `steptime plan` hold.
    """
    numbers, texts = asked.numbers, asked.texts
    split = {name: _whole(asked, name) for name in SPLIT if numbers.get(name) not in (None, "")}
    devices = _whole(asked, "devices")
    if "data" not in split:
        of = split.get("tensor", 1) * split.get("context", 1) * split.get("pipeline", 1)
        if devices % of:
            raise InputError(f"{of} devices of a replica do not divide {devices}")
        split["data"] = devices // of
    sequence = bool(numbers.get("sequence")) and split.get("tensor", 1) > 1
    recompute = texts.get("recompute") or "none"
    plan = split_of({**split, "sequence": sequence, "recompute": recompute})
    sizes = {name: _whole(asked, name) for name in SIZES if numbers.get(name) not in (None, "")}
    stack = texts.get("stack") or stack_at(texts["software"], texts["date"])
    dtype = MIXED.get(texts["dtype"], texts["dtype"])
    shape, planner = _planner(
        texts["model"], _site(asked), dtype, stack, devices, method,
        sizes.get("length"), sizes.get("gradients"),
    )  # fmt: skip
    micro = sizes.get("micro_batch", 1)
    sound = checked(shape, Asked(plan, micro, sizes.get("batch", micro * plan.data)))
    found = plan_time(planner, sound)
    if texts.get("otherwise") and not fits(planner, found):  # what a table does not say
        more = [_changed(sound.plan, words) for words in texts["otherwise"].split("|")]
        tried = [plan_time(planner, replace(sound, plan=one)) for one in more]
        found = min(
            (one for one in tried if fits(planner, one)), key=attrgetter("step_s"), default=found
        )
    held = found.memory[found.fullest]
    parts = {name: getattr(found, name) for name in PARTS}
    values = {
        "step_s": Interval(found.step_s, found.low, found.high),
        "memory_bytes": Interval(held.total),
        "mfu": Interval(mfu(planner, found)["full"] or 0.0),
    }
    if found.energy_j is not None:
        values["device_w"] = Interval(found.energy_j / found.step_s / devices)
    form = "experts" if shape.experts else "plan"
    return Told(values, devices, stack, fits(planner, found), parts, form)


def _changed(plan: Plan, words: str) -> Plan:
    changes: Any = dict(part.split("=") for part in words.split())
    layers = int(changes.get("recompute_layers", 0))
    return replace(plan, **{**changes, "recompute_layers": layers})


@lru_cache(maxsize=512)
def _planner(
    model: str, site: Site, dtype: str, stack: str, devices: int, method: str | Method, *sizes: Any
) -> tuple[Shape, Planner]:
    length, gradients = sizes or (None, None)
    how: Any = {"dtype": dtype or None, "stack": stack, "method": method}  # cells may be empty
    one = Request(model, site, length=length, gradients=gradients, **how)
    shape = shape_of(model, length)
    return shape, one.planner(shape, devices)


def _site(asked: Question) -> Site:
    """Return where a row runs: as it says, else as devices of its kind are usually joined."""
    usual = {**site_of(asked.texts["device"])}
    usual |= {name: asked.texts[name] for name in ("inside", "link") if asked.texts.get(name)}
    for name in ("per_node", "links_per_node"):
        if asked.numbers.get(name):
            usual[name] = _whole(asked, name)
    return Site(asked.texts["device"], **usual)


def _whole(asked: Question, name: str) -> int:
    value = asked.numbers[name]
    least = 0 if name in ("zero", "shard") else 1
    if not isinstance(value, int | float) or not least <= value <= LARGEST or value % 1:
        raise InputError(f"{name} is a whole number of at least {least}, not {value!r}")
    return int(value)


def exchange(asked: Question, method: str | Method) -> Told:
    """Return the seconds of a collective among devices: `exchange_s`."""
    devices, site = _whole(asked, "devices"), _site(asked)
    stack = asked.texts["stack"]
    planner = _planner("transformer:layers=1", site, "float16", stack, devices, method)[1]
    kind = asked.texts["collective"]
    one_of("collective", kind, COLLECTIVES)
    ranks = range(0, devices, devices - 1) if kind == "send" else range(devices)
    found = planner.exchange(kind, _whole(asked, "bytes"), ranks)
    return Told({"exchange_s": Interval(found.seconds)}, devices, stack)


def parameters(asked: Question, method: str | Method) -> Told:
    """Return a model's parameters, and those that a token reaches: `parameters`, `active`."""
    site = Site("a100-sxm4-80gb")
    planner = _planner(asked.texts["model"], site, "bfloat16", "torch-eager", 1, method)[1]
    found = {"parameters": planner.parameters, "active": planner.active}
    return Told({name: Interval(float(value)) for name, value in found.items()}, 1)


def serve(asked: Question, method: str | Method) -> Told:
    """Return what serving takes: `ttft_s`, `tpot_s`, `request_s`, `tokens_per_s_per_device`.

    Of a static `batch`, or of a number of requests at once, the `concurrency`.
    """
    texts, numbers = asked.texts, asked.numbers

    def given(names: Iterable[str]) -> dict[str, Any]:
        return {n: _whole(asked, n) for n in names if numbers.get(n) not in (None, "", 0)}

    stack = texts.get("stack") or stack_at(texts["software"], texts["date"])
    model, site, split = texts["model"], _site(asked), given(PARALLEL)
    demand, sizes = Demand(**given(UNDER)), given(("batch", "input", "output"))
    demand = replace(demand, count=min(ROUNDS * demand.concurrency, MOST_RUN))
    formats: Any = {name: texts.get(name) or None for name in ("dtype", "weights")}  # may be empty
    how: Any = {**formats, **split, "stack": stack, "method": method}
    sizes = {"input": 1, "output": 1, **sizes, **given(("replicas",))}
    one = Service(model, site, **sizes, **how, demand=demand)
    phases = _phases(model, site, one.length, **how)
    load = loaded(one, demand.load(one.input, one.output), phases) if demand.concurrency else None
    times = times_of(one, phases, load)
    devices = one.devices if load is None else load["devices"]
    rate = (
        one.batch * one.output / times["request_s"].value if load is None else load["tokens_per_s"]
    )
    values = {**times, "tokens_per_s_per_device": phases.within(rate / devices)}
    fits = not memory_of(phases, one.batch, one.length, one.input)["over_bytes"]
    return Told(values, devices, stack, fits, form=phases.form)


@lru_cache(maxsize=512)
def _phases(model: str, site: Site, length: int, **how: Any) -> Phases:
    return Service(model, site, 1, length - 1, 1, **how).phases()


KINDS: Mapping[str, Callable[[Question, str | Method], Told]] = {
    "serve": serve,
    "step": step,
    "exchange": exchange,
    "parameters": parameters,
}
