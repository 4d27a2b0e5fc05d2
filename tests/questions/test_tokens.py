"""Language models say tokens a second everywhere, and take the tokens of a training."""

import csv
import io
import json

import pytest

import steptime
from every import every
from steptime.cli.main import run
from steptime.core.errors import InputError

LENGTH, BATCH = 1024, 4
MODEL = "gpt2"
LINK = "infiniband-ndr"
ANSWERS = {
    "predict": lambda model: steptime.predict(model, "a100", BATCH),
    "grid": lambda model: steptime.predict(model, "a100", BATCH, all_cells=True).rows[0],
    "fit": lambda model: next(
        row for row in steptime.fit(model, "a100", BATCH).rows if row.batch == BATCH
    ),
    "choose": lambda model: steptime.choose(model, "a100", BATCH).rows[0],
    "scale": lambda model: steptime.scale(model, "a100", LINK, BATCH, "8").rows[0],
    "why": lambda model: steptime.why(model, "a100", BATCH),
    "plan": lambda model: steptime.plan(model, "a100", BATCH),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_tokens_a_second_stand_beside_examples_a_second(name):
    answer = ANSWERS[name](MODEL)
    assert answer.tokens_per_s == pytest.approx(LENGTH * answer.examples_per_s, rel=1e-12)
    replicas = 8 if name == "scale" else 1
    assert answer.examples_per_s == pytest.approx(replicas * BATCH / answer.step_s, rel=1e-12)
    other = ANSWERS[name]("resnet18")
    assert other.tokens_per_s is None
    assert other.examples_per_s == pytest.approx(replicas * BATCH / other.step_s, rel=1e-12)


COMMANDS = (
    "predict gpt2 --device a100 --batch 4",
    "predict gpt2 --device a100 --batch 4 --grid",
    "fit gpt2 --device a100 --batch 4",
    "choose gpt2 --device a100 --batch 4",
    f"scale gpt2 --device a100 --batch 4 --link {LINK} --replicas 8",
    "why gpt2 --device a100 --batch 4",
    "plan gpt2 --device a100 --global-batch 4",
)


def printed(capsys, command: str) -> str:
    """Return what a command line prints."""
    assert run(command.split()) == 0
    text: str = capsys.readouterr().out
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_text_and_csv_say_tokens_a_second(command, capsys):
    text = printed(capsys, command)
    assert "tokens" in text
    (row, *_) = csv.DictReader(io.StringIO(printed(capsys, f"{command} --format csv")))
    document = json.loads(printed(capsys, f"{command} --json"))
    rows = document.get("rows") or [document]
    key = "tokens_per_s"
    values = [line[key] for line in rows if line.get(key) is not None]
    if key in row:
        assert float(row[key]) == values[0]
    assert values


@pytest.mark.slow
def test_tokens_of_a_training_take_as_long_as_their_examples():
    tokens, examples = LENGTH * 1_000_000, 1_000_000
    by_examples = steptime.choose(MODEL, "a100", BATCH, examples=examples).rows[0]
    answer = steptime.choose(MODEL, "a100", BATCH, tokens=tokens)
    row = answer.rows[0]
    assert row.train_s == pytest.approx(by_examples.train_s, rel=1e-12)
    assert row.train_s == pytest.approx(tokens / row.tokens_per_s, rel=1e-12)
    assert row.cost_total == pytest.approx(row.cost_per_hour * row.train_s / 3600, rel=1e-12)
    assert (answer.tokens, answer.examples, answer.epochs) == (tokens, None, None)
    for single in (
        steptime.predict(MODEL, "a100", BATCH, tokens=tokens),
        steptime.fit(MODEL, "a100", BATCH, tokens=tokens),
    ):
        training = single.training
        assert training.tokens == tokens
        assert training.steps == examples / BATCH
        assert training.train_s == pytest.approx(row.train_s, rel=1e-12)
        assert training.cost_total == pytest.approx(row.cost_total, rel=1e-12)
        assert training.train_low_s < training.train_s < training.train_high_s
    plan = steptime.plan(MODEL, "a100", BATCH, tokens=tokens, microbatch=BATCH)
    assert 3600 * plan.training.train_h == pytest.approx(row.train_s, rel=1e-12)
    assert plan.cost_total == pytest.approx(row.cost_total, rel=1e-12)
    scaled = steptime.scale(MODEL, "a100", LINK, BATCH, "1", tokens="1.024B", price=2)
    assert (scaled.tokens, scaled.examples, scaled.epochs) == (tokens, None, None)
    assert scaled.rows[0].train_s == pytest.approx(row.train_s, rel=1e-12)
    assert scaled.rows[0].cost_total == pytest.approx(2 * row.train_s / 3600, rel=1e-12)
    assert scaled.rows[0].epoch_s is None
    assert "1,024,000,000 tokens" in " ".join(scaled.headline)


def test_padding_is_no_token_of_a_training():
    full = steptime.predict(MODEL, "a100", BATCH, tokens="1M")
    padded = steptime.predict(MODEL, "a100", BATCH, tokens="1M", padded=LENGTH // 4)
    assert padded.training.steps == pytest.approx(4 * full.training.steps)
    assert padded.training.train_s == pytest.approx(1e6 / padded.tokens_per_s, rel=1e-12)
    plan = steptime.plan(MODEL, "a100", BATCH, tokens="1M", padded=LENGTH // 4)
    assert plan.training.steps == pytest.approx(padded.training.steps)


@every(
    ("name", "options", "text"),
    (
        ("predict", {"tokens": "1M"}, "--tokens: resnet18 reads no tokens; nearest: leave it out"),
        ("fit", {"tokens": "1M"}, "--tokens: resnet18 reads no tokens; nearest: leave it out"),
        ("choose", {"tokens": "1M"}, "reads no tokens; nearest: --examples N"),
        ("scale", {"tokens": "1M", "link": LINK}, "reads no tokens; nearest: --examples N"),
        ("choose", {"tokens": "1M", "examples": 3}, "--examples and --tokens: give one"),
        ("scale", {"tokens": "1M", "epochs": 3}, "--epochs and --tokens: give one"),
        ("scale", {"price": 2}, "--price needs --examples N or --tokens N"),
        ("predict", {"prices": "p.toml"}, "--prices needs --tokens N"),
        ("predict", {"tokens": "1M", "all_cells": True}, "--tokens: resnet18 reads no tokens"),
        ("choose", {"tokens": "some"}, "--tokens: must be a"),
    ),
)
def test_tokens_that_do_not_fit_are_one_line(name, options, text):
    with pytest.raises(InputError, match=text):
        getattr(steptime, name)("resnet18", "a100", batch=BATCH, **options)


TRAINING_KEYS = ("train_s", "train_low_s", "train_high_s", "cost_total", "cost_per_hour", "offer")


def test_a_cell_of_a_grid_has_the_training_of_a_single_prediction(capsys):
    words = f"predict {MODEL} --device a100,h100 --batch 2,4 --tokens 1B"
    rows = json.loads(printed(capsys, f"{words} --grid --json"))["rows"]
    table = csv.DictReader(io.StringIO(printed(capsys, f"{words} --grid --format csv")))
    for row, cells in zip(rows, table, strict=True):
        single = steptime.predict(MODEL, row["device"], row["batch"], tokens="1B")
        for key in TRAINING_KEYS:
            value = getattr(single.training, key)
            expected = value if isinstance(value, str) else pytest.approx(value, rel=1e-12)
            assert row[key] == expected
            assert cells[key] == str(row[key])
        assert row["tokens_per_s"] == pytest.approx(single.tokens_per_s, rel=1e-12)
    text = printed(capsys, f"{words} --grid")
    assert "training" in text
    assert "cost in USD" in text


def test_all_replicas_of_a_cell_train_together_and_are_paid_for():
    row = steptime.predict(
        MODEL, "a100", 4, all_cells=True, replicas=8, link=LINK, tokens=10**9
    ).rows[0]
    assert row.train_s == pytest.approx(10**9 / row.tokens_per_s, rel=1e-12)
    assert row.cost_total == pytest.approx(8 * row.cost_per_hour * row.train_s / 3600, rel=1e-12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt2,resnet18 --tokens 1B", "--tokens: resnet18 reads no tokens"),
        ("gpt2 --prices own.toml", "--prices needs --tokens"),
        ("gpt2 --tokens 1B --out folder", "a folder of records has no training"),
        ("gpt2 --tokens many", "--tokens"),
    ],
)
def test_a_training_that_a_grid_has_not_is_refused(words, message, capsys):
    assert run(["predict", *words.split(), "--device", "a100", "--grid"]) == 2
    assert message in capsys.readouterr().err
