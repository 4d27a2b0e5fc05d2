"""The same question, every way: a step takes the same seconds and bytes whoever asks.

Records and Python say the bytes of tensors alone; the others what the device must have.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import steptime
import synthetic
from exported import document, write
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.copying import replace
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
Answers = Mapping[Key, Any]  # numbers by the names of NUMBERS, or why there is no answer
NUMBERS = ("step_s", "low_s", "high_s", "peak_bytes", "needed_bytes")
Way = Callable[..., Answers]
TENSORS = ("predict_in", "python")  # ways that say no `needed_bytes`


@dataclass(frozen=True)
class Question:
    """The networks by name, as MODEL texts, a folder to write in, and what else is asked for."""

    models: Mapping[str, str]
    folder: Path
    devices: tuple[str, ...] = DEVICES
    dtypes: tuple[str, ...] = DTYPES
    method: str = "calibrated"
    options: Mapping[str, str] = field(default_factory=dict)

    def cases(self) -> Iterator[Key]:
        for name in self.models:
            for dtype in self.dtypes:
                for device in self.devices:
                    yield name, device, dtype

    @property
    def words(self) -> list[str]:
        said = [("--option", f"{name}={value}") for name, value in self.options.items()]
        return ["--method", self.method, *(word for pair in said for word in pair)]


def _numbers(row: Mapping[str, Any]) -> Any:
    return {name: row[name] for name in NUMBERS if name in row} if row["step_s"] else row["notes"]


def _run(question: Question, *words: str) -> Any:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words, *question.words, "--json"])
    return json.loads(out.getvalue()) if code == 0 else err.getvalue().strip()


def _each(
    question: Question,
    words: Callable[[str, str], tuple[str, ...]],
    row_of: Callable[[Any], Mapping[str, Any]],
) -> Answers:
    found = {}
    for name, device, dtype in question.cases():
        asked = words(question.models[name], device)
        made = _run(question, *asked, "--batch", str(BATCH), "--dtype", dtype)
        found[name, device, dtype] = made if isinstance(made, str) else _numbers(row_of(made))
    return found


def _beside(
    question: Question,
    words: Callable[[str], tuple[str, ...]],
    rows: str,
) -> Answers:
    found = {}
    for name, text in question.models.items():
        for dtype in question.dtypes:
            made = _run(question, *words(text), "--batch", str(BATCH), "--dtype", dtype)
            for row in made[rows]:
                found[name, row["device"], dtype] = _numbers(row)
    return found


def predict(question: Question) -> Answers:
    return _each(question, lambda m, d: ("predict", m, "--device", d), lambda made: made)


def why(question: Question) -> Answers:
    return _each(question, lambda m, d: ("why", m, "--device", d), lambda made: made)


def scale(question: Question) -> Answers:
    one = "--replicas", "1"
    return _each(
        question,
        lambda m, d: ("scale", m, "--device", d, *one),
        lambda made: made["rows"][0],
    )


def fit(question: Question) -> Answers:
    def row(made: Any) -> Any:
        return next(one for one in made["rows"] if one["batch"] == BATCH)

    return _each(question, lambda m, d: ("fit", m, "--device", d), row)


def grid(question: Question) -> Answers:
    on = "--grid", "--device", ",".join(question.devices)
    return _beside(question, lambda m: ("predict", m, *on), "rows")


def choose(question: Question) -> Answers:
    on = "--device", ",".join(question.devices)
    return _beside(question, lambda m: ("choose", m, *on), "rows")


def predict_in(question: Question) -> Answers:
    names, steps = {}, []
    any_step = synthetic.measured(synthetic.workloads()[0])
    for name, text in question.models.items():
        for dtype in question.dtypes:
            workload = make_workload(read_model(text), BATCH, dtype)
            names[workload.key] = name, dtype
            steps.append(replace(any_step, workload=workload))
    with TemporaryDirectory(dir=question.folder) as records:
        folder = Path(records) / "records"
        with store.open_writer(folder) as writer:
            for one in steps:
                writer.append(one)
        on = "--device", ",".join(question.devices)
        said = str(_run(question, "predict", "--in", str(folder), *on))
        found: dict[Key, Any] = dict.fromkeys(question.cases(), said)
        for one in store.load(folder, print):
            if one.origin == "predicted":
                name, dtype = names[one.workload.key]
                step, peak = (one.quantities[key] for key in ("step_s", "peak_bytes"))
                numbers = step.value, step.low, step.high, peak.value
                found[name, one.platform, dtype] = dict(zip(NUMBERS, numbers, strict=False))
    return found


def python(question: Question) -> Answers:
    found: dict[Key, Any] = {}
    how: Any = {"method": question.method, "options": question.options}
    for name, device, dtype in question.cases():
        try:
            made = steptime.predict(question.models[name], device, BATCH, dtype=dtype, **how)
        except InputError as error:
            found[name, device, dtype] = str(error)
            continue
        numbers = made.step_s, made.low_s, made.high_s, made.peak_bytes
        found[name, device, dtype] = dict(zip(NUMBERS, numbers, strict=False))
    return found


@pytest.fixture(scope="module")
def question(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")
    mine = write(folder / "mine.pt2", document())
    return Question({**NETWORKS, "mine": str(mine)}, folder)


def slow(way: Any) -> Any:
    """Return a way that prices much more than one step as a case of the slow tests."""
    return pytest.param(way, marks=pytest.mark.slow)


def rare(way: Any) -> Any:
    """Return a way that a slow test asks for a part of the cases as one that is rarely run."""
    return pytest.param(way, marks=pytest.mark.rare)


WAYS = grid, predict_in, python, slow(scale), slow(choose)


@pytest.fixture(scope="module")
def asked(question):
    return predict(question)


def same(found: Answers, asked: Answers, way: Way) -> None:
    """Hold that a way answers every case as `predict` does, or with its sentence."""
    assert found.keys() == asked.keys()
    left_out = {"needed_bytes"} if way.__name__ in TENSORS else set()
    for key, answer in found.items():
        if isinstance(asked[key], str):
            assert asked[key].removeprefix("steptime: ") in answer, key
            continue
        assert answer.keys() == set(NUMBERS) - left_out, key
        for name, value in answer.items():
            assert (value is None) == (asked[key][name] is None), (key, name)
            assert value is None or value == pytest.approx(asked[key][name], rel=1e-9), (key, name)


@pytest.mark.parametrize(
    "way",
    [rare(why), rare(fit), *WAYS],
    ids=lambda way: str(way.__name__),
)
def test_the_same_question_has_the_same_seconds_and_bytes_every_way(way, question, asked):
    same(way(question), asked, way)


@pytest.mark.slow
@pytest.mark.parametrize("way", [why, fit], ids=lambda way: str(way.__name__))
def test_a_file_has_the_same_seconds_and_bytes(way, question, asked):
    """In bfloat16; `test_contract` draws named networks, and the rare tests ask about all."""
    models = {"mine": question.models["mine"]}
    part = replace(question, models=models, dtypes=("bfloat16",))
    same(way(part), {key: asked[key] for key in part.cases()}, way)


def test_all_but_types_without_a_peak_are_answered(asked):
    assert len(asked) == 6 * 6 * 2
    for key, answer in asked.items():
        if (reason := NO_PEAK.get(key[1:])) is not None:
            assert reason in answer, key
        else:
            assert 0 < answer["low_s"] <= answer["step_s"] <= answer["high_s"], key
            assert 0 < answer["peak_bytes"] <= answer["needed_bytes"], key


WISHES: tuple[tuple[str, dict[str, str]], ...] = (
    ("analytic", {"fuse": "yes"}),
    ("roofline", {}),
    ("paleo", {}),
    ("calibrated", {"stack": "torch-compile"}),
    ("calibrated", {"stack": "jax", "tf32": "off"}),
    ("calibrated", {"host": "slow", "channels_last": "yes"}),  # a CPU is its own host
)


@pytest.fixture(scope="module", params=WISHES, ids=str)
def wish(request, question):
    """Two networks on three devices as somebody wishes, and what `predict` says of them."""
    method, options = request.param
    some = {name: question.models[name] for name in ("cnn", "llama")}
    devices = "h100-sxm5", "mi300x", "core-i9-9900k"
    of = replace(
        question, models=some, devices=devices, dtypes=DTYPES[:1], method=method, options=options
    )
    found = predict(of)
    assert sum(isinstance(one, str) for one in found.values()) == 2 * ("host" in options)
    return of, found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
def test_what_is_wished_for_is_the_same_every_way(way, wish):
    of, found = wish
    same(way(of), found, way)


@pytest.mark.slow
def test_a_wish_is_the_same_in_why_or_fit(wish):
    """Every other wish is asked of `why`, the others of `fit`; both read it as `predict` does."""
    of, found = wish
    way = (why, fit)[WISHES.index((of.method, of.options)) % 2]
    same(way(of), found, way)


@pytest.mark.rare
@pytest.mark.parametrize("way", [why, fit], ids=lambda way: str(way.__name__))
def test_what_is_wished_for_is_the_same_in_why_and_fit(way, wish):
    of, found = wish
    same(way(of), found, way)


LLAMA = NETWORKS["llama"].replace("length=16,", "")
DECODERS = {
    "llama": LLAMA,
    "gpt": "transformer:kind=decoder,layers=2,width=64,heads=4,vocabulary=90,max_length=1024",
    "windows": f"{LLAMA.replace('layers=1', 'layers=4')},window=16,windows=wa,sinks=yes",
    "experts": f"{LLAMA},experts=8,experts_per_token=2,qk_norm=head",
    "latent": "deepseek_v3:",
}
BESIDE = ["weights", "merged", "attention", "last_token", "rows", "host", "server"]
SERVED: tuple[tuple[str, dict[str, str]], ...] = (
    ("vllm-2025", {}),
    ("vllm-2025", {"weights": "int4", "kv": "int8"}),
    ("trt-llm-2025", {"dtype": "float8"}),
    ("sglang-2025", {}),
    ("fastertransformer-2022", {}),
    ("torch-eager", {}),
)


@pytest.mark.parametrize(("stack", "kept"), SERVED, ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt", "windows", "experts", slow("latent")])
def test_a_prefill_takes_what_predict_says_and_what_is_named(name, stack, kept):
    """A server's forward pass is `predict`'s but for parts that an answer names.

    Its interval is not that of its kernels: it holds 80 % of what is published of servers, as wide
    for each prompt.
    """
    how: Any = {"phase": "infer", "options": {"stack": stack}}
    serving: Any = {"stack": stack, **kept}
    model, shares = DECODERS[name], set[float]()
    for device in ("a100-sxm4-80gb", "h100-sxm5")["dtype" in kept :]:  # the first has no float8
        for length in (8, 200):
            told = steptime.serve(model.strip(":"), device, 1, length, 1, **serving)
            beside = told.predict_difference.to_dict()
            assert [*beside] == [f"{part}_s" for part in BESIDE]
            more = f"{model},length={length}".replace(":,", ":")
            step_s = steptime.predict(more, device, 1, dtype="bfloat16", **how).step_s
            left_s = told.ttft_s - sum(beside.values())
            assert left_s == pytest.approx(step_s, rel=1e-9), (device, length)
            shares |= {
                round(end_s / told.ttft_s, 9) for end_s in (told.ttft_low_s, told.ttft_high_s)
            }
    assert len(shares) == 2


def test_what_a_server_does_otherwise_is_told_apart():
    """One layer on one device: which parts are 0, and what the others are."""

    def beside(model: str, **kept: Any) -> dict[str, float]:
        told = steptime.serve(model, "h100-sxm5", 1, 200, 1, stack="vllm-2025", **kept)
        return dict(told.predict_difference.to_dict())

    plain = beside(DECODERS["llama"])
    assert plain["server_s"] == pytest.approx(0.0013 + 2.9e-5 + 0.006)
    assert [plain["weights_s"], plain["rows_s"]] == pytest.approx([0.0, 0.0], abs=1e-7)
    assert max(plain["merged_s"], plain["attention_s"], plain["last_token_s"]) < 0
    assert beside(DECODERS["llama"], weights="int4")["weights_s"] < 0
    assert beside(DECODERS["experts"])["rows_s"] > 2e-5  # a layer chooses experts
    for more in ({"running_sequences": 2}, {"tensor": 2, "inside": "nvlink-4"}, {"concurrency": 1}):
        how: Any = {"model": "llama3_8b", "device": "h100", "input": 64, "output": 2, **more}
        assert steptime.serve(**how).predict_difference is None
