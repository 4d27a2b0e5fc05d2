"""The prediction of a step on several replicas, as records: what `scale` says of one workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from steptime.build import build_step
from steptime.core.errors import InputError, unknown
from steptime.core.hardware import Cluster, Link
from steptime.core.record import Quantity, Record
from steptime.core.workload import Plan, Workload
from steptime.predict import DEFAULT
from steptime.predict.parallel.groups import fabric_of_group
from steptime.predict.parallel.scaling import Exchange, data_parallel
from steptime.predict.records import records
from steptime.predict.step_model import StepModel, no_link


@dataclass(frozen=True)
class Strategy:
    """What replicas exchange: by which collective, and how many times the gradients' bytes.

    `collective` "" exchanges nothing. `overlapped_bytes` counts where the exchange overlaps;
    where that is None it cannot.
    """

    collective: str = ""
    bytes: float = 1.0
    overlapped_bytes: float | None = None
    shards: bool = False


STRATEGIES: Mapping[str, Strategy] = {
    "independent": Strategy(),
    "allreduce": Strategy("ring", overlapped_bytes=1.0),
    # scattered gradients and gathered weights are the two halves of a ring; in units, whose weights
    # are let go in between, they are gathered twice: 1.5 times the bytes (Rajbhandari et al. 2020,
    # "ZeRO", section 7.2.2)
    "sharded": Strategy("ring", overlapped_bytes=1.5, shards=True),
    # rank 0 is server and worker: 2 (n - 1) whole messages, one after the other
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

    The replicas are the first ranks of `cluster`, which needs no levels where nothing is exchanged.
    `comm_s` is what the step waits for. Method and options are those of a replica alone, and how
    they exchange. Raises `InputError` for an unknown strategy, another plan than data parallel, and
    no link.
    """
    if strategy not in STRATEGIES:
        raise unknown("strategy", strategy, STRATEGIES)
    if workload.plan != Plan(data=workload.plan.data):
        raise InputError(f"{workload.label}: only data-parallel replicas are predicted")
    replicas, given = workload.plan.data, options or {}
    how = STRATEGIES[strategy] if workload.phase == "train" else Strategy()  # it exchanges nothing
    graph = build_step(workload)
    alone = StepModel(workload, cluster.device, method=method, options=given, graph=graph)
    head, *rows = records(alone)
    said: dict[str, object] = {**head.method.options, "strategy": strategy}
    comm_s, notes = 0.0, [head.note] if head.note else []
    if how.collective:
        if not cluster.levels:
            raise no_link(replicas)
        fabric = fabric_of_group(cluster, range(replicas))
        beside = overlap and how.overlapped_bytes is not None
        model = StepModel(workload, cluster.device, fabric, method, given)
        times = how.overlapped_bytes if beside and how.overlapped_bytes else how.bytes
        exchange = Exchange(how.collective, 1 / times, beside)
        (row,) = data_parallel(model, [replicas], workload.batch_per_replica, exchange=exchange)
        comm_s = row.exposed_comm_s
        said |= {"collective": how.collective}
        if fabric is not None:
            said |= _of_link(fabric.between)
        if how.overlapped_bytes is not None and not overlap:
            said["overlap"] = False
        lacking = model.fabric.without_latency if model.fabric else ()
        notes += [f"{name}: no latency is known, so none is counted" for name in lacking]
    quantities = dict(head.quantities)
    quantities["comm_s"] = Quantity(comm_s)
    quantities["step_s"] = Quantity((quantities["step_s"].value or 0.0) + comm_s)
    status, cause = head.status, head.cause
    if how.shards:
        del quantities["peak_memory_bytes"]
        notes, status, cause = ["the memory of sharded weights is not counted"], "ok", ""
    told = replace(head.method, options=said)
    head = replace(head, quantities=quantities, status=status, cause=cause, note="; ".join(notes))
    return [replace(record, method=told) for record in (head, *rows)]


def _of_link(link: Link) -> dict[str, object]:
    return {
        "network": link.name,
        "network_latency_s": link.latency_s,
        "network_bytes_per_s": link.bytes_per_s,
    }
