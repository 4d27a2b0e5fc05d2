"""Deep MNIST learns the real MNIST in a short training, and what cannot learn is seen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idx_folder import idx
from steptime.build import build, make_workload, read_model
from steptime.cli.main import run
from steptime.measure.data import mnist as source
from steptime.measure.data.dataset import find

pytestmark = pytest.mark.slow

TRAINING = ["run", "deep_mnist", "--optimizer", "adam", "--input", "dataset", "--json", "--data"]


def _trained(capsys: pytest.CaptureFixture[str], folder: Path, steps: int) -> Any:
    words = [*TRAINING, str(folder), "--batch", "50", "--train-steps", str(steps)]
    words += ["--threads", "1"]  # where others run too, two threads wait for each other
    assert run(words) == 0
    return json.loads(capsys.readouterr().out)


def test_the_network_is_that_of_the_tutorial():
    """Two convolutions of 5x5 with pooling, dense 1024, dropout 0.5, dense 10."""
    graph = build(make_workload(read_model("deep_mnist"), 50))
    shapes = [graph.tensors[name].shape for name in graph.weights]
    assert shapes == [
        (32, 1, 5, 5),
        (32,),
        (64, 32, 5, 5),
        (64,),
        (1024, 3136),
        (1024,),
        (10, 1024),
        (10,),
    ]
    kinds = [op.kind for op in graph.ops if op.kind not in {"bias", "flatten"}]
    conv, dense = ["conv2d", "relu", "max_pool2d"], ["linear", "relu", "dropout", "linear"]
    assert kinds == [*conv, *conv, *dense, "cross_entropy"]
    (drop,) = (op for op in graph.ops if op.kind == "dropout")
    assert drop.attrs == {"p": 0.5}


def test_the_real_mnist(mnist):
    found = find(str(mnist))
    assert found.facts["images"] == {"train": 60_000, "test": 10_000}
    assert (found.facts["shape"], found.classes) == ([1, 28, 28], 10)
    assert sorted(path.name for path in mnist.iterdir()) == sorted(source.PUBLISHED)
    train = found.parts["train"].labels
    assert train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    # LeCun, Cortes, Burges 1998: how often each digit is there
    assert np.bincount(train).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949
    ]  # fmt: skip


@pytest.mark.rare
@pytest.mark.framework
def test_a_short_training_reaches_97_percent(mnist, capsys):
    document = _trained(capsys, mnist, 750)
    assert document["accuracy"] >= 0.97
    assert document["loss"] < 0.5
    assert document["env"]["training"]["steps"] == 750
    assert document["env"]["training"]["epochs"] == 0.625
    assert document["env"]["training"]["learning_rate"] == 1e-4
    assert document["env"]["dataset"]["images"] == {"train": 60_000, "test": 10_000}
    assert len(document["step_s"]["samples"]) >= 500
    assert 0 < document["infeed"] < 0.5
    assert not any("learned nothing" in remark for remark in document["notes"])


@pytest.mark.rare
@pytest.mark.framework
def test_labels_in_disorder_are_seen_in_the_accuracy(mnist, tmp_path, capsys):
    """The step is as fast, and nothing is learned."""
    broken = tmp_path / "broken"
    shutil.copytree(mnist, broken)
    labels = find(str(mnist)).parts["train"].labels
    mixed = np.random.default_rng(0).permutation(labels)
    (broken / "train-labels-idx1-ubyte").write_bytes(idx(mixed))
    document = _trained(capsys, broken, 80)
    assert document["status"] == "ok"
    assert document["accuracy"] < 0.2
