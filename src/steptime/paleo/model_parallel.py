"""Model parallelism and hybrid parallelism ("one weird trick"), for files with split layers.

Layers `name@k` run on device k, all others on device 0; what a layer reads from another device is
fetched first. Source: Qi, Sparks, Talwalkar, ICLR 2017; Krizhevsky 2014. Method `paleo` keeps
faults of the original, which every other method mends:

* device 0 fetches from itself, because a split's device is a text and any other's a number;
* among a layer's parents each one in another group of four devices halves the rate once more, for
  all that follow (mended: half the rate for just that one); and in model mode fetches run at the
  rate of the device's memory, and no group counts (mended: the link);
* the time saved by fetching for one batch while computing another counts elements, a device less
  one times, at the link's full rate (mended: the fetch itself, hidden as far as the work lasts);
* each device updates the parameters of all splits (mended: its own);
* chains run at the same time on one device too (mended: one after the other).
"""

from collections.abc import Callable, Sequence
from math import prod
from operator import attrgetter

from steptime.core.errors import InputError
from steptime.grids.replicas import (
    ReplicaSizes,
    ScalingRow,
    Sync,
    batch_share,
    exchange_s,
    scaling_row,
    throughput,
)
from steptime.hardware.device import GB, GIB
from steptime.paleo.layers import layers_in
from steptime.paleo.lower import update_kernel
from steptime.paleo.nesting import Fork, Nested, has_nested_forks, lower_bound, nested
from steptime.paleo.placement import (
    LayerTimes,
    PassTimes,
    as_published,
    crosses_groups,
    device_of,
    layer_name,
    nodes,
)
from steptime.paleo.rules import FLOAT_BYTES, settings_of
from steptime.prediction.host import behind_host, issuing
from steptime.prediction.remarks import no_link
from steptime.prediction.schedule import overlapped
from steptime.prediction.step_model import StepModel

NESTED_NOTE = "forks within forks are nested; the original stops here"
FORK_NOTE = (
    "the lower bound runs the branches of a fork side by side, as if each had a device: with one "
    "device it is no speed-up"
)
MEMORY_NOTE = "fetches between groups run at memory bandwidth too; the original stops here"
PARTS = ("forward_s", "backward_s", "update_s")
Seconds3 = tuple[float, float, float]  # forward, backward, update
Pass = Callable[[LayerTimes], PassTimes]
PASSES: tuple[Pass, ...] = attrgetter("forward"), attrgetter("backward")


def splits_of(model: StepModel) -> int:
    """Return the number of splits of a network's file, 1 where none of its layers is split."""
    layers = layers_in(model.graph(model.workload.batch_per_replica))
    return 1 + max((device_of(layer) for layer in layers), default=0)


def model_parallel(model: StepModel, batch: int, replicas: int | None = None) -> ScalingRow:
    """Return the row of one batch that runs through devices which hold a split each.

    The lower bounds count a group of chains as its slowest, the upper bounds add up everything;
    the step is that of the lower bounds, and of the update, which Paleo leaves out here. The
    speed-up is over one device that does everything. Raises `InputError` for a number that is not
    the file's splits.
    """
    count = _checked(model, replicas)
    every = nodes(model, batch, "model")
    items = nested([node.layer for node in every])
    forks = count == 1 and any(isinstance(item, Fork) for item in items)
    crosses = crosses_groups([node.layer for node in every])
    said = {NESTED_NOTE: has_nested_forks(items), FORK_NOTE: forks, MEMORY_NOTE: crosses}
    notes = [note for note, holds in said.items() if holds and as_published(model)]
    upper = [sum(part(node).total_s for node in every) for part in PASSES]
    fetched = sum(node.fetch_s for node in every)
    update, of_all = 0.0, 0.0
    if not as_published(model):
        update = max(_update_s(model, own) for own in _by_device(every, count))
        of_all = _update_s(model, every)
    forward, backward = (_lower(model, items, every, part) for part in PASSES)
    parts = _slowest(model, _by_device(every, count), (forward, backward, update), 1)
    shown = {
        "forward_lower_s": parts[0],
        "forward_upper_s": max(parts[0], upper[0]),
        "backward_lower_s": parts[1],
        "backward_upper_s": max(parts[1], upper[1]),
    }
    alone = _issued(model, every, (upper[0] - fetched, upper[1] - fetched, of_all), 1)
    alone_per_s = throughput(model, batch, sum(alone))
    sizes = ReplicaSizes(count, batch, batch)
    return scaling_row(model, sizes, parts, {}, 0.0, 0.0, alone_per_s, "; ".join(notes), shown)


