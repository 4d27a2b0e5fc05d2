"""Where a step's input comes from: that it is the right one, what it costs, what is learned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import idx_folder
from every import every
from reference import backend as numpy_backend
from steptime.analysis.measurement import measurement
from steptime.build import build, make_workload, read_model
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.workload import Workload
from steptime.measure.contract import (
    Feed,
    Options,
    Prepared,
    UnsupportedError,
    dataset_fingerprint,
    make_record_method,
    reset_unused_options,
)
from steptime.measure.data.sources import CellInput, open_input
from steptime.measure.infeed import time_input
from steptime.measure.timing import take_samples, take_training
from steptime.measure.training import prepare_examination
from steptime.records.record import Quantity, Record, RecordMethod
from told import row_of

TOKENS = "transformer:kind=encoder,layers=1,width=8,heads=2,length=4,vocabulary=9"
FC = "fc:layers=1,nodes=16,inputs=16,outputs=4"


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.framework)])
def backend(request):
    if request.param == "numpy":
        return numpy_backend
    from steptime.measure.backends.torch import backend as torch_backend

    return torch_backend


@pytest.fixture
def folder(tmp_path):
    return idx_folder.write(tmp_path / "data", train=400, test=101)


def _work(text: str = FC, batch: int = 20, **how: str) -> Workload:
    return make_workload(read_model(text), batch, optimizer="adam", **how)


def _prepared(
    backend: ModuleType, folder: Path, work: Workload, **changes: Any
) -> tuple[Prepared, CellInput]:
    options = Options(input="dataset", data=str(folder), threads=1, **changes)
    graph = build(work)
    given = open_input(graph, work, options)
    _OPENED.append(given.feed)
    return backend.prepare(graph, work, options, given.feed), given


_OPENED: list[Feed] = []


@pytest.fixture(autouse=True)
def _close():
    yield
    while _OPENED:
        _OPENED.pop().close()


def _accuracy(prepared: Prepared, work: Workload, given: CellInput) -> float:
    quantities, _ = prepare_examination(prepared, work, Options(train_steps=10), given)()
    return quantities["accuracy"].samples[0]


def _losses(prepared: Prepared, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        prepared.step()
        assert prepared.loss is not None
        found.append(prepared.loss())
    return found


@pytest.mark.framework  # its loaders are PyTorch's
def test_the_same_seed_gives_the_same_first_losses(backend, folder):
    first, second, other = (
        _losses(_prepared(backend, folder, _work(), **how)[0], 30)
        for how in ({}, {"loaders": 2}, {"seed": 1})
    )
    assert first == second
    assert first != other


@pytest.mark.framework
def test_two_backends_learn_the_same(folder, monkeypatch):
    """From the same weights and files; images reach the right places, labels theirs."""
    import torch

    from steptime.measure.backends.torch import backend as torch_backend
    from steptime.measure.backends.torch import module as torch_module

    def as_numpy(graph: Any, device: Any, seed: int) -> dict[str, Any]:
        values = numpy_backend.initial_values(graph, seed)
        found = {name: torch.from_numpy(np.array(value)) for name, value in values.items()}
        weights = {name: torch.nn.Parameter(found[name]) for name in graph.weights}
        return {name: found[name] for name in (*graph.inputs, *graph.buffers)} | weights

    monkeypatch.setattr(torch_module, "initial_values", as_numpy)
    torchs, numpys = (
        _losses(_prepared(backend, folder, _work())[0], 20)
        for backend in (torch_backend, numpy_backend)
    )
    np.testing.assert_allclose(torchs, numpys, rtol=2e-4)


def test_host_input_is_copied_and_equal_to_that_on_the_device(backend):
    work, graph = _work(), build(_work())
    losses = []
    for where in ("device", "host"):
        prepared = backend.prepare(graph, work, Options(input=where, threads=1))
        losses.append(_losses(prepared, 3))
        assert (prepared.waited is None) == (where == "device")
    assert losses[0] == losses[1]
    assert prepared.waited is not None
    assert 0 < prepared.waited() < 1
    assert prepared.waited() == 0


@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize(
    "text",
    [FC, "deep_mnist", "transformer:kind=encoder,layers=1,width=8,heads=2,length=4,vocabulary=9"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_host_input_of_every_kind(backend, text, phase, dtype):
    work = _work(text, 2, phase=phase, dtype=dtype)
    backend.prepare(build(work), work, Options(input="host", threads=1)).step()


@pytest.mark.framework
@pytest.mark.parametrize("dtype", ["bfloat16", "bfloat16-mixed", "float64"])
def test_a_data_set_in_every_type(dtype, folder):
    from steptime.measure.backends.torch import backend as torch_backend

    work = _work(dtype=dtype)
    prepared, given = _prepared(torch_backend, folder, work)
    losses = _losses(prepared, 300)
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    assert 0 <= _accuracy(prepared, work, given) <= 1


@pytest.mark.rare
@pytest.mark.framework
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports warn
def test_a_compiled_network_takes_its_input(folder):
    from steptime.measure.backends.torch import backend as torch_backend

    plain, compiled = (
        _losses(_prepared(torch_backend, folder, _work(), compile=how)[0], 5)
        for how in (False, True)
    )
    np.testing.assert_allclose(plain, compiled, rtol=1e-4)


def test_inference_takes_the_test_set(backend, folder):
    work = make_workload(read_model(FC), 20, phase="infer")
    prepared, given = _prepared(backend, folder, work)
    assert given.order.count == 101
    prepared.step()
    assert prepared.loss is None


def test_accuracy_is_that_of_the_test_set_by_hand(backend, folder):
    """101 images in batches of 20: the last batch has one that counts."""
    work = _work()
    prepared, given = _prepared(backend, folder, work)
    assert prepared.inference is not None
    test = given.dataset.parts["test"]
    whole = replace(work, phase="infer", optimizer="none", batch_per_replica=101)
    images = test.images.reshape(101, 16).astype(np.float32) / 255
    found = []
    for steps in (1, 300):
        _losses(prepared, steps)
        logits = prepared.inference(build(whole))({"input": images})
        expected = float(np.mean(logits.argmax(-1) == test.labels))
        found.append(_accuracy(prepared, work, given))
        assert found[-1] == expected
    assert found[1] > found[0]


def test_what_was_learned_is_said(backend, folder):
    work = _work()
    prepared, given = _prepared(backend, folder, work, train_steps=60, seed=3)
    options = Options(input="dataset", train_steps=60, seed=3)
    examine = prepare_examination(
        prepared, work, options, given
    )  # before, by the weights as they are then
    _losses(prepared, 60)
    quantities, facts = examine()
    assert quantities["accuracy"].samples == (_accuracy(prepared, work, given),)
    assert prepared.loss is not None
    assert quantities["loss"].samples == (prepared.loss(),)
    assert facts == {
        "steps": 60,
        "epochs": 3.0,  # 400 / 20 = 20 steps each
        "seed": 3,
        "learning_rate": 1e-4,
        "test_images": 101,
        "guess": 26 / 101,  # 0, 4, ..., 100
    }


@pytest.mark.framework
def test_inference_goes_by_running_statistics_and_drops_nothing():
    """A batch norm that has seen a mean of 5 gives 0 for 5, whatever else is in the batch."""
    from steptime.core.dtypes import precision
    from steptime.measure.backends.torch import backend as torch_backend
    from steptime.network.layers.dense import classify, dropout, linear
    from steptime.network.layers.image import batch_norm
    from steptime.network.ops.builder import Builder

    def graph(training: bool) -> Any:
        b = Builder("net", precision("float32"), training)
        x = batch_norm(b, b.input("x", (4, 2, 1, 1)), "norm")
        x = dropout(b, b.op("flatten", x, name="flat"), 0.5, "drop")
        return b.graph(classify(b, linear(b, x, 3, "out")))

    work = _work("fc", 4)
    prepared = torch_backend.prepare(graph(training=True), work, Options(input="host"))
    for _ in range(200):
        prepared.step()
    assert prepared.inference is not None
    outputs = prepared.inference(graph(training=False))
    one = np.full((4, 2, 1, 1), 5.0, np.float32)
    mixed = one.copy()
    mixed[1:] = -7
    assert np.array_equal(outputs({"x": one})[0], outputs({"x": mixed})[0])
    assert np.array_equal(outputs({"x": one}), outputs({"x": one}))


def test_what_cannot_be_examined_is_told_before_the_training(folder):
    prepared, given = _prepared(numpy_backend, folder, _work())
    with pytest.raises(UnsupportedError, match="training on a data set with labels"):
        prepare_examination(prepared, _work(), Options(train_steps=10), None)
    work = _work("cnn:block=residual,blocks=1,filters=4,image=32,classes=4", 2)
    prepared = numpy_backend.prepare(build(work), work, Options())
    with pytest.raises(UnsupportedError, match="running statistics"):
        prepare_examination(prepared, work, Options(train_steps=10), given)


# Time --------------------------------------------------------------------------------------------


class Fake:
    """A step of 8 ms of which 3 ms are waiting for input, on a clock of its own."""

    def __init__(self, step_s: float = 0.008, wait_s: float = 0.003) -> None:
        self.now = 0.0
        self.steps = 0
        self.step_s = step_s
        self._take, self.waited = time_input(lambda: self.spend(wait_s), lambda: self.now)
        self._rest_s = step_s - wait_s

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def step(self) -> None:
        self._take()
        self.spend(self._rest_s)
        self.steps += 1

    def how(self) -> dict[str, Any]:
        return {"clock": lambda: self.now, "take_wait_s": self.waited}


def test_each_sample_has_the_time_that_it_waited():
    fake = Fake()
    samples = take_samples(fake.step, lambda: None, **fake.how())
    assert len(samples.input_s) == len(samples.step_s) >= 20
    assert samples.input_s == pytest.approx([0.003] * len(samples.step_s))
    assert "input_s" not in samples.columns
    plain = take_samples(fake.step, lambda: None, clock=lambda: fake.now)
    assert plain.input_s == ()


@every("total", [10, 11, 37, 500, 5000, 12_345])
@every("step_s", [1e-5, 0.004, 0.02])
def test_a_training_runs_its_steps_and_no_others(total, step_s):
    fake = Fake(step_s, step_s / 2)
    samples = take_training(fake.step, lambda: None, total, **fake.how())
    assert fake.steps == total
    assert len(samples.step_s) >= 3
    assert samples.step_s == pytest.approx([step_s] * len(samples.step_s))
    assert samples.input_s == pytest.approx([step_s / 2] * len(samples.step_s))
    assert len(samples.step_s) + len(samples.warmup_s) <= 1020
    timed = sum(samples.columns["steps"])
    assert timed < total
    assert samples.few_samples == (len(samples.step_s) < 20)
    if total >= 500 and step_s > 1e-3:
        assert len(samples.warmup_s) <= 15  # it is steady from the start
        assert min(samples.columns["steps"]) * step_s >= 0.01


def test_the_slow_begin_of_a_training_is_warm_up():
    fake = Fake(0.02, 0.0)

    def step() -> None:
        fake.step()
        fake.spend(max(0.0, 0.05 * (1 - fake.steps / 30)))

    samples = take_training(step, lambda: None, 300, clock=lambda: fake.now)
    assert 25 <= len(samples.warmup_s) <= 45
    assert max(samples.step_s) < 0.028


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["host", "dataset"])
def test_on_a_gpu_the_device_says_how_long_it_waited(where, folder):
    from steptime.measure.backends.torch import backend as torch_backend

    work, graph = _work(), build(_work())
    options = Options(device="cuda", input=where, data=str(folder) if where == "dataset" else "")
    feed = open_input(graph, work, options).feed if where == "dataset" else None
    prepared = torch_backend.prepare(graph, work, options, feed)
    samples = take_samples(
        prepared.step,
        prepared.sync,
        timer=prepared.timer,
        take_wait_s=prepared.waited,
        budget_s=0.5,
    )
    assert prepared.input_clock == torch_backend.EVENTS
    assert len(samples.input_s) == len(samples.step_s)
    assert all(0 < a < b for a, b in zip(samples.input_s, samples.step_s, strict=True))


@pytest.mark.gpu
def test_on_a_gpu_host_input_is_the_same_as_resident_input():
    from steptime.measure.backends.torch import backend as torch_backend

    work, graph = _work(), build(_work())
    device, host = (
        _losses(torch_backend.prepare(graph, work, Options(device="cuda", input=where)), 20)
        for where in ("device", "host")
    )
    np.testing.assert_allclose(device, host, rtol=1e-4)


# Records -----------------------------------------------------------------------------------------


def _record(step_s: list[float], input_s: list[float] | None = None, **env: Any) -> Record:
    columns = {"run": (0,) * len(step_s)}
    quantities = {"step_s": Quantity(samples=tuple(step_s), columns=columns)}
    if input_s:
        quantities["input_s"] = Quantity(samples=tuple(input_s), columns=columns)
    return Record("measured", RecordMethod("torch", "2"), _work(), "t4", quantities, env=env)


def test_the_infeed_share_is_derived_when_read():
    record = _record([0.010, 0.030], [0.001, 0.009])
    found = measurement(record, 1.0, {})
    assert found["input_s"] == pytest.approx(0.005)
    assert found["infeed"] == pytest.approx(0.25)  # 10 of 40 ms, not the mean of 0.1 and 0.3
    row = row_of(record)
    assert (row["input_s"], row["infeed"]) == pytest.approx((0.005, 0.25))
    row = row_of(_record([0.01]))
    assert (row["input_s"], row["infeed"]) == (None, None)
    assert measurement(_record([0.01]), 1.0, {})["infeed"] is None


@every(("accuracy", "told"), [(0.1135, True), (0.125, True), (0.135, False)])
def test_a_network_that_learned_nothing_is_told(accuracy, told):
    """Guessing 10,000 images of which 11.35 % are alike: sigma 0.32 %, five of them 1.6 %."""
    record = _record([0.01], training={"guess": 0.1135, "test_images": 10_000})
    values = Quantity(samples=(accuracy,), columns={"run": (0,)})
    record = replace(record, quantities={**record.quantities, "accuracy": values})
    remarks = measurement(record, 1.0, {})["remarks"]
    assert any("learned nothing" in remark for remark in remarks) == told


def test_options_that_mean_nothing_make_no_other_cell():
    whole = Options(
        input="dataset", data="/a/mnist", staging="local", stage_to="/b", loaders=2, prefetch=3
    )
    assert reset_unused_options(whole, 1) == whole
    assert reset_unused_options(replace(whole, loaders=0), 1).prefetch == 2
    assert reset_unused_options(replace(whole, staging="shared"), 1).stage_to == ""
    assert reset_unused_options(replace(whole, input="host"), 1) == Options(input="host")
    assert make_record_method("numpy", "2", whole, 1).options["data"] == "mnist"


@pytest.fixture
def command(capsys):
    def ask(*words: str, code: int = 0) -> Any:
        assert run([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.mark.slow
@pytest.mark.framework
def test_the_whole_way_on_the_command_line(command, folder, tmp_path, capsys):
    model = ["run", FC, "--batch", "20", "--optimizer", "adam"]
    model += ["--threads", "1", "--input", "dataset", "--data", str(folder)]
    (tmp_path / "disk").mkdir()
    local = ["--staging", "local", "--stage-to", str(tmp_path / "disk"), "--loaders", "1"]
    document = command(*model, *local, "--train-steps", "1000", "--out", str(tmp_path / "kept"))
    assert document["status"] == "ok"
    assert 0 < document["infeed"] < 1
    assert document["accuracy"] > 0.5
    assert document["env"]["training"]["epochs"] == 50
    assert document["env"]["staging"]["to"] == str(tmp_path / "disk")
    assert document["method"]["options"] == {
        "compile": False,
        "threads": 1,
        "tf32": False,
        "runs": 1,
        "input": "dataset",
        "data": dataset_fingerprint(str(folder)),
        "staging": "local",
        "loaders": 1,
        "train_steps": 1000,
    }
    sql = "SELECT input_s, infeed, accuracy, loss FROM records"
    (row,) = command("query", sql, "--in", str(tmp_path / "kept"))["rows"]
    assert row["accuracy"] == document["accuracy"]
    assert row["infeed"] == document["infeed"]
    assert run([*model, "--budget", "0.05"]) == 0
    assert re.search(r"waiting for input .* % of all steps' time\)", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.framework  # its loaders are PyTorch's
def test_a_sweep_over_where_input_comes_from(folder, tmp_path):
    from steptime.records import store

    lines = [
        'name = "feeds"',
        f'data = "{folder}"',
        'backend = "null"',
        'input = ["device", "host", "dataset"]',
        "loaders = [0, 1]",
        "prefetch = [1, 2]",
        "budget_s = 0.02",
        "batch = 20",
        "[[networks]]",
        f'model = "{FC}"',
    ]
    (tmp_path / "feeds.toml").write_text("\n".join(lines))
    command = ["sweep", str(tmp_path / "feeds.toml"), "--out", str(tmp_path / "out")]
    assert run(command) == 0
    records = store.load(tmp_path / "out", print)
    found = [
        (o.get("input", "device"), o.get("loaders", 0), o.get("prefetch", 2))
        for o in (record.method.options for record in records)
    ]
    assert sorted(found) == [
        ("dataset", 0, 2),
        ("dataset", 1, 1),
        ("dataset", 1, 2),
        ("device", 0, 2),
        ("host", 0, 2),
    ]
    assert {"input_s" in record.quantities for record in records} == {True, False}
    assert run(command) == 0
    assert len(store.load(tmp_path / "out", print)) == 5
