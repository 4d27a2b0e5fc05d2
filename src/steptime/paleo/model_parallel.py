"""Model parallelism and hybrid parallelism ("one weird trick"), for files with split layers.

Layers `name@k` run on device k, all others on device 0. A layer first fetches its inputs from
other devices. Source: Qi, Sparks, Talwalkar, ICLR 2017; Krizhevsky 2014. Method `paleo` keeps
faults of the original, which the other methods correct:

* Device 0 fetches from itself, because the device of a split is a text and that of other layers a
  number.
* Each parent in another group of four devices halves the rate once more for all parents after it
  (corrected: half the rate for that parent alone). In model mode, fetches run at the bandwidth of
  the device's memory, and groups do not count (corrected: the link).
* The fetch time that hides behind the work on another batch is computed from elements, devices
  less one, and the link's full rate (corrected: the fetch itself, as long as the work lasts).
* Each device updates the parameters of all splits (corrected: its own).
* Chains run at the same time even on one device (corrected: one after the other).
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
from steptime.hardware.datasheet import GB, GIB
from steptime.paleo.layers import layers_in
from steptime.paleo.lower import update_kernel
from steptime.paleo.nesting import Fork, Nested, has_nested_forks, lower_bound, nest_layers
from steptime.paleo.placement import (
    LayerTimes,
    PassTimes,
    as_published,
    crosses_groups,
    device_of,
    layer_name,
    time_layers,
)
from steptime.paleo.rules import FLOAT_BYTES, settings_of
from steptime.prediction.host import host_of_launches, wait_for_host
from steptime.prediction.remarks import no_link
from steptime.prediction.schedule import overlap_traffic
from steptime.prediction.steps.step_model import StepModel

NESTED_NOTE = "forks within forks are nested; the original stops here"
FORK_NOTE = (
    "the lower bound runs the branches of a fork side by side, as if each had a device: with one "
    "device it is no speed-up"
)
MEMORY_NOTE = "fetches between groups run at memory bandwidth too; the original stops here"
PARTS = ("forward_s", "backward_s", "update_s")
PassSeconds = tuple[float, float, float]  # forward, backward, update
Pass = Callable[[LayerTimes], PassTimes]
PASSES: tuple[Pass, ...] = attrgetter("forward"), attrgetter("backward")


def splits_of(model: StepModel) -> int:
    """Return the number of splits of a network's file, 1 if none of its layers is split."""
    layers = layers_in(model.graph(model.workload.batch_per_replica))
    return 1 + max((device_of(layer) for layer in layers), default=0)


def model_parallel(model: StepModel, batch: int, replicas: int | None = None) -> ScalingRow:
    """Return the row of one batch that runs through devices, each of which holds a split.

    In the lower bounds a group of chains takes as long as its slowest chain; the upper bounds add
    up all layers. The step is that of the lower bounds, plus the update, which Paleo omits here.
    The speed-up is over one device that does everything.

    Raises:
        InputError: if `replicas` is not the number of the file's splits.
    """
    # Each split of the file lies on a device of its own.
    count = _device_count(model, replicas)
    layers = time_layers(model, batch, "model")
    nested_layers = nest_layers([timed_layer.layer for timed_layer in layers])
    parts = _time_parallel_layers(model, layers, nested_layers, count)
    forward_lower_s, backward_lower_s, _ = parts
    forward_upper_s, backward_upper_s = _sum_passes_s(layers)
    bounds = {
        "forward_lower_s": forward_lower_s,
        "forward_upper_s": max(forward_lower_s, forward_upper_s),
        "backward_lower_s": backward_lower_s,
        "backward_upper_s": max(backward_lower_s, backward_upper_s),
    }
    return scaling_row(
        model,
        ReplicaSizes(count, batch, batch),
        pass_times=parts,
        communication_s={},  # no gradients are exchanged: each device has its own layers
        exchange_time_s=0.0,
        exposed_communication_s=0.0,
        single_per_s=throughput(model, batch, _single_step_s(model, layers)),
        note="; ".join(_model_parallel_notes(model, layers, nested_layers, count)),
        parts=bounds,
    )


