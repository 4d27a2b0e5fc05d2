"""What serving a language model takes, as rows of named quantities that commands print."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, unknown
from steptime.core.table import picked
from steptime.core.units import seconds
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.software import defaults_for
from steptime.planning.answer import cost_of, fitted_notes, offer_of
from steptime.planning.faults import Asked, checked
from steptime.planning.meant import Assumed, assumed
from steptime.planning.request import (
    ALIASES,
    Site,
    cluster_of,
    planner_of,
    shape_of,
)
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.calibrated.interval import mixed
from steptime.prediction.calibrated.power import drawn_of
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method
from steptime.prediction.training import LOW_BYTES
from steptime.serving.kernels import FORMATS
from steptime.serving.load import (
    PREFILL,
    Demand,
    pool_of,
    sent_by,
    summary,
    under_load,
    varied,
)
from steptime.serving.memory import largest_running_sequences, memory_of
from steptime.serving.phases import Phases, Spent, describe_excess
from steptime.serving.queueing import Load, at_once, cached_of

TIMES = ("ttft_s", "tpot_s", "request_s")
HOST_BOUND = "decoding is bound by the host"


@dataclass(frozen=True)
class Service:
    """What a user asks of serving: the network, where it runs, how it is split, what comes in.

    `running_sequences` of `input` tokens come at once, and `output` tokens of each are made. Of each
    prompt the share `prefix` lies in the cache already. A `trusted` model may be code.
    """

    model: str
    site: Site
    running_sequences: int = 1
    input: int = 1024
    output: int = 128
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    replicas: int = 1
    dtype: str | None = None
    weights: str | None = None
    kv: str | None = None
    stack: str | None = None
    method: str | Method = DEFAULT
    options: Mapping[str, str] = field(default_factory=dict)
    prices: Path | None = None
    demand: Demand | None = None
    prefix: float = 0.0
    trusted: bool = False

    @property
    def length(self) -> int:
        """Tokens of a sequence at its end."""
        return self.input + self.output

    @property
    def device_count(self) -> int:
        """Devices of a replica."""
        return self.tensor * self.pipeline * self.data

    def phases(self) -> Phases:
        """Return what prices the phases of such a service; raises `InputError`."""
        shape = shape_of(self.model, trusted=self.trusted)
        if shape.one["kind"] != "decoder":
            raise InputError(f"serve: {shape.label} is no decoder: it has no next token")
        rows = int(shape.one["max_length"])
        if shape.one["positions"] == "learned" and rows < self.length:
            near = ("input", rows - self.output), ("output", rows - self.input)
            name, most = near[self.input < rows]
            said = f"serve: {self.length} tokens, and {self.model} has {rows} positions"
            raise InputError(f"{said}; nearest: --{name} {max(1, most)}")
        length = None if rows >= self.length else self.length
        shape = shape_of(self.model, length, self.trusted)
        if self.data > 1 and not shape.experts:
            said = f"serve: --data shares out experts, and {self.model} has none"
            raise InputError(f"{said}; nearest: --replicas {self.data * self.replicas}")
        if shape.experts and self.data % self.expert:
            ranks = -(-self.data // self.expert) * self.expert
            said = f"serve: --expert {self.expert} does not divide --data {self.data}"
            raise InputError(f"{said}, the ranks that share out experts; nearest: --data {ranks}")
        if not 0 <= self.prefix <= 1:
            raise InputError(f"serve: --prefix is a share from 0 to 1, not {self.prefix:g}")
        plan = Plan(self.data, self.tensor, self.pipeline, self.expert)
        plan = checked(shape, Asked(plan, 1, self.data, pads_tokens=True), "serve").plan
        method, options = cost_model(self.method), dict(self.options)
        usual = defaults_for(catalog.device(self.site.device), plan, use="serving")
        if "stack" in method.options:
            options = {"stack": usual.stack if self.stack is None else self.stack, **options}
        cluster, alone = cluster_of(self.site, self.device_count), self.weights_alone
        dtype = None if alone else self.dtype
        planner = planner_of(shape, cluster, dtype, method, options, use="serving")
        said = planner.method.settings.stack
        if not catalog.stack(said).serving:
            other = f"nearest: --stack {usual.stack}"
            raise InputError(f"serve: stack {said} has no constants of serving; {other}")
        if said == usual.stack and self.stack is None:
            planner.software = usual
        weights, kv = format_of(self.weights, "--weights"), format_of(self.kv, "--kv")
        return Phases(planner, plan, weights or alone or shape.family.weights, kv)

    @property
    def weights_alone(self) -> str:
        """The type of 8 or 4 bit that the device has no arithmetic of, "" for one that it has.

        Weights are kept so, and products have 16 bit.
        """
        word = ALIASES.get(str(self.dtype).lower(), str(self.dtype).lower())
        known = catalog.device(self.site.device).peak_flop_per_s
        return word if word in LOW_BYTES and word not in known else ""

    def read(self, phases: Phases, sequences: int) -> Spent:
        """Return what it takes to read so many prompts, but for what the cache has of them."""
        cached = cached_of(self.input, self.prefix)
        return phases.prefill(sequences, self.input - cached, cached)


def format_of(word: str | None, option: str) -> str:
    """Return the format that an option's word means, "" of None; raises `InputError`.

    Keys and values have at least 8 bit.
    """
    if word is None:
        return ""
    found = ALIASES.get(word.lower(), word.lower())
    known = [name for name, size in FORMATS.items() if size >= 1 or option != "--kv"]
    if found not in known:
        raise unknown(option, word, known)
    return found


def answered(asked: Service) -> dict[str, Any]:
    """Return the answer to what a user asks of serving, as JSON values; raises `InputError`."""
    requests = None if asked.demand is None else asked.demand.load(asked.input, asked.output)
    if requests is not None:
        if asked.running_sequences > 1:
            raise InputError(
                "serve: --running-sequences come at once; under load there is --max-running-sequences"
            )
        inputs, outputs = max(zip(requests.inputs, requests.outputs, strict=True), key=sum)
        asked = replace(asked, input=inputs, output=outputs)
    phases, whole_asked = asked.phases(), asked
    load = None if requests is None else loaded(asked, requests, phases)
    asked = average_service(asked, load)
    planner, batch = phases.planner, asked.running_sequences
    first = asked.read(phases, batch if load is None else 1)
    each = phases.decode(batch, asked.input + asked.output / 2)
    within, told = meant(whole_asked, requests, phases, times_of(asked, phases, load))
    times = {name: time.value for name, time in within.items()}
    room = batch if load is None else largest_running_sequences(phases, asked.length, asked.input)
    memory = memory_of(phases, min(batch, room), asked.length, asked.input)
    fits, alone = not memory["over_bytes"], load is None and batch == asked.device_count == 1
    device_count, rate = _throughput(asked, load, times["request_s"])
    price = offer_of(planner, asked.prices)
    return {
        "model": asked.model,
        "device": planner.device.name,
        "device_count": device_count,
        "plan": picked(asked, "tensor pipeline data expert replicas"),
        "running_sequences": batch,
        "input_tokens": asked.input,
        "output_tokens": asked.output,
        "dtype": planner.dtype,
        **picked(phases, "weights kv"),
        "method": planner.method.name,
        "stack": planner.method.settings.stack,
        "assumed": told,
        **times,
        **interval_ends(within),
        "output_tokens_per_s": rate,
        "tokens_per_s_per_device": rate / device_count,
        "tokens_per_s_per_user": 1 / times["tpot_s"],
        "parts": {
            "prefill": first.parts | {"prompt_s": phases.constant("prompt_s")},
            "decode": each.parts,
            "beside_predict": phases.beside_predict(asked.input) if alone else None,
        },
        "energy": _energy(asked, phases, asked.read(phases, batch), each),
        "fits": fits,
        "usable_bytes": planner.device.usable_bytes,
        "memory": memory,
        "cost": cost_of(price, device_count, "million_tokens", 1e6 / rate),
        "notes": [*fitted_notes(planner), *_notes(asked, phases, each)],
        "nearest_that_fits": None if fits else nearest(asked),
        "load": load,
    }


def _throughput(
    service: Service, load: Mapping[str, Any] | None, request_s: float
) -> tuple[int, float]:
    """Return the number of devices of a service and its output tokens per second."""
    if load is not None:
        return load["device_count"], load["output_tokens_per_s"]
    made = service.output * service.running_sequences * service.replicas
    return service.device_count * service.replicas, made / request_s


def interval_ends(times: Mapping[str, Interval]) -> dict[str, float | None]:
    """Return the ends of intervals by key: `ttft_low_s` and `ttft_high_s` of `ttft_s`."""
    return {
        name.replace("_s", f"_{end}_s"): getattr(time, end)
        for name, time in times.items()
        for end in ("low", "high")
    }


def _notes(asked: Service, phases: Phases, each: Spent) -> list[str]:
    """Return what of a service is otherwise than it was asked, and what bounds its decoding."""
    name, low = phases.planner.device.name, asked.weights_alone
    said = [f"{name} has no arithmetic of {low}: weights alone are kept so"] if low else []
    said += describe_excess(shape_of(asked.model, trusted=asked.trusted), asked.length)
    works_s = each.seconds - each.host_s
    if each.issue_s > works_s and not phases.planner.flag("graphs"):
        stack = phases.planner.method.settings.stack
        replays = defaults_for(phases.planner.device, phases.plan, use="serving").stack
        said.append(
            f"{HOST_BOUND}: {stack} issues op by op, which takes {seconds(each.issue_s)} a token, "
            f"and the device {seconds(works_s)}; nearest that replays graphs: --stack {replays}"
        )
    return said


def times_of(asked: Service, phases: Phases, load: Mapping[str, Any] | None) -> dict[str, Interval]:
    """Return seconds to the first token, of each one after it and of a request; means under load.

    `load` is what `loaded` returns, None where all come at once.
    """
    tpot_s = phases.decode(asked.running_sequences, asked.input + asked.output / 2).seconds
    if load is None:
        ttft_s = asked.read(phases, asked.running_sequences).seconds + phases.constant("prompt_s")
        every = [[ttft_s, tpot_s, ttft_s + (asked.output - 1) * tpot_s]]
    else:
        none = {"mean": tpot_s}  # where requests have one token
        every = [[(run[n] or none)["mean"] for n in TIMES] for run in (load, load["varied"]) if run]
    forms = phases.form if load is None else "served", "", ""
    within = (map(phases.within, one, forms) for one in every)
    return among([dict(zip(TIMES, one, strict=True)) for one in within])


def among(every: Sequence[Mapping[str, Interval]]) -> dict[str, Interval]:
    """Return the first of some times by name, with 80 % of what all of them, weighed the same, say.

    Where there is but one, or times have no intervals, it is as it is.
    """
    first = every[0]
    if len(every) == 1 or any(time.low is None for time in first.values()):
        return dict(first)
    ends = {key: mixed([(1.0, one[key]) for one in every]) for key in first}
    return {key: Interval(time.value, *ends[key]) for key, time in first.items()}


def meant(
    asked: Service, requests: Load | None, phases: Phases, within: Mapping[str, Interval]
) -> tuple[Mapping[str, Interval], Assumed | None]:
    """Return times between what they are under all stacks that could be meant, and these.

    None where a stack is named. Each family of servers weighs the same.
    """
    software = phases.planner.software
    if software is None or any(time.low is None for time in within.values()):
        return within, None
    every = {software.stack: within}
    for name in (name for name in software.years if name != software.stack):
        try:
            other = replace(asked, stack=name).phases()
            load = None if requests is None else loaded(asked, requests, other, summary)
            every[name] = times_of(average_service(asked, load), other, load)
        except InputError:  # it does not run here
            continue
    values = {n: {key: time.value for key, time in one.items()} for n, one in every.items()}
    return among([*every.values()]), assumed(software, values)


def average_service(asked: Service, load: Mapping[str, Any] | None) -> Service:
    """Return a service with the batch and the lengths that it has under load."""
    if load is None:
        return asked
    return replace(
        asked, **{n: max(1, round(load[n])) for n in ("running_sequences", "input", "output")}
    )


def loaded(
    asked: Service, load: Load, phases: Phases, run_load: Callable[..., dict[str, Any]] = under_load
) -> dict[str, Any]:
    """Return what becomes of a service under load; raises `InputError`.

    Where `run_load` is `summary`, the highest rate that meets targets is not searched.
    """
    demand = asked.demand or Demand()
    if phases.room_bytes <= 0:
        near = nearest(replace(asked, running_sequences=1)) or {"change": "none"}
        raise InputError(f"serve: weights leave no room for a cache; nearest: {near['change']}")
    draft = replace(asked, model=demand.draft, demand=None).phases() if demand.draft else None
    pools = [pool_of(phases, demand, load, asked.replicas, draft, asked.prefix)]
    device_count = asked.device_count * asked.replicas
    sent_s: Callable[[int], float] = at_once
    if demand.prefill_replicas:
        split = {name: getattr(demand, word) for word, name in PREFILL.items()}
        other = replace(asked, **{name: n for name, n in split.items() if n})
        first, many = other.phases(), demand.prefill_replicas
        pools.insert(0, pool_of(first, demand, load, many, prefix=asked.prefix))
        device_count += other.device_count * many
        sent_s = sent_by(first, asked.site)
    told = run_load(demand, load, pools, sent_s) | {"device_count": device_count, "varied": None}
    if (unlike := varied(load)) != load and not pools[-1].mixed:
        run = summary(demand, unlike, pools, sent_s)
        told["varied"] = {name: run[name] for name in TIMES}
    return told


def _energy(asked: Service, phases: Phases, first: Spent, each: Spent) -> dict[str, Any] | None:
    """Return the joules of a token, of all devices, and watts of one; None where not known."""
    whole, took_s = 0.0, 0.0
    for spent, times in ((first, 1), (each, asked.output - 1)):
        of_step = (spent.seconds,) * 3
        drawn = drawn_of(spent.joules / asked.pipeline, of_step, phases.device)
        if drawn is None:
            return None
        whole, took_s = whole + times * drawn[0], took_s + times * spent.seconds
    token_j = whole * asked.device_count / (asked.running_sequences * asked.output)
    return {"token_j": token_j, "device_w": whole / took_s, "of": "devices alone: nodes add more"}


def nearest(asked: Service) -> dict[str, Any] | None:
    """Return the change with which a service fits, the least one; None where none does."""
    most = 0
    if asked.running_sequences > 1:
        most = largest_running_sequences(asked.phases(), asked.length, asked.input)
    tries: list[tuple[str, Any]] = [
        *([("kv", "float8")] if asked.kv not in ("float8", "int8") else []),
        *([("running_sequences", most)] if most else []),
        *([("expert", asked.data)] if asked.expert < asked.data else []),
        *(("tensor", asked.tensor * more) for more in (2, 4, 8)),
        *([] if asked.weights else [("weights", "int4")]),
    ]
    for name, value in tries:
        other = replace(asked, **{name: value})
        try:
            memory = memory_of(other.phases(), other.running_sequences, other.length, other.input)
        except InputError:
            continue
        if not memory["over_bytes"]:
            return {
                "change": f"--{name.replace('_', '-')} {value}",
                "needed_bytes": memory["needed_bytes"],
            }
    return None
