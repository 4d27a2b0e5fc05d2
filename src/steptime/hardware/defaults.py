"""Data type and optimizer of a step where nobody says them: one rule for every command."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from steptime.core.dtypes import PRECISIONS, precision
from steptime.core.workload import Workload
from steptime.hardware.device import Device


class StepDefaults(NamedTuple):
    """The settings of a kind of network where nobody says them.

    Args:
        dtypes: data types, the preferred one first; a device takes the first that it has.
        optimizer: the optimizer of a training.
    """

    dtypes: tuple[str, ...]
    optimizer: str


SEQUENCE_MODEL = StepDefaults(("bfloat16-mixed", "float16-mixed", "float32"), "adam")
STORED_MODEL = StepDefaults(("bfloat16", "float16", "float32"), "adam")  # quantised weights
OTHER_MODEL = StepDefaults(("float32",), "sgd")
CPU_DTYPES = ("float32",)  # few CPUs have matrix units for shorter types


def default_dtype(dtypes: Sequence[str], device: Device | None = None) -> str:
    """Return the data type that a device takes where nobody says one.

    It is the first of `dtypes` that the device has a peak for, on a CPU float32; on a device
    that has none of them the floating-point type with the highest peak.

    Args:
        dtypes: data types of a kind of network (`StepDefaults`), the preferred one first.
        device: the device; None takes the preferred one.
    """
    if device is None:
        return dtypes[0]
    choices = CPU_DTYPES if device.kind == "cpu" else dtypes
    # Types of products in 8 or 4 bit are never taken unasked.
    peak_by_dtype = {
        name: peak
        for name, peak in device.datasheet.peak_flop_per_s.items()
        if name in PRECISIONS and not precision(name).products
    }
    for dtype in choices:
        if precision(dtype).compute in peak_by_dtype:
            return dtype
    if not peak_by_dtype:
        # By convention the last choice is float32, which a device without known peaks can do as
        # well.
        return choices[-1]

    # The fastest known type; of equally fast ones bfloat16 comes before float16.
    def rank_dtype(name: str) -> tuple[float, bool]:
        return peak_by_dtype[name], name.startswith("b")

    return max(peak_by_dtype, key=rank_dtype)


def settle_dtype(workload: Workload, device: Device) -> Workload:
    """Return a workload with the data type of a device where nobody said one, else as it is."""
    if not workload.default_dtypes:
        return workload
    return replace(workload, dtype=default_dtype(workload.default_dtypes, device))


def settle_dtype_by_place(workload: Workload, place: str) -> Workload:
    """Return a workload with the data type in which a place of this machine measures it.

    A CPU measures in float32, a device of another kind in the preferred type of the network, where
    nobody said a type.

    Args:
        workload: the workload.
        place: where it is measured: cpu, cuda, cuda:1, mps, tpu.
    """
    if not workload.default_dtypes:
        return workload
    dtypes = CPU_DTYPES if place == "cpu" else workload.default_dtypes
    return replace(workload, dtype=dtypes[0])


def common_dtype(workloads: Iterable[Workload]) -> str | None:
    """Return the data type of workloads, None where they differ."""
    dtypes = {workload.dtype for workload in workloads}
    return dtypes.pop() if len(dtypes) == 1 else None


def assumed_step(workload: Workload) -> dict[str, str]:
    """Return the settings of a step that nobody said, by the options that change them."""
    assumed = {"dtype": workload.dtype} if workload.default_dtypes else {}
    if workload.has_default_optimizer and workload.phase == "train":
        assumed["optimizer"] = workload.optimizer
    if workload.has_stated_weights:
        assumed["weights"] = workload.tuning.weights
    return assumed
