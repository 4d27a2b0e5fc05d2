"""The graph of a step at many batches: built a few times, then evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from steptime.build import build_step
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.network.batch_template import GraphTemplate, NotLinearError, make_template

CHECKED_BATCH = 1 << 20  # the largest batch of a search, at which lines of sizes are checked


def build_steps(workload: Workload) -> Callable[[int], Graph]:
    """Return a function that builds the step of a workload at any batch.

    The first calls of a network of a file build its graph, which takes as long as reading it. If
    all sizes are straight lines of the batch, checked at three batches, the later calls evaluate
    these lines. A batch outside of them, such as 1 where the file treats it otherwise, is built.
    """
    default_batch = workload.batch_per_replica
    is_of_file = workload.sha256 != ""  # others are quick to build at any batch

    def build_from_network(batch: int) -> Graph:
        return build_step(replace(workload, batch_per_replica=batch))

    @cache
    def find_template() -> GraphTemplate | None:
        return _make_template(workload)

    def build_from_template(batch: int) -> Graph:
        # A template takes three builds, which a question for the default batch alone is spared.
        template = None if batch == default_batch else find_template()
        if template is not None and template.covers(batch):
            return template.build_graph(batch)
        return build_from_network(batch)

    return build_from_template if is_of_file else build_from_network


def _make_template(workload: Workload) -> GraphTemplate | None:
    """Return the step of a network of a file as lines of the batch, None where they are none."""
    default_batch = workload.batch_per_replica
    # A line through the default batch and another one must also hold at the largest batch, which
    # checks nothing if the second batch reaches it.
    batches = (default_batch, 2 * default_batch + 1, CHECKED_BATCH)
    if default_batch >= CHECKED_BATCH // 2:
        return None
    try:
        graphs = [build_step(replace(workload, batch_per_replica=batch)) for batch in batches]
        return make_template(dict(zip(batches, graphs, strict=True)))
    except (InputError, NotLinearError):
        return None
