"""Plans of networks that are no language models: replicas, stages of a pipeline, ZeRO.

Their step is `StepModel`'s, cut where one tensor alone crosses. What is between two cuts is a
piece, and a stage is consecutive pieces, shared out by their seconds.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from steptime.build import Choice, build_step, family_of, make_workload
from steptime.core.graph import Graph
from steptime.core.workload import Plan, Workload
from steptime.hardware.constants import split_flags
from steptime.hardware.device import Cluster
from steptime.network.ops.optimizers import STATES
from steptime.planning.alone import accumulated, between, update_s
from steptime.planning.pieces import Kept, Piece, held_of
from steptime.planning.planner import Flops, Planner
from steptime.planning.shape import Shape
from steptime.planning.stages import Layout, Load
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.calibrated.power import spent_j
from steptime.prediction.kernel import Kernel
from steptime.prediction.kernels import Kernels
from steptime.prediction.lower import Row
from steptime.prediction.method import Method
from steptime.prediction.step_model import StepModel
from steptime.prediction.training import FIRST, LAST

CONSTANTS = (  # of a stack's training
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


@dataclass(frozen=True, kw_only=True)
class Network(Shape):
    """A network as plans need it: pieces are its `kinds`, in order, each with its `rows`."""

    workload: Workload
    rows: tuple[tuple[Row, ...], ...]


def network_of(choice: Choice, label: str, dtype: str | None, optimizer: str | None) -> Network:
    """Return a network cut into pieces; raises `InputError` for what is not known."""
    workload = make_workload(choice, None, dtype, "train", optimizer)
    batch = workload.batch_per_replica
    workload = replace(workload, batch_per_replica=1)
    method = cost_model(DEFAULT)
    rows = method.lower(build_step(workload), workload.dtype, method.settings).rows
    pieces = cut(rows)
    names = tuple(piece[-1].name for piece in pieces)
    sizes = (1, 0, False, 0, 1.0, label, "examples", batch)  # of a language model
    one = {"heads": 1, "kv_heads": 1, "ffn": 1}
    return Network(family_of(choice), {}, one, names, *sizes, workload=workload, rows=pieces)


def cut(rows: Sequence[Row]) -> tuple[tuple[Row, ...], ...]:
    """Return rows in pieces, cut where nothing but the tensor of the row before is read later."""
    last = {row.name: i for i, row in enumerate(rows)}
    for i, row in enumerate(rows):
        last |= {parent: i for parent in row.parents if parent in last}
    result, start, farthest = [], 0, 0
    for i, row in enumerate(rows):
        if farthest <= i < last[row.name]:
            result.append(tuple(rows[start : i + 1]))
            start = i + 1
        farthest = max(farthest, last[row.name])
    return (*result, tuple(rows[start:]))


def balanced(seconds: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return how many pieces each stage has, so that the longest takes as little as can be."""

    def within(limit: float) -> tuple[int, ...] | None:
        counts, at = [], 0
        for left in range(stages - 1, -1, -1):
            count, taken = 1, seconds[at]
            while at + count < len(seconds) - left and taken + seconds[at + count] <= limit:
                taken += seconds[at + count]
                count += 1
            counts.append(count)
            at += count
        return tuple(counts) if at == len(seconds) else None

    low, high = max(seconds), sum(seconds) * (1 + 1e-9)
    result = within(high)
    for _ in range(50):
        middle = (low + high) / 2
        better = within(middle)
        low, high = (low, middle) if better else (middle, high)
        result = better or result
    return result or ()


