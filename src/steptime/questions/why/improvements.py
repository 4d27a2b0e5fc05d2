"""Changes that would help a step, and by how much: the model asked again with each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from steptime.core.dtypes import HALVES
from steptime.grids.batches import knee
from steptime.hardware.device import Device
from steptime.questions.bound import Input
from steptime.questions.whatif.changes import Change, change_device
from steptime.questions.why.answer import Improvement
from steptime.questions.why.sentences import WORTHWHILE_SPEEDUP
from steptime.questions.why.setup import Setup

DEVICE_GAP = "launch.gap_s"  # between two kernels: no host shortens it
UNEVEN_ROWS = ("product.odd_", "product.uneven_")  # of rows that begin at no whole 16 bytes
BATCH_FACTORS = (1, 2, 4, 8, 16)


def find_improvements(setup: Setup) -> tuple[Improvement, ...]:
    """Return the changes that make a step 2 % faster, in all or per device, the best first.

    Raises:
        InputError: as a prediction does.
    """
    examples_per_s = setup.examples_per_s
    improvements = []
    for change, changed_setup in _changed_setups(setup):
        speedup = changed_setup.examples_per_s / examples_per_s
        per_device = speedup * setup.replicas / changed_setup.replicas
        if max(speedup, per_device) >= WORTHWHILE_SPEEDUP:
            improvement = Improvement(
                change=change,
                step_s=changed_setup.step_s,
                speedup=speedup,
                per_device_speedup=per_device,
            )
            improvements.append(improvement)
    return tuple(sorted(improvements, key=lambda row: row.speedup, reverse=True))


def _changed_setups(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield changes of software, hardware, input and replicas with the changed step."""
    yield from _changed_batch(setup)
    yield from _changed_software(setup)
    yield from _changed_hardware(setup)
    if setup.feed.period_s:
        yield "input that never makes it wait", replace(setup, feed=Input())
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
    device, constants = setup.device, setup.model.effective_device.constants
    bandwidth = Change("memory_GB_per_s", 2, times=True)
    yield "twice the memory bandwidth", replace(setup, device=change_device(device, (bandwidth,)))
    peaks = (Change("peak", 2, times=True), Change("tdp_W", 2, times=True))
    text = "twice the peak" if device.peak_w is None else "twice the peak, at twice the power"
    yield text, replace(setup, device=change_device(device, peaks))
    yield "a host that issues and launches twice as fast", _with_faster_host(setup)
    even_rows = {name: 1.0 for name in constants if name.startswith(UNEVEN_ROWS)}
    padded_device = _with_constants(device, even_rows)
    yield "sizes padded to multiples of 8", replace(setup, device=padded_device)


def _with_faster_host(setup: Setup) -> Setup:
    """Return the step with a host that issues and launches kernels twice as fast."""
    device, constants = setup.device, setup.model.effective_device.constants
    launches = [name for name in constants if name.startswith("launch.") and name != DEVICE_GAP]
    host_constants = {name: value for name, value in constants.items() if name.startswith("host.")}
    for name in (*launches, "host.factor"):
        if name in constants:
            host_constants[name] = constants[name] / 2
    launch_s = None if device.launch_s is None else device.launch_s / 2
    faster_device = replace(_with_constants(device, host_constants), launch_s=launch_s)
    options = {name: text for name, text in setup.options.items() if name != "host"}
    return replace(setup, device=faster_device, options=options)


def _with_constants(device: Device, constants: Mapping[str, float]) -> Device:
    """Return a device with some of its constants replaced."""
    all_constants = {**device.calibration.get("constants", {}), **constants}
    return replace(device, calibration={**device.calibration, "constants": all_constants})


def _changed_batch(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield the step at the best larger batch that fits, if that is another one."""
    batch = setup.workload.batch_per_replica
    fitting = {}
    for factor in BATCH_FACTORS:
        larger = setup.with_batch(factor * batch)
        if factor == 1 or larger.model.needs().fit(setup.device):
            fitting[factor * batch] = larger
    best_batch = knee(list(fitting), [larger.step_s for larger in fitting.values()])
    if best_batch != batch:
        yield f"batch {best_batch:,}", fitting[best_batch]


def _changed_software(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield the step in a shorter type, in TF32, and compiled."""
    method_options, workload = setup.model.method.options, setup.workload
    peaks, dtype = setup.device.peak_flop_per_s, workload.dtype
    half = next((name for name in HALVES if name in peaks), None)
    if dtype in ("float32", "float64") and half:
        name = f"{half}-mixed" if workload.phase == "train" else half
        yield f"dtype {name}", replace(setup, workload=workload.with_dtype(name))
    if dtype == "float32" and "tf32" in peaks and "tf32" in method_options:
        yield "TF32 for float32", setup.with_options(tf32="yes")
    stack = setup.model.stack
    if "stack" in method_options and stack.name.startswith("torch") and not stack.compile:
        options = dict(setup.options)
        options.pop("channels_last", None)  # the compiler decides the layout of images itself
        options["stack"] = "torch-compile"
        yield "compiled (torch.compile)", replace(setup, options=options)
    elif "fuse" in method_options and "fuse" not in setup.options:
        yield "fused elementwise ops", setup.with_options(fuse="yes")
