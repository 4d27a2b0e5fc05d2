"""The same question, every way: one network on one device takes the same seconds whoever asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import steptime
import synthetic
from exported import document, write
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.records import store

NETWORKS = {
    "fc": "fc:layers=3,nodes=64,inputs=32,outputs=8",
    "cnn": "cnn:block=bottleneck,blocks=1,filters=8,image=32,classes=5",
    "lstm": "rnn:cell=lstm,layers=1,embedding=32,length=4,vocabulary=50",
    "bert": "transformer:kind=encoder,layers=1,width=64,heads=4,length=16,vocabulary=90",
    "llama": "transformer:kind=decoder,layers=1,width=64,heads=4,kv_heads=2,length=16,"
    "vocabulary=90,norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no",
}
DEVICES = ("a100-sxm4-80gb", "h100-sxm5", "mi300x", "tpu-v4", "trainium2", "core-i9-9900k")
DTYPES = ("float32", "bfloat16")
BATCH = 4
NO_PEAK = {  # what has no answer, and the sentence that every way says
    ("tpu-v4", "float32"): "device 'tpu-v4': no peak is known for float32",
    ("core-i9-9900k", "bfloat16"): "device 'core-i9-9900k': no peak is known for bfloat16",
}

Key = tuple[str, str, str]  # network, device, type
Answers = Mapping[Key, Any]  # (step, low, high) seconds, or why there is no answer


@dataclass(frozen=True)
class Question:
    """The networks by name, as MODEL texts, and a folder to write in."""

    models: Mapping[str, str]
    folder: Path

    def cases(self) -> Iterator[Key]:
        for name in self.models:
            for dtype in DTYPES:
                for device in DEVICES:
                    yield name, device, dtype


def _times(row: Mapping[str, Any]) -> Any:
    return (row["step_s"], row["low_s"], row["high_s"]) if row["step_s"] else row["note"]


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code = run([*words, "--batch", str(BATCH), "--json"])
    out, err = capsys.readouterr()
    return json.loads(out) if code == 0 else err.strip()


def _each(
    question: Question,
    capsys: pytest.CaptureFixture[str],
    words: Callable[[str, str], tuple[str, ...]],
    row_of: Callable[[Any], Mapping[str, Any]],
) -> Answers:
    found = {}
    for name, device, dtype in question.cases():
        made = _run(capsys, *words(question.models[name], device), "--dtype", dtype)
        found[name, device, dtype] = made if isinstance(made, str) else _times(row_of(made))
    return found


def _beside(
    question: Question,
    capsys: pytest.CaptureFixture[str],
    words: Callable[[str], tuple[str, ...]],
    rows: str,
) -> Answers:
    found = {}
    for name, text in question.models.items():
        for dtype in DTYPES:
            made = _run(capsys, *words(text), "--dtype", dtype)
            for row in made[rows]:
                found[name, row["device"], dtype] = _times(row)
    return found


def predict(question: Question, capsys: pytest.CaptureFixture[str]) -> Answers:
    return _each(question, capsys, lambda m, d: ("predict", m, "--device", d), lambda made: made)


def why(question: Question, capsys: pytest.CaptureFixture[str]) -> Answers:
    return _each(question, capsys, lambda m, d: ("why", m, "--device", d), lambda made: made)


def scale(question: Question, capsys: pytest.CaptureFixture[str]) -> Answers:
    one = "--replicas", "1"
    return _each(
        question,
        capsys,
        lambda m, d: ("scale", m, "--device", d, *one),
        lambda made: made["rows"][0],
    )


def fit(question: Question, capsys: pytest.CaptureFixture[str]) -> Answers:
    def row(made: Any) -> Any:
        return next(one for one in made["rows"] if one["batch"] == BATCH)

    return _each(question, capsys, lambda m, d: ("fit", m, "--device", d), row)


def grid(question: Question, capsys: pytest.CaptureFixture[str]) -> Answers:
    on = "--grid", "--device", ",".join(DEVICES)
    return _beside(question, capsys, lambda m: ("predict", m, *on), "cells")


def choose(question: Question, capsys: pytest.CaptureFixture[str]) -> Answers:
    on = "--devices", ",".join(DEVICES)
    return _beside(question, capsys, lambda m: ("choose", m, *on), "rows")


def predict_in(question: Question, capsys: pytest.CaptureFixture[str]) -> Answers:
    names, steps = {}, []
    any_step = synthetic.measured(synthetic.workloads()[0])
    for name, text in question.models.items():
        for dtype in DTYPES:
            workload = make_workload(read_model(text), BATCH, dtype)
            names[workload.key] = name, dtype
            steps.append(replace(any_step, workload=workload))
    folder = question.folder / "records"
    with store.open_writer(folder) as writer:
        for one in steps:
            writer.append(one)
    assert run(["predict", "--in", str(folder), "--device", ",".join(DEVICES)]) == 0
    said = "".join(capsys.readouterr())
    found: dict[Key, Any] = dict.fromkeys(question.cases(), said)
    for one in store.load(folder, print):
        if one.origin == "predicted":
            name, dtype = names[one.workload.key]
            step = one.quantities["step_s"]
            found[name, one.platform, dtype] = step.value, step.low, step.high
    return found


def python(question: Question, _: pytest.CaptureFixture[str]) -> Answers:
    found: dict[Key, Any] = {}
    for name, device, dtype in question.cases():
        try:
            made = steptime.predict(question.models[name], device, BATCH, dtype)
            found[name, device, dtype] = made.step_s, made.low, made.high
        except InputError as error:
            found[name, device, dtype] = str(error)
    return found


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Question:
    folder = tmp_path_factory.mktemp("same")
    mine = write(folder / "mine.pt2", document())
    return Question({**NETWORKS, "mine": str(mine)}, folder)


@pytest.fixture(scope="module")
def asked(question: Question) -> Answers:
    return python(question, None)  # type: ignore[arg-type]  # which prints nothing


SLOW = pytest.param(fit, marks=pytest.mark.slow)  # which prices twenty batches each time
WAYS = (predict, why, scale, SLOW, grid, choose, predict_in)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
def test_the_same_question_has_the_same_seconds_every_way(
    way: Callable[..., Answers],
    question: Question,
    asked: Answers,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = way(question, capsys)
    assert found.keys() == asked.keys()
    for key, answer in found.items():
        if (reason := NO_PEAK.get(key[1:])) is not None:
            assert reason in answer, key
            assert reason in asked[key], key
        else:
            assert answer == pytest.approx(asked[key], rel=1e-9), key
            step_s, low_s, high_s = answer
            assert 0 < low_s <= step_s <= high_s, key