def _time_parallel_layers(
    model: StepModel, layers: Sequence[LayerTimes], nested_layers: Nested, device_count: int
) -> PassSeconds:
    """Return the parts of a step whose chains of layers run side by side, on the slowest device."""
    devices = _group_by_device(layers, device_count)
    forward_s, backward_s = (
        _parallel_pass_s(model, nested_layers, layers, get_pass) for get_pass in PASSES
    )
    update_s = 0.0  # the original omits the update in this mode
    if not as_published(model):
        update_s = max(_update_s(model, device_layers) for device_layers in devices)
    return _time_slowest_device(model, devices, (forward_s, backward_s, update_s), pass_count=1)


def _sum_passes_s(layers: Sequence[LayerTimes]) -> tuple[float, float]:
    """Return the seconds of the forward and the backward pass, one layer after another."""
    forward_s, backward_s = (
        sum(get_pass(timed_layer).total_s for timed_layer in layers) for get_pass in PASSES
    )
    return forward_s, backward_s


def _single_step_s(model: StepModel, layers: Sequence[LayerTimes]) -> float:
    """Return the seconds of a step on one device that does everything, without fetches."""
    forward_s, backward_s = _sum_passes_s(layers)
    fetch_s = sum(timed_layer.fetch_s for timed_layer in layers)
    update_s = 0.0 if as_published(model) else _update_s(model, layers)
    parts = (forward_s - fetch_s, backward_s - fetch_s, update_s)
    return sum(_add_host_waits(model, layers, parts, pass_count=1))


def _model_parallel_notes(
    model: StepModel, layers: Sequence[LayerTimes], items: Nested, device_count: int
) -> list[str]:
    """Return remarks on the places where the original stops or misleads."""
    # The notes are about faults of the original, which are corrected otherwise.
    if not as_published(model):
        return []
    has_fork = any(isinstance(item, Fork) for item in items)
    condition_by_note = {
        NESTED_NOTE: has_nested_forks(items),
        FORK_NOTE: device_count == 1 and has_fork,
        MEMORY_NOTE: crosses_groups([timed_layer.layer for timed_layer in layers]),
    }
    return [note for note, applies in condition_by_note.items() if applies]


def hybrid(
    model: StepModel,
    batch: int,
    replicas: int | None = None,
    scaling: str = "weak",
    exchange: Sync | None = None,
) -> ScalingRow:
    """Return the row of "one weird trick": split layers model parallel, the others data parallel.

    Every device has `batch` examples (weak) or its share of them (strong). The examples of each
    device run, one device after another, through the split layers on all devices. If the examples
    of one device take F seconds, t of which are fetches, those of n devices take (F - t) n + t: the
    other fetches hide behind the work.

    Raises:
        InputError: if `replicas` is not the number of the file's splits.
    """
    count = _device_count(model, replicas)
    sync = exchange or Sync()
    if sync.overlap:
        raise InputError("overlap of communication is for data parallelism, not hybrid")
    share, note = batch_share(model, count, batch, scaling)
    layers = time_layers(model, share, "hybrid")
    nested_layers = nest_layers([timed_layer.layer for timed_layer in layers])
    notes = [note] if note else []
    if as_published(model) and has_nested_forks(nested_layers):
        notes.append(NESTED_NOTE)
    unsplit_layers = [timed_layer for timed_layer in layers if timed_layer.layer.split is None]
    data_parts = _time_unsplit_layers(model, unsplit_layers)
    model_parts = _time_split_layers(model, layers, nested_layers, count)
    forward_s, backward_s, update_s = map(sum, zip(data_parts, model_parts, strict=True))
    communication_s = exchange_s(model, _gradient_bytes(model, layers) / sync.compression, count)
    sync_s = communication_s[model.collective(sync.collective)]
    data_s_by_part = dict(zip(PARTS, data_parts, strict=True))
    model_s_by_part = dict(zip(PARTS, model_parts, strict=True))
    # Strong scaling divides `batch` over the devices, weak scaling gives each as much.
    global_batch = share * count if scaling == "weak" else batch
    return scaling_row(
        model,
        ReplicaSizes(count, global_batch, share),
        pass_times=(forward_s, backward_s, update_s),
        communication_s=communication_s,
        exchange_time_s=sync_s,
        exposed_communication_s=sync_s,  # nothing overlaps the exchange
        single_per_s=throughput(model, batch, model.timeline(batch).step_s),
        note="; ".join(notes),
        parts={"data": {**data_s_by_part, "sync_s": sync_s}, "model": model_s_by_part},
    )


