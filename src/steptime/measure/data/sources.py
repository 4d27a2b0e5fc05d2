"""What a worker has opened and copied, so that many cells of one data set pay for it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.measure.contract import Feed, Options, UnsupportedError
from steptime.measure.data.dataset import DataSet, find
from steptime.measure.data.fit import Fit, fit
from steptime.measure.data.loader import open_feed, spare_cpus
from steptime.measure.data.order import Order
from steptime.measure.data.staging import stage

_Mark = tuple[object, ...]


@dataclass(frozen=True)
class Input:
    """The input of one cell: its batches, the data set they are from, and what a record says."""

    feed: Feed
    dataset: DataSet
    fit: Fit
    order: Order
    facts: Mapping[str, Any]


@dataclass
class Sources:
    """Data sets by folder and place of the copy, with facts about the copy (None without one)."""

    _opened: dict[_Mark, tuple[DataSet, dict[str, Any] | None]] = field(default_factory=dict)

    def open(
        self,
        graph: Graph,
        workload: Workload,
        options: Options,
        rank: int = 0,
        replicas: int = 1,
    ) -> Input:
        """Open the input that options ask for, for one of the replicas.

        A step in training takes the training set, in inference the test set. Raises
        `MissingFileError`, `BadDataError`, `NoSpaceError`, and `UnsupportedError` for a network
        that the data set does not fit.
        """
        dataset, staging = self._dataset(options)
        part = "train" if workload.phase == "train" else "test"
        images = dataset.parts[part].images
        fitted = fit(graph, images.shape[1:], dataset.classes)
        batch = workload.batch_per_replica
        order = Order(len(images), batch, options.seed, rank, replicas)
        if order.per_epoch == 0:
            share = f" / {replicas} replicas" if replicas > 1 else ""
            raise UnsupportedError(
                f"a batch of {batch} is more than the {len(images)} images of the {part} set{share}"
            )
        feed = open_feed(dataset, part, order, fitted, options.loaders, options.prefetch)
        facts = {
            "dataset": dict(dataset.facts),
            "staging": staging,
            "loaders": options.loaders,
            "prefetch": options.prefetch if options.loaders else None,
            "loader_cpus": spare_cpus() if options.loaders else None,
        }
        return Input(feed, dataset, fitted, order, facts)

    def _dataset(self, options: Options) -> tuple[DataSet, dict[str, Any] | None]:
        original = find(options.data)
        local = options.staging == "local"
        mark: _Mark = (local and options.stage_to, local, *_state(original))
        found = self._opened.get(mark)
        if found and not all(path.is_file() for path in found[0].files.values()):
            found = None  # somebody removed the copy
        if found is None and local:
            copy = stage(original, options.stage_to)
            found = copy.dataset, dict(copy.facts)
        elif found is None:
            found = original, None
        dataset, staging = found
        if staging is not None:
            staging = {**staging, "cells": staging.get("cells", 0) + 1}
        self._opened[mark] = dataset, staging
        return dataset, staging


def _state(dataset: DataSet) -> _Mark:
    """Give what changes where a file of the data set is another one, or was written again."""
    states = ((str(path.absolute()), path.stat()) for path in dataset.files.values())
    return tuple((path, state.st_size, state.st_mtime_ns) for path, state in states)
