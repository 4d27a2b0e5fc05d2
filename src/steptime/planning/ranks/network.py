"""Plans of networks that are no language models: replicas, pipeline stages and ZeRO.

The step is that of `StepModel`, cut between rows where a single tensor crosses. A piece lies
between two cuts, and a stage is a run of consecutive pieces, chosen so that the slowest stage is as
fast as possible.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import cast

from steptime.build import Choice, build_step, family_of, make_workload
from steptime.core.graph import Graph
from steptime.core.workload import Plan, Workload
from steptime.hardware.constants import split_flags
from steptime.hardware.device import Device
from steptime.network.ops.optimizers import STATES
from steptime.planning.caches import cached_by_owner
from steptime.planning.pipelines.stages import Layout, Load
from steptime.planning.ranks import single_device
from steptime.planning.ranks.pieces import Piece, RankPieces
from steptime.planning.ranks.rank_model import FORWARD_PASSES, ForwardFlop, RankModel
from steptime.planning.ranks.rank_setup import Constants
from steptime.planning.ranks.shape import Shape
from steptime.planning.saved_activations import Activations, measure_activations
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.calibrated.power import kernels_j
from steptime.prediction.kernel import Kernel
from steptime.prediction.kernels import Kernels
from steptime.prediction.lower import Row
from steptime.prediction.method import Method
from steptime.prediction.steps.step_model import StepModel
from steptime.prediction.training import FIRST, LAST

STACK_CONSTANTS = (
    "context_bytes",
    "buffer_bytes",
    "fragmented",
    "send_hidden",
    "step_s",
    "exchange_s",
    "send_s",
    "exchange_slow",
    "exchange_large_s",
)
"""The constants of a stack's training that hold for these networks, too."""
BALANCE_STEPS = 50  # of the bisection: it halves the range of the limit each time


@dataclass(frozen=True, kw_only=True)
class NetworkShape(Shape):
    """A network that is no language model; its `kinds` are its pieces, in order.

    Attributes:
        workload: its training with a batch of 1.
        rows: the rows of each piece.
    """

    workload: Workload
    rows: tuple[tuple[Row, ...], ...]


def read_network(
    choice: Choice, label: str, dtype: str | None, optimizer: str | None
) -> NetworkShape:
    """Return a network cut into pieces.

    Args:
        choice: the network that the user chose.
        label: the text by which the user named it.
        dtype: the data type; None for the usual one.
        optimizer: the optimizer; None for the usual one.

    Raises:
        InputError: for an unknown type or optimizer.
    """
    usual_workload = make_workload(choice, dtype=dtype, phase="train", optimizer=optimizer)
    # The graph is cut at batch 1: the cuts are the same at any batch.
    workload = replace(usual_workload, batch_per_replica=1)
    method = cost_model(DEFAULT)
    lowered = method.lower(build_step(workload), workload.dtype, method.settings)
    pieces = cut_rows(lowered.rows)
    return NetworkShape(
        family=family_of(choice),
        settings={},
        # It has no heads and columns that tensor ranks could divide.
        kind_settings={"heads": 1, "kv_heads": 1, "ffn": 1},
        # A piece has the name of its last row.
        kinds=tuple(piece[-1].name for piece in pieces),
        length=1,
        vocabulary=0,
        tied=False,
        experts=0,
        expert_share=1.0,
        label=label,
        unit="examples",
        batch=usual_workload.batch_per_replica,
        workload=workload,
        rows=pieces,
    )


def cut_rows(rows: Sequence[Row]) -> tuple[tuple[Row, ...], ...]:
    """Return rows in pieces: a cut is where later rows read only the result of the row before."""
    last_reader = {row.name: i for i, row in enumerate(rows)}
    for i, row in enumerate(rows):
        for parent in row.parents:
            if parent in last_reader:  # inputs of the network are no rows
                last_reader[parent] = i
    pieces = []
    start = 0
    farthest_reader = 0  # the last reader of any row before the current one
    # A cut behind a row sends its output to the next stage, and nothing else may cross the cut.
    for i, row in enumerate(rows):
        is_crossed = farthest_reader > i
        is_read_later = last_reader[row.name] > i
        if is_read_later and not is_crossed:
            pieces.append(tuple(rows[start : i + 1]))
            start = i + 1
        farthest_reader = max(farthest_reader, last_reader[row.name])
    return (*pieces, tuple(rows[start:]))


def balance_stages(piece_s: Sequence[float], stage_count: int) -> tuple[int, ...]:
    """Return the number of pieces of each stage for which the slowest stage is fastest.

    Bisection over the seconds of the slowest stage.

    Args:
        piece_s: the seconds of each piece, in order.
        stage_count: the number of stages.
    """
    # No stage can be faster than the largest piece; with all pieces' seconds one stage takes them.
    low_s = max(piece_s)
    high_s = sum(piece_s) * (1 + 1e-9)  # above it by more than rounding
    counts = _fill_stages(piece_s, stage_count, high_s)
    for _ in range(BALANCE_STEPS):
        middle_s = (low_s + high_s) / 2
        better_counts = _fill_stages(piece_s, stage_count, middle_s)
        # The pieces fit into the stages, so that a lower limit may do.
        if better_counts:
            counts = better_counts
            high_s = middle_s
        else:
            low_s = middle_s
    return counts or ()  # never None: within the first limit all pieces fit


