"""From a cluster of several levels to what joins one group of its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from steptime.core.hardware import Cluster
from steptime.predict.parallel.collectives import Fabric


def fabric_of_group(cluster: Cluster, ranks: Sequence[int]) -> Fabric | None:
    """Return what joins a group of ranks, None for a single rank.

    Between nodes it is the link of the outermost level that the group crosses, and inside them that
    of the outermost level below. A node is one part of that level; all of its devices exchange at
    once, in as many groups as this one, which share its links. Ranks 0, 8, 16, ... of nodes of 8
    are alone in each node, where 8 such groups share its links. Raises `InputError` for ranks that
    the cluster does not have.
    """
    place = cluster.level_of(ranks)
    if place is None:
        return None
    level = cluster.ladder[place]
    devices = math.prod(below.size for below in cluster.ladder[:place])
    members = [rank for rank in ranks if rank // devices == ranks[0] // devices]
    return Fabric(
        level.link,
        cluster.link_of(members),
        per_node=len(members),
        links_per_node=level.links,
        groups=devices // len(members),
    )
