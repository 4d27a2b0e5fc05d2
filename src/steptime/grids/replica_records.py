"""Records of a step of data-parallel replicas, by the strategy in which they exchange gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from steptime.build import build_step
from steptime.core.copying import replace
from steptime.core.errors import InputError, check_choice
from steptime.core.exchange import BUCKET_BYTES
from steptime.core.graph import PASSES, Graph
from steptime.core.workload import Plan, Workload
from steptime.grids.replicas import Sync, exposed_s
from steptime.hardware.device import Cluster
from steptime.network.ops.ranks import rank_graph
from steptime.prediction import DEFAULT
from steptime.prediction.fabric import fabric_of_group
from steptime.prediction.method import Method
from steptime.prediction.records import records
from steptime.prediction.remarks import no_link
from steptime.prediction.steps.step_model import StepModel
from steptime.records.record import Quantity, Record


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
    step, *ops = records(model)  # of one replica, with the exchanges of shards
    quantities = _add_communication(step.quantities, _exposed_exchange_s(model, exchange))
    notes = [step.note] if step.note else []
    notes += _list_link_notes(model, exchange)
    step_of_replicas = replace(step, quantities=quantities, note="; ".join(notes))
    settings: dict[str, object] = {**step.method.options, "strategy": strategy}
    if exchange.collective:
        settings |= _exchange_settings(model, exchange, overlap)
    method_with_exchange = replace(step.method, options=settings)
    return [replace(record, method=method_with_exchange) for record in (step_of_replicas, *ops)]


def _exposed_exchange_s(model: StepModel, exchange: Strategy) -> float:
    """Return the seconds for which the step of a replica waits for the others."""
    exchanges_full_gradients = exchange.collective != "" and not exchange.shards
    if not exchanges_full_gradients:  # exchanges of shards are ops of the timeline
        return model.timeline().exposed_s
    workload = model.workload
    sync = Sync(exchange.collective, overlap=model.overlap)
    return exposed_s(model, workload.batch_per_replica, workload.plan.data, sync)


def _list_link_notes(model: StepModel, exchange: Strategy) -> list[str]:
    """Return a note on each link of the exchange whose latency is unknown."""
    if not exchange.collective or not model.fabric:
        return []
    link_names = model.fabric.without_latency
    return [f"{name}: no latency is known, so none is counted" for name in link_names]


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