def _time_unsplit_layers(model: StepModel, layers: Sequence[LayerTimes]) -> PassSeconds:
    """Return the parts of a step of the layers that are not split, on one device."""
    forward_s, backward_s = (
        sum(get_pass(timed_layer).bound_s for timed_layer in layers) for get_pass in PASSES
    )
    update_s = _update_s(model, layers)
    return _add_host_waits(model, layers, (forward_s, backward_s, update_s), pass_count=1)


def _time_split_layers(
    model: StepModel, layers: Sequence[LayerTimes], nested_layers: Nested, device_count: int
) -> PassSeconds:
    """Return the parts of a step of the split layers, for the examples of all devices."""
    split_layers = [timed_layer for timed_layer in layers if timed_layer.layer.split is not None]
    devices = _group_by_device(split_layers, device_count)
    hidden_s = _hidden_fetch_s(model, layers, device_count)
    # a pass on the examples of one device
    single_pass_times = [
        _parallel_pass_s(model, nested_layers, split_layers, get_pass) for get_pass in PASSES
    ]
    if as_published(model):
        forward_s, backward_s = (
            # F seconds for the examples of one device, t of them fetches: (F - t) n + t for all n.
            (pass_s - hidden_s) * device_count + hidden_s
            for pass_s in single_pass_times
        )
        update_s = _update_s(model, split_layers, is_sequential=True)
    else:
        # all but the first pass hide their fetch behind work, as long as the work lasts
        forward_s, backward_s = (
            pass_s + (device_count - 1) * max(pass_s - hidden_s, hidden_s)
            for pass_s in single_pass_times
        )
        update_s = max(_update_s(model, device_layers) for device_layers in devices)
    return _time_slowest_device(
        model, devices, (forward_s, backward_s, update_s), pass_count=device_count
    )


def _group_by_device(layers: Sequence[LayerTimes], device_count: int) -> list[list[LayerTimes]]:
    devices: list[list[LayerTimes]] = [[] for _ in range(device_count)]
    for timed_layer in layers:
        devices[device_of(timed_layer.layer)].append(timed_layer)
    return devices


def _parallel_pass_s(
    model: StepModel, nested_layers: Nested, layers: Sequence[LayerTimes], get_pass: Pass
) -> float:
    """Return the lower bound of a pass over the nested list; only `layers` take time."""
    pass_s_by_layer = {
        timed_layer.layer.name: get_pass(timed_layer).total_s for timed_layer in layers
    }
    device_by_layer = {
        timed_layer.layer.name: device_of(timed_layer.layer) for timed_layer in layers
    }

    def pass_s(name: str) -> float:
        return pass_s_by_layer.get(name, 0.0)

    def device_number(name: str) -> int:
        return device_by_layer.get(name, 0)

    # in the original every chain runs at the same time, even on one device
    return lower_bound(nested_layers, pass_s, None if as_published(model) else device_number)