class NetworkPlanner(Planner):
    """Prices the pieces of a network by its `StepModel`, and what its replicas exchange."""

    def __init__(self, shape: Network, cluster: Cluster, method: Method) -> None:
        workload = shape.workload
        self.step = StepModel(workload, cluster.device, method=method)
        dtype, optimizer = self.step.workload.dtype, workload.optimizer
        super().__init__(shape, cluster, method, dtype, optimizer=optimizer)
        states = STATES[workload.optimizer] * self.weight_bytes
        numbers = {f"{self.use}.{name}": self.constant(name) for name in CONSTANTS}
        self._constants, self._flags = split_flags(self.use, numbers)
        each = self.step.gradient_bytes / max(1, self.step.parameters)
        self._constants |= {"gradient_bytes": each, "state_bytes": states}
        of = zip(shape.kinds, shape.rows, strict=True)
        self.piece = {row.name: name for name, rows in of for row in rows}

    def pieces(self, plan: Plan, microbatch: int, rounds: int = 1) -> dict[str, Piece]:
        """Return the pieces of a rank, for microbatches of so many examples."""
        if plan.pipeline == 1 and rounds > 1:
            return self.once(
                ("rounds", microbatch, rounds), lambda: self._slowed(plan, microbatch, rounds)
            )
        return self.of_rank(plan, microbatch)

    def of_rank(self, plan: Plan, microbatch: int) -> dict[str, Piece]:
        """Return the pieces of a rank, cut as its stages are."""
        counts = self.layout(plan, microbatch).layers
        key = (microbatch, counts)
        if key not in self._pieces:
            sizes = {row.name: row.output_bytes for row in self.step.lowered(microbatch).rows}
            cuts = [self.shape.kinds[end - 1] for end in [*accumulate(counts)][:-1]]
            sent = Kept(input=max((sizes[name] for name in cuts), default=0))
            made = self.priced(microbatch)
            self._pieces[key] = {**made, FIRST: Piece(), LAST: Piece(held=sent)}
        return self._pieces[key]

    def priced(self, batch: int) -> dict[str, Piece]:
        """Return the pieces of the network by name."""
        if (batch,) in self._pieces:
            return self._pieces[batch,]
        lowered, times = self.step.lowered(batch), self.step.timeline(batch)
        held = held_of(self.step.graph(batch), self.step.stack, (), "", self.where)
        kernels: dict[str, list[Kernel]] = {name: [] for name in self.shape.kinds}
        for kernel in lowered.kernels:
            if kernel.pass_ != "update":
                kernels[self.where(kernel.op)].append(kernel)
        sums = {name: [0.0, 0.0, 0] for name in self.shape.kinds}
        for row in times.rows:
            into = sums[self.where(row.row.name)]
            for i, more in enumerate((row.forward.value, row.backward.value, row.row.parameters)):
                into[i] += more
        fore_slower, back_slower, _ = times.slower
        self._pieces[batch,] = {
            name: Piece(
                fore * fore_slower,
                back * back_slower,
                parameters=int(parameters),
                held=held.get(name, Kept()),
                joules=float(spent_j(Kernels(kernels[name]), self.seen)),
            )
            for name, (fore, back, parameters) in sums.items()
        }
        return self._pieces[batch,]

    def where(self, row: str) -> str:
        """Return the piece of a row; what is of no row is of the last one."""
        return self.piece.get(row, self.shape.kinds[-1])

    def layout(self, plan: Plan, microbatch: int) -> Layout:
        """Return who has which pieces under a plan: the stages shared out by their seconds."""
        if plan.pipeline > 1 and not plan.stages:
            made = self.priced(microbatch).values()
            seconds = [one.forward_s + one.backward_s for one in made]
            plan = replace(plan, stages=balanced(seconds, plan.pipeline))
        return super().layout(plan, microbatch)

    def graph_of_kinds(self) -> Graph:
        """Return the graph of a step on one device."""
        return self.step.graph()

    def alone(self, _batch: int, _recompute: str = "none") -> StepModel:
        """Return the step of the whole network on one device."""
        return self.step

    def update_s(
        self, plan: Plan, _moved: float, parameters: float, batch: int, rounds: int
    ) -> float:
        """Return the seconds in which a device applies so many gradients."""
        round_count = rounds if plan.pipeline == 1 else 1
        return update_s(self.step, batch, round_count) * parameters / max(1, self.parameters)

    def _slowed(self, plan: Plan, batch: int, rounds: int) -> dict[str, Piece]:
        """Return the pieces of a rank whose host issues so many microbatches in a step."""
        first, step = accumulated(self.step, batch, 1), accumulated(self.step, batch, rounds)
        factors = [
            step_s / (rounds * first_s) if first_s else 1.0
            for step_s, first_s in zip(step[:2], first[:2], strict=True)
        ]
        return {
            name: piece._replace(
                forward_s=piece.forward_s * factors[0], backward_s=piece.backward_s * factors[1]
            )
            for name, piece in self.of_rank(plan, batch).items()
        }

    def in_buckets(self, _: Plan) -> bool:
        """Whether gradients are exchanged in buckets while the last backward pass still runs."""
        return True

    def rows_of(self, load: Load) -> Container[str]:
        """Return the rows of the pieces that a device has."""
        stage = {part.name for part, _ in load}
        return [row for row, name in self.piece.items() if name in stage]

    def within(
        self, plan: Plan, batch: int, step_s: float, exposed_s: float, rounds: int
    ) -> tuple[float, float]:
        """Return between which seconds a step lies whose links reach what is predicted."""
        round_count = rounds if plan.pipeline == 1 else 1
        return between(self.step, batch, step_s, exposed_s, round_count)

    @cached_property
    def flops(self) -> Flops:
        """FLOP of a third of an example's step, as they are counted."""
        return Flops(sum(sum(parts.values()) for parts in self.step.counted().values()) / 3, 0.0)
