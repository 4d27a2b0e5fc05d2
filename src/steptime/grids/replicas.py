"""Data-parallel training: the step of n replicas, each with a share of the batch.

Each replica computes its own batch, the replicas add up their gradients, each applies the sum.
Weak scaling keeps the batch of a replica, strong scaling the batch of all together. Source: Qi,
Sparks, Talwalkar, ICLR 2017, and for the exchange `collectives`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf, isfinite
from typing import NamedTuple

from steptime.build import build_step
from steptime.core.copying import replace
from steptime.core.errors import InputError, check_choice
from steptime.core.exchange import BUCKET_BYTES
from steptime.core.graph import PASSES, Graph
from steptime.core.workload import Plan, Workload
from steptime.hardware.device import Cluster
from steptime.network.ops.ranks import rank_graph
from steptime.prediction import DEFAULT
from steptime.prediction.collectives import StepEnds, widen_by_links
from steptime.prediction.exposed import exposed_exchange_s
from steptime.prediction.fabric import fabric_of_group
from steptime.prediction.method import Method
from steptime.prediction.records import records
from steptime.prediction.remarks import no_link
from steptime.prediction.steps.step_model import StepModel
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


class ReplicaSizes(NamedTuple):
    """A number of replicas, the examples of a step of all, and the largest batch of one."""

    replicas: int
    global_batch: int
    batch: int


@dataclass(frozen=True)
class ScalingRow:
    """The step of `replicas` replicas; seconds. Parts are of the replica with the largest batch.

    `communication_s` holds every collective; the step is compute + the chosen one - `overlap_s`,
    the part that hides behind the backward pass. `speedup` is the throughput over that of one
    replica; `parts` are the further ones of model and hybrid parallelism. `low_s` and `high_s`
    bound the step by its kernels and by what its links reach. `peak_bytes` are those
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
    n t1 / tn (weak) or t1 / tn (strong). Raises `InputError` as `batch_share` and `no_link` do.
    """
    sync = exchange or Sync()
    if sync.overlap and model.lower_step().by_layer:
        name = model.method.name
        raise InputError(f"{name}: no overlap of communication where steps are counted by layers")

    def price_row(sizes: ReplicaSizes, single_per_s: float | None, note: str) -> ScalingRow:
        """Return the row of replicas; a speed-up is over `single_per_s`, None: over itself."""
        times = model.timeline(sizes.batch)
        needs = model.needs(sizes.batch)
        communication_s = exchange_s(model, model.gradient_bytes / sync.compression, sizes.replicas)
        scheme = model.collective(sync.collective)
        if scheme not in communication_s:
            raise InputError(f"--collective {scheme}: no switch joins {sizes.replicas} replicas")
        exposed_by_end = partial(exposed_s, model, sizes.batch, sizes.replicas, sync)
        exposed_communication_s = exposed_by_end(end=0)  # links as fast as stated
        slow_link_s = exposed_by_end(end=-1)  # at the low end of their rates
        fast_link_s = exposed_by_end(end=1)  # at the high end
        compute_s = times.forward_s + times.backward_s + times.update_s
        ends = widen_by_links(
            step_s=compute_s + exposed_communication_s,
            ends=StepEnds(times.low_s, times.high_s).delay(exposed_communication_s),
            quick_s=compute_s + fast_link_s,
            slow_s=compute_s + slow_link_s,
        )
        row = scaling_row(
            model,
            sizes,
            pass_times=(times.forward_s, times.backward_s, times.update_s),
            communication_s=communication_s,
            exchange_time_s=communication_s[scheme],
            exposed_communication_s=exposed_communication_s,
            single_per_s=single_per_s,
            note=note,
        )
        return replace(
            row,
            low_s=ends.low_s,
            high_s=ends.high_s,
            peak_bytes=needs.peak_bytes,
            needed_bytes=needs.total_bytes,
        )

    single_sizes = ReplicaSizes(replicas=1, global_batch=examples, batch=examples)
    single_per_s = price_row(single_sizes, single_per_s=None, note="").examples_per_s
    shares = [batch_share(model, count, examples, scaling) for count in replicas]
    rows = []
    for count, (share, note) in zip(replicas, shares, strict=True):
        global_batch = share * count if scaling == "weak" else examples
        rows.append(price_row(ReplicaSizes(count, global_batch, share), single_per_s, note))
    return tuple(rows)


def list_unprofitable_counts(throughputs: Iterable[tuple[int, float]]) -> list[int]:
    """Return the numbers of replicas that are not worth the devices that each adds to the last.

    `throughputs` are pairs of replicas and examples/s. From one number to the next, throughput
    grows less than `PAYS` times as much as the number does: from 8 to 16 it must grow by half.
    """
    unprofitable_counts = []
    for (count, per_s), (larger_count, larger_per_s) in pairwise(sorted(throughputs)):
        throughput_growth = larger_per_s / per_s - 1
        device_growth = larger_count / count - 1
        if throughput_growth < PAYS * device_growth:
            unprofitable_counts.append(larger_count)
    return unprofitable_counts


def batch_share(model: StepModel, replicas: int, examples: int, scaling: str) -> tuple[int, str]:
    """Return the largest batch of a replica, and a note on it ("" if none).

    `examples` are those of each replica in weak scaling, of all in strong scaling. Raises
    `InputError` for an unknown scaling, and for more replicas than examples where the method says
    so (`Method.too_few`).
    """
    check_choice("scaling", scaling, SCALINGS)
    if scaling == "weak":
        return examples, ""
    share = -(-examples // replicas)  # rounded up
    note = ""
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
    sizes: ReplicaSizes,
    pass_times: tuple[float, float, float],
    communication_s: Mapping[str, float],
    exchange_time_s: float,
    exposed_communication_s: float,
    single_per_s: float | None = None,
    note: str = "",
    parts: Mapping[str, object] | None = None,
) -> ScalingRow:
    """Return the row of replicas.

    Args:
        model: the network on the device.
        sizes: the replicas and their batches.
        pass_times: seconds of forward, backward and update.
        communication_s: seconds of an exchange by the name of each collective.
        exchange_time_s: seconds of the exchange by the collective that is used.
        exposed_communication_s: seconds of it for which the step waits.
        single_per_s: examples/s of one replica; None means those of the row itself.
        note: remark on the row.
        parts: further parts of model and hybrid parallelism.
    """
    forward_s, backward_s, update_s = pass_times
    compute_s = forward_s + backward_s + update_s  # as its bounds add up: `sum` rounds otherwise
    step_s = compute_s + exposed_communication_s
    per_s = throughput(model, sizes.global_batch, step_s)
    speedup = per_s / (single_per_s or per_s)
    return ScalingRow(
        **sizes._asdict(),
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=update_s,
        compute_s=compute_s,
        communication_s=communication_s,
        overlap_s=exchange_time_s - exposed_communication_s,
        exposed_communication_s=exposed_communication_s,
        step_s=step_s,
        speedup=speedup,
        efficiency=speedup / sizes.replicas,
        examples_per_s=per_s,
        note=note,
        parts=parts or {},
    )


def exposed_s(model: StepModel, batch: int, replicas: int, sync: Sync, end: int = 0) -> float:
    """Return the seconds for which a step of replicas waits for the exchange of gradients."""
    collective = model.collective(sync.collective)
    exchange_of = partial(model.collective_s, collective, replicas=replicas, end=end)
    exchange_time_s = exchange_of(model.gradient_bytes / sync.compression)
    if not sync.overlap:
        return exchange_time_s
    # Many small buckets add latencies: a step waits at most for one exchange after the pass.
    return min(exchange_time_s, exposed_exchange_s(model, batch, exchange_of, sync.compression))


def exchange_s(model: StepModel, size_bytes: float, replicas: int) -> dict[str, float]:
    """Return the seconds of an exchange of `size_bytes` by the name of each collective."""
    seconds = {name: model.collective_s(name, size_bytes, replicas) for name in model.collectives}
    return {name: duration_s for name, duration_s in seconds.items() if isfinite(duration_s)}


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


def _find_strategy(workload: Workload, name: str) -> Strategy:
    """Return the strategy of a name; alone, and in inference, replicas exchange nothing."""
    has_exchange = workload.plan.data > 1 and workload.phase == "train"
    return STRATEGIES[name] if has_exchange else Strategy()


def graph_of_rank(workload: Workload, strategy: str, overlap: bool) -> Graph:
    """Return the graph of a step of one of data-parallel replicas: of shards its exchanges, too."""
    exchange = _find_strategy(workload, strategy)
    graph = build_step(workload)
    if not exchange.shards:
        return graph
    bucket_bytes = BUCKET_BYTES if overlap and exchange.overlaps else inf
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
    as by one alone. `communication_s` is the exposed communication of several. Method and options
    are those of a replica alone, with the settings of the exchange.

    Args:
        workload: the step of one replica.
        cluster: the devices and their links.
        strategy: the name of a strategy (`STRATEGIES`).
        overlap: whether gradients are reduced during the backward pass, if the strategy can.
        method: the cost model.
        options: options of the method.

    Raises:
        InputError: for an unknown strategy, another plan than data parallel, no link, and shards
            under a method that counts by layers.
    """
    if workload.plan.data == 1:
        return records(StepModel(workload, cluster.device, None, method, options, assumes=True))
    check_choice("strategy", strategy, STRATEGIES)
    if workload.plan != Plan(data=workload.plan.data):
        raise InputError(f"{workload.label}: only data-parallel replicas are predicted")
    exchange = _find_strategy(workload, strategy)
    model = _model_of_rank(workload, cluster, strategy, overlap, method, options or {})
    step, *ops = records(model)
    communication_s = model.timeline().exposed_s
    if exchange.collective and not exchange.shards:  # an all-reduce, no op of the timeline
        sync = Sync(exchange.collective, overlap=model.overlap)
        communication_s = exposed_s(model, workload.batch_per_replica, workload.plan.data, sync)
    settings: dict[str, object] = {**step.method.options, "strategy": strategy}
    notes = [step.note] if step.note else []
    if exchange.collective:
        settings |= _exchange_settings(model, exchange, overlap)
        link_names = model.fabric.without_latency if model.fabric else ()
        notes += [f"{name}: no latency is known, so none is counted" for name in link_names]
    quantities = _add_communication(step.quantities, communication_s)
    step_of_replicas = replace(step, quantities=quantities, note="; ".join(notes))
    method_with_exchange = replace(step.method, options=settings)
    return [replace(record, method=method_with_exchange) for record in (step_of_replicas, *ops)]


