"""Data-parallel training: the step of n replicas, each with a share of the batch.

Each replica computes its own batch, the replicas add up their gradients, each applies the sum.
Weak scaling keeps the batch of a replica, strong scaling the batch of all together. Source: Qi,
Sparks, Talwalkar, ICLR 2017, and for the exchange `collectives`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf

from steptime.build import build_step
from steptime.core.copying import replace
from steptime.core.errors import InputError, check_choice
from steptime.core.exchange import BUCKET_BYTES
from steptime.core.graph import PASSES, Graph
from steptime.core.workload import Plan, Workload
from steptime.hardware.device import Cluster
from steptime.network.ops.ranks import rank_graph
from steptime.prediction import DEFAULT
from steptime.prediction.collectives import fabric_of_group
from steptime.prediction.exposed import exposed_exchange_s
from steptime.prediction.method import Method
from steptime.prediction.records import records
from steptime.prediction.remarks import no_link
from steptime.prediction.step_model import StepModel
from steptime.records.record import Quantity, Record

SCALINGS = ("weak", "strong")
PAYS = 0.5  # share of the throughput that added devices must bring to be worth it


@dataclass(frozen=True)
class Sync:
    """How gradients are exchanged: by which collective, how much smaller, and whether meanwhile.

    `collective` None is the method's own. `compression` divides the bytes. `overlap` exchanges
    buckets of gradients while the backward pass still runs.
    """

    collective: str | None = None
    compression: float = 1.0
    overlap: bool = False


@dataclass(frozen=True)
class ScalingRow:
    """The step of `replicas` replicas; seconds. Parts are of the replica with the largest batch.

    `communication_s` holds every collective; the step is compute + the chosen one - `overlap_s`,
    the part that hides behind the backward pass. `speedup` is the throughput over that of one
    replica; `parts` are the further ones of model and hybrid parallelism. `low_s` and `high_s`
    bound the step as far as its kernels have bounds; the exchange has none. `peak_bytes` are those
    of a replica's tensors at the worst moment, `needed_bytes` all that it needs of its device.
    """

    replicas: int
    global_batch: int
    batch: int
    forward_s: float
    backward_s: float
    update_s: float
    compute_s: float
    communication_s: Mapping[str, float]
    overlap_s: float
    exposed_communication_s: float
    step_s: float
    speedup: float
    efficiency: float
    examples_per_s: float
    note: str = ""
    parts: Mapping[str, object] = field(default_factory=dict)
    low_s: float | None = None
    high_s: float | None = None
    peak_bytes: int | None = None
    needed_bytes: int | None = None


def data_parallel(
    model: StepModel,
    replicas: Sequence[int],
    examples: int,
    scaling: str = "weak",
    exchange: Sync | None = None,
) -> tuple[ScalingRow, ...]:
    """Return one row for each number of replicas, in their order.

    `examples` are those of a step: of each replica in weak scaling (its batch), of all replicas in
    strong scaling (the global batch). The speed-up is over one replica with `examples` examples,
    n t1 / tn (weak) or t1 / tn (strong). Raises `InputError` as `batch_share` does, and where
    several replicas have no link.
    """
    how = exchange or Sync()
    if how.overlap and model.lowered().by_layer:
        name = model.method.name
        raise InputError(f"{name}: no overlap of communication where steps are counted by layers")
    chosen = model.collective(how.collective)

    def row(n: int, whole: int, share: int, alone_per_s: float | None, note: str) -> ScalingRow:
        times, needs = model.timeline(share), model.needs(share)
        communication_s = exchange_s(model, model.gradient_bytes / how.compression, n)
        waited = exposed_s(model, share, n, how)
        parts = (times.forward_s, times.backward_s, times.update_s)
        told = communication_s, communication_s[chosen], waited, alone_per_s, note
        return replace(
            scaling_row(model, (n, whole, share), parts, *told),
            low_s=None if times.low_s is None else times.low_s + waited,
            high_s=None if times.high_s is None else times.high_s + waited,
            peak_bytes=needs.peak_bytes,
            needed_bytes=needs.total_bytes,
        )

    alone = row(1, examples, examples, None, "").examples_per_s
    shares = [(n, *batch_share(model, n, examples, scaling)) for n in replicas]
    return tuple(
        row(n, share * n if scaling == "weak" else examples, share, alone, note)
        for n, share, note in shares
    )


def unpaid(throughputs: Iterable[tuple[int, float]]) -> list[int]:
    """Return the numbers of replicas that are not worth the devices that each adds to the last.

    `throughputs` are pairs of replicas and examples/s. From one number to the next, throughput
    grows less than `PAYS` times as much as the number does: from 8 to 16 it must grow by half.
    """
    return [
        many
        for (few, before), (many, now) in pairwise(sorted(throughputs))
        if now / before - 1 < PAYS * (many / few - 1)
    ]


def batch_share(model: StepModel, replicas: int, examples: int, scaling: str) -> tuple[int, str]:
    """Return the largest batch of a replica, and a note on it ("" if none).

    `examples` are those of each replica in weak scaling, of all in strong scaling.

    Raises `InputError` for an unknown scaling, and for more replicas than there are examples where
    the method says so (`Method.too_few`).
    """
    check_choice("scaling", scaling, SCALINGS)
    if scaling == "weak":
        return examples, ""
    share, note = -(-examples // replicas), ""
    if examples < replicas:
        note = model.method.too_few(replicas, examples)
    elif examples % replicas:
        note = f"{examples} examples are no multiple of {replicas}: the largest share is {share}"
    return share, note


def throughput(model: StepModel, examples: int, step_s: float) -> float:
    """Return examples a second; raises `InputError` where a method counts no time at all."""
    if not step_s:
        name = model.method.name
        raise InputError(f"{model.workload.label}: {name} counts no time for this network")
    return examples / step_s


def scaling_row(
    model: StepModel,
    sizes: tuple[int, int, int],
    parts: tuple[float, float, float],
    communication_s: Mapping[str, float],
    chosen_s: float,
    exposed_s: float,
    alone_per_s: float | None = None,
    note: str = "",
    more: Mapping[str, object] | None = None,
) -> ScalingRow:
    """Return the row of replicas, their batch and the share of one (`sizes`).

    `parts` are forward, backward and update; of the collective's `chosen_s` the step waits for
    `exposed_s`. `alone_per_s` is the throughput of one worker, None for that of the row itself.
    """
    forward_s, backward_s, update_s = parts
    compute_s = forward_s + backward_s + update_s  # as its bounds add up: `sum` rounds otherwise
    step_s = compute_s + exposed_s
    per_s = throughput(model, sizes[1], step_s)
    speedup = per_s / (alone_per_s or per_s)
    return ScalingRow(
        *sizes,
        *parts,
        compute_s,
        communication_s,
        chosen_s - exposed_s,
        exposed_s,
        step_s,
        speedup,
        speedup / sizes[0],
        per_s,
        note,
        more or {},
    )


def exposed_s(model: StepModel, batch: int, replicas: int, how: Sync) -> float:
    """Return for how long a step of replicas waits for the exchange of their gradients."""
    one = partial(model.collective_s, model.collective(how.collective), replicas=replicas)
    whole_s = one(model.gradient_bytes / how.compression)
    return (
        min(whole_s, exposed_exchange_s(model, batch, one, how.compression))
        if how.overlap
        else whole_s
    )


def exchange_s(model: StepModel, size_bytes: float, replicas: int) -> dict[str, float]:
    """Return the seconds of an exchange of `size_bytes` by the name of each collective."""
    return {name: model.collective_s(name, size_bytes, replicas) for name in model.collectives}


@dataclass(frozen=True)
class Strategy:
    """What replicas exchange: by which collective ("": nothing), meanwhile or not, or shards."""

    collective: str = ""
    overlaps: bool = False
    shards: bool = False


STRATEGIES: Mapping[str, Strategy] = {
    "independent": Strategy(),
    "allreduce": Strategy("ring", overlaps=True),
    "sharded": Strategy("ring", overlaps=True, shards=True),
    # rank 0 is the server and computes, too: 2 (n - 1) whole messages, one after the other
    "parameter-server": Strategy("one-to-all"),
}


def _how(workload: Workload, strategy: str) -> Strategy:
    """Return how replicas exchange; alone, and in inference, they exchange nothing."""
    alone = workload.plan.data == 1 or workload.phase != "train"
    return Strategy() if alone else STRATEGIES[strategy]


def graph_of_rank(workload: Workload, strategy: str, overlap: bool) -> Graph:
    """Return the graph of a step of one of data-parallel replicas: of shards its exchanges, too."""
    how, graph = _how(workload, strategy), build_step(workload)
    if not how.shards:
        return graph
    bucket_bytes = BUCKET_BYTES if overlap and how.overlaps else inf
    return rank_graph(graph, workload.plan.data, bucket_bytes)


def predict_replicas(
    workload: Workload,
    cluster: Cluster,
    strategy: str,
    overlap: bool,
    method: str | Method = DEFAULT,
    options: Mapping[str, str] | None = None,
) -> Sequence[Record]:
    """Return the record of the step of all replicas, then one for each row of a replica's.

    The replicas are the first ranks of `cluster`, which needs no levels where nothing is exchanged,
    as by one alone. `communication_s` is what the step of several waits for. Method and
    options are those of a replica alone, and how they exchange. Raises `InputError` for an unknown
    strategy, another plan than data parallel, no link, and shards under a method that counts by
    layers.
    """
    if workload.plan.data == 1:
        return records(StepModel(workload, cluster.device, None, method, options, assumes=True))
    check_choice("strategy", strategy, STRATEGIES)
    if workload.plan != Plan(data=workload.plan.data):
        raise InputError(f"{workload.label}: only data-parallel replicas are predicted")
    replicas, settings = workload.plan.data, options or {}
    how = _how(workload, strategy)
    if how.collective and not cluster.levels:
        raise no_link(replicas, cluster.device)
    beside = overlap and how.overlaps
    graph = graph_of_rank(workload, strategy, overlap)
    fabric = fabric_of_group(cluster, range(replicas)) if cluster.levels else None
    of = workload, cluster.device, fabric, method, settings
    model = StepModel(*of, graph=graph, overlap=beside, assumes=True)
    if how.shards and model.lowered().by_layer:
        raise InputError(f"{method}: no shards where steps are counted by layers")
    head, *rows = records(model)
    communication_s = model.timeline().exposed_s
    if how.collective and not how.shards:
        exchange = Sync(how.collective, overlap=beside)
        communication_s = exposed_s(model, workload.batch_per_replica, replicas, exchange)
    said: dict[str, object] = {**head.method.options, "strategy": strategy}
    notes = [head.note] if head.note else []
    if how.collective:
        said |= {"collective": how.collective}
        if fabric:
            link = fabric.between
            said |= {"link": link.name, "link_latency_s": link.latency_s}
            said |= {"link_bytes_per_s": link.bytes_per_s}
        said |= {"overlap": False} if how.overlaps and not overlap else {}
        lacking = model.fabric.without_latency if model.fabric else ()
        notes += [f"{name}: no latency is known, so none is counted" for name in lacking]
    quantities = dict(head.quantities)
    forward_s, backward_s, update_s = (quantities[f"{one}_s"].value or 0.0 for one in PASSES)
    step = quantities["step_s"]
    low, high = (end if end is None else end + communication_s for end in (step.low, step.high))
    whole = Quantity(forward_s + backward_s + update_s + communication_s, low=low, high=high)
    quantities |= {"communication_s": Quantity(communication_s), "step_s": whole}
    named = replace(head.method, options=said)
    head = replace(head, quantities=quantities, note="; ".join(notes))
    return [replace(record, method=named) for record in (head, *rows)]
