"""The phases of inference, prefill and decode: what one rank runs, priced as everything is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from math import ceil, inf
from typing import TYPE_CHECKING, NamedTuple

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.workload import Plan
from steptime.hardware.architectures import has_trait
from steptime.network.families import language
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import experts_read
from steptime.network.ops.table import ShapeError
from steptime.planning.problem import PlanProblem
from steptime.planning.shape import Shape
from steptime.prediction import conformal
from steptime.prediction.calibrated.interval import bounds
from steptime.prediction.calibrated.power import spent_j
from steptime.prediction.collectives import StepEnds, with_links
from steptime.prediction.host import calls_of, host_of
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Kernels
from steptime.prediction.training import FIRST, LAST, LOW_KINDS, piece_of
from steptime.serving.calibration import ServingCalibration
from steptime.serving.engine import Engine
from steptime.serving.experts import kernel_seconds, routed_traffic_s
from steptime.serving.kernels import (
    ATTENDING,
    FORMATS,
    HALF,
    Group,
    Head,
    attention,
    concatenate_cache,
    heads_of,
    merged,
    stored_bytes,
)
from steptime.serving.profile_run import ProfileRun, profile_run_of

if TYPE_CHECKING:
    from steptime.serving.speculation import Guesses

SMALL_BYTES = 70 * 1024**3  # of memory: devices with less are small
NO_BUDGET = 1e8  # tokens of a step, from which on all prompts are read in one
ROUNDING = 1e-12  # of a sum of seconds: a difference of two that is less is none


class Spent(NamedTuple):
    """Seconds of a step: products, attention, what moves bytes, exchanges, waiting for the host.

    `joules` are those of a rank beyond waiting; the host issues it all in `issue_s`.
    """

    products_s: float = 0.0
    attention_s: float = 0.0
    other_s: float = 0.0
    exchange_s: float = 0.0
    host_s: float = 0.0
    joules: float = 0.0
    issue_s: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what they are spent on."""
        return dict(zip(self._fields[:5], self[:5], strict=True))

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return sum(self[:5])

    @property
    def exchange_share(self) -> float:
        """The part of the seconds that is waited for exchanges."""
        return self.exchange_s / self.seconds if self.seconds else 0.0

    def plus(self, other: Spent, times: float = 1.0) -> Spent:
        """Return the sum with another, that so many times."""
        return Spent(*[a + times * b for a, b in zip(self, other, strict=True)])

    def scale_device(self, factor: float) -> Spent:
        """Return the same with a device that takes so many times as long; the host does not."""
        return self._replace(
            products_s=factor * self.products_s,
            attention_s=factor * self.attention_s,
            other_s=factor * self.other_s,
            exchange_s=factor * self.exchange_s,
        )


