"""Batches for steps: read by the process that runs the steps, or by PyTorch's loaders ahead of it.

The loaders are those of `torch.utils.data.DataLoader`: loader l of L makes batches l, l + L and so
on, and has up to `prefetch` of them ready. Without loaders nothing here needs PyTorch.
"""

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from steptime.measure.contract import Arrays, Feed
from steptime.measure.data.dataset import DataSet, Split
from steptime.measure.data.fit import Fit
from steptime.measure.data.order import Indices, Order
from steptime.measure.infeed import loader_death

_SCALE = np.float32(255)  # the largest byte becomes 1
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


@dataclass(frozen=True)
class Slot:
    """Room for one batch: `images` float32 `[n, c, h, w]` from 0 to 1, `labels` int64 `[n]`."""

    images: np.ndarray[Any, np.dtype[np.float32]]
    labels: np.ndarray[Any, np.dtype[np.int64]]


def new_slot(batch: int, shape: tuple[int, ...]) -> Slot:
    """Return a slot of its own."""
    return Slot(np.empty((batch, *shape), np.float32), np.empty(batch, np.int64))


def decode(split: Split, indices: Indices, slot: Slot) -> None:
    """Put the images and labels of a batch into a slot."""
    np.divide(split.images[indices], _SCALE, out=slot.images)
    slot.labels[:] = split.labels[indices]


def open_feed(
    dataset: DataSet, part: str, order: Order, fit: Fit, loaders: int, prefetch: int
) -> Feed:
    """Return the batches of a part of a data set for the inputs of `fit`, in the order of steps.

    Without loaders each batch is read when it is asked for.
    """
    split = dataset.parts[part]
    if loaders:
        return _ahead(split, order, fit, loaders, prefetch)
    slot = new_slot(order.batch, split.images.shape[1:])
    steps = count()

    def take() -> Arrays:
        decode(split, order.indices(next(steps)), slot)
        return fit.arrays(slot.images, slot.labels)

    return Feed(take, lambda: None)


@dataclass(frozen=True)
class _Batches:
    """The batches of a part by the number of their step, made by loaders in memory that all share.

    Between the batch that a step uses and the one that a loader makes there are never as many
    others as there are slots, so none is overwritten in use.
    """

    split: Split
    order: Order
    images: Any  # tensors `[slots, batch, ...]` in shared memory
    labels: Any

    def slot(self, step: int) -> Slot:
        """Return where the batch of a step lies."""
        place = step % len(self.images)
        return Slot(self.images[place].numpy(), self.labels[place].numpy())

    def __getitem__(self, step: int) -> int:
        decode(self.split, self.order.indices(step), self.slot(step))
        return step


def _ahead(split: Split, order: Order, fit: Fit, loaders: int, prefetch: int) -> Feed:
    """Return the batches that loaders have read ahead."""
    import torch
    from torch.utils.data import DataLoader

    shape = (loaders * prefetch + 1, order.batch)
    images = torch.empty(*shape, *split.images.shape[1:]).share_memory_()
    labels = torch.empty(shape, dtype=torch.int64).share_memory_()
    batches = _Batches(split, order, images, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more loaders than CPUs, as was asked for
        loader: Any = DataLoader(
            batches,  # type: ignore[arg-type]  # all that is needed of a data set
            batch_size=None,  # each number of a step is a whole batch already
            sampler=count(),  # epochs follow each other, as in `Order`
            num_workers=loaders,
            prefetch_factor=prefetch,
            worker_init_fn=_Begin(os.getpid(), tuple(spare_cpus())),
            multiprocessing_context="fork" if sys.platform == "linux" else None,
        )
        running = [iter(loader)]

    def take() -> Arrays:
        try:
            slot = batches.slot(next(running[0]))
        except RuntimeError as error:
            raise loader_death(error) or error from None
        return fit.arrays(slot.images, slot.labels)

    return Feed(take, running.clear)  # loaders end with the iterator


@dataclass(frozen=True)
class _Begin:
    """What a loader does first: it ends when its parent does, and keeps off the CPUs of steps."""

    parent: int
    cpus: tuple[int, ...]

    def __call__(self, _: int) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.parent:
            os._exit(1)
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)


def spare_cpus() -> list[int]:
    """Return the CPUs that loaders may use: of those that the parent has, the ones not bound here.

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
