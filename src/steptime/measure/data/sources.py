"""What a worker has opened and copied, so that many cells of one data set pay for it once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.measure.contract import Feed, Options, UnsupportedError
from steptime.measure.data.dataset import DataSet, find
from steptime.measure.data.fit import Fit, fit
from steptime.measure.data.loader import open_feed, spare_cpus
from steptime.measure.data.order import Order
from steptime.measure.data.staging import STAGES, Staged

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
    """Data sets as they were staged, by the staging and the state of their files."""

    _opened: dict[_Mark, Staged] = field(default_factory=dict)

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
        staged = self._staged(options)
        dataset = staged.dataset
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
            "staging": staged.facts,
            "loaders": options.loaders,
            "prefetch": options.prefetch if options.loaders else None,
            "loader_cpus": spare_cpus() if options.loaders else None,
        }
        return Input(feed, dataset, fitted, order, facts)

    def _staged(self, options: Options) -> Staged:
        """Return the data set as it is staged, and count the cells that have used its copy."""
        original = find(options.data)
        mark = (options.staging, options.stage_to, *_state(original))
        found = self._opened.get(mark)
        if found is None or not all(path.is_file() for path in found.dataset.files.values()):
            found = STAGES[options.staging](original, options.stage_to)
        if found.facts is not None:
            cells = found.facts.get("cells", 0) + 1
            found = replace(found, facts={**found.facts, "cells": cells})
        self._opened[mark] = found
        return found


def _state(dataset: DataSet) -> _Mark:
    """Return what changes where a file of the data set is another one, or was written again."""
    states = ((str(path.absolute()), path.stat()) for path in dataset.files.values())
    return tuple((path, state.st_size, state.st_mtime_ns) for path, state in states)
