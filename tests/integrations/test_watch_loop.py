"""`steptime.watch` and the Trainer's callback on real trainings of a tiny network."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import steptime
from stepped_clock import SteppedClock
from steptime.core.errors import InputError, OutsideError
from steptime.integrations import watch_report
from steptime.integrations.trainer import StepTimeCallback
from steptime.integrations.watch_answer import describe_verdict, judge_step
from steptime.integrations.watch_clock import MAX_SAMPLES, CudaClock, SampleList, StepSample
from steptime.integrations.watch_model import TimeLimitError, time_limit
from steptime.integrations.watch_prediction import WatchPrediction, ask_question
from steptime.records import store

pytestmark = pytest.mark.framework
torch = pytest.importorskip("torch")

BATCH = 16
DEVICE = "epyc-7763"
STUB_FLOP = 1e9
STUB_STEP = {  # an answer of `predict`
    "step_s": 1.0,
    "low_s": 0.5,
    "high_s": 2.0,
    "device": DEVICE,
    "dtype": "float32",
    "flop": STUB_FLOP,
}
OWN_LIMIT_S = 0.5e-3


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Training:
    """A tiny training, whose losses show whether watching changed it."""

    def __init__(self, step_count: int = 40) -> None:
        torch.manual_seed(0)
        layers = torch.nn
        self.net = layers.Sequential(
            layers.Linear(8, 32), layers.Dropout(0.5), layers.ReLU(), layers.Linear(32, 4)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.loader = [
            (torch.randn(BATCH, 8), torch.randint(0, 4, (BATCH,))) for _ in range(step_count)
        ]
        self.losses: list[float] = []

    def step(self, x, y) -> None:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


def run(training, **settings):
    with steptime.watch(**settings) as watch:
        for x, y in watch.wrap(training.loader):
            with watch.step():
                training.step(x, y)
    return watch.answer


def without_processes(monkeypatch, answers):
    """Let questions be answered from a table."""

    def ask(question, arguments, limit_s):
        return answers[question](arguments)

    monkeypatch.setattr("steptime.integrations.watch_prediction.ask_question", ask)
    monkeypatch.setattr(watch_report, "ask_question", ask)


def test_a_training_is_measured_predicted_and_recorded(tmp_path, caplog):
    caplog.set_level(logging.INFO, "steptime")
    training, plain = Training(), None
    answer = run(training, model=training.net, device=DEVICE, out=tmp_path / "out", log_every=10)
    plain = Training()
    for x, y in plain.loader:
        plain.step(x, y)
    assert training.losses == plain.losses
    (record,) = store.load(tmp_path / "out", pytest.fail)
    assert (record.origin, record.status, record.method.name) == ("measured", "ok", "torch")
    workload = record.workload
    assert (workload.model, workload.batch_per_replica) == ("Sequential.pt2", BATCH)
    assert (workload.phase, workload.optimizer, workload.dtype) == ("train", "momentum", "float32")
    steps = record.quantities["step_s"].samples
    assert len(steps) + len(record.env["warmup_s"]) == len(training.loader) - 1
    assert len(record.quantities["input_s"].samples) == len(steps)
    predicted = steptime.predict(answer.model, DEVICE, batch=BATCH, optimizer="momentum")
    assert answer.predicted_s == pytest.approx(predicted.step_s)
    assert answer.ratio == pytest.approx(answer.step_s / predicted.step_s)
    assert answer.batch == BATCH
    lines = [entry.getMessage() for entry in caplog.records]
    assert sum(line.startswith(("step 10:", "step 20:", "step 30:")) for line in lines) == 3
    assert lines[-len(answer.headline) :] == list(answer.headline)
    folder = str(tmp_path / "out")
    assert steptime.why(folder=folder, device=DEVICE).step_s == pytest.approx(answer.step_s)
    assert steptime.compare([folder, folder]).rows[0].ratio == 1


def test_own_time_is_small(tmp_path):
    training = Training(step_count=300)
    answer = run(training, out=tmp_path)
    assert 0 < answer.watch_s <= OWN_LIMIT_S
    (record,) = store.load(tmp_path, pytest.fail)
    assert record.env["watch_cpu_s"] == answer.watch_s
    assert record.workload.model == "steps"
    assert "predicted" not in "".join(answer.headline)


def test_a_slow_loader_is_named(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "steptime")
    causes = [{"cause": "accumulation"}, {"cause": "loader"}, {"cause": "clocks"}]
    times = STUB_STEP | {"step_s": 1e-5, "low_s": 0.5e-5, "high_s": 2e-5}
    without_processes(
        monkeypatch, {"predict": lambda _: times, "why": lambda _: {"causes": causes}}
    )
    clock = SteppedClock()
    monkeypatch.setattr(time, "perf_counter", clock.read)
    training = Training()
    batches = training.loader

    def slow_loader():
        for batch in batches:
            clock.wait(0.01)
            yield batch

    training.loader = slow_loader()
    answer = run(training, model=training.net, device=DEVICE)
    assert answer.input_share > 0.5
    assert answer.verdict == "slower"
    assert answer.causes == ("loader", "accumulation", "clocks")
    verdict = next(line for line in answer.headline if "slower than predicted" in line)
    assert verdict.endswith("of the step waits for the loader")
    assert any("slower than predicted" in entry.getMessage() for entry in caplog.records)


class Unreadable(torch.nn.Module):
    """A network whose path depends on values."""

    def __init__(self, net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x if x.sum().item() > 0 else 2 * x)


@pytest.mark.slow
def test_a_model_that_cannot_be_exported_is_predicted_from_a_step(tmp_path):
    training, exported = Training(), Training()
    training.net = Unreadable(training.net)
    answer = run(training, model=training.net, device=DEVICE, out=tmp_path)
    readable = run(exported, model=exported.net, device=DEVICE)
    assert (answer.predicted_from, readable.predicted_from) == ("trace", "export")
    assert answer.predicted_low_s < answer.predicted_s < answer.predicted_high_s
    ratio = answer.predicted_s / readable.predicted_s  # the same layers, and a sum beside
    assert 0.5 < ratio < 2
    # The time of the arithmetic of the same layers: MFU of a predicted step, times its seconds.
    works_s = [one.predicted_utilisation * one.predicted_s for one in (answer, readable)]
    assert works_s[0] == pytest.approx(works_s[1], rel=0.1)
    assert answer.step_count == len(training.loader) - 2  # the first and the traced one
    (note,) = answer.notes
    assert note.startswith("the network cannot be exported (")
    assert "one profiled step, in " in note
    (record,) = store.load(tmp_path, pytest.fail)
    assert (record.workload.model, record.workload.batch_per_replica) == ("Unreadable", BATCH)
    assert record.env["predicted_s"] == answer.predicted_s
    assert training.losses != []


def traced(monkeypatch, ask):
    """Watch a training whose model cannot be exported, with a stub of `predict --trace`."""
    monkeypatch.setattr("steptime.integrations.watch_trace.ask_question", ask)
    training = Training(step_count=6)
    training.net = Unreadable(training.net)
    with steptime.watch(training.net, device=DEVICE) as watch:
        for number, (x, y) in enumerate(watch.wrap(training.loader)):
            with contextlib.suppress(ZeroDivisionError), watch.step():
                training.step(x, y)
                if number == 1:
                    raise ZeroDivisionError
    return watch.answer


def test_the_trace_of_a_step_that_failed_is_taken_of_the_next(monkeypatch):
    files = []

    def ask(question, arguments, limit_s):
        files.append(arguments["trace"])
        assert arguments["steps"] == 1
        ends = {"predicted_low_s": 0.5, "predicted_high_s": 2.0}
        work = {"utilisation": 0.5, "uncounted_share": 0.125}
        return {"predicted_s": 1.0, **ends, **work, "device": DEVICE}

    answer = traced(monkeypatch, ask)
    assert answer.predicted_s == 1.0
    assert answer.predicted_utilisation == 0.5
    assert answer.utilisation == pytest.approx(0.5 / answer.step_s)
    assert any(line.startswith("MFU ") for line in answer.headline)
    (note,) = answer.notes
    assert "memory is measured and not predicted" in note
    assert "MFU leaves out ops of unknown FLOP, 12.5 % of its predicted time" in note
    assert answer.step_count == 3  # of six the first, the failed and the traced one are left out
    assert len(files) == 1
    assert not Path(files[0]).exists()


def test_a_trace_that_is_refused_leaves_the_times(monkeypatch):
    def ask(question, arguments, limit_s):
        raise InputError("40 % of its step has no shapes")

    answer = traced(monkeypatch, ask)
    assert answer.predicted_s is None
    assert answer.predicted_from is None
    assert answer.step_s > 0
    (note,) = answer.notes
    assert note.startswith("no prediction: ")
    assert note.endswith("; of a trace: 40 % of its step has no shapes")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_exceptions_pass_and_the_record_is_written(kind, tmp_path):
    training = Training()
    with pytest.raises(kind), steptime.watch(out=tmp_path) as watch:  # noqa: PT012  # the loop
        for i, (x, y) in enumerate(watch.wrap(training.loader)):
            with watch.step():
                training.step(x, y)
                if i == 15:
                    raise kind
    (record,) = store.load(tmp_path, pytest.fail)
    assert record.env["interrupted_by"] == kind.__name__
    assert len(record.quantities["step_s"].samples) + len(record.env["warmup_s"]) == 14


def test_a_step_that_the_loop_catches_is_left_out(tmp_path):
    training = Training()
    with steptime.watch(out=tmp_path) as watch:
        for i, (x, y) in enumerate(watch.wrap(training.loader)):
            with contextlib.suppress(ZeroDivisionError), watch.step():
                if i in (0, 7):
                    watch.add_wait(1000.0)
                    raise ZeroDivisionError
                training.step(x, y)
    assert watch.answer.step_count == len(training.loader) - 3
    assert watch.answer.batch == BATCH
    (record,) = store.load(tmp_path, pytest.fail)
    assert max(record.quantities["step_s"].samples) < 1000.0


@pytest.mark.parametrize("settings", [{"log_every": 0}, {"batch": "many"}])
def test_wrong_settings_are_refused_before_the_loop(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        steptime.watch(**settings)


def test_an_unknown_device_is_a_note():
    training = Training()
    answer = run(training, model=training.net, device="h1000")
    assert answer.step_s > 0
    assert "h1000" in answer.notes[0]


def test_failures_of_watching_are_one_warning(monkeypatch, caplog, tmp_path):
    def fail(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(SampleList, "add", fail)
    training = Training()
    run(training, out=tmp_path)
    assert len(training.losses) == len(training.loader)
    warnings = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
    assert [entry.getMessage() for entry in warnings] == [
        "steptime no longer watches: RuntimeError: a fault of ours"
    ]


def test_a_folder_that_cannot_be_written_is_a_warning(caplog, tmp_path):
    (tmp_path / "file").write_text("")
    run(Training(), out=tmp_path / "file")
    assert "is a file, not a folder of records" in caplog.text


def test_a_loader_keeps_its_length_and_attributes():
    dataset = torch.utils.data.TensorDataset(torch.zeros(10, 3))
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    wrapped = steptime.watch().wrap(loader)
    assert (len(wrapped), wrapped.batch_size) == (3, 4)
    assert [batch[0].shape[0] for batch in wrapped] == [4, 4, 2]
    assert [batch[0].shape[0] for batch in wrapped] == [4, 4, 2]  # a second epoch


def test_accumulated_batches_are_one_step(monkeypatch):
    asked = []
    times = STUB_STEP
    without_processes(monkeypatch, {"predict": lambda call: asked.append(call) or times})
    training = Training()
    with steptime.watch(training.net, device=DEVICE) as watch:
        batches = iter(watch.wrap(training.loader))
        for pair in zip(batches, batches, strict=True):
            with watch.step():
                for x, y in pair:
                    training.step(x, y)
    assert watch.answer.batch == 2 * BATCH
    assert asked[0]["batch"] == BATCH
    assert watch.answer.predicted_s == 2.0
    peak_flop_per_s = steptime.device(DEVICE).datasheet.peak_flop_per_s["float32"]
    expected = 2 * STUB_FLOP / peak_flop_per_s / 2.0
    assert watch.answer.predicted_utilisation == pytest.approx(expected)


def test_a_compiled_module_is_exported_from_the_module_inside(monkeypatch):
    asked = []
    times = STUB_STEP
    without_processes(monkeypatch, {"predict": lambda call: asked.append(call) or times})
    training = Training()
    training.net = torch.compile(training.net, backend="eager")
    answer = run(training, model=training.net, device=DEVICE)
    assert answer.notes == ()
    assert answer.predicted_s == 1.0
    assert (asked[0]["batch"], asked[0]["stack"]) == (BATCH, "torch-compile")


def test_the_callback_of_a_trainer(tmp_path):
    training = Training()
    callback = StepTimeCallback(out=tmp_path)
    event = SimpleNamespace(train_batch_size=BATCH, gradient_accumulation_steps=2), None, None
    callback.on_init_end(*event)
    callback.on_train_begin(*event, model=Unreadable(training.net))
    for x, y in training.loader:
        callback.on_step_begin(*event)
        training.step(x, y)
        callback.on_step_end(*event)
        callback.on_log(*event, logs={})
    callback.on_train_end(*event)
    (record,) = store.load(tmp_path, pytest.fail)
    assert record.workload.global_batch == 2 * BATCH
    assert record.quantities["input_s"].samples
    assert not hasattr(callback, "model")


def test_a_question_ends_with_its_limit():
    arguments = {"model": "fc", "device": "t4"}
    with pytest.raises(OutsideError, match=r"no answer within 0\.01 s"):
        ask_question("predict", arguments, 0.01)


def test_work_ends_with_its_limit():
    def work() -> None:
        while True:
            with contextlib.suppress(Exception):  # as torch.export does
                time.sleep(0.001)

    with pytest.raises(TimeLimitError), time_limit(0.02):
        work()


def test_samples_become_longer_instead_of_more():
    samples = SampleList()
    for i in range(4 * MAX_SAMPLES):
        samples.add(StepSample(1.0 + i % 2, 0.5))
    assert samples.steps_per_sample == 4
    assert samples.step_count == 4 * MAX_SAMPLES
    assert set(samples.samples) == {StepSample(1.5, 0.5)}
    assert len(samples.samples) == MAX_SAMPLES


class Event:
    """An event of a GPU that passes it at a stated time [ms]."""

    passed_ms = 0.0

    def __init__(self, time_ms: float) -> None:
        self.time_ms = time_ms

    def query(self) -> bool:
        return self.time_ms <= Event.passed_ms

    def elapsed_time(self, later) -> float:
        return later.time_ms - self.time_ms


def test_a_wait_counts_as_far_as_the_gpu_idles(monkeypatch):
    times_ms = iter([0, 100, 100, 200, 230, 330])  # start and end of three steps
    monkeypatch.setattr(CudaClock, "_record_event", lambda _: Event(next(times_ms)))
    clock = CudaClock("cuda:0")
    for wait_s in (0.01, 0.05, 0.05):
        clock.begin()
        clock.end(wait_s)
    assert clock.read() == []
    Event.passed_ms = 200.0
    first, second = clock.read()
    assert first == pytest.approx((0.11, 0.01))
    assert second == pytest.approx((0.1, 0.0))  # the host was ahead by its whole wait
    Event.passed_ms = 330.0
    assert clock.read()[0] == pytest.approx((0.13, 0.03))


@pytest.mark.parametrize(
    ("low_s", "high_s", "verdict"),
    [
        (2.1, 2.3, "slower"),
        (0.5, 0.7, "faster"),
        (0.9, 1.5, "as predicted"),
        (1.9, 2.1, "unsure"),
        (None, None, "unsure"),
    ],
)
def test_verdicts(low_s, high_s, verdict):
    assert judge_step(low_s, high_s, WatchPrediction(1.0, 0.8, 2.0, "t4")) == verdict


def test_the_verdict_is_one_line():
    predicted = WatchPrediction(1.0, 0.8, 2.0, "t4")
    assert describe_verdict(2.3, "slower", predicted, 0.61) == (
        "2.3 times slower than predicted (predicted 1 s, 800 ms to 2 s on t4); "
        "61 % of the step waits for the loader"
    )


@pytest.mark.parametrize(("share", "text"), [(None, ""), (0.01, "no wait for the loader")])
def test_a_wait_that_was_not_timed_is_not_none(share, text):
    assert describe_verdict(1.0, None, None, share) == text
