"""Logs as the jobs of the PSC benchmark write them, with invented jobs."""

from __future__ import annotations


def psc_log(
    job: int = 4000001,
    *,
    gpu: str = "k80",
    gpus: int = 1,
    program: str = "CNN_MNIST.py",
    step_s: float | None = 0.01,
    speed: float | None = 5000.0,
    uncertainty: float = 1.5,
    jitter: float = 75.0,
    accuracy: float = 0.99,
    placed: tuple[int, ...] | None = None,
    local: bool = False,
    product: str = "Tesla K80",
    more: str = "",
    start: str = "2018-06-03T23:59:58",
) -> str:
    """Return the text of a log; `placed` are GPUs that operations were placed on, () the CPU."""
    gres = f"gpu:{gpu}:{gpus}" if gpu else "(null)"
    seen = f"name: {product} major: 3 minor: 7\n" if product and placed != () else ""
    spots = [f"GPU:{number}" for number in placed or ()] or (["CPU:0"] if placed == () else [])
    placement = "".join(
        f"2018-06-03 23:59:59.1: I tensorflow/core/common_runtime/placer.cc:884] op{i}: (Add)"
        f"/job:localhost/replica:0/task:0/device:{spot}\n"
        f"op{i}: (Add): /job:localhost/replica:0/task:0/device:{spot}\n"
        for i, spot in enumerate([*spots, *spots])
    )
    results = (
        f"test accuracy {accuracy}\n"
        f"Mean Time Per Step : {step_s}\nMean Speed : {speed} Images/Sec\n"
        f"speed uncertainty : {uncertainty}\nSpeed Jitter : {jitter}\n"
        if step_s is not None
        else ""
    )
    return f"""+ date
Sun Jun  3 23:59:59 EDT 2018
++ VIRTUAL_ENV=/opt/packages/TensorFlow/gnu/tf1.7_py2_gpu
{f"+ cd /local/{job}" if local else "+ set +x"}
JobId={job} JobName=tf_CNN_MNIST
   UserId=jane(4711) GroupId=doe(4712) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   SubmitTime=2018-06-02T12:00:00 EligibleTime=2018-06-02T12:00:00
   StartTime={start} EndTime=2018-06-04T02:00:00 Deadline=N/A
   Partition=GPU-shared AllocNode:Sid=login1:1
   NodeList=gpu001
   NumNodes=1 NumCPUs=7 NumTasks=7 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Gres={gres} Reservation=(null)
   WorkDir=/home/jane/secret
HOME=/home/jane
SLURM_CLUSTER_NAME=bridges
+ python {program}
{seen}{placement}{more}{results}"""
