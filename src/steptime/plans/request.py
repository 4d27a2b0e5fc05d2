"""From what a user asks to a planner and a plan; what does not work is said with what would."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

from steptime import catalog
from steptime.build import Choice, family_of, read_model
from steptime.core.errors import InputError, unknown
from steptime.core.hardware import GB, Cluster, Device, Level, Link
from steptime.core.workload import RECOMPUTES, SCHEDULES, Plan
from steptime.models.family import resolve
from steptime.plans.planner import Planner, Shape
from steptime.plans.stages import ORDERS, USUAL, layers_of
from steptime.predict import DEFAULT, cost_model
from steptime.predict.method import Method

DTYPES = ("bfloat16", "float16", "float8", "float4")
ALIASES = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8", "mxfp8": "float8",
    "fp4": "float4", "nvfp4": "float4",
}  # fmt: skip
GRADIENTS = (16, 32)  # bits
MOST_DEVICES = 1_000_000
OWN_LINKS = re.compile(r"nvlink(?=\d x)|xgmi|roce")
FAR = 100_000  # how far from what is given a number that works is looked for
_ASKED = ("layers", "width", "heads", "length", "vocabulary")  # what a language model says


@dataclass(frozen=True)
class Asked:
    """A step that a user asks for: how it is split, and on which sequences."""

    plan: Plan
    micro_batch: int
    batch: int
    order: str = USUAL


def shape_of(model: str, length: int | None = None) -> Shape:
    """Return the language model that a text names; raises `InputError` for another network."""
    choice: Choice = read_model(model)
    family = family_of(choice)
    given = dict(choice.given)
    if length is not None and "length" in family.parameters:
        if str(given.get("length", length)) != str(length):
            raise InputError(f"--length {length} contradicts length={given['length']} of the model")
        given.pop("length", None)  # learned positions grow with it
    values: dict[str, Any] = dict(getattr(family, "settings", {}))
    values |= resolve(family, given, choice.where or choice.model)
    missing = [name for name in _ASKED if name not in values]
    if missing:
        raise InputError(f"{model}: a plan needs a transformer; {family.name} has no {missing[0]}")
    values["length"] = length or values["length"]
    values["max_length"] = max(values["max_length"], values["length"])
    first: dict[tuple[bool, str], int] = {}
    kinds = []
    for i in range(values["layers"]):
        routed = bool(values["experts"]) and i >= values["dense_layers"]
        routed = routed and (i + 1) % values["expert_every"] == 0
        window = values["windows"][i % len(values["windows"])] if values["window"] else ""
        kinds.append(f"block{first.setdefault((routed, window), i) + 1}")
    share = values["experts_per_token"] / values["experts"] if values["experts"] else 1.0
    tied = values["kind"] == "decoder" and bool(values["tied"])
    sizes = (values["length"], values["vocabulary"], tied, values["experts"], share)
    one = {**values, "layers": max(first.values()) + 1}
    return Shape(family, one, tuple(kinds), *sizes, model)


class Site(NamedTuple):
    """Where a training runs: nodes of `per_node` devices that `inside` joins.

    `link` is that of a device to other nodes; `links_per_node` says where a node has fewer of them.
    """

    device: str | Path | Device
    per_node: int = 8
    inside: str | None = None
    link: str | None = None
    links_per_node: int | None = None


class Limits(NamedTuple):
    """What a training may take at most; None for anything. `days` are those of its tokens."""

    per_hour: float | None = None
    days: float | None = None
    watts: float | None = None


@dataclass(frozen=True)
class Request:
    """What a user asks of a training: the network, where it runs, and what is chosen of its split.

    `split` are fields of `Plan`. With numbers of `devices`, what it leaves open is searched within
    `limits`; without, it is the one plan, in an `order` of its groups. A step has `batch`
    sequences of `length` tokens; `tokens` are those of the whole training. Software is a `stack`
    (None for the plan's usual), predicted by a `method` under its `options`; prices are read from
    a file `prices`, the run of a pipeline written to `trace`. `others` are searched beside `site`.
    """

    model: str
    site: Site
    batch: int | None = None
    micro_batch: int | None = None
    length: int | None = None
    split: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    order: str | None = None
    dtype: str | None = None
    gradients: int | None = None
    stack: str | None = None
    method: str | Method = DEFAULT
    options: Mapping[str, str] = field(default_factory=dict)
    tokens: float | None = None
    limits: Limits = field(default_factory=Limits)
    prices: Path | None = None
    trace: Path | None = None
    others: tuple[Site, ...] = ()

    def planner(
        self, shape: Shape, plan: Plan, devices: int, like: Planner | None = None
    ) -> Planner:
        """Return what prices plans such as this one on so many devices; raises `InputError`.

        One `like` it, on another number of devices, has its layers priced already.
        """
        cluster = cluster_of(self.site, devices)
        if like is not None:
            return like.on(cluster)
        method = self.method if isinstance(self.method, Method) else cost_model(self.method)
        if method.name != DEFAULT:
            raise InputError(f"plan: {method.name} has no stacks; nearest: --method {DEFAULT}")
        options = {"stack": self.stack or stack_for(plan), **self.options}
        return planner_of(shape, cluster, self.dtype, self.method, options, self.gradients)


Names = str | Sequence[str] | None


def sites(
    devices: Sequence[str | Path | Device],
    per_node: int = 8,
    inside: Names = None,
    link: Names = None,
    links_per_node: int | None = None,
) -> list[Site]:
    """Return where a training may run: each device with its links, one for all or one for each.

    Raises `InputError` for another number of links than of devices.
    """
    found = []
    for names, option in ((inside, "--inside"), (link, "--link")):
        each = [names] if names is None or isinstance(names, str) else list(names)
        if len(each) not in (1, len(devices)):
            raise InputError(f"{option}: {len(each)} links for {len(devices)} devices")
        found.append(each * (len(devices) // len(each)))
    return [
        Site(device, per_node, near, far, links_per_node)
        for device, near, far in zip(devices, *found, strict=True)
    ]


def device_of(site: Site) -> Device:
    """Return the device of a site; raises `InputError` for an unknown one."""
    return site.device if isinstance(site.device, Device) else catalog.device(site.device)


def cluster_of(site: Site, devices: int) -> Cluster:
    """Return the cluster of so many devices; raises `InputError` where they are not joined."""
    if devices > MOST_DEVICES:
        raise InputError(f"plan: {devices:,} devices, at most {MOST_DEVICES:,}")
    device = device_of(site)
    near, nodes = min(site.per_node, devices), -(-devices // site.per_node)
    levels: list[Level] = []
    if near > 1:
        own = own_link(device) if site.inside is None else None
        name = site.link if site.inside is None else site.inside
        if own is None and name is None:
            raise InputError(f"{near} {device.name} of a node need a link: --inside LINK")
        levels.append(Level(near, own or catalog.link(str(name))))
    if nodes > 1:
        if site.link is None:
            raise InputError(f"{nodes} nodes need a link: --link LINK (steptime list links)")
        levels.append(Level(nodes, catalog.link(site.link), site.links_per_node or site.per_node))
    return Cluster(device, tuple(levels))


def own_link(device: Device) -> Link | None:
    """Return the link of a node that a device's file names (`NVLink4 x18`), None without one."""
    family = OWN_LINKS.match(str(device.details.get("link", "")).lower())
    rate = device.details.get("link_GB_per_s")
    if family is None or rate is None:
        return None
    names = [name for name in catalog.link_names() if name.startswith(family[0])]
    links = (catalog.link(name) for name in names)
    return next((link for link in links if link.bytes_per_s == rate * GB), None)


def stack_for(plan: Plan) -> str:
    """Return the software that a plan is run by where nobody says: Megatron, PyTorch of ZeRO-3."""
    return "torch-eager" if plan.zero == 3 else "megatron-2025"


def planner_of(
    shape: Shape,
    cluster: Cluster,
    dtype: str | None,
    method: str | Method,
    options: Mapping[str, str],
    gradients: int | None = None,
    use: str = "training",
) -> Planner:
    """Return what prices plans of a network on a cluster, for a `use`; raises `InputError`.

    Without a `dtype` it is bfloat16, on devices that have none float16.
    """
    dtype = dtype or next(
        (one for one in DTYPES if one in cluster.device.peak_flop_per_s), DTYPES[0]
    )
    word = ALIASES.get(dtype.lower(), dtype.lower())
    if word not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    if gradients not in (None, *GRADIENTS):
        raise unknown("bits of gradients", gradients, map(str, GRADIENTS), "plan")
    chosen = method if isinstance(method, Method) else cost_model(method)
    return Planner(shape, cluster, chosen.under(options), word, gradients or 0, use)


def checked(shape: Shape, asked: Asked) -> Asked:
    """Return the plan as asked for, its micro-batches counted.

    Raises `InputError` for what does not divide, with the nearest that does, and for what is not
    modelled.
    """
    plan, one = asked.plan, shape.one
    if asked.order not in ORDERS:
        raise unknown("order", asked.order, ORDERS, "plan")
    if plan.offload == "activations":
        raise InputError("plan: --offload activations is not modelled; nearest: --recompute full")
    heads, layers = int(one["heads"]), len(shape.kinds)
    columns = int(one["expert_ffn"]) if shape.experts else int(one["ffn"])
    both = gcd(gcd(heads, int(one["ffn"])), columns)
    _divides("tensor", plan.tensor, heads, "heads", both)
    _divides("tensor", plan.tensor, int(one["ffn"]), "columns of the feed-forward part", both)
    _divides("tensor", plan.tensor, columns, "columns of an expert", both)
    cut = plan.tensor if plan.sequence else 1
    if shape.length % cut:
        raise InputError(
            f"plan: --tensor {cut} does not divide {shape.length} tokens: leave out "
            "--sequence-parallel"
        )
    _divides("context", plan.context, shape.length // cut, "tokens")
    _staged(plan, layers)
    if plan.expert > 1 and not shape.experts:
        raise InputError(f"plan: {shape.label} has no experts; nearest: --expert 1")
    _divides("expert", plan.expert, shape.experts or 1, "experts")
    if asked.batch % plan.data or asked.batch < plan.data:
        _divides("data", plan.data, asked.batch, "sequences")
    share = asked.batch // plan.data
    _divides("micro-batch", asked.micro_batch, share, "sequences of a replica")
    return replace(asked, plan=replace(plan, micro_batches=share // asked.micro_batch))


def _staged(plan: Plan, layers: int) -> None:
    """Raise `InputError` for a pipeline that there cannot be."""
    for option, stages, most in (
        ("pipeline", plan.pipeline, layers),
        ("virtual", plan.pipeline * plan.virtual, layers // min(plan.pipeline, layers)),
    ):
        if stages > layers:
            given = getattr(plan, option)
            what = f"--{option} {given} makes more stages than there are layers ({layers})"
            raise InputError(f"plan: {what}; nearest: --{option} {most}")
    if plan.virtual > 1 and plan.pipeline == 1:
        raise InputError("plan: --virtual needs --pipeline of 2 or more; nearest: --virtual 1")
    if plan.virtual > 1 and plan.schedule == "zero-bubble":
        raise InputError("plan: zero bubble H1 has one stage a device; nearest: --virtual 1")
    layers_of(layers, plan.pipeline * plan.virtual)


def _divides(option: str, given: int, whole: int, what: str, works: int = 0) -> None:
    """Raise `InputError` where a number does not divide, with the nearest divisor of `works`."""
    if whole % given == 0:
        return
    of = works or whole
    near = (one for far in range(FAR) for one in (given - far, given + far))
    found = next((one for one in near if 1 <= one <= of and of % one == 0), 1)
    raise InputError(
        f"plan: --{option} {given} does not divide {whole} {what}; nearest: --{option} {found}"
    )


def split_of(fields: Mapping[str, Any]) -> Plan:
    """Return the plan of some of its fields; raises `InputError` for others."""
    known = [name for name in vars(Plan()) if name != "micro_batches"]
    for name in fields:
        if name not in known:
            raise unknown("part of a plan", name, known)
    return Plan(**fields)


def words_of(name: str, value: str) -> str:
    """Return a schedule or a recompute as the plan knows it; raises `InputError`."""
    known = {"schedule": SCHEDULES, "recompute": RECOMPUTES}[name]
    if value not in known:
        raise unknown(f"--{name}", value, known)
    return value
