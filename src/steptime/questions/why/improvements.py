"""Changes that would help a step, and by how much: the model asked again with each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from steptime.core.dtypes import HALVES
from steptime.grids.batches import find_knee
from steptime.hardware.device import Device
from steptime.questions.bound import InputFeed
from steptime.questions.whatif.changes import Change, change_device
from steptime.questions.why.answer import Improvement
from steptime.questions.why.sentences import WORTHWHILE_SPEEDUP
from steptime.questions.why.setup import Setup

DEVICE_GAP = "launch.gap_s"  # between two kernels: no host shortens it
UNEVEN_ROWS = ("product.odd_", "product.uneven_")  # of rows that begin at no whole 16 bytes
BATCH_FACTORS = (1, 2, 4, 8, 16)
HOST_SPEEDUP = 2  # of the proposed host; its line says "twice as fast"


def find_improvements(setup: Setup) -> tuple[Improvement, ...]:
    """Return the changes that make a step 2 % faster, in all or per device, the best first.

    Raises:
        InputError: as a prediction does.
    """
    examples_per_s = setup.examples_per_s
    improvements = []
    for change, changed_setup in _changed_setups(setup):
        speedup = changed_setup.examples_per_s / examples_per_s
        # More replicas are faster together, fewer ones may be faster each.
        per_device_speedup = speedup * setup.replicas / changed_setup.replicas
        if max(speedup, per_device_speedup) >= WORTHWHILE_SPEEDUP:
            improvement = Improvement(
                change=change,
                step_s=changed_setup.step_s,
                speedup=speedup,
                per_device_speedup=per_device_speedup,
            )
            improvements.append(improvement)
    return tuple(sorted(improvements, key=lambda row: row.speedup, reverse=True))


def _changed_setups(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield changes of software, hardware, input and replicas with the changed step."""
    yield from _changed_batch(setup)
    yield from _changed_software(setup)
    yield from _changed_hardware(setup)
    if setup.feed.period_s:
        yield "input that never makes it wait", replace(setup, feed=InputFeed())
    if setup.communication_s:
        half_s = setup.communication_s / 2
        yield "communication that takes half as long", replace(setup, communication_s=half_s)
    if setup.link is not None and setup.replicas > 1:
        count = setup.replicas
        yield "twice the rate of the link", replace(setup, link=setup.link.faster(2))
        yield f"{2 * count} replicas", replace(setup, replicas=2 * count)
        yield f"fewer replicas: {count // 2}", replace(setup, replicas=count // 2)


def _changed_hardware(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield faster devices and hosts, and sizes that suit the device."""
    device = setup.device
    constants = setup.model.effective_device.constants
    twice_bandwidth = Change("memory_GB_per_s", 2, is_factor=True)
    fast_memory_device = change_device(device, (twice_bandwidth,))
    yield "twice the memory bandwidth", replace(setup, device=fast_memory_device)
    twice_peak, twice_power = Change("peak", 2, is_factor=True), Change("tdp_W", 2, is_factor=True)
    # A device at its power limit would not reach twice the peak with the same power.
    fast_math_device = change_device(device, (twice_peak, twice_power))
    has_peak_power = device.datasheet.peak_w is not None
    text = "twice the peak, at twice the power" if has_peak_power else "twice the peak"
    yield text, replace(setup, device=fast_math_device)
    yield "a host that issues and launches twice as fast", _with_faster_host(setup)
    # These constants are factors by which kernels of uneven sizes take longer; 1 is no penalty.
    no_penalties = {name: 1.0 for name in constants if name.startswith(UNEVEN_ROWS)}
    padded_device = _with_constants(device, no_penalties)
    yield "sizes padded to multiples of 8", replace(setup, device=padded_device)


def _with_faster_host(setup: Setup) -> Setup:
    """Return the step with a host that issues and launches kernels twice as fast."""
    device = setup.device
    # The option `host` sets the constants of its CPU. It is left out below, since it would
    # overwrite the faster ones; therefore all of them are set here.
    host_constants = {}
    for name, value in setup.model.effective_device.constants.items():
        is_launch_time = name.startswith("launch.") and name != DEVICE_GAP
        if is_launch_time or name == "host.factor":
            host_constants[name] = value / HOST_SPEEDUP
        elif name.startswith("host."):
            host_constants[name] = value
    launch_s = device.datasheet.launch_s
    if launch_s is not None:
        launch_s /= HOST_SPEEDUP
    faster_device = _with_constants(device, host_constants).with_figures(launch_s=launch_s)
    options = {name: text for name, text in setup.options.items() if name != "host"}
    return replace(setup, device=faster_device, options=options)


def _with_constants(device: Device, constants: Mapping[str, float]) -> Device:
    """Return a device with some of its constants replaced."""
    return replace(device, calibration=device.calibration.with_constants(constants))


def _changed_batch(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield the step at the best larger batch that fits, if that is another one."""
    batch = setup.workload.batch_per_replica
    setup_by_batch = {}
    for factor in BATCH_FACTORS:
        larger_setup = setup.with_batch(factor * batch)
        is_unchanged = factor == 1
        if is_unchanged or larger_setup.model.needs().fit(setup.device):
            setup_by_batch[factor * batch] = larger_setup
    steps_s = [batch_setup.step_s for batch_setup in setup_by_batch.values()]
    # The smallest batch with 90 % of the best speed.
    best_batch = find_knee(list(setup_by_batch), steps_s)
    if best_batch != batch:
        yield f"batch {best_batch:,}", setup_by_batch[best_batch]


def _changed_software(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield the step in a shorter type, in TF32, and compiled."""
    yield from _shorten_dtype(setup)
    method_options = setup.model.method.options
    has_tf32 = "tf32" in setup.device.datasheet.peak_flop_per_s and "tf32" in method_options
    if setup.workload.dtype == "float32" and has_tf32:
        yield "TF32 for float32", setup.with_options(tf32="yes")
    stack = setup.model.stack
    is_eager_torch = stack.name.startswith("torch") and not stack.compile
    if "stack" in method_options and is_eager_torch:
        yield "compiled (torch.compile)", _compile_with_torch(setup)
    elif "fuse" in method_options and "fuse" not in setup.options:
        yield "fused elementwise ops", setup.with_options(fuse="yes")


def _shorten_dtype(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield a step of float32 or float64 in a type of 16 bits, if the device has one."""
    workload = setup.workload
    peaks = setup.device.datasheet.peak_flop_per_s
    half_dtype = next((name for name in HALVES if name in peaks), None)
    is_full_precision = workload.dtype in ("float32", "float64")
    if is_full_precision and half_dtype is not None:
        # Training keeps its weights in float32.
        shorter_dtype = f"{half_dtype}-mixed" if workload.phase == "train" else half_dtype
        yield f"dtype {shorter_dtype}", replace(setup, workload=workload.with_dtype(shorter_dtype))


def _compile_with_torch(setup: Setup) -> Setup:
    """Return the step run by torch.compile, which decides the layout of images itself."""
    uncompiled_options = {
        name: text for name, text in setup.options.items() if name != "channels_last"
    }
    return replace(setup, options={**uncompiled_options, "stack": "torch-compile"})
