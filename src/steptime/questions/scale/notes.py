"""Facts and remarks about training on many replicas, in words."""

from collections.abc import Iterator, Sequence

from steptime.grids.replicas import ScalingRow, Sync
from steptime.hardware.prices import Training
from steptime.prediction.collectives import COLLECTIVES
from steptime.prediction.fabric import GROUP, Fabric
from steptime.prediction.step_model import StepModel
from steptime.questions.training import describe_training, training_fields


def list_facts(late: Sequence[int], largest: int, training: Training | None) -> Iterator[str]:
    """Yield the number at which more replicas stop paying, and the training.

    Args:
        late: the numbers of replicas that are not worth their devices.
        largest: the largest number of replicas.
        training: the training to pay for.
    """
    if late:
        pays_later = "" if largest in late else "; it pays again after that"
        yield (
            f"stops paying at {late[0]} replicas: from the row before, throughput "
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
    largest = max(row.batch for row in rows)
    needs = model.needs(largest)
    if parallel == "data" and not needs.fit(model.device):  # no device holds all splits
        is_alone = [row.replicas for row in rows] == [1]
        batch = f"batch {largest} (optimizer {model.workload.optimizer}): "
        yield ("" if is_alone else batch) + needs.too_large(model.device)
    yield from model.remarks(largest)
    if fabric is None:
        return
    collective = model.collective(sync.collective)
    if parallel != "model":
        for option in _unused_options(fabric, collective):
            yield f"{collective} does not use {option}"
    for name in fabric.without_latency if model.method.latency else ():
        hint = " (--latency-us)" if name == fabric.between.name else ""
        yield f"{name}: no latency is known, so none is counted{hint}"


def _unused_options(fabric: Fabric, collective: str) -> Iterator[str]:
    """Yield the options of a fabric that differ from their defaults and have no effect."""
    if fabric.servers > 1 and collective in set(COLLECTIVES) - {"parameter-server"}:
        yield "--servers"
    is_flat = fabric.inside is None and fabric.links_per_node == 1
    if fabric.per_node != GROUP and is_flat and collective in set(COLLECTIVES) - {"hierarchical"}:
        yield "--per-node (it takes --inside or --links-per-node)"
