"""A contract: a question drawn at random has the same answer by every way that answers it.

Ways are `predict`, its grid, `choose`, `scale` of one replica, `fit`, `why`, `plan` of one device
and the prefill of `serve`. A key that an answer lacks is not compared:

* `choose`: no passes, no status of the single step (it accumulates what does not fit);
* `scale`: no `status`, no `is_extrapolated`; its notes are of all of its rows;
* `fit`: passes and `is_extrapolated` are not in it; it has further notes;
* `why`: no status and no passes;
* `plan`: no passes (it has other parts), no `is_extrapolated`, no `peak_bytes`; its interval is
  that of `predict`, as one device assumes one stack; it has further notes;
* `serve`: its prefill has the seconds of `predict`, but for parts that it names; the interval and
  the bytes are those of a server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

import steptime
from every import every
from steptime.core.errors import InputError

DECODER = "transformer:kind=decoder,layers=2,width=64,heads=4,length=16,vocabulary=90"
MODELS = (
    "resnet18",
    "mobilenet_v2",
    "densenet121",
    "bert_base",
    "gpt2",
    "fc",
    "rnn:cell=lstm,length=8",
    "cnn:block=bottleneck,blocks=1,filters=8,image=32,classes=5",
    DECODER,
    f"{DECODER},kv_heads=2,norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no",
)
DEVICES = (
    *("a100-sxm4-80gb", "h100-sxm5", "b200-sxm", "mi300x", "tpu-v4", "rtx-4090", "l4", "t4"),
    *("v100-sxm2-16gb", "rtx-3060", "core-i9-9900k"),
)
DTYPES = ("float32", "bfloat16", "bfloat16-mixed", "float16-mixed")
OPTIMIZERS = ("sgd", "momentum", "rmsprop", "adam", "adamw")
BATCHES = (1, 2, 3, 4, 7, 8, 16, 24, 64)
OTHER_BATCHES = (5, 6, 96)  # which make a grid of four, so that cells lie on lines
OTHER_DEVICE = "a40"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """A step that is asked for."""

    model: str
    device: str
    batch: int
    dtype: str
    optimizer: str

    @property
    def how(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "optimizer": self.optimizer}


@cache
def predict(question: Question) -> Row:
    made = steptime.predict(question.model, question.device, question.batch, **question.how)
    return dict(made.to_dict())


def draw_questions(count: int, seed: int) -> list[Question]:
    """Draw questions that have an answer: a device that has no peak for a type has none."""
    draws = random.Random(seed)  # noqa: S311
    questions: list[Question] = []
    while len(questions) < count:
        model, device, batch = (draws.choice(values) for values in (MODELS, DEVICES, BATCHES))
        question = Question(model, device, batch, draws.choice(DTYPES), draws.choice(OPTIMIZERS))
        try:
            predict(question)
        except InputError as error:
            if "no peak is known" not in str(error):
                raise
            continue
        questions.append(question)
    return questions


SECONDS = ("step_s", "low_s", "high_s")
PASSES = ("forward_s", "backward_s", "update_s")
BYTES = ("peak_bytes", "needed_bytes", "usable_bytes")


def grid(question: Question) -> Row:
    batches = ",".join(map(str, sorted({question.batch, *OTHER_BATCHES})))
    on = f"{OTHER_DEVICE},{question.device}"
    made = steptime.predict(question.model, on, batches, all_cells=True, **question.how)
    cell: Row = next(
        row
        for row in made.to_dict()["rows"]
        if row["device"] == predict(question)["device"] and row["batch"] == question.batch
    )
    return cell


def choose(question: Question) -> Row:
    how = {"batch": question.batch, **question.how}
    (row,) = steptime.choose(question.model, question.device, **how).to_dict()["rows"]
    return dict(row) if row["microbatch"] == question.batch else {}


def scale(question: Question) -> Row:
    how = {"batch": question.batch, "replicas": "1", **question.how}
    made = steptime.scale(question.model, question.device, **how).to_dict()
    (row,) = made["rows"]
    return {**row, "notes": made["notes"], "assumed": made["assumed"]}


def fit(question: Question) -> Row:
    made = steptime.fit(question.model, question.device, question.batch, **question.how).to_dict()
    row = next(row for row in made["rows"] if row["batch"] == question.batch)
    status = {True: "ok", False: "oom", None: "ok"}[made["fits"]]
    assert row["fits"] == (status == "ok")
    return {**row, **made, "status": status}


def why(question: Question) -> Row:
    made = steptime.why(question.model, question.device, question.batch, **question.how)
    return dict(made.to_dict())


def plan(question: Question) -> Row:
    """Return a plan of one device; language models are planned with adam and adamw alone."""
    how = {"global_batch": question.batch, "microbatch": question.batch, **question.how}
    try:
        made = dict(steptime.plan(question.model, question.device, **how).to_dict())
    except InputError as error:
        if "language models are planned with adam or adamw" in str(error):
            return {}
        raise
    memory = made["memory"]
    assert memory["usable_bytes"] == made["usable_bytes"]
    return {
        **{name: made[name] for name in (*SECONDS, "usable_bytes", "notes")},
        "needed_bytes": memory["needed_bytes"],
        "energy_j": made["energy_j"],
        "status": "ok" if made["fits"] else "oom",
    }


Way = Callable[[Question], Row]
KEYS: dict[Way, tuple[str, ...]] = {
    grid: (*SECONDS, *PASSES, *BYTES[:2], "status", "is_extrapolated", "notes", "assumed"),
    choose: (*SECONDS, *BYTES, "is_extrapolated", "notes", "assumed"),
    scale: (*SECONDS, *PASSES, *BYTES[:2], "notes", "assumed"),
    fit: (*SECONDS, *BYTES, "status", "notes", "assumed"),
    why: (*SECONDS, *BYTES[:2], "notes", "assumed"),
    plan: (*SECONDS, *BYTES[1:], "status", "energy_j", "notes"),
}
OF_ALL_ROWS = (scale, fit, plan)  # whose notes say more than those of one step


@cache
def questions() -> list[Question]:
    """Return the questions, drawn when a test asks for them and not while tests are collected."""
    return draw_questions(30, seed=140)


QUICK_COUNT = {fit: 4, why: 5, choose: 5, grid: 5, plan: 15}  # ways that price more than one step


@pytest.mark.slow
@pytest.mark.parametrize("way", KEYS, ids=lambda way: str(way.__name__))
def test_a_way_answers_as_a_prediction_does(way):
    hold(way, questions()[: QUICK_COUNT.get(way, 30)])


@pytest.mark.rare
@pytest.mark.parametrize("way", QUICK_COUNT, ids=lambda way: str(way.__name__))
def test_a_way_answers_all_questions_as_a_prediction_does(way):
    hold(way, questions()[QUICK_COUNT[way] :])


def hold(way: Way, questions: Sequence[Question]) -> None:
    """Hold that a way answers questions as `predict` does."""
    answered = 0
    for question in questions:
        expected, row = predict(question), way(question)
        answered += bool(row)
        for name in KEYS[way] if row else ():
            if name == "notes" and way in OF_ALL_ROWS:
                assert {*expected["notes"]} <= {*row["notes"]}, question
            elif isinstance(expected[name], float):
                assert row[name] == pytest.approx(expected[name], rel=1e-9), (question, name)
            else:
                assert row[name] == expected[name], (question, name)
    assert answered >= len(questions) / 2


SERVERS = ("vllm-2025", "sglang-2025", "trt-llm-2025")
SERVING_DEVICES = ("a100-sxm4-80gb", "h100-sxm5", "b200-sxm", "mi300x", "rtx-4090", "l4")


@pytest.mark.parametrize("count", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_the_prefill_of_a_server_is_a_prediction(count):
    """Of one sequence, on one device, in 16 bits."""
    draws = random.Random(141)  # noqa: S311
    for _ in range(count):
        model, device = draws.choice((DECODER, MODELS[-1])), draws.choice(SERVING_DEVICES)
        length, stack = draws.choice((8, 60, 200)), draws.choice(SERVERS)
        served = model.replace("length=16,", "")
        served += "" if "positions" in served else ",max_length=1024"
        text = f"{served},length={length}"
        how: dict[str, Any] = {"phase": "infer", "options": {"stack": stack}}
        expected = steptime.predict(text, device, 1, dtype="bfloat16", **how)
        answer = steptime.serve(served, device, 1, length, 1, stack=stack)
        prefill_s = answer.ttft_s - sum(answer.predict_difference.to_dict().values())
        assert prefill_s == pytest.approx(expected.step_s, rel=1e-9), (text, device, stack)


FINE_TUNINGS = (
    (DECODER, "h200-sxm", {"lora": "8"}),
    (DECODER, "rtx-4090", {"lora": "r=16", "weights": "nf4"}),
    (MODELS[-1], "l40s", {"adapter": "dora,r=4", "stack": "torch-eager"}),
    (MODELS[-1], "a100-sxm4-80gb", {"train": "block1/*"}),
)


@every(("model", "device", "how"), FINE_TUNINGS)
def test_a_fine_tuning_is_one_answer_and_its_assumed_stack_changes_no_number(model, device, how):
    """On one device; that the stack may be another one is a note, and in no interval."""
    expected = steptime.predict(model, device, 2, **how)
    named = steptime.predict(model, device, 2, **{"stack": expected.assumed["stack"], **how})
    fitted = steptime.fit(model, device, 2, **how)
    planned = steptime.plan(model, device, global_batch=2, microbatch=2, optimizer="adam", **how)
    (chosen,) = steptime.choose(model, device, batch=2, **how).rows
    fitted_row = next(row for row in fitted.rows if row.batch == 2)
    for answer in (named, fitted_row, planned, chosen):
        for name in SECONDS:
            value = getattr(answer, name)
            assert value == pytest.approx(getattr(expected, name), rel=1e-9), (answer, name)
    is_noted = any("fine-tunings run under many stacks" in note for note in expected.notes)
    assert is_noted == ("stack" not in how)
    assert {*expected.notes} <= {*fitted.notes}
    assert {*expected.notes} <= {*planned.notes}
    assert not any("under many stacks" in note for note in named.notes)
