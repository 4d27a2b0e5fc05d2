"""The prediction of a step on several replicas, as records: what `scale` says of one workload."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from steptime.build import build_step
from steptime.core.errors import InputError, one_of
from steptime.core.exchange import BUCKET_BYTES
from steptime.core.graph import PASSES
from steptime.core.hardware import Cluster
from steptime.core.record import Quantity, Record
from steptime.core.workload import Plan, Workload
from steptime.ops.ranks import rank_graph
from steptime.predict import DEFAULT, cost_model
from steptime.predict.collectives import fabric_of_group
from steptime.predict.parallel.scaling import Exchange, data_parallel
from steptime.predict.records import records
from steptime.predict.step_model import StepModel, no_link


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


def predict_replicas(
    workload: Workload,
    cluster: Cluster,
    strategy: str,
    overlap: bool,
    method: str = DEFAULT,
    options: Mapping[str, str] | None = None,
) -> Sequence[Record]:
    """Return the record of the step of all replicas, then one for each row of a replica's.

    The replicas are the first ranks of `cluster`, which needs no levels where nothing is exchanged,
    as by one alone. `comm_s` is what the step of several waits for. Method and options are those of
    a replica alone, and how they exchange. Raises `InputError` for an unknown strategy, another
    plan than data parallel, no link, and shards under a method that counts by layers.
    """
    if workload.plan.data == 1:
        return records(StepModel(workload, cluster.device, None, method, options))
    one_of("strategy", strategy, STRATEGIES)
    if workload.plan != Plan(data=workload.plan.data):
        raise InputError(f"{workload.label}: only data-parallel replicas are predicted")
    replicas, settings = workload.plan.data, options or {}
    how = STRATEGIES[strategy] if workload.phase == "train" else Strategy()  # it exchanges nothing
    if how.collective and not cluster.levels:
        raise no_link(replicas)
    beside = overlap and how.overlaps
    graph = build_step(workload)
    if how.shards:
        if cost_model(method).as_published:
            raise InputError(f"{method}: no shards where steps are counted by layers")
        graph = rank_graph(graph, Plan(data=replicas, zero=3), BUCKET_BYTES if beside else inf)
    fabric = fabric_of_group(cluster, range(replicas)) if cluster.levels else None
    model = StepModel(
        workload, cluster.device, fabric, method, settings, graph=graph, overlap=beside
    )
    head, *rows = records(model)
    comm_s = model.timeline().exposed_s
    if how.collective and not how.shards:
        exchange = Exchange(how.collective, overlap=beside)
        (row,) = data_parallel(model, [replicas], workload.batch_per_replica, exchange=exchange)
        comm_s = row.exposed_comm_s
    said: dict[str, object] = {**head.method.options, "strategy": strategy}
    notes = [head.note] if head.note else []
    if how.collective:
        said |= {"collective": how.collective}
        if fabric:
            link = fabric.between
            said |= {"network": link.name, "network_latency_s": link.latency_s}
            said |= {"network_bytes_per_s": link.bytes_per_s}
        said |= {"overlap": False} if how.overlaps and not overlap else {}
        lacking = model.fabric.without_latency if model.fabric else ()
        notes += [f"{name}: no latency is known, so none is counted" for name in lacking]
    quantities = dict(head.quantities)
    alone = sum(quantities[f"{part}_s"].value or 0.0 for part in PASSES)
    step = quantities["step_s"]
    low, high = (end if end is None else end + comm_s for end in (step.low, step.high))
    whole = Quantity(alone + comm_s, low=low, high=high)
    quantities |= {"comm_s": Quantity(comm_s), "step_s": whole}
    named = replace(head.method, options=said)
    head = replace(head, quantities=quantities, note="; ".join(notes))
    return [replace(record, method=named) for record in (head, *rows)]
