"""Public statements of slow runs: whether the known cause is among those to check first."""

from __future__ import annotations

import json
import shlex
import tomllib
from itertools import combinations
from pathlib import Path

import pytest

from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.questions.why.causes import CHECKS
from steptime.questions.why.question import why

RUNS = tomllib.loads(Path(__file__).with_name("slow_runs.toml").read_text(encoding="utf-8"))
LISTED_ORDER = (  # of the text that asked for this answer, as a fixed order to be beaten
    "loader", "synchronising", "layout", "precision", "clocks", "small batch", "communication",
)  # fmt: skip


def _ask(words: str, capsys) -> dict:
    assert run(["why", *shlex.split(words), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def _rank(row: dict, capsys) -> int:
    names = [cause["cause"] for cause in _ask(row["ask"], capsys)["causes"]]
    return names.index(row["cause"]) if row["cause"] in names else len(CHECKS)


def test_each_statement_has_its_source_a_question_and_a_cause():
    rows = [*RUNS["run"], *RUNS["held_out"]]
    assert len(RUNS["run"]) == 10
    assert len({row["cause"] for row in RUNS["run"]}) >= 6
    assert len({row["source"] for row in rows}) == len(rows)
    for row in rows:
        assert row["source"].startswith("https://")
        assert "--measured" in row["ask"]
        assert row["statement"].endswith(".")
        assert row["cause"] in CHECKS


@pytest.mark.rare  # the statements held out have theirs by a quicker test
def test_the_cause_is_among_the_first_three_more_often_than_by_a_fixed_order(capsys):
    causes = [row["cause"] for row in RUNS["run"]]
    hits = sum(_rank(row, capsys) < 3 for row in RUNS["run"])
    best_fixed = max(
        sum(cause in triple for cause in causes) for triple in combinations(set(causes), 3)
    )
    assert hits >= 8
    assert hits > best_fixed >= sum(cause in LISTED_ORDER[:3] for cause in causes)


@pytest.mark.slow
def test_held_out_statements_have_their_cause_among_the_first_three(capsys):
    assert sum(_rank(row, capsys) < 3 for row in RUNS["held_out"]) >= 4


@pytest.mark.parametrize("index", [1, 5])  # a loader, float32
def test_a_known_cause_comes_first(index, capsys):
    assert _rank(RUNS["run"][index], capsys) == 0


SMALL = "resnet18 --device v100 --batch 64"


def test_what_would_help_leaves_the_unexplained_part_as_it_is():
    answer = why("resnet18", "v100", 64, measured="2s")
    assert answer.shares.unexplained > 0.5
    unexplained_s = answer.shares.unexplained * answer.step_s
    for improvement in answer.helps:
        assert improvement.step_s >= unexplained_s
        assert improvement.speedup <= 1 / answer.shares.unexplained
    assert "are unexplained; check first:" in " ".join(answer.headline)


SPEEDS = {
    "410ms": 0.41,
    "0.41s": 0.41,
    "0.41 s/it": 0.41,
    "2it/s": 0.5,
    "2 steps/s": 0.5,
    "128 examples/s": 0.5,
    "128 img/sec": 0.5,
    "0.128k samples/s": 0.5,
    "1,280 images per second": 0.05,
    "128 img / sec": 0.5,
    "0.128k samples / second": 0.5,
    "410 msec/step": 0.41,
    "0.41 seconds per iteration": 0.41,
    "2 batches per second": 0.5,
    "3 secs": 3.0,
}


@pytest.mark.parametrize("text", SPEEDS)
def test_a_speed_is_read_in_its_unit(text):
    answer = why("fc:layers=2,nodes=64", "v100", 64, measured=text)
    assert answer.step_s == pytest.approx(SPEEDS[text])
    assert answer.origin == "measured"


def test_a_speed_in_tokens_and_mfu():
    answer = why("transformer:layers=1,width=64,length=128", "v100", 4, measured="1024 tokens/s")
    assert answer.step_s == pytest.approx(0.5)
    network = "fc:layers=2,nodes=64"
    twice = [why(network, "v100", 64, measured=text).step_s for text in ("20%", "MFU 0.1")]
    assert twice[1] == pytest.approx(2 * twice[0])
    assert why("fc:layers=2,nodes=64", "v100", 64, measured=0.25).step_s == 0.25


WRONG = {
    "410": "say its unit: 410ms",
    "410 furlongs": "unknown unit 'furlongs'; write 410ms,",
    "fast": "is no speed; write 410ms",
    "120% MFU": "is a share up to 1",
    "0 it/s": "is above 0",
    "12 tokens/s": "reads no tokens; nearest: examples/s",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_speed_that_cannot_be_read_is_one_line(text):
    with pytest.raises(InputError, match=WRONG[text]) as error:
        why("fc:layers=2,nodes=64", "v100", 64, measured=text)
    assert "\n" not in str(error.value)


def test_a_busy_device_and_an_idle_one_order_causes_differently(capsys):
    idle, busy = (
        _ask(f"{SMALL} --measured 200ms --busy {share}", capsys)["causes"]
        for share in ("20%", "99%")
    )
    weights = [{row["cause"]: row["weight"] for row in causes} for causes in (idle, busy)]
    assert weights[0]["loader"] > 1.5 * weights[1]["loader"]
    assert weights[0].get("clocks", 0.0) < weights[1]["clocks"] / 4
    assert run(["why", *SMALL.split(), "--busy", "20%"]) == 2
    assert "--busy goes with --measured" in capsys.readouterr().err


def test_a_cause_that_the_model_itself_explains_is_checked_first(capsys):
    words = "resnet50 --device gtx-1080-ti --batch 32 --replicas 4 --link ethernet-1"
    answer = _ask(f"{words} --measured 1.9s", capsys)
    assert answer["bound"] == "communication"
    assert answer["causes"][0]["cause"] == "communication"


def test_a_run_faster_than_the_interval_has_no_causes(capsys):
    answer = _ask(f"{SMALL} --measured 1ms", capsys)
    assert answer["causes"] == []
    assert answer["shares"]["unexplained"] == 0