def hybrid(
    model: StepModel,
    batch: int,
    replicas: int | None = None,
    scaling: str = "weak",
    exchange: Sync | None = None,
) -> ScalingRow:
    """Return the row of one weird trick: layers that are not split data parallel, split ones not.

    Every device has `batch` examples (weak) or its share of them (strong). In turn each device's
    examples run through the split layers on all devices. With F seconds for one device's examples,
    t of which fetch, n devices take (F - t) n + t: the other fetches hide behind the work. Raises
    `InputError` for a number that is not the file's splits.
    """
    count = _checked(model, replicas)
    how = exchange or Sync()
    if how.overlap:
        raise InputError("overlap of communication is for data parallelism, not hybrid")
    share, note = batch_share(model, count, batch, scaling)
    notes = [note] if note else []
    every = nodes(model, share, "hybrid")
    items = nested([node.layer for node in every])
    if as_published(model) and has_nested_forks(items):
        notes.append(NESTED_NOTE)
    whole = [node for node in every if node.layer.split is None]
    split = [node for node in every if node.layer.split is not None]

    forward, backward = (sum(part(node).bound_s for node in whole) for part in PASSES)
    data = _issued(model, whole, (forward, backward, _update_s(model, whole)), 1)
    hidden = _hidden_s(model, every, count)
    once = [_lower(model, items, split, part) for part in PASSES]
    devices = _by_device(split, count)
    if as_published(model):
        forward, backward = ((seconds - hidden) * count + hidden for seconds in once)
        update = _update_s(model, split, in_turn=True)
    else:
        forward, backward = (s + (count - 1) * max(s - hidden, hidden) for s in once)
        update = max(_update_s(model, own) for own in devices)
    of_split = _slowest(model, devices, (forward, backward, update), count)

    communication_s = exchange_s(model, _gradient_bytes(model, every) / how.compression, count)
    sync = communication_s[model.collective(how.collective)]
    parts = (data[0] + of_split[0], data[1] + of_split[1], data[2] + of_split[2])
    shown = {
        "data": {**dict(zip(PARTS, data, strict=True)), "sync_s": sync},
        "model": dict(zip(PARTS, of_split, strict=True)),
    }
    total = share * count if scaling == "weak" else batch
    alone = throughput(model, batch, model.timeline(batch).step_s)
    sizes = ReplicaSizes(count, total, share)
    return scaling_row(
        model, sizes, parts, communication_s, sync, sync, alone, "; ".join(notes), shown
    )


def _by_device(every: Sequence[LayerTimes], replicas: int) -> list[list[LayerTimes]]:
    devices: list[list[LayerTimes]] = [[] for _ in range(replicas)]
    for node in every:
        devices[device_of(node.layer)].append(node)
    return devices


def _lower(model: StepModel, items: Nested, counted: Sequence[LayerTimes], part: Pass) -> float:
    """Return the lower bound of a pass over the nested list, some of its layers `counted`."""
    seconds = {node.layer.name: part(node).total_s for node in counted}
    device = {node.layer.name: device_of(node.layer) for node in counted}
    on = None if as_published(model) else lambda name: device.get(name, 0)
    return lower_bound(items, lambda name: seconds.get(name, 0.0), on)


def _hidden_s(model: StepModel, every: Sequence[LayerTimes], replicas: int) -> float:
    """Return the time of a fetch by split layers that hides behind work on another batch."""
    unsplit = {node.layer.name: node.layer for node in every if node.layer.split is None}
    split = (node for node in every if node.layer.split is not None)
    fed = [node for node in split if unsplit.keys() & set(node.layer.parents)]
    if not as_published(model):
        return max((node.fetch_s for node in fed), default=0.0)
    if model.fabric is None:
        return 0.0
    feeders = {name for node in fed for name in node.layer.parents if name in unsplit}
    elements = sum(prod(unsplit[name].outputs) for name in feeders)
    return elements / GIB / (model.fabric.between.bytes_per_s / GB) * (replicas - 1)


def _update_s(model: StepModel, every: Sequence[LayerTimes], in_turn: bool = False) -> float:
    """Return the seconds in which one device updates the weights of some layers.

    `in_turn` adds arithmetic and traffic even where the method overlaps those of a layer.
    """
    if "update" not in settings_of(model.settings).faults:
        return sum(node.update_s for node in every)
    parameters = sum(node.layer.parameters for node in every)
    times = model.price(update_kernel(parameters, next(iter(model.seen.peak_flop_per_s))))
    return overlapped(times) if model.settings.pipelined and not in_turn else times.value


def _issued(model: StepModel, every: Sequence[LayerTimes], parts: Seconds3, times: int) -> Seconds3:
    """Return the parts of a step, longer where a device waits for its host.

    The passes of some layers are issued `times` times, their update once.
    """
    forward, backward, update = (sum(node.kernels[i] for node in every) for i in range(3))
    counts = [forward * times, backward * times, update]
    return behind_host(parts, issuing(counts, model.issue_s))


def _slowest(
    model: StepModel, devices: Sequence[Sequence[LayerTimes]], parts: Seconds3, times: int
) -> Seconds3:
    """Return the parts of a step on the device whose host takes longest."""
    return max((_issued(model, own, parts, times) for own in devices), key=sum)


def _gradient_bytes(model: StepModel, every: Sequence[LayerTimes]) -> float:
    """Return the bytes of the gradients of the layers that are not split."""
    unsplit = {node.layer.name for node in every if node.layer.split is None}
    if "update" in settings_of(model.settings).faults:
        parameters = sum(n.layer.parameters for n in every if n.layer.name in unsplit)
        return float(FLOAT_BYTES * parameters)
    names = {node.layer.name: node for node in every}
    last = every[-1].layer.name
    gradients = model.gradients.items()
    return float(sum(size for op, size in gradients if layer_name(op, names, last) in unsplit))


def _checked(model: StepModel, replicas: int | None) -> int:
    """Return the number of devices, that of the file's splits."""
    splits = splits_of(model)
    if replicas is not None and replicas != splits:
        has = f"has {splits} splits" if splits > 1 else "has no split layers"
        raise InputError(
            f"{model.workload.label}: {has}: replicas must be {splits}, not {replicas}"
        )
    if splits > 1 and model.fabric is None:
        raise no_link(splits, model.device)
    return splits
