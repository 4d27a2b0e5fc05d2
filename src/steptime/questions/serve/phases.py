"""The phases of inference, prefill and decode: what one rank runs, priced as everything is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import NamedTuple

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.workload import Plan
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import experts_read
from steptime.network.ops.table import ShapeError
from steptime.prediction.calibrated.interval import bounds
from steptime.prediction.calibrated.power import spent_j
from steptime.prediction.host import calls_of, host_of
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Kernels
from steptime.questions.plan.pieces import FIRST, LAST, LOWERED, NEWER, piece_of
from steptime.questions.plan.planner import Planner
from steptime.questions.serve.kernels import (
    FORMATS,
    HALF,
    Group,
    Head,
    attention,
    attention_of,
    merged,
)

NO_BUDGET = 1e8  # tokens of a step, from which on all prompts are read in one


class Spent(NamedTuple):
    """Seconds of a step: products, attention, what moves bytes, exchanges, waiting for the host.

    `joules` are those of a rank beyond waiting.
    """

    products_s: float = 0.0
    attention_s: float = 0.0
    other_s: float = 0.0
    exchange_s: float = 0.0
    host_s: float = 0.0
    joules: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what they are spent on."""
        return dict(zip(self._fields[:-1], self[:-1], strict=True))

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return sum(self[:-1])

    def plus(self, other: Spent, times: float = 1.0) -> Spent:
        """Return the sum with another, that so many times."""
        return Spent(*[a + times * b for a, b in zip(self, other, strict=True)])


class Part(NamedTuple):
    """A layer, or an end of the network, without attention, and what the host takes to issue it."""

    spent: Spent
    host_s: float


class Attended(NamedTuple):
    """The attention of a layer for a group: its seconds, and its first kernel with its joules."""

    seconds: float
    joules: float
    kernel: Kernel


@dataclass(frozen=True)
class Layer:
    """What a layer, or an end, is made of, whatever a step asks: parameters by how they are kept.

    `products` are those of matrices that may be kept in fewer bits, `head` is its attention.
    """

    plain: int
    products: int
    head: Head | None