def _model_of_rank(
    workload: Workload,
    cluster: Cluster,
    strategy: str,
    overlap: bool,
    method: str | Method,
    options: Mapping[str, str],
) -> StepModel:
    """Return the model of the step of one replica with its exchanges."""
    exchange = _find_strategy(workload, strategy)
    replica_count = workload.plan.data
    if exchange.collective and not cluster.levels:
        raise no_link(replica_count, cluster.device)
    model = StepModel(
        workload,
        cluster.device,
        fabric_of_group(cluster, range(replica_count)) if cluster.levels else None,
        method,
        options,
        graph=graph_of_rank(workload, strategy, overlap),
        overlap=overlap and exchange.overlaps,
        assumes=True,  # the usual stack of the device where no option names one
    )
    if exchange.shards and model.lower_step().by_layer:
        raise InputError(f"{method}: no shards where steps are counted by layers")
    return model


def _exchange_settings(model: StepModel, exchange: Strategy, overlap: bool) -> dict[str, object]:
    """Return the settings of a record that say how gradients are exchanged, and over which link."""
    settings: dict[str, object] = {"collective": exchange.collective}
    if model.fabric:
        link = model.fabric.between
        settings["link"] = link.name
        settings["link_latency_s"] = link.latency_s
        settings["link_bytes_per_s"] = link.bytes_per_s
    if exchange.overlaps and not overlap:
        settings["overlap"] = False  # records leave out True, the default
    return settings


def _add_communication(
    quantities: Mapping[str, Quantity], communication_s: float
) -> dict[str, Quantity]:
    """Return the quantities of a step that waits so long for its exchange."""
    forward_s, backward_s, update_s = (quantities[f"{name}_s"].value or 0.0 for name in PASSES)
    step = quantities["step_s"]
    low_s = None if step.low is None else step.low + communication_s
    high_s = None if step.high is None else step.high + communication_s
    step_s = forward_s + backward_s + update_s + communication_s
    return {
        **quantities,
        "communication_s": Quantity(communication_s),
        "step_s": Quantity(step_s, low=low_s, high=high_s),
    }