def _hidden_fetch_s(model: StepModel, layers: Sequence[LayerTimes], device_count: int) -> float:
    """Return the time of a fetch by split layers that hides behind work on another batch."""
    unsplit_layers = {
        timed_layer.layer.name: timed_layer.layer
        for timed_layer in layers
        if timed_layer.layer.split is None
    }
    fetching_layers = [
        timed_layer
        for timed_layer in layers
        if timed_layer.layer.split is not None
        and not unsplit_layers.keys().isdisjoint(timed_layer.layer.parents)
    ]
    if not as_published(model):
        # Fetches run side by side, one on each device.
        return max((timed_layer.fetch_s for timed_layer in fetching_layers), default=0.0)
    if model.fabric is None:
        return 0.0
    parents = {name for timed_layer in fetching_layers for name in timed_layer.layer.parents}
    fetched_layers = [layer for name, layer in unsplit_layers.items() if name in parents]
    # the original divides elements, not bytes, by the rate, times devices less one
    elements = sum(prod(layer.outputs) for layer in fetched_layers)
    gigabytes_per_s = model.fabric.between.bytes_per_s / GB
    return elements / GIB / gigabytes_per_s * (device_count - 1)


def _update_s(model: StepModel, layers: Sequence[LayerTimes], is_sequential: bool = False) -> float:
    """Return the seconds in which one device updates the weights of some layers.

    `is_sequential` adds arithmetic and traffic even if the method overlaps those of a layer.
    """
    if "update" not in settings_of(model.settings).faults:
        return sum(timed_layer.update_s for timed_layer in layers)
    # in the original the weights of all these layers are updated by one kernel
    parameters = sum(timed_layer.layer.parameters for timed_layer in layers)
    # The type of the step: its peak stands first on an effective device.
    first_dtype = next(iter(model.effective_device.datasheet.peak_flop_per_s))
    times = model.price(update_kernel(parameters, first_dtype))
    overlaps = model.settings.pipelined and not is_sequential
    return overlap_traffic(times) if overlaps else times.value


def _add_host_waits(
    model: StepModel, layers: Sequence[LayerTimes], parts: PassSeconds, pass_count: int
) -> PassSeconds:
    """Return the parts of a step, longer if the device waits for its host.

    The host issues the passes of `layers` `pass_count` times, and their update once.
    """
    forward, backward, update = (
        sum(timed_layer.kernels[pass_index] for timed_layer in layers) for pass_index in range(3)
    )
    launch_counts = [forward * pass_count, backward * pass_count, update]
    return wait_for_host(parts, host_of_launches(launch_counts, model.issue_s))


def _time_slowest_device(
    model: StepModel, devices: Sequence[Sequence[LayerTimes]], parts: PassSeconds, pass_count: int
) -> PassSeconds:
    """Return the parts of a step on the device whose host takes longest."""
    steps = [_add_host_waits(model, device_layers, parts, pass_count) for device_layers in devices]
    return max(steps, key=sum)


def _gradient_bytes(model: StepModel, layers: Sequence[LayerTimes]) -> float:
    """Return the bytes of the gradients of the layers that are not split."""
    unsplit_names = {
        timed_layer.layer.name for timed_layer in layers if timed_layer.layer.split is None
    }
    sends_parameters = "update" in settings_of(model.settings).faults  # as Paleo does
    if sends_parameters:
        parameters = sum(
            timed_layer.layer.parameters
            for timed_layer in layers
            if timed_layer.layer.name in unsplit_names
        )
        return float(FLOAT_BYTES * parameters)
    layers_by_name = {timed_layer.layer.name: timed_layer for timed_layer in layers}
    last_layer = layers[-1].layer.name
    sizes_bytes = [
        size_bytes
        for op, size_bytes in model.gradients.items()
        if layer_name(op, layers_by_name, last_layer) in unsplit_names
    ]
    return float(sum(sizes_bytes))


def _device_count(model: StepModel, replicas: int | None) -> int:
    """Return the number of devices, which is that of the file's splits."""
    splits = splits_of(model)
    if replicas is not None and replicas != splits:
        has = f"has {splits} splits" if splits > 1 else "has no split layers"
        raise InputError(
            f"{model.workload.label}: {has}: replicas must be {splits}, not {replicas}"
        )
    if splits > 1 and model.fabric is None:
        raise no_link(splits, model.device)
    return splits