def _fill_stages(
    piece_s: Sequence[float], stage_count: int, limit_s: float
) -> tuple[int, ...] | None:
    """Return stages filled one after the other up to a limit; None if pieces remain."""
    counts = []
    start = 0
    for later_stages in reversed(range(stage_count)):
        end = start + 1
        last_end = len(piece_s) - later_stages  # each later stage has a piece
        stage_s = piece_s[start]
        while end < last_end and stage_s + piece_s[end] <= limit_s:
            stage_s += piece_s[end]
            end += 1
        counts.append(end - start)
        start = end
    return tuple(counts) if start == len(piece_s) else None


@dataclass(frozen=True, eq=False)
class NetworkRankModel(RankModel):
    """One rank of a network that is no language model."""

    @property
    def network(self) -> NetworkShape:
        """The network."""
        return cast("NetworkShape", self.shape)

    @cached_property
    def step_model(self) -> StepModel:
        """The step of the network on one device."""
        return StepModel(self.network.workload, self.device, method=self.method)

    @cached_property
    def constants(self) -> Constants:
        """The constants of the stack, and the bytes of gradients and states of the network."""
        all_constants = super().constants.numbers
        # The constants that are not fitted on language models alone, such as `training.slowed`.
        stack_constants = {f"{self.use}.{name}": all_constants[name] for name in STACK_CONSTANTS}
        numbers, flags = split_flags(self.use, stack_constants)
        model = self.step_model
        # Per parameter, in the mean.
        numbers["gradient_bytes"] = model.gradient_bytes / max(1, model.parameters)
        numbers["state_bytes"] = STATES[self.network.workload.optimizer] * self.weight_bytes
        return Constants(numbers, flags)

    @cached_property
    def piece_of_row(self) -> Mapping[str, str]:
        """The piece of each row."""
        pieces = zip(self.shape.kinds, self.network.rows, strict=True)
        return {row.name: name for name, rows in pieces for row in rows}

    def find_piece(self, row: str) -> str:
        """Return the piece of a row; the last piece for kernels of no row."""
        return self.piece_of_row.get(row, self.shape.kinds[-1])

    def depends_on_microbatches(self, plan: Plan) -> bool:
        """Return whether the passes of a microbatch depend on the number of microbatches."""
        return plan.pipeline == 1

    def pieces(self, plan: Plan, microbatch: int, microbatches: int = 1) -> RankPieces:
        """Return the pieces of a rank under a plan.

        Args:
            plan: the plan.
            microbatch: the examples of a microbatch.
            microbatches: the microbatches of a step. Without a pipeline the waits for the host
                depend on it.
        """
        layers = self.layout(plan, microbatch).layers
        # Waits for the host depend on the number of microbatches only without a pipeline.
        host_microbatches = microbatches if plan.pipeline == 1 else 1
        return self.stage_pieces(microbatch, layers, host_microbatches)

    @cached_by_owner
    def stage_pieces(
        self, microbatch: int, layers: tuple[int, ...], microbatches: int
    ) -> RankPieces:
        """Return the pieces of stages; the last one holds the largest tensor between stages.

        Args:
            microbatch: the examples of a microbatch.
            layers: the pieces of each stage.
            microbatches: the microbatches of a step.
        """
        rows = self.step_model.lower_step(microbatch).rows
        output_bytes = {row.name: row.output_bytes for row in rows}
        *stage_ends, _ = accumulate(layers)  # the last stage sends nothing on
        last_pieces = [self.shape.kinds[end - 1] for end in stage_ends]
        sent_bytes = [output_bytes[piece] for piece in last_pieces]
        largest_sent = Activations(input_bytes=max(sent_bytes, default=0))
        pieces = self.network_pieces(microbatch).by_name
        if microbatches > 1:
            pieces = self._add_host_waits(pieces, microbatch, microbatches)
        # FIRST and LAST stand for embedding and head, which such a network has not. By convention
        # the input of LAST is what stages send.
        return RankPieces({**pieces, FIRST: Piece(), LAST: Piece(activations=largest_sent)})

    def _add_host_waits(
        self, pieces: Mapping[str, Piece], microbatch: int, microbatches: int
    ) -> dict[str, Piece]:
        """Return pieces slowed by the host as it issues several microbatches."""
        single_passes = single_device.accumulate_passes(self.step_model, microbatch, 1)
        repeated_passes = single_device.accumulate_passes(self.step_model, microbatch, microbatches)
        # How much longer the passes take than so many single microbatches, by the host alone.
        forward_factor = _host_slowdown(
            repeated_passes.forward_s, microbatches * single_passes.forward_s
        )
        backward_factor = _host_slowdown(
            repeated_passes.backward_s, microbatches * single_passes.backward_s
        )
        # The waits are shared among the pieces by their times.
        return {
            name: piece._replace(
                forward_s=piece.forward_s * forward_factor,
                backward_s=piece.backward_s * backward_factor,
            )
            for name, piece in pieces.items()
        }

    @cached_by_owner
    def network_pieces(self, microbatch: int) -> RankPieces:
        """Return the priced pieces of the network."""
        model = self.step_model
        times = model.timeline(microbatch)
        activations = measure_activations(
            model.graph(microbatch),
            model.stack,
            regathered_groups=(),
            low_dtype="",
            find_piece=self.find_piece,
        )
        kernels: dict[str, list[Kernel]] = {name: [] for name in self.shape.kinds}
        for kernel in model.lower_step(microbatch).kernels:
            if kernel.pass_ != "update":
                kernels[self.find_piece(kernel.op)].append(kernel)
        forward_s = dict.fromkeys(self.shape.kinds, 0.0)
        backward_s = dict.fromkeys(self.shape.kinds, 0.0)
        parameters = dict.fromkeys(self.shape.kinds, 0)
        for row_time in times.rows:
            name = self.find_piece(row_time.row.name)
            forward_s[name] += row_time.forward.value
            backward_s[name] += row_time.backward.value
            parameters[name] += int(row_time.row.parameters)
        forward_slowdown, backward_slowdown, _ = times.host_slowdowns
        pieces = {
            name: Piece(
                forward_s=forward_s[name] * forward_slowdown,
                backward_s=backward_s[name] * backward_slowdown,
                parameters=parameters[name],
                activations=activations.get(name, Activations()),
                joules=float(kernels_j(Kernels(kernels[name]), self.calibrated_device)),
            )
            for name in self.shape.kinds
        }
        return RankPieces(pieces)

    def price_unsplit_pieces(self, microbatch: int) -> Mapping[str, Piece]:
        """Return the pieces of a rank that runs the whole network."""
        return self.stage_pieces(microbatch, (len(self.shape.kinds),), 1).by_name

    def layout(self, plan: Plan, microbatch: int) -> Layout:
        """Return the pieces of stages and devices; without chosen stages they are balanced."""
        if plan.pipeline > 1 and not plan.stages:
            pieces = self.network_pieces(microbatch).by_name.values()
            piece_s = [piece.forward_s + piece.backward_s for piece in pieces]
            plan = replace(plan, stages=balance_stages(piece_s, plan.pipeline))
        return super().layout(plan, microbatch)

    def graph_of_kinds(self) -> Graph:
        """Return the graph of a step on one device."""
        return self.step_model.graph()

    def full_step(self, _microbatch: int, _recompute: str = "none") -> StepModel:
        """Return the step of the whole network on one device."""
        return self.step_model

    def update_s(
        self, plan: Plan, _size_bytes: float, parameters: float, microbatch: int, microbatches: int
    ) -> float:
        """Return the seconds in which a device updates its share of the parameters."""
        issued_microbatches = microbatches if plan.pipeline == 1 else 1
        all_update_s = single_device.update_s(self.step_model, microbatch, issued_microbatches)
        return all_update_s * parameters / max(1, self.parameters)

    def exchanges_in_buckets(self, _plan: Plan) -> bool:
        """Return whether gradients are exchanged in buckets during the last backward pass."""
        return True

    def rows_of(self, load: Load) -> Container[str]:
        """Return the rows of the pieces of a device."""
        pieces = {part.name for part, _ in load}
        return [row for row, piece in self.piece_of_row.items() if piece in pieces]

    def step_interval(
        self, plan: Plan, microbatch: int, step_s: float, exposed_s: float, microbatches: int
    ) -> tuple[float, float]:
        """Return the 80 % interval of a step whose links reach their predicted rates."""
        issued_microbatches = microbatches if plan.pipeline == 1 else 1
        return single_device.step_interval(
            self.step_model, microbatch, step_s, exposed_s, issued_microbatches
        )

    @cached_property
    def forward_flop(self) -> ForwardFlop:
        """A third of the counted FLOP of an example's step."""
        flop_by_row = self.step_model.flop_by_row()
        step_flop = sum(sum(flop_by_pass.values()) for flop_by_pass in flop_by_row.values())
        return ForwardFlop(products=step_flop / FORWARD_PASSES, attention=0.0)


def _host_slowdown(repeated_s: float, single_s: float) -> float:
    return repeated_s / single_s if single_s else 1.0


def model_network(shape: NetworkShape, device: Device, method: Method) -> NetworkRankModel:
    """Return the rank of a network; its data type is that of the workload on the device."""
    step_model = StepModel(shape.workload, device, method=method)
    dtype = step_model.workload.dtype
    return NetworkRankModel(shape, device, method, dtype, optimizer=shape.workload.optimizer)
