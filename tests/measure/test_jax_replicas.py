"""Replicas of the JAX backend: devices of one process, the batch sharded, weights replicated."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replica_request import SMALL, request
from steptime.cli.main import run
from steptime.measure.contract import Options
from steptime.measure.cpus import cores
from steptime.measure.launch import StartError, Worker
from steptime.measure.ranks import free_port, local_variables
from steptime.records.reading import record_from_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.jax,
    pytest.mark.skipif(len(cores().allowed) < 2, reason="two replicas need two CPUs"),
]


@pytest.fixture(scope="module")
def pair():
    """Return a process that has two devices."""
    with Worker("jax", Options(threads=1), 2) as worker:
        yield worker


@pytest.mark.parametrize("strategy", ["allreduce", "independent"])
def test_every_strategy_is_one_record_with_the_fields_of_torch(pair, strategy):
    record = record_from_json(pair.ask(request(strategy, parts=True), 600))
    assert record.status == "ok", record.note
    assert record.workload.plan.data == 2
    assert record.method.options["strategy"] == strategy
    env = record.env
    assert (env["comm_backend"], env["sample_ends"]) == ("xla", "with the slowest rank")
    assert env["overlap"] is (strategy == "allreduce")
    assert env["input_s_of"] is None
    assert env["disturbed_seen_by"] == "rank 0"
    assert [one["rank"] for one in env["ranks"]] == [0, 1]
    assert [one["device"] for one in env["ranks"]] == ["cpu:0", "cpu:1"]
    assert [one["cpus"] for one in env["ranks"]] == [None, None]  # which device takes which
    assert len(env["cpus"]) == 2
    assert len(os.sched_getaffinity(pair.pids[0])) == 2
    peaks = env["peak_memory_bytes_of_ranks"]
    assert peaks == [None, None]  # what XLA plans is no measurement
    assert {"forward_s", "backward_s", "update_s"} < set(record.quantities)
    comm = record.quantities["communication_s"].samples
    if strategy == "independent":
        assert set(comm) == {0.0}
    else:
        assert env["comm_meter"].startswith("exposed: step ")
        assert len(comm) >= 3


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ({"strategy": "sharded"}, "jax has no strategy 'sharded', but allreduce, independent"),
        (
            {"strategy": "allreduce", "work": {"phase": "infer"}},
            "inference exchanges nothing: its strategy is independent",
        ),
        (
            {"strategy": "allreduce", "options": {"overlap": False}},
            "XLA says what overlaps: leave out --no-overlap",
        ),
        ({"strategy": "allreduce", "energy": True}, "energy is metered on one device"),
    ],
)
def test_what_is_not_run_says_so(pair, asked, note):
    answer = pair.ask(request(**asked), 600)
    assert answer["status"] == "unsupported"
    assert note in answer["note"]


@pytest.mark.parametrize("work", [{"phase": "infer"}, {"dtype": "bfloat16-mixed"}])
def test_replicas_infer_and_train_in_mixed_precision(pair, work):
    strategy = "independent" if "phase" in work else "allreduce"
    record = record_from_json(pair.ask(request(strategy, "deep_mnist", work=work), 600))
    assert record.status == "ok", record.note


def test_two_devices_train_as_one_with_both_batches():
    """Weights after three steps of float64 agree to rounding, and so do those of both devices."""
    script = Path(__file__).parents[1] / "jax_replica.py"
    done = subprocess.run(
        [sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for own in found.values():
        assert own["shapes"] == [[4, 50], [4, 50]]  # the batch is sharded, 4 examples a device
        assert own["drawn_apart"] > 0.1
    assert found["allreduce"]["exchanges"] >= 1
    assert found["allreduce"]["apart"] == 0.0
    assert found["allreduce"]["off"] < 1e-12
    assert found["allreduce"]["moved"] > 1e-6
    assert found["independent"]["exchanges"] == 0
    assert found["independent"]["apart"] > 1e-6


def test_run_counts_all_replicas(capsys):
    words = ["run", SMALL, "--batch", "8", "--backend", "jax", "--replicas", "2", "--threads", "1"]
    assert run([*words, "--budget", "0.1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    told = [document[name] for name in ("batch", "replicas", "global_batch", "strategy")]
    assert told == [8, 2, 16, "allreduce"]
    assert document["speed"]["mean"] == pytest.approx(16 / document["step_s"]["mean"])
    assert (
        document["communication_s"] is not None
    )  # steps with it less steps without: around 0 and noise


def test_a_launcher_of_ranks_is_refused_in_one_line():
    variables = local_variables(2, free_port())[0]
    with pytest.raises(StartError, match="jax runs replicas in one process: --replicas 2 without"):
        Worker("jax", Options(threads=1), variables=variables)
