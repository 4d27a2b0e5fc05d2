"""From what a user asks to a planner and a plan; what does not work is said with what would."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from steptime.build import Choice, family_of, read_model, set_length
from steptime.core import dtypes
from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.toml_files import packaged
from steptime.core.values import parse_count
from steptime.core.workload import BASE_OPTIMIZERS, FULL_TRAINING, Plan, Tuning
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.hardware.defaults import SEQUENCE_MODEL, default_dtype
from steptime.hardware.device import Cluster, Device, Level, Link
from steptime.hardware.software import Software, defaults_for, year_of
from steptime.network.families.family import Family, resolve
from steptime.network.layers.designs import USUAL as USUAL_DESIGN
from steptime.network.layers.designs import BlockDesign
from steptime.network.ops.optimizers import STATES as OPTIMIZERS
from steptime.planning.faults import Asked, checked
from steptime.planning.network import Network, NetworkPlanner, network_of
from steptime.planning.planner import Planner
from steptime.planning.shape import Shape
from steptime.planning.stages import USUAL
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.method import Method
from steptime.prediction.states import host_link
from steptime.prediction.training import LOW_BYTES

SERVED = ("bfloat16", "float16", "float8", "float4")
DTYPES = ("bfloat16-mixed", "float16-mixed", "float32", *SERVED)
ALIASES = dtypes.ALIASES | {
    "fp8": "float8",
    "mxfp8": "float8",
    "fp4": "float4",
    "nvfp4": "float4",
}
GRADIENTS = (16, 32)  # bits
PER_NODE = 8  # devices, where nobody says
MOST_DEVICES, MOST_LAYERS = 1_000_000, 100_000
OWN_LINKS = re.compile(r"nvlink(?=\d x)|xgmi|roce")
_ASKED = ("layers", "width", "heads", "length", "vocabulary")  # what a language model says


def shape_of(model: str, length: int | None = None, trusted: bool = False) -> Shape:
    """Return the language model that a text names; raises `InputError` for another network.

    A `trusted` text may name code.
    """
    family, values = _values_of(read_model(model, trusted=trusted), length)
    if not _reads_words(values):
        other = "an encoder with a decoder" if values.get("decoder_layers") else family.name
        but = "" if other in model else f", but {other}"
        raise InputError(f"{shorten(model)[1:-1]}: not a language model of one decoder{but}")
    values["length"] = length or values["length"]
    values["max_length"] = max(values["max_length"], values["length"])
    if values["layers"] > MOST_LAYERS:
        raise InputError(f"{values['layers']:,} layers, at most {MOST_LAYERS:,}")
    dense = values["dense_layers"] if values["experts"] else 0
    designs: tuple[BlockDesign, ...] = values.get("designs") or ()
    are_mixed = values["expert_every"] > 1 or values["window"] or values["dense_at"]
    are_mixed = are_mixed or values["linear_heads"] or designs
    alike = 0 if are_mixed or dense >= values["layers"] else max(0, dense - 1)  # one is enough
    first: dict[tuple[bool, str, BlockDesign], int] = {}
    kinds = []
    for i in range(values["layers"]):
        routed = bool(values["experts"]) and i >= values["dense_layers"]
        routed = routed and (i + 1) % values["expert_every"] == 0
        window = values["windows"][i % len(values["windows"])]
        window = window if values["window"] or window == "l" else ""
        kind = (routed, window, designs[i] if designs else USUAL_DESIGN)
        kinds.append(f"block{first.setdefault(kind, max(0, i - alike)) + 1}")
    share = values["experts_per_token"] / values["experts"] if values["experts"] else 1.0
    tied = values["kind"] == "decoder" and bool(values["tied"])
    sizes = (values["length"], values["vocabulary"], tied, values["experts"], share)
    one = {**values, "layers": max(first.values()) + 1, "dense_layers": dense - alike}
    return Shape(family, values, one, tuple(kinds), *sizes, model)


class Further(NamedTuple):
    """A level between nodes and all of them: `size` parts, nodes first, that a link joins.

    Each node has `links` of these, None for as many as to all other nodes.
    """

    size: int
    link: str
    links: int | None = None


def level_of(text: str) -> Further:
    """Return the level that `SIZE:LINK` or `SIZE:LINK:LINKS` says; raises `InputError`."""
    size, link, links = [*text.split(":", 2), "", ""][:3]
    if not link:
        form = "of the form SIZE:LINK, such as 4:infiniband-ndr"
        raise InputError(f"--level {shorten(text)}: {form}")
    own = parse_count(links, "--level, links of a node") if links else None
    return Further(parse_count(size, "--level, its size"), link, own)


def _values_of(choice: Choice, length: int | None) -> tuple[Family, dict[str, Any]]:
    family, given = family_of(choice), dict(choice.settings)
    if length is not None and "length" in family.parameters:
        if str(given.get("length", length)) != str(length):
            raise InputError(f"--length {length} contradicts length={given['length']} of the model")
        given.pop("length", None)  # learned positions grow with it
    values: dict[str, Any] = dict(getattr(family, "settings", {}))
    return family, values | resolve(family, given, choice.source or choice.model)


def _reads_words(values: Mapping[str, Any]) -> bool:
    """Whether hyperparameters are those of a language model of one encoder or decoder."""
    words = values.get("stem") == "words" and not values.get("decoder_layers")
    return words and set(_ASKED) <= set(values)


class Site(NamedTuple):
    """Where a training runs: nodes of `per_node` devices that `inside` joins.

    `link` is that of a device to other nodes; `links_per_node` says where a node has fewer of them.
    `levels` lie between nodes and the link that joins all. `host_link` joins a device to its host.
    """

    device: str | Path | Device
    per_node: int = PER_NODE
    inside: str | None = None
    link: str | None = None
    links_per_node: int | None = None
    levels: Sequence[Further] = ()
    host_link: str | None = None


@dataclass(frozen=True)
class Request:
    """What a user asks of a training: the network, where it runs, and what is chosen of its split.

    `split` are fields of `Plan`. With `device_counts`, what it leaves open is searched within
    `limits`; without, it is the one plan, in an `order` of its groups. A step has `global_batch`
    sequences of `length` tokens; `tokens` are those of the whole training. Software is a `stack`
    (None for the plan's usual), predicted by a `method` under its `options`; prices are read from
    a file `prices`, the run of a pipeline written to `trace`. `others` are searched beside `site`.
    Of `limits`, `budget_per_hour`, `days` (those of its tokens) and `watts`, None is for anything.
    `tuning` says what of it is trained. A `trusted` model may be code. `node_options` are the
    fields of the site that the user gave; the others are assumed.
    """

    model: str
    site: Site
    global_batch: int | None = None
    microbatch: int | None = None
    length: int | None = None
    split: Mapping[str, Any] = field(default_factory=dict)
    device_counts: tuple[int, ...] = ()
    order: str | None = None
    dtype: str | None = None
    gradients: int | None = None
    stack: str | None = None
    method: str | Method = DEFAULT
    options: Mapping[str, str] = field(default_factory=dict)
    tokens: float | None = None
    limits: Mapping[str, float | None] = field(default_factory=dict)
    prices: Path | None = None
    trace: Path | None = None
    others: tuple[Site, ...] = ()
    optimizer: str | None = None
    tuning: Tuning = FULL_TRAINING
    trusted: bool = False
    node_options: frozenset[str] = frozenset()

    @cached_property
    def shape(self) -> Shape:
        """The network: a language model, or one in pieces of its graph. Raises `InputError`."""
        choice = read_model(self.model, trusted=self.trusted)
        _, values = _values_of(choice, self.length)
        if _reads_words(values):
            plain = BASE_OPTIMIZERS.get(self.optimizer or "", self.optimizer)
            if plain not in (None, "adam", "adamw"):
                check_choice("optimizer", plain, OPTIMIZERS)
                name = shorten(self.optimizer)
                raise InputError(
                    f"--optimizer {name}: language models are planned with adam or adamw"
                )
            return shape_of(self.model, self.length, self.trusted)
        if self.gradients is not None or self.tuning != FULL_TRAINING:
            words = (
                "--gradients goes" if self.gradients else f"{self.tuning.text}: fine-tuning goes"
            )
            raise InputError(f"{words} with language models")
        choice = choice if self.length is None else set_length(choice, self.length)
        return network_of(choice, self.model, self.dtype, self.optimizer)

    def asked(self, shape: Shape) -> Asked:
        """Return the one plan; raises `InputError` where it cannot be.

        Without a batch each replica has one microbatch: of one sequence, or of a network's usual
        batch. With one, that of a network is as large as its pipeline lets it be.
        """
        plan, microbatch = split_of(self.split), self.microbatch or shape.batch or 1
        if self.microbatch is None and self.global_batch is not None and shape.batch is not None:
            share = max(1, self.global_batch // plan.data)
            most = max(1, share // plan.pipeline)
            microbatch = next(size for size in range(most, 0, -1) if share % size == 0)
        whole = microbatch * plan.data if self.global_batch is None else self.global_batch
        return checked(
            shape, Asked(plan, microbatch, whole, USUAL if self.order is None else self.order)
        )

    @property
    def named(self) -> str | None:
        """The stack that is named; None for nothing, and for a year alone."""
        return None if year_of(self.stack) else self.stack

    def software(self, device: Device, device_count: int) -> Software:
        """Return what runs the plan where no stack is named, of the year that is asked for."""
        plan = split_of(self.split) if device_count > 1 else Plan()
        plan = replace(plan, data=max(plan.data, plan.data * device_count // plan.device_count))
        year = year_of(self.stack)
        words = self.shape.unit == "tokens"
        first, *more = (
            defaults_for(one, plan, self.site.per_node, year=year, reads_words=words)
            for one in (device, *(catalog.device(site.device) for site in self.others))
        )
        newest = max(
            (one.stack for one in (first, *more)), key=lambda one: catalog.stack(one).since
        )
        return first._replace(stack=newest)  # what stands side by side has one

    def planner(self, shape: Shape, device_count: int, like: Planner | None = None) -> Planner:
        """Return what prices plans on so many devices; raises `InputError`.

        One `like` it, on another number of devices, has its layers priced already.
        """
        cluster = cluster_of(self.site, device_count)
        if like is not None:
            return like.on(cluster)
        method, many = cost_model(self.method), max(self.device_counts, default=device_count)
        if method.name != DEFAULT:
            raise InputError(f"plan: {method.name} prices no plans; nearest: --method {DEFAULT}")
        many = 1 if isinstance(shape, Network) else many
        usual = self.software(cluster.device, many)
        options = {"stack": usual.stack if self.named is None else self.named, **self.options}
        optimizer = BASE_OPTIMIZERS.get(self.optimizer or "", self.optimizer) or "adam"
        how = self.gradients, "training", shape.state_weights(self.tuning), optimizer
        planner = planner_of(shape, cluster, self.dtype, method, options, *how)
        stack = planner.method.settings.stack
        if not catalog.stack(stack).trains:
            near = f"nearest: --stack {usual.stack}"
            raise InputError(f"plan: stack {stack} runs inference alone; {near}")
        if self.stack is None and "stack" not in self.options and many > 1:
            planner.software = usual
        if self.site.host_link is not None:
            planner.host = catalog.link(self.site.host_link, "--host-link")
        if self.split.get("offload", "none") != "none":
            planner.moved(0.0)  # says what is missing
        return planner


Names = str | Sequence[str] | None


def sites(
    devices: Sequence[str | Path | Device],
    per_node: int | None = None,
    inside: Names = None,
    link: Names = None,
    links_per_node: int | None = None,
    levels: Sequence[Further] = (),
    host_link: str | None = None,
) -> list[Site]:
    """Return where a training may run: each device with its links, one for all or one for each.

    How nodes are joined, and each with others, is as `data/sites.toml` has it where nobody says;
    elsewhere nodes have 8 devices, joined by the card's own link (`near_link`).
    Raises `InputError` for another number of links than of devices.
    """
    result = []
    for names, option in ((inside, "--inside"), (link, "--link")):
        each = [names] if names is None or isinstance(names, str) else list(names)
        if "" in each:
            raise InputError(f"{option}: {shorten(','.join(map(str, each)))} has an empty name")
        if len(each) not in (1, len(devices)):
            raise InputError(f"{option}: {len(each)} links for {len(devices)} devices")
        result.append(each * (len(devices) // len(each)))
    every = []
    for device, near, far in zip(devices, *result, strict=True):
        usual = usual_site(device)
        many, inner = per_node or usual.get("per_node", PER_NODE), near or usual.get("inside")
        outer = far or usual.get("link")
        every.append(Site(device, many, inner, outer, links_per_node, levels, host_link))
    return every


def usual_site(device: str | Path | Device) -> dict[str, Any]:
    """Return how devices of a kind are joined where nobody says it, by the fields of `Site`."""
    return {**_sites().get(catalog.device(device).name, {})}


_sites = cache(lambda: packaged("sites.toml"))


def cluster_of(site: Site, device_count: int) -> Cluster:
    """Return the cluster of so many devices; raises `InputError` where they are not joined."""
    if device_count > MOST_DEVICES:
        raise InputError(f"{device_count:,} devices, at most {MOST_DEVICES:,}")
    device = catalog.device(site.device)
    names = [(site.inside, "--inside"), (site.link, "--link")]
    names += [(level.link, "--level") for level in site.levels]
    for name, option in names:
        if name is not None:
            catalog.link(name, option)  # a misspelt name is refused, needed or not
    near, nodes = min(site.per_node, device_count), -(-device_count // site.per_node)
    levels: list[Level] = []
    if near > 1:
        levels.append(Level(near, catalog.link(site.inside or near_link(device))))
    links, below = site.links_per_node or site.per_node, 1
    for size, far, each in (*site.levels, Further(device_count, site.link or "")):
        if nodes > 1:
            if not far:
                what = "parts of the last --level" if site.levels else "nodes"
                raise InputError(f"{nodes} {what} need a link: --link LINK (steptime list links)")
            levels.append(Level(min(size, nodes), catalog.link(far), (each or links) * below))
            nodes, below = -(-nodes // size), below * size
    return Cluster(device, tuple(levels))


def own_link(device: Device) -> Link | None:
    """Return the link of a node that a device's file names (`NVLink4 x18`), None without one.

    Fewer lanes than a link of the catalog has are not taken for granted.
    """
    is_fast = OWN_LINKS.match(device.node_link.lower())
    whole = (one for one in catalog.links_of(device) if one.name != device.node_link)
    return next(whole, None) if is_fast else None


def near_link(device: Device) -> str:
    """Return the name of the link that a card has: to others of its node, else to its host.

    GeForce cards since Ada have no access to each other's memory: bytes pass the host's.
    """
    if (own := own_link(device)) is not None:
        return own.name
    name = host_link(device)
    through_host = f"{name}-host"
    is_alone = device.series == "GeForce" and has_trait(device, "no_peer_access")
    return through_host if is_alone and through_host in catalog.link_names() else name


def planner_of(
    shape: Shape,
    cluster: Cluster,
    dtype: str | None,
    method: str | Method,
    options: Mapping[str, str],
    gradients: int | None = None,
    use: str = "training",
    tuning: Tuning = FULL_TRAINING,
    optimizer: str = "adam",
) -> Planner:
    """Return what prices plans of a network on a cluster, for a `use`; raises `InputError`.

    Without a `dtype` a training has that of sequence models on the device (`default_dtype`), and
    a server bfloat16, on devices that have none float16.
    """
    chosen = cost_model(method).under(options)
    if isinstance(shape, Network):
        return NetworkPlanner(shape, cluster, chosen)
    peaks = cluster.device.peak_flop_per_s
    known = SERVED if use == "serving" else DTYPES
    if dtype is None and use == "training":
        dtype = default_dtype(SEQUENCE_MODEL.dtypes, cluster.device)
    elif dtype is None:
        dtype = next((one for one in SERVED if one in peaks), SERVED[0])
    word = ALIASES.get(dtype.lower(), dtype.lower())
    near = next((one for one in SERVED if one in peaks), SERVED[0])
    if use == "serving" and word in dtypes.PRECISIONS and word not in SERVED:
        raise InputError(f"serve: {word} is a type of training; nearest: --dtype {near}")
    if word not in known:
        raise unknown("dtype", dtype, known)
    if word in LOW_BYTES and word not in peaks:
        text = f"device '{cluster.device.name}': no peak is known for {word}"
        if use == "serving":
            raise InputError(f"{text}; nearest: --dtype {near} --weights {word}")
        raise InputError(f"{text}; nearest: --dtype {near}-mixed")
    if gradients not in (None, *GRADIENTS):
        raise unknown("bits of gradients", gradients, map(str, GRADIENTS), "plan")
    return Planner(shape, cluster, chosen, word, gradients or 0, use, tuning, optimizer)


def split_of(fields: Mapping[str, Any]) -> Plan:
    """Return the plan of some of its fields; raises `InputError` for others."""
    known = [name for name in vars(Plan()) if name != "microbatches"]
    for name in fields:
        check_choice("part of a plan", name, known)
    return Plan(**fields)
