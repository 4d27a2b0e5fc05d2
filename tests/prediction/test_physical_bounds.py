"""Limits that physics sets to every kernel of every device, whatever the constants of a form say.

No kernel runs above the peak or the bandwidth of its device, twice the batch takes no less time,
sizes that are multiples of 64 take more time as they grow, and a device that is better in every
figure is not much slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest

from steptime.calibration.cases import op_kernels
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction import cost_model
from steptime.prediction.kernel import Kernel
from steptime.prediction.kernels import Kernels, computed_as
from steptime.prediction.training import in_training

METHOD = cost_model("calibrated")
DEVICES = [device for device in catalog.devices() if not device.datasheet.only_by_name]
DTYPES = (
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("float64", "float32", "bfloat16")),
    "float16",
)
BATCHES = (1, 2, 4, 8, 32, 64, 256, 512)  # pairs of which the second is twice the first
PASSES = ("forward", "backward")
WINOGRAD_SHARE = 36 / 144  # multiply-adds of F(4x4, 3x3), the shortest that libraries have
CACHE_BYTES = 32 * 2**20  # of a device whose file does not say its last cache
CACHES = 8  # times what a last cache holds, from which on it saves next to nothing
ROUNDING = 1 + 1e-6
# Of a better device: more multiprocessors share its cache and its watts, and a last wave of tiles
# fills fewer of them.
SLOWER_AT_MOST = 1.27

Shapes = tuple[tuple[int, ...], ...]
Case = tuple[str, Shapes, dict[str, Any]]


def _linear(batch: int) -> Case:
    return "linear", ((batch, 4096), (4096, 4096)), {}


def _sequence_linear(batch: int) -> Case:
    return "linear", ((batch, 128, 1024), (3072, 1024)), {}


def _batched_product(batch: int) -> Case:
    return "matmul", ((batch, 512, 64), (batch, 64, 512)), {}


def _shared_product(batch: int) -> Case:
    return "matmul", ((batch, 128, 512), (512, 1024)), {}


def _convolution(channels: int, size: int, stride: int, groups: int = 1) -> Callable[[int], Case]:
    def case(batch: int) -> Case:
        images = (batch, channels, 32, 32)
        filters = (channels, channels // groups, size, size)
        return (
            "conv2d",
            (images, filters),
            {"padding": size // 2, "stride": stride, "groups": groups},
        )

    return case


def _volume_convolution(batch: int) -> Case:
    return "conv3d", ((batch, 64, 16, 16, 16), (64, 64, 3, 3, 3)), {"padding": 1}


def _attention(width: int, length: int, heads: int = 16) -> Callable[[int], Case]:
    def case(batch: int) -> Case:
        attrs = {"heads": heads, "kv_heads": heads, "causal": False}
        return "attention", ((batch, length, heads * width),) * 3, attrs

    return case


def _recurrent(kind: str, gates: int) -> Callable[[int], Case]:
    def case(batch: int) -> Case:
        width = gates * 1024
        weights = ((width, 1024), (width, 1024), (width,), (width,))
        return kind, ((batch, 64, 1024), *weights), {}

    return case


def _rows(kind: str, inputs: int = 1) -> Callable[[int], Case]:
    return lambda batch: (kind, ((batch, 256, 1024),) * inputs, {})


def _norm_of_images(kind: str, weights: int, **attrs: int) -> Callable[[int], Case]:
    return lambda batch: (kind, ((batch, 256, 32, 32), *[(256,)] * weights), attrs)


KINDS: Mapping[str, Callable[[int], Case]] = {
    "linear": _linear,
    "linear over sequences": _sequence_linear,
    "batched product": _batched_product,
    "product with shared weights": _shared_product,
    "convolution 1x1": _convolution(512, 1, 1),
    "convolution 3x3": _convolution(256, 3, 1),
    "convolution 3x3, stride 2": _convolution(256, 3, 2),
    "convolution 7x7": _convolution(64, 7, 1),
    "convolution, 32 groups": _convolution(512, 3, 1, 32),
    "convolution, depthwise": _convolution(256, 3, 1, 256),
    "convolution of volumes": _volume_convolution,
    "attention, heads of 64": _attention(64, 2048),
    "attention, heads of 128": _attention(128, 2048),
    "attention, heads of 256": _attention(256, 4096, 8),
    "rnn": _recurrent("rnn", 1),
    "gru": _recurrent("gru", 3),
    "lstm": _recurrent("lstm", 4),
    "layer norm": _rows("layer_norm"),
    "rms norm": _rows("rms_norm"),
    "softmax": _rows("softmax"),
    "gelu": _rows("gelu"),
    "add": _rows("add", 2),
    "transpose": lambda batch: ("transpose", ((batch, 256, 1024),), {"order": (0, 2, 1)}),
    "batch norm": _norm_of_images("batch_norm", 4),
    "group norm": _norm_of_images("group_norm", 2, groups=32),
}


class Priced(NamedTuple):
    """The kernels of one question, and their seconds on a device."""

    name: str
    size: int
    kernels: Sequence[Kernel]
    seconds: np.ndarray[Any, Any]

    @property
    def whole_s(self) -> float:
        return float(self.seconds.sum())


KernelsByCase = Mapping[tuple[str, str, int], tuple[Kernel, ...]]  # by name, pass and size


class Questions(NamedTuple):
    """The kernels of cases, and all of them as columns, which every device prices."""

    kernels_by_case: KernelsByCase
    columns: Kernels


def _make_questions(kernels_by_case: KernelsByCase) -> Questions:
    kernels = [kernel for kernels in kernels_by_case.values() for kernel in kernels]
    return Questions(kernels_by_case, Kernels(kernels))


@functools.cache
def _questions(dtype: str) -> Questions:
    """Return the kernels of every kind, pass and batch."""
    return _make_questions(
        {
            (name, pass_, batch): op_kernels(*case(batch), dtype, pass_)
            for name, case in KINDS.items()
            for pass_ in PASSES
            for batch in BATCHES
        }
    )


def _price(questions: Questions, seen: Device) -> Iterator[Priced]:
    columns = questions.columns
    seconds = METHOD.prices(columns, seen).value[columns.distinct_of_kernel]
    start = 0
    for (name, pass_, size), kernels in questions.kernels_by_case.items():
        end = start + len(kernels)
        yield Priced(f"{name}, {pass_}", size, kernels, seconds[start:end])
        start = end


def _seen(device: Device, dtype: str, stack: str = "torch-eager") -> Device | None:
    """Return the device as kernels of a type find it, None where it has no peak for it."""
    try:
        return METHOD.derate(device, dtype, replace(METHOD.settings, stack=stack))
    except InputError:
        return None


@functools.cache
def _price_on_devices(dtype: str) -> list[tuple[Device, list[Priced]]]:
    """Return every device that has a peak for the type, with the prices of all cases."""
    devices = [seen for device in DEVICES if (seen := _seen(device, dtype)) is not None]
    return [(seen, list(_price(_questions(dtype), seen))) for seen in devices]


def _least_s(kernel: Kernel, seen: Device) -> float:
    """Return the least seconds of a kernel at the peak and the bandwidth of a device."""
    peak = seen.datasheet.peak_flop_per_s[computed_as(kernel, seen)]
    if kernel.unit == "vector" or kernel.products == ():
        peak = max(peak, seen.datasheet.vector_peak(kernel.dtype) or 0.0)
    window = kernel.window or (0, 0, 0, 0, 0, 0)
    is_winograd = window[:4] == (3, 3, 1, 1) and kernel.dtype in ("float32", "float64")
    flop = kernel.flop * (WINOGRAD_SHARE if is_winograd else 1.0)
    is_large = kernel.bytes > CACHES * (seen.datasheet.l2_bytes or CACHE_BYTES)
    return max(flop / peak, kernel.bytes * is_large / seen.datasheet.memory_bytes_per_s)


def _too_fast(priced: Priced, seen: Device) -> list[str]:
    least = [_least_s(kernel, seen) for kernel in priced.kernels]
    return [
        f"{priced.name} of {priced.size} on {seen.name}: {kernel.kind} in {own / least_s:.2f}"
        for kernel, own, least_s in zip(priced.kernels, priced.seconds, least, strict=True)
        if own * ROUNDING < least_s
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_kernel_runs_above_the_peak_or_the_bandwidth_of_its_device(dtype):
    faults = []
    for seen, cases in _price_on_devices(dtype):
        for priced in cases:
            faults += _too_fast(priced, seen)
    assert not faults, f"{len(faults)}: {faults[:20]}"


@pytest.mark.slow
@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.rare)])
def test_no_kernel_of_a_training_stack_runs_above_the_peak(stride):
    """Each stack on every `stride`-th GPU, each stack beginning with another one."""
    questions = _make_questions(
        {
            (name, pass_, 64): op_kernels(*case(64), "bfloat16", pass_)
            for name, case in KINDS.items()
            if name.startswith(("linear", "attention"))
            for pass_ in PASSES
        }
    )
    stacks = [
        name for name in catalog.stack_names(with_user_files=False) if catalog.stack(name).uses
    ]
    gpus = [device for device in DEVICES if device.kind == "gpu"]
    faults = []
    for number, stack in enumerate(stacks):
        for device in gpus[number % stride :: stride]:
            seen = _seen(device, "bfloat16", stack)
            if seen is not None:
                seen = in_training(seen)
                for priced in _price(questions, seen):
                    faults += [f"{stack}: {fault}" for fault in _too_fast(priced, seen)]
    assert not faults, f"{len(faults)}: {faults[:20]}"


def _is_measured_to_fall(priced: Priced, seen: Device) -> bool:
    """Whether a larger batch is measured to be faster: of cuDNN before Volta, 32 rows beside 64.

    DeepBench on P100 and Titan X: steps of a recurrent layer of 32 rows take two to three times
    as long as those of 64, in float32 and in stored float16.
    """
    is_recurrent = priced.name.startswith(("rnn", "gru", "lstm"))
    return is_recurrent and priced.size == 32 and has_trait(seen, "old")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_twice_the_batch_takes_no_less_time(dtype):
    faults = []
    for seen, cases in _price_on_devices(dtype):
        before: Priced | None = None
        for priced in cases:
            if before is not None and before.name == priced.name:
                is_less = priced.whole_s * ROUNDING < before.whole_s
                if is_less and not _is_measured_to_fall(before, seen):
                    share = priced.whole_s / before.whole_s
                    faults.append(f"{priced.name} on {seen.name}: {before.size}: {share:.3f}")
            before = priced
    assert not faults, f"{len(faults)}: {faults[:20]}"


SIDES = tuple(64 * count for count in (*range(1, 7), 8, 12, 16, 32, 64))


@functools.cache
def _products_by_side(dtype: str) -> Questions:
    """Return linear layers of which one of rows, width and inputs grows by multiples of 64."""
    grown: dict[tuple[str, str, int], tuple[Kernel, ...]] = {}
    for place, side in enumerate(("rows", "width", "inputs")):
        for pass_ in PASSES:
            for size in SIDES:
                sizes = [1024, 1024, 1024]
                sizes[place] = size
                rows, width, inputs = sizes
                shapes = ((rows, inputs), (width, inputs))
                grown[side, pass_, size] = op_kernels("linear", shapes, {}, dtype, pass_)
    return _make_questions(grown)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_takes_more_time_as_a_multiple_of_64_grows(dtype):
    faults = []
    for device in DEVICES:
        seen = _seen(device, dtype)
        if seen is None:
            continue
        before: Priced | None = None
        for priced in _price(_products_by_side(dtype), seen):
            is_grown = before is not None and before.name == priced.name
            if is_grown and priced.whole_s * ROUNDING < before.whole_s:
                share = priced.whole_s / before.whole_s
                faults.append(f"{priced.name} on {device.name}: {before.size}: {share:.3f}")
            before = priced
    assert not faults, f"{len(faults)}: {faults[:20]}"


def _figures(device: Device) -> dict[str, float | None]:
    """Return the figures of a device of which more is better."""
    peaks = {f"peak {name}": value for name, value in device.datasheet.peak_flop_per_s.items()}
    vector = {f"vector {name}": value for name, value in device.datasheet.vector_flop_per_s.items()}
    names = ("memory_bytes_per_s", "clock_hz", "multiprocessors", "l2_bytes", "peak_w", "cores")
    names += ("l3_bytes", "l3_of_core_bytes")
    return {**peaks, **vector, **{name: getattr(device.datasheet, name) for name in names}}


def _pairs_of_one_design() -> Iterator[tuple[Device, Device]]:
    """Yield pairs of one design of which the first has more of every figure, or as much.

    Their multiprocessors do as much in a clock: else one with more of them, each slower, may wait
    longer for its last tiles.
    """
    same = ("maker", "architecture", "memory_type", "process_nm", "idle_w")
    designs: dict[tuple[Any, ...], list[Device]] = {}
    for device in DEVICES:
        known = tuple(name for name, value in _figures(device).items() if value is not None)
        design = (device.kind, *(getattr(device.datasheet, name) for name in same), known)
        designs.setdefault(design, []).append(device)
    for devices in designs.values():
        for better, worse in permutations(devices, 2):
            figures = zip(_figures(better).values(), _figures(worse).values(), strict=True)
            is_alike = _flop_per_clock(better) == pytest.approx(_flop_per_clock(worse), rel=0.03)
            if is_alike and all((own or 0) >= (others or 0) for own, others in figures):
                yield better, worse


def _flop_per_clock(device: Device) -> dict[str, float]:
    """Return what a multiprocessor, a core or the device does in a clock, by type."""
    clocks = (device.datasheet.clock_hz or 1.0) * (
        device.datasheet.multiprocessors or device.datasheet.cores or 1
    )
    return {name: peak / clocks for name, peak in device.datasheet.peak_flop_per_s.items()}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES[1::2])
def test_a_device_that_is_better_in_every_figure_is_not_much_slower(dtype):
    seconds = {
        seen.name: [priced.whole_s for priced in cases] for seen, cases in _price_on_devices(dtype)
    }
    names = list(_questions(dtype).kernels_by_case)
    faults = []
    for better, worse in _pairs_of_one_design():
        if not {better.name, worse.name} <= seconds.keys():
            continue
        pairs = zip(names, seconds[better.name], seconds[worse.name], strict=True)
        for name, own_s, others_s in pairs:
            if own_s > others_s * SLOWER_AT_MOST:
                faults.append(f"{name} on {better.name}: {own_s / others_s:.3f} of {worse.name}")
    assert not faults, f"{len(faults)}: {faults[:20]}"


@pytest.mark.parametrize("figure", ["clock_hz", "memory_bytes_per_s", "l2_bytes", "peak_w"])
def test_more_of_one_figure_alone_makes_no_kernel_slower(figure):
    """A higher clock with the same peaks is that of narrower multiprocessors, not a loss."""
    faults = []
    for device in DEVICES[::8]:
        value = getattr(device.datasheet, figure)
        seen = _seen(device, "float16")
        if seen is None or value is None:
            continue
        more = _seen(device.with_figures(**{figure: 1.1 * value}), "float16")
        assert more is not None
        questions = _questions("float16")
        for less, better in zip(_price(questions, seen), _price(questions, more), strict=True):
            if better.whole_s > less.whole_s * ROUNDING:
                share = better.whole_s / less.whole_s
                faults.append(f"{less.name} on {device.name}: {share:.4f}")
    assert not faults, f"{len(faults)}: {faults[:20]}"
