"""Batches for steps: the order of images, the inputs that take them, and their loaders.

They are read by the process that runs the steps, or by PyTorch's loaders ahead of it.

The loaders are those of `torch.utils.data.DataLoader`: loader l of L makes batches l, l + L and so
on, and has up to `prefetch` of them ready. Without loaders nothing here needs PyTorch.
"""

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import numpy.typing as npt

from steptime.core.graph import Graph, TensorSpec
from steptime.measure.contract import Arrays, Feed, KilledError, UnsupportedError
from steptime.measure.cpus import affinity
from steptime.measure.data.idx import Split

Images = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

_SCALE = np.float32(255)  # the largest byte becomes 1
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_ENDING_S = 1.0  # a process closes its pipes before it has ended


@dataclass(frozen=True)
class Order:
    """Batches of `batch` out of `count` images, for replica `rank` of `replicas`.

    In each epoch every replica has its own images, as many as the others; what is left over at the
    end of an epoch, less than a batch, is left out of it.
    """

    count: int
    batch: int
    seed: int = 0
    rank: int = 0
    replicas: int = 1

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch; 0 where a replica has less than a batch."""
        return self.count // self.replicas // self.batch

    def indices(self, step: int) -> Indices:
        """Return the images of a step, counted from 0."""
        epoch, within = divmod(step, self.per_epoch)
        # All replicas shuffle alike, and each takes every so many-th image.
        shard = _shuffle_indices(self.count, self.seed, epoch)[self.rank :: self.replicas]
        return shard[within * self.batch : (within + 1) * self.batch]


@lru_cache(maxsize=2)
def _shuffle_indices(count: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(count)


@dataclass(frozen=True)
class ImageInputs:
    """Names of the inputs for images and labels ("" in inference), and the shape of the images."""

    images: str
    labels: str
    shape: tuple[int, ...]

    def arrays(self, images: Any, labels: Any) -> Arrays:
        """Return a batch, images `[n, c, h, w]` and labels `[n]`, by the names of the inputs."""
        arrays = {self.images: images.reshape(self.shape)}
        return arrays | {self.labels: labels} if self.labels else arrays


def fit(graph: Graph, shape: tuple[int, ...], classes: int) -> ImageInputs:
    """Fit images of `shape` (c, h, w) with labels of so many `classes` to a forward graph.

    A network fits if its one input beside the labels is `[n, c, h, w]`, or `[n, c * h * w]`, which
    takes them flattened, and its output has at least as many classes. Raises `UnsupportedError`.
    """
    losses = [op for op in graph.ops if op.kind == "cross_entropy"]
    # the inputs of a loss are the logits, then the labels, which may come from another op
    label_names = [name for loss in losses for name in loss.inputs[1:2] if name in graph.inputs]
    image_names = [name for name in graph.inputs if name not in label_names]
    if len(image_names) != 1 or len(label_names) > 1:
        names = ", ".join(graph.inputs)
        raise UnsupportedError(f"a data set feeds images and labels; the network takes: {names}")
    image_name = image_names[0]
    logits_name = losses[0].inputs[0] if losses else graph.outputs[0]
    images = graph.tensors[image_name]
    _check_images(image_name, images, shape)
    _check_logits(graph.tensors[logits_name].shape, images.shape[0], classes)
    return ImageInputs(image_name, label_names[0] if label_names else "", images.shape)


def _check_images(name: str, images: TensorSpec, image_shape: tuple[int, ...]) -> None:
    """Raise `UnsupportedError` if an input takes no floating-point images of (c, h, w)."""
    batch = images.shape[0]
    c, h, w = image_shape
    takes_images = images.shape in {(batch, c, h, w), (batch, c * h * w)}
    if not takes_images or images.dtype.startswith("int"):
        raise UnsupportedError(
            f"input '{name}' is {images.dtype} {list(images.shape)}; the data set's images are "
            f"{[batch, c, h, w]}, flattened {[batch, c * h * w]}"
        )


def _check_logits(logits_shape: tuple[int, ...], batch: int, classes: int) -> None:
    """Raise `UnsupportedError` if logits are not (batch, at least as many classes)."""
    if len(logits_shape) != 2 or logits_shape[0] != batch:
        raise UnsupportedError(
            f"the network's output is {list(logits_shape)}; "
            f"the data set's labels need [{batch}, classes]"
        )
    _, network_classes = logits_shape
    if network_classes < classes:
        fault = f"the network tells {network_classes} classes apart"
        raise UnsupportedError(f"{fault}, the data set has {classes}")


def decode(split: Split, indices: Indices) -> tuple[Images, Indices]:
    """Return images, float32 `[n, c, h, w]` from 0 to 1, and their labels, int64 `[n]`."""
    return np.divide(split.images[indices], _SCALE), split.labels[indices].astype(np.int64)


@dataclass(frozen=True)
class _Batches:
    """The batches of a part by the number of their step, as a loader takes them."""

    split: Split
    order: Order

    def __getitem__(self, step: int) -> tuple[Images, Indices]:
        return decode(self.split, self.order.indices(step))


def open_feed(split: Split, order: Order, fit: ImageInputs, loaders: int, prefetch: int) -> Feed:
    """Return batches of a part of a data set; without loaders each is read when asked for."""
    step_numbers = count()  # `order` starts a new epoch by itself

    def decode_batch() -> Arrays:
        images, labels = decode(split, order.indices(next(step_numbers)))
        return fit.arrays(images, labels)

    if not loaders:
        return Feed(decode_batch, close=lambda: None)
    from torch.utils.data import DataLoader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more loaders than CPUs, as was asked for
        loader: Any = DataLoader(
            _Batches(split, order),  # type: ignore[arg-type]  # all that is needed
            batch_size=None,  # each number of a step is a whole batch already
            sampler=step_numbers,
            num_workers=loaders,
            prefetch_factor=prefetch,
            worker_init_fn=partial(_begin_loader, os.getpid(), spare_cpus()),
            # Forked processes share the data set's memory; elsewhere fork is not safe.
            multiprocessing_context="fork" if sys.platform == "linux" else None,
        )
        # The loaders end with the last reference to the iterator: `close` empties the list.
        iterators = [_start_iterator(loader)]

    def take_batch() -> Arrays:
        iterator = iterators[0]
        try:
            images, labels = next(iterator)
        except (RuntimeError, ConnectionError, EOFError) as error:
            processes = iterator._workers  # noqa: SLF001  # nothing public tells them
            raise _find_death(processes) or error from None
        return fit.arrays(images.numpy(), labels.numpy())

    return Feed(take_batch, close=iterators.clear)


def _start_iterator(loader: Any) -> Any:
    """Return the loader's iterator, which alone tells that a process of it has died.

    PyTorch also raises it from a signal, at any moment in any code of the process.
    """
    # Starting the loaders, PyTorch sets a handler for their deaths, which would raise at any moment
    # in any code of this process: set back the handler from before.
    current_handler = signal.getsignal(signal.SIGCHLD)
    iterator = iter(loader)
    signal.signal(signal.SIGCHLD, current_handler)
    return iterator


def _find_death(loaders: Sequence[Any]) -> Exception | None:
    """Explain the end of the first loader that has ended; None if all run."""
    ended = wait([process.sentinel for process in loaders], timeout=_ENDING_S)
    # A sentinel of `multiprocessing` becomes ready when its process ends.
    dead = next((process for process in loaders if process.sentinel in ended), None)
    if dead is None:  # all loaders run: the error is another one
        return None
    dead.join()
    code = dead.exitcode
    note = f"a loader ended with exit code {code}"
    if code == -signal.SIGBUS:
        note += ": shared memory (/dev/shm) may be full"
    return KilledError(note) if code == -signal.SIGKILL else RuntimeError(note)


def _begin_loader(parent: int, cpus: Collection[int], _loader_number: int) -> None:
    """Begin as a loader: it ends when its parent does, and keeps off the CPUs of steps."""
    if sys.platform == "linux":  # from now on the kernel kills this process when its parent ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    has_parent_ended = os.getppid() != parent  # before that call
    if has_parent_ended:
        os._exit(1)
    if cpus:
        os.sched_setaffinity(0, cpus)


def spare_cpus() -> list[int]:
    """Return the CPUs that loaders may use: of those that the parent has, the ones not bound here.

    A worker binds itself to as many CPUs as it has threads. Where none is left over, or the system
    cannot tell, all of this process.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    bound_cpus = affinity()
    try:
        parent_cpus = affinity(os.getppid())
    except OSError:  # the system does not let this process ask
        return sorted(bound_cpus)
    free_cpus = parent_cpus - bound_cpus
    return sorted(free_cpus or bound_cpus)
