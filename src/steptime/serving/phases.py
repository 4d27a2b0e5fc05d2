"""Prefill and decode on a replica: their kernels, and the seconds that these take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from steptime.core.graph import Graph, Op
from steptime.core.workload import STORED_ALL, Plan
from steptime.hardware.architectures import has_trait
from steptime.network.ops.expert_loads import experts_read
from steptime.network.products import is_left_wide
from steptime.planning.problem import PlanProblem
from steptime.prediction import conformal
from steptime.prediction.calibrated.interval import bounds
from steptime.prediction.calibrated.power import kernels_j
from steptime.prediction.collectives import StepEnds, widen_by_links
from steptime.prediction.host import count_calls, find_host
from steptime.prediction.kernel import Exchange, Interval, Kernel
from steptime.prediction.kernels import Kernels
from steptime.prediction.low_products import LOW_KINDS
from steptime.prediction.training import FIRST, LAST, piece_of
from steptime.serving.attention_shape import ATTENDING
from steptime.serving.calibration import ServingCalibration
from steptime.serving.engine import Engine
from steptime.serving.experts import kernel_seconds, routed_traffic_s
from steptime.serving.kernels import (
    BYTES_BY_FORMAT,
    HALF_BYTES,
    SequenceGroup,
    attention_kernels,
    concatenate_cache,
    merge_products,
    stored_bytes,
)
from steptime.serving.replica import Replica
from steptime.serving.step_cost import StepCost

if TYPE_CHECKING:
    from steptime.serving.speculation import Guesses


class Phases(Replica):
    """The costs of prefill and decode on a replica; each kernel is priced once.

    The arguments are those of `Replica`.
    """

    def __init__(
        self,
        problem: PlanProblem,
        plan: Plan,
        weight_format: str = "",
        cache_format: str = "",
        engine: Engine | None = None,
        guesses: Guesses | None = None,
        calibration: ServingCalibration | None = None,
        quantised_part: str = STORED_ALL,
    ) -> None:
        super().__init__(
            problem, plan, weight_format, cache_format, engine, guesses, calibration, quantised_part
        )
        has_experts = bool(problem.shape.experts)
        self.interval_kind = conformal.MIXTURE_SERVINGS if has_experts else conformal.SERVINGS
        self._costs_by_tokens: dict[int, dict[str, StepCost]] = {}  # of each piece
        self._attention_costs: dict[tuple[str, SequenceGroup], StepCost] = {}

    def with_calibration(self, calibration: ServingCalibration | None) -> Phases:
        """Return the same phases under another calibration; both share the prices of kernels."""
        phases = copy(self)
        phases.apply_calibration(calibration)
        return phases

    @property
    def mixes_prefill(self) -> bool:
        """Whether a step reads prompts beside the decoding of other sequences."""
        if self.engine.chunked_prefill is None:
            return self.problem.rank.flag("mixes")
        return self.engine.chunked_prefill

    @property
    def interval_form(self) -> str:
        """The name of the interval of its times: mixtures of experts have their own."""
        return "serve_experts" if self.problem.shape.experts else "serve"

    def interval_of(self, value: float, kind: str = "", exchange_share: float = 0.0) -> Interval:
        """Return seconds, or a figure that follows from them, with their 80 % interval.

        A device that was calibrated on measured servings has the interval of their residuals.

        Args:
            value: the seconds.
            kind: the kind of work; "" for the one of the network.
            exchange_share: share of the seconds that is exposed communication, whose links
                reach more or less than predicted.
        """
        if self.problem.method.name != "calibrated":
            return Interval(value)
        if f"interval.{self.interval_form}_low" in self.device.constants:
            factors = bounds(self.interval_form, self.device.constants)  # of its own servings
            interval = Interval(value, value * factors[0], value * factors[1])
        else:
            ends_of_kind = conformal.find_ends(kind or self.interval_kind, self.device)
            interval = ends_of_kind.interval_around(value)
        slowdown = self.problem.link_slowdown  # links may be so much slower or quicker
        exchange_s = value * exchange_share
        quick_s = value - exchange_s * (1 - 1 / slowdown)
        slow_s = value + exchange_s * (slowdown - 1)
        ends = widen_by_links(value, StepEnds(interval.low, interval.high), quick_s, slow_s)
        return Interval(value, ends.low_s, ends.high_s)

    def price_mixed_step(
        self, sequences: int, context: float, prompts: int, tokens: int
    ) -> StepCost:
        """Return the cost of a step that decodes sequences and reads prompts of so many tokens."""
        groups = []
        if tokens:  # prompts that are read
            groups.append(SequenceGroup(self._rank_sequences(prompts), tokens, cached_tokens=0))
        if sequences:
            groups.append(
                SequenceGroup(self._rank_sequences(sequences), tokens=1, cached_tokens=context)
            )
        return self.price_step(groups)

    def price_prefill(self, sequences: int, tokens: int, cached_tokens: int = 0) -> StepCost:
        """Return the cost until new sequences have their first token.

        Args:
            sequences: sequences of all ranks.
            tokens: new tokens of each.
            cached_tokens: tokens of each that lie in the cache already.
        """
        microbatch, microbatch_count = self._price_microbatch(sequences, tokens, cached_tokens)
        # The first microbatch passes all stages; each further one ends a stage's time later.
        passages = 1 + (microbatch_count - 1) / self.plan.pipeline
        total_j = microbatch.joules  # of all microbatches already
        return microbatch.multiply(passages)._replace(joules=total_j)

    def price_decode(self, sequences: int, context: float) -> StepCost:
        """Return the cost of a step that gives each sequence a token, at a mean context.

        Each stage of a pipeline works on a microbatch of the sequences, so a step takes the time
        of one microbatch through all stages.
        """
        microbatch, _count = self._price_microbatch(sequences, tokens=1, cached_tokens=context)
        return microbatch

    def _price_microbatch(
        self, sequences: int, tokens: int, cached_tokens: float
    ) -> tuple[StepCost, int]:
        """Return the cost of a microbatch, with the joules of all, and the number of them."""
        rank_sequences = self._rank_sequences(sequences)
        # A pipeline is kept busy by one a stage.
        microbatch_count = min(self.plan.pipeline, rank_sequences)
        microbatch_sequences = -(-rank_sequences // microbatch_count)
        cost = self.price_step([SequenceGroup(microbatch_sequences, tokens, cached_tokens)])
        return cost._replace(joules=microbatch_count * cost.joules), microbatch_count

    def price_step(self, groups: Sequence[SequenceGroup]) -> StepCost:
        """Return the cost of a step: products of all tokens together, attention by group."""
        tokens = sum(group.sequences * group.tokens for group in groups)
        sequences = sum(group.sequences for group in groups)
        # The head reads the last token of each sequence.
        piece_costs = {**self.price_pieces(tokens), LAST: self.price_pieces(sequences)[LAST]}
        cost = StepCost()
        for name, count in self.piece_counts.items():  # a layer of each kind, and both ends
            cost = cost.add(piece_costs[name], count)
            if name in self.attention:
                for group in groups:
                    cost = cost.add(self._price_attention(name, group), count)
        stages_s = self._stage_transfers_s(tokens)
        cost = cost.add(StepCost(exchange_s=stages_s)).scale_device(self._device_factor)
        host_s = self.server_s(sequences)
        if not self._is_replayed(groups):  # the device waits for a host that is slower
            issue_s = self.issue_s([]) + cost.issue_s  # a step without kernels, and its kernels
            host_s += max(0.0, issue_s - cost.seconds)
        return cost._replace(host_s=host_s)

    def _stage_transfers_s(self, tokens: int) -> float:
        """Return the seconds in which the stages of a pipeline hand on the tokens of a step."""
        stages, stage_ranks = self.plan.pipeline, self.plan.tensor * self.plan.data
        neighbours = range(0, min(stages, 2) * stage_ranks, stage_ranks)
        size_bytes = float(HALF_BYTES * tokens * self.problem.shape.kind_settings["width"])
        link_time = self.problem.collective_time("send", size_bytes, neighbours)
        return (stages - 1) * link_time.seconds

    def _is_replayed(self, groups: Sequence[SequenceGroup]) -> bool:
        """Return whether a CUDA graph replays a step.

        Graphs hold every step of up to `graph_tokens` tokens where a stack has that limit, else
        those that only decode.
        """
        if not self.problem.rank.flag("graphs"):
            return False
        # CUDA graphs are captured up to so many tokens; 0: for steps that only decode.
        graph_tokens = self.constant("graph_tokens")
        if graph_tokens:
            return sum(group.sequences * group.tokens for group in groups) <= graph_tokens
        return all(group.tokens == 1 for group in groups)

    def prompt_overhead_s(self, tokens: int) -> float:
        """Return the seconds of a prompt outside of its step until its first token.

        Prompts of more tokens than CUDA graphs replay take longer (`long_prompt_s`).
        """
        is_long = tokens > self.constant("graph_tokens")
        return self.constant("prompt_s") + (self.constant("long_prompt_s") if is_long else 0.0)

    def _rank_sequences(self, sequences: int) -> int:
        """Return the sequences of the fullest data rank."""
        return -(-sequences // self.plan.data)

    def server_s(self, sequences: int) -> float:
        """Return the seconds that the server adds to a step."""
        return self.constant("step_s") + self.constant("sequence_s") * sequences

    def issue_s(self, kernels: Sequence[Kernel]) -> float:
        """Return the time at which the host has issued a step of some kernels."""
        host = find_host(count_calls(kernels), self.device.constants)
        return 0.0 if host is None else host.issued_s[0]

    def _price_attention(self, name: str, group: SequenceGroup) -> StepCost:
        """Return the cost of a layer's attention for a group."""
        group = group._replace(cached_tokens=round(group.cached_tokens))
        key = name, group
        if key not in self._attention_costs:
            kernels = self._attention_kernels(name, group)
            attention_s = sum(self.problem.rank.kernel_seconds(kernels, self.device))
            if has_trait(self.problem.device, "copied_tensors") and group.tokens > 1:
                attention_s *= self.constant("attention")
            main_kernels = kernels[: len(self.attention[name])]  # without a copied cache
            joules = kernels_j(Kernels(main_kernels), self.device)
            self._attention_costs[key] = StepCost(attention_s=attention_s, joules=joules)
        return self._attention_costs[key]

    def _attention_kernels(self, name: str, group: SequenceGroup) -> list[Kernel]:
        """Return the kernels of a layer's attention for a group; the cache's copy comes last."""
        kernels: list[Kernel] = []
        for attention in self.attention[name]:
            kernels += attention_kernels(self.problem, attention, group, self.cache_format)
        if self.problem.rank.flag("concatenates"):
            tokens = group.sequences * (group.cached_tokens + group.tokens)
            token_numbers = sum(attention.token_numbers for attention in self.attention[name])
            cached_bytes = BYTES_BY_FORMAT[self.cache_format] * (token_numbers * tokens)
            kernels.append(concatenate_cache(kernels[0], cached_bytes))
        return kernels

    def price_pieces(self, tokens: int) -> dict[str, StepCost]:
        """Return the cost of each piece without attention, with the host's time to issue it."""
        if tokens not in self._costs_by_tokens:
            graph, kernels = self.lower(tokens)
            kernels = self.merge_products(graph, self.store_weights(graph, kernels))
            kernels_by_piece: dict[str, list[Kernel]] = defaultdict(list)
            for kernel in kernels:
                kernels_by_piece[piece_of(kernel.op)].append(kernel)
            costs = {
                piece: self._price_kernels(graph, piece_kernels)
                for piece, piece_kernels in kernels_by_piece.items()
            }
            costs[LAST] = costs[LAST].add(StepCost(exchange_s=self._gather_logits_s(tokens)))
            self._costs_by_tokens[tokens] = costs
        return self._costs_by_tokens[tokens]

    def _gather_logits_s(self, tokens: int) -> float:
        """Return the seconds in which tensor-parallel ranks gather their shares of the logits."""
        logits_bytes = float(HALF_BYTES * tokens * self.problem.shape.vocabulary)
        ranks = range(self.plan.tensor)
        return self.problem.collective_time("all_gather", logits_bytes, ranks).seconds

    def merge_products(self, graph: Graph, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Return the kernels with products of one input merged, if the stack merges them."""
        return [*kernels] if self.problem.rank.flag("separate") else merge_products(graph, kernels)

    def lower(self, tokens: int) -> tuple[Graph, Sequence[Kernel]]:
        """Return a rank's graph of a step of so many tokens, and its kernels."""
        graph = self.build_graph(tokens)
        return graph, self.problem.rank.step_model.with_graph(graph, tokens).lower_step().kernels

    def _price_kernels(self, graph: Graph, kernels: Sequence[Kernel]) -> StepCost:
        """Return the cost of the kernels of a piece, but for attention."""
        rank = self.problem.rank
        ops = {op.name: op for op in graph.ops}
        exchange_s = other_s = 0.0
        computing_kernels: list[Kernel] = []
        cast_kernels: list[Kernel] = []
        producer_kinds = {name: op.kind for op in graph.ops for name in op.outputs}
        for kernel in kernels:
            op = ops[kernel.op]
            if op.kind in ATTENDING:
                continue
            if kernel.exchange is not None:
                exchange_s += self._exchange_s(kernel, kernel.exchange)
                continue
            computing_kernels.append(kernel)
            if op.kind == "experts":
                other_s += self.constant("routed_s")
                other_s += routed_traffic_s(rank, graph, op)
            if rank.low_dtype and kernel.dtype == rank.low_dtype:  # its input is quantised
                name = op.inputs[0]
                if not self._fuses_cast(producer_kinds.get(name)):
                    cast_kernels.append(_quantise_input(kernel, float(graph.tensors[name].size)))
        # Products in 4 bit hide a share of the casts and vector kernels, which run beside them.
        hidden_share = self.constant("four_hidden") if rank.low_dtype == "float4" else 0.0
        exposed_share = 1 - hidden_share
        kernels_s = self._kernel_seconds([*computing_kernels, *cast_kernels])
        computing_s = kernels_s[: len(computing_kernels)]
        casts_s = kernels_s[len(computing_kernels) :]
        other_s += sum(casts_s) * exposed_share
        vector_factor = self.constant("vectors") * exposed_share
        products_s = 0.0
        for kernel, kernel_s in zip(computing_kernels, computing_s, strict=True):
            gaps_s = self.constant("kernel_s") * kernel.launches
            if kernel.unit == "matrix":
                products_s += kernel_s + gaps_s
            else:
                other_s += kernel_s * vector_factor + gaps_s
        return StepCost(
            products_s=products_s,
            other_s=other_s,
            exchange_s=exchange_s,
            joules=kernels_j(Kernels(computing_kernels), self.device),
            issue_s=self._piece_issue_s(ops, kernels),
        )

    def _fuses_cast(self, producer_kind: str | None) -> bool:
        """Return whether the kernel that makes the input of a product in 8 bit quantises it, too.

        Norms and activations do, attention does not. Weights of mixtures have scales of blocks,
        for which a kernel of its own quantises.
        """
        rank = self.problem.rank
        if rank.low_dtype != "float8" or self.problem.shape.experts:
            return False
        return rank.flag("fused_casts") and producer_kind not in ATTENDING

    def _kernel_seconds(self, kernels: Sequence[Kernel]) -> list[float]:
        """Return the seconds of kernels; grouped products of experts reach another rate."""
        has_new_units = has_trait(self.problem.device, "tensor_memory")
        grouped_factor = self.constant("grouped_new") if has_new_units else 1.0
        grouped_share = self.constant("grouped_share")
        rank = self.problem.rank
        return kernel_seconds(rank, kernels, self.device, grouped_share, grouped_factor)

    def _exchange_s(self, kernel: Kernel, exchange: Exchange) -> float:
        """Return the seconds of a kernel that is a collective of a group of ranks."""
        group = range(0, exchange.ranks * exchange.stride, exchange.stride)
        return self.problem.collective_time(kernel.kind, kernel.bytes, group).seconds

    def _piece_issue_s(self, ops: dict[str, Op], kernels: Sequence[Kernel]) -> float:
        """Return the seconds in which the host issues the kernels of a piece."""
        issued = [*kernels]
        if self.problem.rank.flag("concatenates"):
            issued += [
                concatenate_cache(kernel, cached_bytes=0.0)
                for kernel in kernels
                if ops[kernel.op].kind in ATTENDING
            ]
        return self.issue_s(issued) - self.issue_s([])  # less the base of a step

    def store_weights(self, graph: Graph, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Return the kernels with the traffic of their weights in the stored format."""
        return [self._read_stored_weights(graph, kernel) for kernel in kernels]

    def _read_stored_weights(self, graph: Graph, kernel: Kernel) -> Kernel:
        """Return a kernel with its weights in the stored format; of experts, of those with tokens.

        Products run in the low type of the problem, if it has one.
        """
        is_end = piece_of(kernel.op) in (FIRST, LAST)
        if kernel.kind not in LOW_KINDS or is_end:
            return kernel
        if is_left_wide(kernel.op, kernel.kind, self.quantised_part):
            return kernel._replace(dtype=self.problem.rank.weight_dtype)
        case = graph.cases[kernel.op]
        tokens_spec, *parameters = case.specs
        weights = [spec for spec in parameters if len(spec.shape) > 1]
        read_share = 1.0
        if kernel.kind == "experts":
            weights = parameters[1:3]  # behind the router's logits
            expert_count = weights[0].shape[0]
            per_token = int(str(dict(case.attrs)["per_token"]))
            tokens = tokens_spec.size / tokens_spec.shape[-1]
            read_share = experts_read(expert_count, per_token, tokens) / expert_count
        change_bytes = sum(
            stored_bytes(spec, self.weight_format) - HALF_BYTES * spec.size for spec in weights
        )
        return kernel._replace(
            bytes=kernel.bytes + read_share * change_bytes,  # the lowering counts them in 16 bits
            dtype=self.problem.rank.low_dtype or kernel.dtype,
        )


def _quantise_input(kernel: Kernel, input_size: float) -> Kernel:
    """Return the kernel that quantises the input of a product: reads 16 bits, writes 8."""
    return Kernel(kernel.op, "cast", "forward", "bfloat16", "vector", flop=0, bytes=3 * input_size)
