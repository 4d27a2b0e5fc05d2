"""The bed of the tests of launchers: what a real Slurm does, as they rely on it."""

from __future__ import annotations

import pytest
from cluster import SlurmCluster


def test_a_job_sees_the_gpus_that_it_asked_for(slurm: SlurmCluster) -> None:
    job = slurm.submit("echo $CUDA_VISIBLE_DEVICES on $SLURMD_NODENAME", "--gres=gpu:k80:2")
    assert slurm.wait_state(job, "COMPLETED")["ExitCode"] == "0:0"
    assert slurm.output(job) in {"0,1 on k1\n", "0,1 on k2\n"}


def test_what_no_node_has_is_refused_at_once(slurm: SlurmCluster) -> None:
    said = (
        "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    )
    for impossible in ("--gres=gpu:k80:5", "--gres=gpu:v100:1", "--cpus-per-task=9", "--mem=1T"):
        with pytest.raises(AssertionError, match=said):
            slurm.submit("true", impossible)
