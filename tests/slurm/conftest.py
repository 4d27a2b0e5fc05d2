"""One cluster for all tests of the group, put in order before each."""

from __future__ import annotations

import pytest
from cluster import SlurmCluster


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory):
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(_cluster):
    """Return a cluster on which nothing runs: nodes k1, k2 (k80) and p1, p2 (p100)."""
    _cluster.reset()
    return _cluster
