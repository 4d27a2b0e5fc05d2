"""Batches for steps: read by the process that runs the steps, or by others ahead of it.

A loader is a process of its own (`steptime.measure.data.reader`). Loader l of L makes batches
l, l + L, l + 2L, ... in memory that it shares with this process, and has up to `prefetch` of them
ready. A byte through one pipe says that a batch is ready, one through the other that the next may
be made; a loader whose pipe ends, ends. So none outlives the process that started it.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np

from steptime.measure.contract import Arrays, Feed, KilledError
from steptime.measure.data.dataset import DataSet, Split
from steptime.measure.data.fit import Fit
from steptime.measure.data.order import Indices, Order

_GRACE_S = 2.0
_SCALE = np.float32(255)  # the largest byte becomes 1


@dataclass(frozen=True)
class Slot:
    """Room for one batch: `images` float32 `[n, c, h, w]` from 0 to 1, `labels` int64 `[n]`."""

    images: np.ndarray[Any, np.dtype[np.float32]]
    labels: np.ndarray[Any, np.dtype[np.int64]]


def slots_in(memory: Any, number: int, batch: int, shape: tuple[int, ...]) -> list[Slot]:
    """Give `number` slots that lie one after the other in a buffer."""
    images_bytes, found = 4 * batch * int(np.prod(shape)), []
    for i in range(number):
        at = i * slot_bytes(batch, shape)
        images = np.frombuffer(memory, np.float32, images_bytes // 4, at).reshape(batch, *shape)
        labels = np.frombuffer(memory, np.int64, batch, at + slot_bytes(batch, shape) - 8 * batch)
        found.append(Slot(images, labels))
    return found


def new_slot(batch: int, shape: tuple[int, ...]) -> Slot:
    """Give a slot of its own."""
    return slots_in(bytearray(slot_bytes(batch, shape)), 1, batch, shape)[0]


def slot_bytes(batch: int, shape: tuple[int, ...]) -> int:
    """Give the bytes of a slot: images, up to the next whole 8 bytes, and labels."""
    return -(-4 * batch * int(np.prod(shape)) // 8) * 8 + 8 * batch


def decode(split: Split, indices: Indices, slot: Slot) -> None:
    """Put the images and labels of a batch into a slot."""
    np.divide(split.images[indices], _SCALE, out=slot.images)
    slot.labels[:] = split.labels[indices]


def open_feed(
    dataset: DataSet, part: str, order: Order, fit: Fit, loaders: int, prefetch: int
) -> Feed:
    """Give the batches of a part of a data set, in the order of its steps, for the inputs of `fit`.

    Without loaders each batch is read when it is asked for.
    """
    if loaders:
        return _Ahead(dataset, part, order, fit, loaders, prefetch).feed
    split = dataset.parts[part]
    slot = new_slot(order.batch, split.images.shape[1:])
    steps = count()

    def take() -> Arrays:
        decode(split, order.indices(next(steps)), slot)
        return fit.arrays(slot.images, slot.labels)

    return Feed(take, lambda: None)


class _Ahead:
    """Loaders and what they have made."""

    def __init__(
        self, dataset: DataSet, part: str, order: Order, fit: Fit, loaders: int, prefetch: int
    ) -> None:
        self._fit, self._steps = fit, count()
        self._slots: list[list[Slot]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        shape = dataset.parts[part].images.shape[1:]
        number = prefetch + 1  # one is in use
        task = {
            "format": dataset.format.name,
            "files": {name: str(path) for name, path in dataset.files.items()},
            "part": part,
            "order": asdict(order),
            "shape": shape,
            "slots": number,
            "loaders": loaders,
            "cpus": spare_cpus(),
        }
        self.feed = Feed(self._take, self._close)
        for first in range(loaders):
            memory, descriptor = _shared_memory(number * slot_bytes(order.batch, shape))
            self._slots.append(slots_in(memory, number, order.batch, shape))
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "steptime.measure.data.reader",
                    json.dumps(task | {"first": first, "memory": descriptor}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(descriptor,),
            )
            os.close(descriptor)
            self._processes.append(process)
            self._allow(first, prefetch)

    def _allow(self, loader: int, batches: int) -> None:
        stdin = self._processes[loader].stdin
        if stdin is not None:
            with suppress(BrokenPipeError):  # seen when the batch is waited for
                stdin.write(b"." * batches)

    def _take(self) -> Arrays:
        step = next(self._steps)
        nth, loader = divmod(step, len(self._processes))
        process = self._processes[loader]
        if process.stdout is None or not process.stdout.read(1):
            code = process.wait()
            kind = KilledError if code == -signal.SIGKILL else RuntimeError
            raise kind(f"a loader ended with exit code {code}")
        self._allow(loader, 1)
        slots = self._slots[loader]
        slot = slots[nth % len(slots)]
        return self._fit.arrays(slot.images, slot.labels)

    def _close(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _shared_memory(size: int) -> tuple[mmap.mmap, int]:
    """Give memory that a child can map by the descriptor that it inherits."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("steptime-batches")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return mmap.mmap(descriptor, size), descriptor


def spare_cpus() -> list[int]:
    """Give the CPUs that loaders may use: of those that the parent has, the ones not bound here.

    A worker binds itself to as many CPUs as it has threads. Where none is left over, or the system
    cannot tell, all of this process.
    """
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    if affinity is None:
        return []
    mine = affinity(0)
    try:
        return sorted((affinity(os.getppid()) - mine) or mine)
    except OSError:
        return sorted(mine)
