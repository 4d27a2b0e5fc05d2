"""Facts and remarks about training on many replicas, in words."""

from collections.abc import Iterator, Sequence

from steptime.grids.replicas import ScalingRow, Sync
from steptime.hardware.prices import Training
from steptime.prediction.collectives import COLLECTIVES
from steptime.prediction.fabric import GROUP, Fabric
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.training import describe_training, training_fields


def list_facts(
    unpaid_replicas: Sequence[int], max_replicas: int, training: Training | None
) -> Iterator[str]:
    """Yield the number at which more replicas stop paying, and the training.

    Args:
        unpaid_replicas: the numbers of replicas that are not worth their devices.
        max_replicas: the largest number of replicas.
        training: the training to pay for.
    """
    if unpaid_replicas:
        is_last_worthwhile = max_replicas not in unpaid_replicas
        pays_later = "; it pays again after that" if is_last_worthwhile else ""
        yield (
            f"stops paying at {unpaid_replicas[0]} replicas: from the row before, throughput "
            f"grows less than half as much as the number of replicas{pays_later}"
        )
    if training is not None:
        text = f"training: {describe_training(**training_fields(training))}"
        if training.price is not None:
            price = f"{training.price:g} per hour, paid by the {training.billing}"
            text += f"; a device costs {price}"
        yield text


def list_notes(
    model: StepModel, parallel: str, sync: Sync, rows: Sequence[ScalingRow]
) -> Iterator[str]:
    """Yield the remarks on memory that lacks, options without effect, and unknown latencies."""
    fabric = model.fabric
    max_batch = max(row.batch for row in rows)
    needs = model.needs(max_batch)
    # A replica holds the whole network; of a split network no device does.
    is_data_parallel = parallel == "data"
    if is_data_parallel and not needs.fit(model.device):
        is_single_replica = [row.replicas for row in rows] == [1]
        batch = f"batch {max_batch} (optimizer {model.workload.optimizer}): "
        yield ("" if is_single_replica else batch) + needs.too_large(model.device)
    yield from model.remarks(max_batch)
    if fabric is None:
        return
    collective = model.collective(sync.collective)
    if parallel != "model":
        for option in _unused_options(fabric, collective):
            yield f"{collective} does not use {option}"
    # Paleo's method adds no latency of links: there an unknown one changes nothing.
    has_latencies = model.method.latency
    if has_latencies:
        for name in fabric.without_latency:
            hint = " (--latency-us)" if name == fabric.between.name else ""
            yield f"{name}: no latency is known, so none is counted{hint}"


def _unused_options(fabric: Fabric, collective: str) -> Iterator[str]:
    """Yield the options of a fabric that differ from their defaults and have no effect."""
    is_user_collective = collective not in COLLECTIVES  # which may use any option
    if is_user_collective:
        return
    uses_servers = collective == "parameter-server"
    if fabric.servers > 1 and not uses_servers:
        yield "--servers"
    # The size of a node matters if what joins its devices differs from what joins nodes.
    has_links_inside = fabric.inside is not None or fabric.links_per_node != 1
    uses_node_size = collective == "hierarchical" or has_links_inside
    is_node_size_set = fabric.per_node != GROUP  # the default
    if is_node_size_set and not uses_node_size:
        yield "--per-node (it takes --inside or --links-per-node)"