class Phases:
    """Seconds and bytes of a language model on ranks that serve it; what is asked for is kept.

    Weights of layers lie in the format `weights`, the cache in `kv` ("" for that of the problem).
    `plan` has `tensor` and `pipeline`; `data` ranks share out sequences and, of each of their
    `expert` groups, experts. `guesses` are those of who guesses tokens for a step.
    `expert` groups, experts. A `calibration` replaces constants of the stack, and those of the
    engine come before both.
    """

    def __init__(
        self,
        problem: PlanProblem,
        plan: Plan,
        weights: str = "",
        kv: str = "",
        engine: Engine | None = None,
        guesses: Guesses | None = None,
        calibration: ServingCalibration | None = None,
    ) -> None:
        self.problem = problem
        self.guesses = guesses
        self.engine = engine or Engine()
        self.set_calibration(calibration)
        self.plan = plan
        has_experts = bool(problem.shape.experts)
        self.kind = conformal.MIXTURE_SERVINGS if has_experts else conformal.SERVINGS
        self.weights = weights or problem.rank.low_dtype or problem.rank.weight_dtype
        four = "float4" in problem.device.peak_flop_per_s and problem.rank.flag("cache_four")
        lower = problem.rank.low_dtype and (four or problem.rank.flag("cache_low"))
        self.kv = kv or ("float8" if lower else problem.rank.weight_dtype)
        self.device = problem.rank.calibrated_device
        if problem.rank.low_dtype:
            peaks = {**problem.rank.calibrated_device.peak_flop_per_s}
            peaks[problem.rank.low_dtype] *= problem.rank.constant("low_share")
            self.device = replace(problem.rank.calibrated_device, peak_flop_per_s=peaks)
        self._parts: dict[int, dict[str, Spent]] = {}
        self._attended: dict[tuple[str, Group], Spent] = {}

    def with_calibration(self, calibration: ServingCalibration | None) -> Phases:
        """Return the same phases under another calibration; kernels are priced once for both."""
        other = copy(self)
        other.set_calibration(calibration)
        return other

    def set_calibration(self, calibration: ServingCalibration | None) -> None:
        """Replace constants of the stack by those of a calibration, then of the engine."""
        fitted = {} if calibration is None else calibration.constants
        self._replaced_constants = {**fitted, **self.engine.constants()}
        self._device_factor = 1.0
        if calibration is not None:
            problem = self.problem
            self._device_factor = calibration.factor_of(problem.shape, problem.device.name)

    def constant(self, name: str) -> float:
        """Return a number of the stack, or what a calibration or the engine puts in its place."""
        value = self._replaced_constants.get(name)
        return self.problem.rank.constant(name) if value is None else value

    @property
    def mixes(self) -> bool:
        """Whether a step reads prompts beside the tokens of others."""
        if self.engine.chunked_prefill is None:
            return self.problem.rank.flag("mixes")
        return self.engine.chunked_prefill

    @property
    def form(self) -> str:
        """The name of the interval of its times: mixtures of experts have one of their own."""
        return "serve_experts" if self.problem.shape.experts else "serve"

    def within(self, value: float, kind: str = "", exchange_share: float = 0.0) -> Interval:
        """Return seconds, or what follows from them, with their 80 % interval.

        A device that was calibrated by servings of its own has the interval that these told.

        Args:
            value: the seconds.
            kind: the kind of work; "" for that of the network.
            exchange_share: the part of the seconds that is waited for exchanges, whose links
                reach more or less than predicted.
        """
        if self.problem.method.name != "calibrated":
            return Interval(value)
        if f"interval.{self.form}_low" in self.device.constants:
            low, high, _ = bounds(self.form, self.device.constants)
            interval = Interval(value, value * low, value * high)
        else:
            interval = conformal.find_ends(kind or self.kind, self.device).of(value)
        slowdown, exchange_s = self.problem.link_slowdown, value * exchange_share
        quick_s = value - exchange_s * (1 - 1 / slowdown)
        slow_s = value + exchange_s * (slowdown - 1)
        ends = with_links(value, StepEnds(interval.low, interval.high), quick_s, slow_s)
        return Interval(value, ends.low_s, ends.high_s)

    def mixed(self, sequences: int, context: float, prompts: int, tokens: int) -> Spent:
        """Return what a step is made of that decodes sequences and reads so many prompts."""
        groups = [Group(self._own(prompts), tokens, 0)] if tokens else []
        groups += [Group(self._own(sequences), 1, context)] if sequences else []
        return self.step(groups)

    def prefill(self, sequences: int, tokens: int, past: int = 0) -> Spent:
        """Return what it takes until new sequences of so many tokens each have their first one.

        `past` tokens of each lie in the cache already.
        """
        one, flights = self._flights(sequences, tokens, past)
        times = 1 + (flights - 1) / self.plan.pipeline
        return Spent().plus(one, times)._replace(joules=one.joules)

    def decode(self, sequences: int, context: float) -> Spent:
        """Return what a step takes that gives each sequence a token, at a mean context.

        Stages of a pipeline work at a part of the sequences each, so that a step takes what a part
        takes through all of them.
        """
        return self._flights(sequences, 1, context)[0]

    def _flights(self, sequences: int, tokens: int, past: float) -> tuple[Spent, int]:
        """Return what a part of some sequences takes, with the joules of all, and how many are."""
        own = self._own(sequences)
        flights = min(self.plan.pipeline, own)
        one = self.step([Group(-(-own // flights), tokens, past)])
        return one._replace(joules=flights * one.joules), flights

    def step(self, groups: Sequence[Group]) -> Spent:
        """Return what a step of some groups takes: products of all tokens, attention of each."""
        rows = sum(one.sequences * one.tokens for one in groups)
        ends = sum(one.sequences for one in groups)
        parts, found = {**self._part(rows), LAST: self._part(ends)[LAST]}, Spent()
        for name, times in self._times.items():
            found = found.plus(parts[name], times)
            for group in groups if name in self.heads else ():
                found = found.plus(self.attended(name, group), times)
        stages, apart = self.plan.pipeline, self.plan.tensor * self.plan.data
        pair = range(0, min(stages, 2) * apart, apart)
        size = float(HALF * rows * self.problem.shape.kind_settings["width"])  # that stages hand on
        sent_s = (stages - 1) * self.problem.collective_time("send", size, pair).seconds
        found = found.plus(Spent(exchange_s=sent_s)).scale_device(self._device_factor)
        late_s = max(0.0, self._issued_s([]) + found.issue_s - found.seconds)
        late_s *= not self._is_replayed(groups)
        return found._replace(host_s=late_s + self._server_s(ends))

    def _is_replayed(self, groups: Sequence[Group]) -> bool:
        """Return whether a CUDA graph replays a step: one of decoding, or of few tokens."""
        tokens = sum(group.sequences * group.tokens for group in groups)
        is_decoding = all(group.tokens == 1 for group in groups)
        is_small = tokens <= self.constant("graph_tokens")
        return self.problem.rank.flag("graphs") and (is_decoding or is_small)

    def beside_predict(self, tokens: int) -> dict[str, float]:
        """Return by what a prompt's prefill on one device is more than `predict`'s step [s].

        Weights as they are stored; products of one input as one; attention as newer devices have
        it, and the cache's format; the head for the last token alone; rows sorted by experts,
        casts, gaps between kernels; waiting for the host; what the server adds.
        """
        graph, plain = self._lowered(tokens)
        stored = [self._stored(graph, one) for one in plain]
        joined = self._merged(graph, stored)
        cores = {op.name for op in graph.ops if op.kind in ATTENDING}

        def summed(kernels: Sequence[Kernel], seconds: Sequence[float]) -> float:
            both = zip(kernels, seconds, strict=True)
            return sum(self._times.get(piece_of(one.op), 0) * took for one, took in both)

        plain_s, stored_s, merged_s, core_s = (
            summed(some, self.problem.rank.kernel_seconds(some, self.device))
            for some in (plain, stored, joined, [one for one in joined if one.op in cores])
        )
        begin_s, whole = self._issued_s([]), self.prefill(1, tokens)
        issue_s = begin_s + summed(plain, [self._issued_s([one]) - begin_s for one in plain])
        one_s, all_s = (self._part(rows)[LAST].seconds for rows in (1, tokens))
        remaining_s = whole.products_s + whole.other_s - one_s + all_s - merged_s + core_s
        return {
            "weights_s": stored_s - plain_s,
            "merged_s": merged_s - stored_s,
            "attention_s": whole.attention_s - core_s,
            "last_token_s": one_s - all_s,
            "rows_s": remaining_s if abs(remaining_s) > ROUNDING * merged_s else 0.0,
            "host_s": whole.host_s - self._server_s(1) - max(0.0, issue_s - plain_s),
            "server_s": self._server_s(1) + self.prompt_s(tokens),
        }

    def prompt_s(self, tokens: int) -> float:
        """Return the seconds that a prompt takes beside its step until its first token.

        Prompts of more tokens than CUDA graphs replay take longer (`long_prompt_s`).
        """
        is_long = tokens > self.constant("graph_tokens")
        return self.constant("prompt_s") + is_long * self.constant("long_prompt_s")

    def limit(self, name: str) -> float:
        """Return a limit of the software, that for small devices where it has one.

        vLLM's `EngineArgs` take devices below 70 GiB, and the A100, for small. A setting of the
        engine comes before both.
        """
        if name in self._replaced_constants:
            return self._replaced_constants[name]
        memory_bytes = self.problem.device.memory_bytes or inf
        is_small = memory_bytes < SMALL_BYTES or self.problem.device.name.startswith("a100")
        small = self.constant(f"small_{name}") if is_small else 0.0
        return small or self.constant(name)

    def _own(self, sequences: int) -> int:
        return -(-sequences // self.plan.data)

    def _server_s(self, sequences: int) -> float:
        return self.constant("step_s") + self.constant("sequence_s") * sequences

    def _issued_s(self, kernels: Sequence[Kernel]) -> float:
        """Return when the host has issued a step of some kernels."""
        host = host_of(calls_of(kernels), self.device.constants)
        return 0.0 if host is None else host.issued_s[0]

    def attended(self, name: str, group: Group) -> Spent:
        """Return what a layer's attention takes for a group."""
        key = name, group._replace(past=round(group.past))
        if key not in self._attended:
            kernels = self._attention_kernels(name, key[1])
            took = sum(self.problem.rank.kernel_seconds(kernels, self.device))
            newer = has_trait(self.problem.device, "copied_tensors")
            took *= self.constant("attention") if newer and group.tokens > 1 else 1.0
            joules = spent_j(Kernels(kernels[: len(self.heads[name])]), self.device)
            self._attended[key] = Spent(attention_s=took, joules=joules)
        return self._attended[key]

    def _attention_kernels(self, name: str, group: Group) -> list[Kernel]:
        """Return the kernels of a layer's attention for a group; the cache's copy comes last."""
        heads = self.heads[name]
        kernels = [
            kernel for head in heads for kernel in attention(self.problem, head, group, self.kv)
        ]
        if self.problem.rank.flag("concatenates"):
            tokens = group.sequences * (group.past + group.tokens)
            numbers = sum(head.token_numbers for head in heads) * tokens
            kernels.append(concatenate_cache(kernels[0], FORMATS[self.kv] * numbers))
        return kernels

    def _part(self, rows: int) -> dict[str, Spent]:
        """Return what each piece takes but for attention, and the host to issue it."""
        if rows not in self._parts:
            graph, kernels = self._lowered(rows)
            by: dict[str, list[Kernel]] = {}
            for kernel in self._merged(graph, [self._stored(graph, one) for one in kernels]):
                by.setdefault(piece_of(kernel.op), []).append(kernel)
            found = {name: self._priced(graph, some) for name, some in by.items()}
            logits = float(HALF * rows * self.problem.shape.vocabulary)  # that ranks share out
            ranks = range(self.plan.tensor)
            took = self.problem.collective_time("all_gather", logits, ranks).seconds
            self._parts[rows] = found | {LAST: found[LAST].plus(Spent(exchange_s=took))}
        return self._parts[rows]

    def _merged(self, graph: Graph, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Return kernels, those of products of one input as one where a stack keeps them so."""
        return [*kernels] if self.problem.rank.flag("separate") else [*merged(graph, kernels)]

    def _lowered(self, rows: int) -> tuple[Graph, Sequence[Kernel]]:
        """Return a rank's graph of a step of so many tokens, and its kernels."""
        graph = self._graph(rows)
        return graph, self.problem.rank.step_model.of(graph, rows).lowered().kernels

    def _graph(self, rows: int) -> Graph:
        """Return a rank's graph for so many tokens, as if of one sequence."""
        plan, shape = self.plan, self.problem.shape
        ranks = min(plan.expert, plan.data)
        own = Plan(tensor=plan.tensor, expert=ranks, data=ranks)
        builder = Builder(shape.family.name, precision(self.problem.rank.weight_dtype), False, own)
        try:
            length = -(-rows // ranks) * ranks
            most = max(length, int(shape.kind_settings["max_length"]))
            params = {**shape.kind_settings, "length": length, "max_length": most}
            return builder.graph(shape.family.build(builder, params, 1))
        except ShapeError as error:
            raise InputError(f"serve: {error}") from None

    def _priced(self, graph: Graph, kernels: Sequence[Kernel]) -> Spent:
        ops = {op.name: op for op in graph.ops}
        other = exchange = 0.0
        mine, casts = [], []
        for kernel in (one for one in kernels if ops[one.op].kind not in ATTENDING):
            op = ops[kernel.op]
            size = float(graph.tensors[op.inputs[0]].size)
            if kernel.exchange is not None:
                _, ranks, stride = kernel.exchange
                group = range(0, ranks * stride, stride)
                exchange += self.problem.collective_time(kernel.kind, kernel.bytes, group).seconds
                continue
            mine.append(kernel)
            if op.kind == "experts":
                other += self.constant("routed_s") + routed_traffic_s(self.problem.rank, graph, op)
            low_dtype = self.problem.rank.low_dtype
            if low_dtype and kernel.dtype == low_dtype:  # its operand is quantised
                casts.append(Kernel(op.name, "cast", "forward", "bfloat16", "vector", 0, 3 * size))
        gap_s = self.constant("kernel_s")
        hidden = self.constant("four_hidden") if self.problem.rank.low_dtype == "float4" else 0.0
        slower = self.constant("vectors") * (1 - hidden)
        priced = [*mine, *casts]
        share = self.constant("grouped_share")
        times = kernel_seconds(self.problem.rank, priced, self.device, share)
        products, other = 0.0, other + sum(times[len(mine) :]) * (1 - hidden)
        for kernel, took in zip(mine, times, strict=False):
            if kernel.unit == "matrix":
                products += took + gap_s * kernel.launches
            else:
                other += took * slower + gap_s * kernel.launches
        issued = [*kernels]
        if self.problem.rank.flag("concatenates"):
            cores = [kernel for kernel in kernels if ops[kernel.op].kind in ATTENDING]
            issued += [concatenate_cache(kernel, 0.0) for kernel in cores]
        issue_s = self._issued_s(issued) - self._issued_s([])
        joules = spent_j(Kernels(mine), self.device)
        return Spent(products, 0.0, other, exchange, 0.0, joules, issue_s)

    def _stored(self, graph: Graph, kernel: Kernel) -> Kernel:
        """Return a kernel that reads its weights as they are stored, of experts those touched."""
        if kernel.kind not in LOW_KINDS or piece_of(kernel.op) in (FIRST, LAST):
            return kernel
        _, (x, *rest), attrs, *_ = graph.cases[kernel.op]
        weights = [spec for spec in rest if len(spec.shape) > 1]
        read = 1.0
        if kernel.kind == "experts":
            count, each = rest[1].shape[0], int(str(dict(attrs)["per_token"]))
            read = experts_read(count, each, x.size / x.shape[-1]) / count
            weights = rest[1:3]
        more = sum(stored_bytes(spec, self.weights) - HALF * spec.size for spec in weights)
        moved = kernel.bytes + read * more
        return kernel._replace(bytes=moved, dtype=self.problem.rank.low_dtype or kernel.dtype)

    @cached_property
    def _times(self) -> Mapping[str, int]:
        """How often each part of the network stands in it."""
        kinds = self.problem.shape.kinds
        return {FIRST: 1, **{name: kinds.count(name) for name in dict.fromkeys(kinds)}, LAST: 1}

    @cached_property
    def heads(self) -> Mapping[str, tuple[Head, ...]]:
        """The attention of a rank's layers, by the name of their kind."""
        graph, one = self._graph(1), self.problem.shape.kind_settings
        pieces = dict.fromkeys(piece_of(op.name) for op in graph.ops if op.kind in ATTENDING)
        return {piece: heads_of(graph, piece, one) for piece in pieces}

    @cached_property
    def piece_bytes(self) -> dict[str, float]:
        """Bytes of the weights on a device by piece: the ends, and one layer of each kind."""
        names = (FIRST, *dict.fromkeys(self.problem.shape.kinds), LAST)
        graph, found = self._graph(1), dict.fromkeys(names, 0.0)
        stored = {n for op in graph.ops if op.kind in LOW_KINDS for n in op.inputs[1:]}
        for name in graph.weights:
            piece, spec = piece_of(name), graph.tensors[name]
            if piece in found:  # else a layer like another
                low = name in stored and len(spec.shape) > 1 and piece not in (FIRST, LAST)
                found[piece] += stored_bytes(spec, self.weights) if low else HALF * spec.size
        return found

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights on a device: of a pipeline, of its fullest stage."""
        found = dict(self.piece_bytes)
        stages, count = self.plan.pipeline, len(self.problem.shape.kinds)
        ends = [found.pop(name) for name in (FIRST, LAST)]
        in_layers = sum(self._times[name] * size for name, size in found.items())
        return in_layers * ceil(count / stages) / count + (sum(ends) if stages == 1 else max(ends))

    @cached_property
    def kv_token_bytes(self) -> float:
        """Bytes of the cache that a token takes on a device, in all layers."""
        return self.kv_bytes(1) - self.kv_bytes(0)

    def kv_bytes(self, tokens: int) -> float:
        """Return the bytes of the cache of a sequence on a device; windows keep what they see."""
        layers = self.heads.keys() & self._times.keys()
        size = sum(self._times[name] * self.layer_kv_bytes(name, tokens) for name in layers)
        count = len(self.problem.shape.kinds)
        size *= ceil(count / self.plan.pipeline) / count
        return size + (0.0 if self.guesses is None else self.guesses.kv_bytes(tokens))

    def layer_kv_bytes(self, name: str, tokens: int) -> float:
        """Return the bytes of a layer of a kind in the cache of a sequence on a device."""
        size = 0.0
        for head in self.heads.get(name, ()):
            is_cut = head.window and not head.keeps_all
            kept_tokens = min(tokens, head.window) if is_cut else tokens
            size += FORMATS[self.kv] * head.token_numbers * kept_tokens + head.state_bytes
        return size

    @cached_property
    def fixed(self) -> dict[str, float]:
        """Bytes of a device that are no cache, by part; activations of a step of most tokens.

        They are those of layers or of drawing tokens, whichever are more. Where a step may have
        any number of tokens, activations are 0.
        """
        tokens = self.limit("step_tokens")
        tokens = tokens if tokens < NO_BUDGET else 0.0
        guess_bytes = 0.0 if self.guesses is None else self.guesses.weight_bytes
        return {
            "weights_bytes": self.weight_bytes + guess_bytes,
            "activations_bytes": max(self.activation_bytes(tokens), self.sampler_bytes(tokens)),
            "buffers_bytes": self.constant("buffer_bytes"),
            "context_bytes": self.constant("context_bytes"),
        }

    @cached_property
    def usable_bytes(self) -> float:
        """Bytes of a device that are used: a share of all, or all but a share of what is left.

        A share that somebody set for SGLang is of weights and cache alone.
        """
        whole, share = self.problem.rank.room_bytes, self.constant("memory_share")
        is_static = self.problem.method.settings.stack.startswith("sglang")
        if is_static and self.engine.memory_share is not None:
            return min(
                whole, share * whole + sum(self.fixed.values()) - self.fixed["weights_bytes"]
            )
        taken = sum(self.fixed.values()) if self.problem.rank.flag("of_rest") else 0.0
        return whole if taken > whole else taken + share * (whole - taken)

    @cached_property
    def room_bytes(self) -> float:
        """Bytes of a device that are left for the cache, below 0 where weights do not fit."""
        return self.usable_bytes - sum(self.fixed.values())

    @cached_property
    def profile_run(self) -> ProfileRun:
        """The sizes that decide the memory of a step."""
        heads = [head for heads in self.heads.values() for head in heads]
        widest = max(head.passing_numbers for head in heads)
        return profile_run_of(self.problem.shape, self.plan, widest)

    def activation_bytes(self, tokens: float) -> float:
        """Return the bytes that live while a step reads so many tokens."""
        return self.profile_run.forward_bytes(tokens)

    def largest_sampled(self, step_tokens: float) -> float:
        """Return the sequences at most whose tokens a step of so many tokens draws."""
        return min(self.engine.max_sequences or self.limit("max_sequences"), step_tokens)

    def sampler_bytes(self, step_tokens: float) -> float:
        """Return the bytes of the logits of as many sequences as a step may have, as drawn."""
        sequences = self.largest_sampled(step_tokens)
        return self.profile_run.sampler_bytes(sequences, self.constant("sampled_bytes"))


def describe_excess(shape: Shape, length: int) -> list[str]:
    """Describe by how much a request is longer than the sequences that a model is trained for.

    Outside of the catalogue, a `max_length` that only follows from the usual `length` says nothing
    of what the model can do.
    """
    trained = language.rows().get(shape.family.name, {}).get("max_length")
    max_length = int(shape.kind_settings["max_length"] if trained is None else trained)
    has_limit = trained is not None or max_length > shape.length
    if not has_limit or length <= max_length:
        return []
    return [f"{length:,} tokens are beyond the length of {shape.label}, {max_length:,}"]
