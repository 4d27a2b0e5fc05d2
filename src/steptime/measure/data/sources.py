"""A worker's data sets: opened and staged once for all of its cells.

Copies on this machine are made once, checked, and removed with their worker.
"""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from steptime.core import scratch
from steptime.core.errors import InputError
from steptime.core.files import stamp_of
from steptime.core.graph import Graph
from steptime.core.json_types import JsonObject
from steptime.core.units import format_bytes
from steptime.core.workload import Workload
from steptime.measure import contract
from steptime.measure.data.dataset import DataSet, find
from steptime.measure.data.loader import ImageInputs, Order, fit, open_feed, spare_cpus

PREFIX = "steptime-stage-"
# variables that name a folder on a disk of the machine, as schedulers set them
_FOLDER_VARIABLES = ("LOCAL", scratch.OUTER, "TMPDIR")
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Staged:
    """A data set as it is read, and what a record says of its copy; None without one."""

    dataset: DataSet
    facts: Mapping[str, Any] | None


def staging_folder(stage_to: str) -> Path:
    """Return the folder of copies: `stage_to`, $LOCAL, $TMPDIR, or the system's folder."""
    folder_text = stage_to
    origin = ""  # of the text, for the message
    if not folder_text:
        for name in _FOLDER_VARIABLES:
            folder_text = os.environ.get(name, "")
            if folder_text:
                origin = f" (${name})"
                break
    if not folder_text:
        return Path(tempfile.gettempdir())
    folder = Path(folder_text)
    if not folder.is_dir():
        fault = "is no folder" if folder.exists() else "no such folder"
        raise contract.MissingFileError(f"'{folder_text}'{origin}, where copies would go: {fault}")
    return folder


def copy(dataset: DataSet, stage_to: str) -> Staged:
    """Copy a data set into a new folder and check the copy; it goes with this process.

    Raises `NoSpaceError` where there is no room, `BadDataError` where the copy is not the original.
    """
    parent = staging_folder(stage_to).absolute()
    scratch.remove_stale(parent, PREFIX)
    needed_bytes = sum(path.stat().st_size for path in dataset.files.values())
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        need = f"{format_bytes(free)} are free, the data set needs {format_bytes(needed_bytes)}"
        raise contract.NoSpaceError(f"{parent}: {need}")
    try:
        with ExitStack() as failing:
            folder = scratch.make_locked_folder(parent, PREFIX)
            failing.callback(shutil.rmtree, folder, ignore_errors=True)
            copies, facts = _copy_files(dataset, folder)
            failing.pop_all()  # it has not failed: the folder stays
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            note = f"{parent}: {error.strerror} while copying {format_bytes(needed_bytes)}"
            raise contract.NoSpaceError(note) from None
        raise InputError(f"{parent}: cannot copy here: {error.strerror}") from None
    facts = {
        "from": str(dataset.folder.absolute()),
        "to": str(parent),
        "bytes": needed_bytes,
        **facts,
    }
    return Staged(replace(dataset, files=copies), facts)


def _copy_files(dataset: DataSet, folder: Path) -> tuple[dict[str, Path], JsonObject]:
    """Return the copies of the files, and the seconds and the checksum of copying."""
    copies: dict[str, Path] = {}
    sum_by_name: dict[str, str] = {}
    copy_start_s = perf_counter()
    for name, path in dataset.files.items():
        digest = hashlib.sha256()  # of what is read
        copies[name] = folder / path.name
        with path.open("rb") as original, copies[name].open("wb") as copied:
            while chunk := original.read(_CHUNK_BYTES):
                digest.update(chunk)
                copied.write(chunk)
            copied.flush()
            os.fsync(copied.fileno())  # so that `copy_s` holds the writing to disk
        sum_by_name[name] = digest.hexdigest()
    check_start_s = perf_counter()
    for name, path in copies.items():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sum_by_name[name]:
                raise contract.BadDataError(f"{path}: the copy differs from {dataset.files[name]}")
    check_s = perf_counter() - check_start_s
    checksum = hashlib.sha256("".join(sum_by_name.values()).encode()).hexdigest()
    facts: JsonObject = {
        "copy_s": check_start_s - copy_start_s,
        "check_s": check_s,
        "checksum": f"sha256:{checksum}",
    }
    return copies, facts


STAGES: Mapping[str, Callable[[DataSet, str], Staged]] = {
    "shared": lambda dataset, _: Staged(dataset, None),
    "local": copy,
}
"""What each word of `STAGINGS` does with a data set, given where copies go."""


@dataclass(frozen=True)
class CellInput:
    """The input of one cell: its batches, the data set they are from, and what a record says."""

    feed: contract.Feed
    dataset: DataSet
    fit: ImageInputs
    order: Order
    facts: Mapping[str, Any]


_STAGED: dict[tuple[object, ...], Staged] = {}  # by the staging and the state of the files


def open_input(
    graph: Graph, workload: Workload, options: contract.Options, rank: int = 0, replicas: int = 1
) -> CellInput:
    """Open the input that options ask for, for one of the replicas.

    A step in training takes the training set, in inference the test set. Raises `MissingFileError`,
    `BadDataError`, `NoSpaceError`, and `UnsupportedError` for a network that the data set does not
    fit.
    """
    staged = _stage_dataset(options)
    dataset = staged.dataset
    part = "train" if workload.phase == "train" else "test"
    images = dataset.parts[part].images
    fitted = fit(graph, images.shape[1:], dataset.classes)
    batch = workload.batch_per_replica
    order = Order(len(images), batch, options.seed, rank, replicas)
    if order.per_epoch == 0:
        share = f" / {replicas} replicas" if replicas > 1 else ""
        available = f"the {len(images)} images of the {part} set{share}"
        raise contract.UnsupportedError(f"a batch of {batch} is more than {available}")
    loads = options.loaders > 0
    facts = {
        "dataset": dict(dataset.facts),
        "staging": staged.facts,
        "loaders": options.loaders,
        "prefetch": options.prefetch if loads else None,
        "loader_cpus": spare_cpus() if loads else None,
    }
    feed = open_feed(dataset.parts[part], order, fitted, options.loaders, options.prefetch)
    return CellInput(feed, dataset, fitted, order, facts)


def _stage_dataset(options: contract.Options) -> Staged:
    """Return the data set as it is staged, and count the cells that have used its copy."""
    original = find(options.data)
    file_versions = [  # a changed file is copied again
        (str(path.absolute()), *stamp_of(path)) for path in original.files.values()
    ]
    cache_key = (options.staging, options.stage_to, *file_versions)
    staged = _STAGED.get(cache_key)
    # A copy may have been removed in the meantime: then it is made again.
    if staged is None or not all(path.is_file() for path in staged.dataset.files.values()):
        staged = STAGES[options.staging](original, options.stage_to)
    if staged.facts is not None:  # there is a copy: its cost is shared by the cells that use it
        cell_count = staged.facts.get("cells", 0) + 1
        staged = replace(staged, facts={**staged.facts, "cells": cell_count})
    _STAGED[cache_key] = staged
    return staged
