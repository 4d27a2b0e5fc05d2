"""`steptime.watch(log_to=...)`: trackers in offline mode where installed, else stand-ins."""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.integrations import watch_sinks
from steptime.integrations.watch_sinks import SINKS, PrometheusSink, SinkGuard

STEPS, LOG_STEPS = 45, 20
LOGGED_STEPS = [20, 40, STEPS - 1]  # the last are those of all steps


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def run(log_to, **settings):
    with steptime.watch(log_to=log_to, log_every=LOG_STEPS, batch=4, **settings) as watch:
        for _ in watch.wrap([[0]] * STEPS):
            with watch.step():
                sum(range(1000))
    return watch.answer


def stand_in(monkeypatch, name, **attributes):
    """Let a module be imported that has these attributes alone."""
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class WandbRun:
    """A run of wandb, by its documented methods."""

    def __init__(self) -> None:
        self.logs, self.summary, self.axes, self.is_finished = [], {}, [], False

    def define_metric(self, name, step_metric=None):
        self.axes.append((name, step_metric))

    def log(self, values):
        self.logs.append(values)

    def finish(self):
        self.is_finished = True


@pytest.mark.parametrize("is_active", [True, False])
def test_wandb_gets_an_axis_of_its_own(monkeypatch, is_active):
    run_of_loop = WandbRun()
    active = run_of_loop if is_active else None
    stand_in(monkeypatch, "wandb", run=active, init=lambda project: run_of_loop)
    answer = run("wandb")
    assert run_of_loop.axes == [("steptime/step", None), ("steptime/*", "steptime/step")]
    assert [values["steptime/step"] for values in run_of_loop.logs] == LOGGED_STEPS
    assert run_of_loop.logs[-1]["steptime/step_s"] == answer.step_s
    assert run_of_loop.logs[-1]["steptime/examples_per_s"] == answer.examples_per_s
    assert "ms a step" in run_of_loop.summary["steptime/summary"] or "us a step" in str(
        run_of_loop.summary
    )
    assert run_of_loop.is_finished is not is_active  # a run of the loop goes on


def test_mlflow_gets_steps_and_tags(monkeypatch):
    logs, tags, ends = [], {}, []
    run_of_loop = SimpleNamespace(info=SimpleNamespace(run_id="7"))
    client = SimpleNamespace(set_tag=lambda run_id, name, text: tags.update({(run_id, name): text}))
    stand_in(
        monkeypatch,
        "mlflow",
        active_run=lambda: None,
        start_run=lambda: run_of_loop,
        end_run=lambda: ends.append(1),
        log_metrics=lambda values, step, run_id: logs.append((run_id, step, values)),
        MlflowClient=lambda: client,
    )
    answer = run("mlflow")
    assert [(run_id, step) for run_id, step, _ in logs] == [("7", step) for step in LOGGED_STEPS]
    assert logs[-1][2]["steptime/step_s"] == answer.step_s
    assert tags["7", "steptime.verdict"] == "none"
    assert ends == [1]


def test_gauges_of_prometheus_have_units_and_are_registered_once(monkeypatch):
    gauges = {}

    class Gauge:
        def __init__(self, name, text):
            assert text.startswith("steptime.watch: ")
            assert name not in gauges
            gauges[name] = self

        def set(self, value):
            self.value = value

    monkeypatch.setattr(PrometheusSink, "_gauges", {})
    stand_in(monkeypatch, "prometheus_client", Gauge=Gauge)
    run("prometheus")
    answer = run("prometheus")  # a second loop sets the same gauges
    assert gauges["steptime_step_seconds"].value == answer.step_s
    assert gauges["steptime_examples_per_second"].value == answer.examples_per_s
    assert gauges["steptime_step"].value == STEPS - 1


def test_tensorboard_writes_beside_the_record(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    writers = []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder, self.scalars, self.texts, self.is_closed = folder, [], {}, False
            writers.append(self)

        def add_scalar(self, name, value, step):
            self.scalars.append((name, step))
            assert value >= 0

        def add_text(self, name, text):
            self.texts[name] = text

        def close(self):
            self.is_closed = True

    stand_in(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    run("tensorboard", out=tmp_path / "out")
    (writer,) = writers
    assert writer.folder == str(tmp_path / "out" / "tensorboard")
    steps = [step for name, step in writer.scalars if name == "steptime/step_s"]
    assert steps == LOGGED_STEPS
    assert writer.is_closed
    assert "steptime/summary" in writer.texts


@pytest.mark.parametrize("name", SINKS)
def test_a_library_that_is_missing_is_one_line_before_the_loop(monkeypatch, name):
    monkeypatch.setitem(sys.modules, SINKS[name][0], None)
    with pytest.raises(InputError, match=rf"needs the package .*steptime\[{SINKS[name][1]}\]"):
        steptime.watch(log_to=name)


def test_an_unknown_tracker_is_refused():
    with pytest.raises(InputError, match="unknown tracker 'wandbb'; did you mean 'wandb'"):
        steptime.watch(log_to="wandbb")


def test_a_tracker_that_fails_is_one_warning_and_the_loop_is_still_watched(monkeypatch, caplog):
    def fail(*_arguments):
        raise ConnectionError("no network")

    monkeypatch.setattr(watch_sinks, "find_sink", lambda _name, _folder: fail)
    answer = run("wandb")
    assert answer.step_count == STEPS - 1
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert warnings == ["steptime no longer logs to wandb: no network"]


def test_a_tracker_that_was_never_used_is_not_opened():
    guard = SinkGuard("wandb", lambda: pytest.fail("opened"))
    guard.finish({})


def test_the_library_is_not_imported_unless_it_is_asked_for():
    watched = {name for name, _, _ in SINKS.values()}
    before = watched & {*sys.modules}
    with steptime.watch() as watch, watch.step():
        pass
    assert watched & {*sys.modules} == before


@pytest.mark.slow
def test_the_real_tensorboard_reads_what_is_written(tmp_path):
    pytest.importorskip("torch.utils.tensorboard")
    run("tensorboard", out=tmp_path / "out")
    accumulator = importlib.import_module(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    accumulator.Reload()
    events = accumulator.Scalars("steptime/step_s")
    assert [event.step for event in events] == LOGGED_STEPS


@pytest.mark.slow
def test_the_real_prometheus_client_serves_the_gauges():
    client = pytest.importorskip("prometheus_client")
    answer = run("prometheus")
    text = client.generate_latest().decode()
    line = next(line for line in text.splitlines() if line.startswith("steptime_step_seconds "))
    assert float(line.split()[1]) == pytest.approx(answer.step_s)


@pytest.mark.slow
def test_the_real_wandb_logs_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    pytest.importorskip("wandb")
    answer = run("wandb")
    assert answer.step_count == STEPS - 1
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_the_real_mlflow_keeps_metrics_in_a_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as active:
        answer = run("mlflow")
    client = mlflow.MlflowClient()
    history = client.get_metric_history(active.info.run_id, "steptime/step_s")
    assert [metric.step for metric in history] == LOGGED_STEPS
    assert history[-1].value == pytest.approx(answer.step_s)
