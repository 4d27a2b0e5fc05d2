"""The networks that a question is asked of: model texts with ranges, and their type."""

from itertools import product
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.values import is_range, parse_counts, parse_range
from steptime.core.workload import Workload
from steptime.hardware.device import Device
from steptime.questions import options
from steptime.records import store

DEFAULT_SET = "fc:layers=4..128x2,nodes=32..8192x2"  # the plane that ParaDnn's heat maps show
DEFAULT_BATCHES = "64,1024,16384"
MOST_NETWORKS = 10_000


def networks(text: Any) -> list[Any]:
    """Return the model texts that one with ranges means: `fc:layers=4..8x2` is two.

    Raises `InputError` for a range that is none, and for too many networks.
    """
    if isinstance(text, Workload):
        return [text]
    name, colon, settings = text.partition(":")
    if not colon or not is_range(settings):
        return [text]
    axes = []
    for piece in settings.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        values = parse_range(value, f"{name}: {key}") if is_range(value) else [value]
        axes.append([f"{key}{equals}{one}" for one in values])
    found = [f"{name}:{','.join(one)}" for one in product(*axes)]
    if len(found) > MOST_NETWORKS:
        raise InputError(f"{text}: {len(found)} networks; at most {MOST_NETWORKS}")
    return found


def dtype_for(device: Device, asked: str | None = None) -> str:
    """Return the type that is asked, by default: float32, or of the highest peak without one."""
    if asked is not None:
        return asked
    peaks = {
        name: peak for name, peak in device.peak_flop_per_s.items() if name.startswith(("f", "b"))
    }
    if not peaks or "float32" in peaks:
        return "float32"
    return max(peaks, key=lambda name: (peaks[name], name.startswith("b")))


def workloads(
    models: list[Any], batch: str | None, how: tuple[str, str, str], length: int | None = None
) -> list[Workload]:
    """Return the networks of models with ranges, each at each batch; raises `InputError`."""
    sizes = [None] if batch is None else [str(one) for one in parse_counts(batch, "--batch")]
    texts = [one for text in models for one in networks(text)]
    return [options.workload_of(one, size, *how, length=length) for one in texts for size in sizes]


def of_folder(folder: Path) -> list[Workload]:
    """Return the networks of one device in a folder of records; raises `InputError`."""
    every = [one.workload for one in store.load(folder, note) if not one.scope]
    found = {one.key: one for one in every if one.plan.device_count == 1}
    if not found:
        raise InputError(f"{folder}: holds no network of one device")
    return list(found.values())