class Phases:
    """Seconds and bytes of a language model on ranks that serve it; what is asked for is kept.

    Weights of layers lie in the format `weights`, the cache in `kv` ("" for that of the planner).
    `plan` has `tensor` and `pipeline`; `data` ranks share out sequences and, of each of their
    `expert` groups, experts.
    """

    def __init__(self, planner: Planner, plan: Plan, weights: str = "", kv: str = "") -> None:
        self.planner = planner
        self.plan = plan
        self.weights = weights or planner.low or planner.in_memory
        lower = planner.low == "float8" and planner.flag("cache_low")
        self.kv = kv or ("float8" if lower else planner.in_memory)
        self.constant = planner.constant
        self.device = planner.seen
        if planner.low:
            peaks = {**planner.seen.peak_flop_per_s}
            peaks[planner.low] *= planner.constant("low_share")
            self.device = replace(planner.seen, peak_flop_per_s=peaks)
        self._parts: dict[int, dict[str, Part]] = {}
        self._attended: dict[tuple[Head, Group], Attended] = {}

    @property
    def form(self) -> str:
        """The name of the interval of its times: mixtures of experts have one of their own."""
        return "experts" if self.planner.shape.experts else "serve"

    def within(self, value: float, form: str = "") -> Interval:
        """Return seconds, or what follows from them, with 80 % of what is measured."""
        if self.planner.method.name != "calibrated":
            return Interval(value)
        low, high, _ = bounds(form or self.form, self.device.constants)
        return Interval(value, value * low, value * high)

    def mixed(self, sequences: int, context: float, prompts: int, tokens: int) -> Spent:
        """Return what a step is made of that decodes sequences and reads so many prompts."""
        groups = [Group(self._own(prompts), tokens, 0)] if tokens else []
        groups += [Group(self._own(sequences), 1, context)] if sequences else []
        return self.step(groups)

    def prefill(self, sequences: int, tokens: int, past: int = 0) -> Spent:
        """Return what it takes until new sequences of so many tokens each have their first one.

        `past` tokens of each lie in the cache already.
        """
        stages = self.plan.pipeline
        flights = min(stages, self._own(sequences))
        one = self.step([Group(-(-self._own(sequences) // flights), tokens, past)])
        found = Spent().plus(one, (stages + flights - 1) / stages)
        return found._replace(joules=flights * one.joules)

    def decode(self, sequences: int, context: float) -> Spent:
        """Return what a step takes that gives each sequence a token, at a mean context.

        Stages of a pipeline work at a part of the sequences each, so that a step takes what a part
        takes through all of them.
        """
        flights = min(self.plan.pipeline, self._own(sequences))
        one = self.step([Group(-(-self._own(sequences) // flights), 1, context)])
        return one._replace(joules=flights * one.joules)

    def step(self, groups: Sequence[Group]) -> Spent:
        """Return what a step of some groups takes: products of all tokens, attention of each."""
        rows = sum(one.sequences * one.tokens for one in groups)
        ends = sum(one.sequences for one in groups)
        parts, found, host_s = self._part(rows), Spent(), 0.0
        last = self._part(ends)[LAST]
        for name, times in self._times.items():
            one = last if name == LAST else parts[name]
            found, host_s = found.plus(one.spent, times), host_s + times * one.host_s
            head = self.layers[name].head
            if head is not None:
                for group in groups:
                    seconds, joules, _ = self.attended(head, group)
                    spent = Spent(attention_s=seconds, joules=joules)
                    found = found.plus(spent, times)
        stages, apart = self.plan.pipeline, self.plan.tensor * self.plan.data
        pair = range(0, min(stages, 2) * apart, apart)
        size = float(HALF * rows * self.planner.shape.one["width"])  # that stages hand on
        sent_s = (stages - 1) * self.planner.exchange("send", size, pair).seconds
        found = found.plus(Spent(exchange_s=sent_s))
        host_s += self.device.constants.get("host.step_s", 0.0)
        replayed = self.planner.flag("graphs") and all(one.tokens == 1 for one in groups)
        late = 0.0 if replayed else max(0.0, host_s - found.seconds)
        late += self.constant("step_s") + self.constant("sequence_s") * ends
        return found._replace(host_s=late)

    def _own(self, sequences: int) -> int:
        return -(-sequences // self.plan.data)

    @cached_property
    def _skips_window(self) -> bool:
        return attention_of(self.planner.method.settings).skips_window

    def attended(self, head: Head, group: Group) -> Attended:
        """Return a layer's attention for a group.

        Where each sequence has one new token, a latent cache is read as it is (DeepSeek-AI 2024,
        section 2.1.2): all heads share one key, of which a part is the value.
        """
        if head.window:  # parts of a prompt as long as the window see that before them
            parts = -(-group.tokens // head.window) if self._skips_window else 1
            tokens, past = -(-group.tokens // parts), head.window if parts > 1 else group.past
            group = Group(group.sequences * parts, tokens, min(past, head.window))
        group = group._replace(past=round(group.past))
        if (head, group) not in self._attended:
            kernels = attention(self.planner, head, group, self.kv)
            took = sum(self.planner.seconds(kernels, self.device))
            newer = (self.planner.device.architecture or "").startswith(NEWER)
            if newer and group.tokens > 1:
                took *= self.constant("attention")
            joules = float(spent_j(Kernels(kernels[:1]), self.device))
            self._attended[head, group] = Attended(took, joules, kernels[0])
        return self._attended[head, group]

    def _part(self, rows: int) -> dict[str, Part]:
        if rows not in self._parts:
            graph = self._graph(rows)
            planner, method = self.planner, self.planner.method
            lowered = method.lower(graph, planner.in_memory, method.settings)
            by: dict[str, list[Kernel]] = {}
            stored = [self._stored(graph, one, rows) for one in lowered.kernels]
            for kernel in merged(graph, stored):
                by.setdefault(piece_of(kernel.op), []).append(kernel)
            found = {n: self._priced(graph, some) for n, some in by.items()}
            size = float(HALF * rows * planner.shape.vocabulary)  # of logits, that ranks share out
            took = planner.exchange("all_gather", size, range(self.plan.tensor)).seconds
            gathered = found[LAST].spent.plus(Spent(exchange_s=took))
            self._parts[rows] = found | {LAST: found[LAST]._replace(spent=gathered)}
        return self._parts[rows]

    def _graph(self, rows: int) -> Graph:
        """Return a rank's graph for so many tokens, as if of one sequence."""
        plan, shape = self.plan, self.planner.shape
        ranks = min(plan.expert, plan.data)
        own = Plan(tensor=plan.tensor, expert=ranks, data=ranks)
        builder = Builder(shape.family.name, precision(self.planner.in_memory), False, own)
        try:
            length = -(-rows // ranks) * ranks
            most = max(length, int(shape.one["max_length"]))
            params = {**shape.one, "length": length, "max_length": most}
            return builder.graph(shape.family.build(builder, params, 1))
        except ShapeError as error:
            raise InputError(f"serve: {error}") from None

    def _priced(self, graph: Graph, kernels: Sequence[Kernel]) -> Part:
        ops = {op.name: op for op in graph.ops}
        other = exchange = 0.0
        mine, casts = [], []
        for kernel in kernels:
            op = ops[kernel.op]
            if op.kind == "attention":
                continue
            if kernel.exchange is not None:
                _, ranks, stride = kernel.exchange
                group = range(0, ranks * stride, stride)
                exchange += self.planner.exchange(kernel.kind, kernel.bytes, group).seconds
                continue
            mine.append(kernel)
            if op.kind == "experts":  # each row of a token and expert is written, and summed
                copies = float(str(op.attrs["per_token"])) * graph.tensors[op.inputs[0]].size
                other += self.constant("routed_s")
                other += self.planner.traffic_s("gather", 2 * HALF * copies)
            if self.planner.low and kernel.dtype == self.planner.low:  # its operand is quantised
                size = 3.0 * graph.tensors[op.inputs[0]].size
                casts.append(Kernel(op.name, "cast", "forward", "bfloat16", "vector", 0, size))
        times = self.planner.seconds([*mine, *casts], self.device)
        other += sum(times[len(mine) :])
        gap_s, slower = self.constant("kernel_s"), self.constant("vectors")
        timed = list(zip(mine, times, strict=False))
        products = sum(s + gap_s * one.launches for one, s in timed if one.unit == "matrix")
        other += sum(s * slower + gap_s * one.launches for one, s in timed if one.unit == "vector")
        host = host_of(calls_of(mine), self.device.constants)
        issued = 0.0 if host is None else host.issued_s[0] - host.base_s
        joules = float(spent_j(Kernels(mine), self.device))
        return Part(Spent(products, 0.0, other, exchange, 0.0, joules), issued)

    def _stored(self, graph: Graph, kernel: Kernel, rows: int) -> Kernel:
        """Return a kernel that reads its weights as they are stored, of experts those touched."""
        if kernel.kind not in LOWERED or piece_of(kernel.op) in (FIRST, LAST):
            return kernel
        specs = graph.cases[kernel.op].specs
        weights = sum(spec.size for spec in specs[1:] if len(spec.shape) >= 2)
        read, share = float(weights * HALF), 1.0
        if kernel.kind == "experts":
            weights = sum(spec.size for spec in specs[2:4])
            count, each = (
                specs[2].shape[0],
                int(str(dict(graph.cases[kernel.op].attrs)["per_token"])),
            )
            here = experts_read(count, each, specs[0].size / specs[0].shape[-1])
            read = weights * HALF * here / count  # as the op counts its own rows
            one, tokens = self.planner.shape.one, rows * min(self.plan.expert, self.plan.data)
            routed = int(one["experts"])
            share = experts_read(routed, int(one["experts_per_token"]), tokens) / routed
        moved = kernel.bytes - read + weights * share * FORMATS[self.weights]
        return kernel._replace(bytes=moved, dtype=self.planner.low or kernel.dtype)

    @cached_property
    def _times(self) -> Mapping[str, int]:
        """How often each part of the network stands in it."""
        kinds = self.planner.shape.kinds
        return {FIRST: 1, **{name: kinds.count(name) for name in dict.fromkeys(kinds)}, LAST: 1}

    @cached_property
    def layers(self) -> Mapping[str, Layer]:
        """The parts of a rank's network, by name."""
        graph, found = self._graph(1), dict.fromkeys(self._times, (0, 0))
        stored = {n for op in graph.ops if op.kind in LOWERED for n in op.inputs[1:]}
        heads: dict[str, Head] = {}
        for op in (one for one in graph.ops if one.kind == "attention"):
            q, v = (graph.tensors[op.inputs[i]].shape[2] for i in (0, 2))
            names = ("heads", "kv_heads", "window")
            n, g, window = (int(str(op.attrs.get(name, 0))) for name in names)
            heads[piece_of(op.name)] = Head(n, g, q // n, v // g, window)
        for name in graph.weights:
            piece, spec = piece_of(name), graph.tensors[name]
            if piece not in found:  # a layer like another
                continue
            low = name in stored and len(spec.shape) > 1 and piece not in (FIRST, LAST)
            plain, products = found[piece]
            found[piece] = (plain, products + spec.size) if low else (plain + spec.size, products)
        return {name: Layer(*sizes, heads.get(name)) for name, sizes in found.items()}

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights on a device: of a pipeline, of its fullest stage."""
        stages, count = self.plan.pipeline, len(self.planner.shape.kinds)
        in_layers = sum(
            (HALF * self.layers[name].plain + FORMATS[self.weights] * self.layers[name].products)
            * times
            for name, times in self._times.items()
            if name not in (FIRST, LAST)
        )
        ends = [HALF * self.layers[name].plain for name in (FIRST, LAST)]
        return in_layers * ceil(count / stages) / count + (sum(ends) if stages == 1 else max(ends))

    @cached_property
    def kv_token_bytes(self) -> float:
        """Bytes of the cache that a token takes on a device, in all layers."""
        return self.kv_bytes(1)

    def kv_bytes(self, tokens: int) -> float:
        """Return the bytes of the cache of a sequence on a device; windows keep what they see."""
        found, one = 0.0, self.planner.shape.one
        for name, times in self._times.items():
            head = self.layers[name].head
            if head is not None:
                width = head.kv_heads * (head.width + head.values)
                if one["latent_kv"]:
                    width = one["latent_kv"] + one["rotary_width"]
                found += times * width * (min(tokens, head.window) if head.window else tokens)
        count = len(self.planner.shape.kinds)
        return found * FORMATS[self.kv] * ceil(count / self.plan.pipeline) / count

    @cached_property
    def usable_bytes(self) -> float:
        """Bytes of a device that are used: a share of all, or all but a share of what is left."""
        whole, share = self.planner.room_bytes, self.constant("memory_share")
        taken = self._fixed_bytes if self.planner.flag("of_rest") else 0.0
        return whole if taken > whole else taken + share * (whole - taken)

    @cached_property
    def room_bytes(self) -> float:
        """Bytes of a device that are left for the cache, below 0 where weights do not fit."""
        return self.usable_bytes - self._fixed_bytes

    @property
    def _fixed_bytes(self) -> float:
        taken = self.constant("buffer_bytes") + self.constant("context_bytes")
        return self.weight_bytes + taken + self.reserved_bytes

    @property
    def reserved_bytes(self) -> float:
        """Bytes that live while a step reads the most tokens that it may, 0 where it may any."""
        budget = self.constant("step_tokens")
        return self.activation_bytes(budget) if 0 < budget < NO_BUDGET else 0.0

    def activation_bytes(self, tokens: float) -> float:
        """Return the bytes that live while a step reads so many tokens.

        That is around a layer: what ranks share of queries, keys, values and feed-forward part,
        read and written, and what each of them has whole.
        """
        one = self.planner.shape.one
        head = next(layer.head for layer in self.layers.values() if layer.head is not None)
        shared = head.heads * head.width + head.kv_heads * (head.width + head.values)
        inner = one["expert_ffn"] * one["experts_per_token"] if one["experts"] else one["ffn"]
        whole = 6.0 * int(one["width"])
        return HALF * tokens * (whole + 2.0 * (shared + int(inner) / self.plan.tensor))
