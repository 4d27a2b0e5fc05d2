"""Data-parallel training: the step of n replicas, each with a share of the batch.

Each replica computes its own batch, the replicas add up their gradients, each applies the sum.
Weak scaling keeps the batch of a replica, strong scaling the batch of all together. Source: Qi,
Sparks, Talwalkar, ICLR 2017, and for the exchange `collectives`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from steptime.core.copying import replace
from steptime.core.errors import InputError, check_choice
from steptime.prediction.collectives import StepEnds, widen_by_links
from steptime.prediction.exposed import exposed_exchange_s
from steptime.prediction.steps.step_model import StepModel

SCALINGS = ("weak", "strong")
# the ends of the range of links' rates, as `StepModel.collective_s` takes them
STATED_LINKS = 0  # links as fast as stated
FAST_LINKS = 1
SLOW_LINKS = -1
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

    single_sizes = ReplicaSizes(replicas=1, global_batch=examples, batch=examples)
    single_per_s = _price_row(model, sync, single_sizes).examples_per_s
    shares = [batch_share(model, count, examples, scaling) for count in replicas]
    rows = []
    for count, (share, note) in zip(replicas, shares, strict=True):
        global_batch = share * count if scaling == "weak" else examples
        sizes = ReplicaSizes(count, global_batch, share)
        rows.append(_price_row(model, sync, sizes, single_per_s, note))
    return tuple(rows)


def _price_row(
    model: StepModel,
    sync: Sync,
    sizes: ReplicaSizes,
    single_per_s: float | None = None,
    note: str = "",
) -> ScalingRow:
    """Return the row of replicas; its speed-up is over `single_per_s`, or over itself if None."""
    times = model.timeline(sizes.batch)
    needs = model.needs(sizes.batch)
    communication_s = exchange_s(model, model.gradient_bytes / sync.compression, sizes.replicas)
    scheme = model.collective(sync.collective)
    if scheme not in communication_s:
        raise InputError(f"--collective {scheme}: no switch joins {sizes.replicas} replicas")
    row = scaling_row(
        model,
        sizes,
        pass_times=(times.forward_s, times.backward_s, times.update_s),
        communication_s=communication_s,
        exchange_time_s=communication_s[scheme],
        exposed_communication_s=exposed_s(model, sizes.batch, sizes.replicas, sync),
        single_per_s=single_per_s,
        note=note,
    )
    # The kernels bound the step first; the bounds then count that links may be faster or slower.
    kernel_ends = StepEnds(times.low_s, times.high_s)
    ends = widen_by_links(
        step_s=row.step_s,
        ends=kernel_ends.delay(row.exposed_communication_s),
        quick_s=row.compute_s + exposed_s(model, sizes.batch, sizes.replicas, sync, FAST_LINKS),
        slow_s=row.compute_s + exposed_s(model, sizes.batch, sizes.replicas, sync, SLOW_LINKS),
    )
    return replace(
        row,
        low_s=ends.low_s,
        high_s=ends.high_s,
        peak_bytes=needs.peak_bytes,
        needed_bytes=needs.total_bytes,
    )


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


def exposed_s(
    model: StepModel, batch: int, replicas: int, sync: Sync, end: int = STATED_LINKS
) -> float:
    """Return the seconds for which a step of replicas waits for the exchange of gradients.

    `end` is the end of the range of the links' rates that the exchange reaches.
    """
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
