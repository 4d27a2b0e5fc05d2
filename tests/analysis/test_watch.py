"""Regression watch: what became slower is found, and what is alike raises no alarm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import clusters
import synthetic
from steptime.analysis.comparison import pairs
from steptime.analysis.comparison.watch import (
    FAIL_ON,
    FolderChanges,
    describe_changes,
    find_changes,
)
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.workload import Workload
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record import Record
from steptime.records.row import is_higher_better
from told import two_folders

WORKLOADS = synthetic.workloads()


def night(
    seed: int, runs: int = 5, slower: Mapping[str, float] | None = None, common: float = 0.0
) -> list[Record]:
    """Return a night's records, families slower by factors; the noise is that of `clusters`."""
    rng = np.random.default_rng(seed)
    found = []
    for number, workload in enumerate(WORKLOADS, start=1):
        factor = (slower or {}).get(workload.model, 1.0) * np.exp(rng.normal(0, common))
        step = clusters.step(clusters.noise(rng, runs), 0.001 * number * factor)
        one = synthetic.measured(workload)
        found.append(replace(one, quantities={"step_s": step}))
    return found


def _seen(a: Sequence[Record], b: Sequence[Record], margin: float = 0.05) -> FolderChanges:
    return find_changes(two_folders(a, b, "step_s", margin).found)


def _folder(path: Path, records: Sequence[Record]) -> str:
    with store.open_writer(path) as writer:
        writer.append_all(records)
    return str(path)


@pytest.mark.parametrize("nights", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_what_is_alike_raises_no_alarm(nights):
    both = [Data(("a", night(2 * k)), ("b", night(2 * k + 1))) for k in range(nights)]
    of_a_margin = [find_changes(pairs.two_folders(data, margin=0.05)) for data in both]
    assert not any(one.regressions or one.improvements for one in of_a_margin)
    of_none = [find_changes(pairs.two_folders(data, margin=0.0)) for data in both]
    alarms = sum(bool(one.regressions) for one in of_none)
    assert alarms <= 0.15 * nights  # 5 % expected, for both signs


def test_single_runs_are_unsure():
    """Of one run each, 4 % from process to process: samples alone would cry wolf."""
    a, b = night(1, runs=1, common=0.04), night(2, runs=1, common=0.04, slower={"rnn": 1.5})
    assert {row["verdict"] for row in two_folders(a, b, "step_s", 0.05).pairs} == {"unsure"}
    assert _seen(a, b).regressions == ()


def test_a_family_that_became_slower_is_named_largest_first():
    seen = _seen(night(1), night(2, slower={"rnn": 1.1, "cnn": 1.2, "transformer": 0.8}))
    families = [row.family for row in seen.regressions]
    assert families == ["cnn"] * 6 + ["rnn"] * 6
    assert {row.family for row in seen.improvements} == {"transformer"}
    assert seen.verdicts.slower == 12
    ratios = [row.ratio for row in seen.regressions]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios == pytest.approx([1.2] * 6 + [1.1] * 6, abs=0.04)
    (cnn,) = (row for row in seen.groups if row.group == "cnn")
    assert (cnn.pairs, cnn.slower, cnn.faster) == (6, 6, 0)
    assert cnn.geometric_mean_ratio == pytest.approx(1.2, abs=0.02)
    assert _seen(night(1), night(2, slower={"rnn": 1.1}), 0.2).regressions == ()


def test_ops_are_grouped_by_their_kind():
    def with_ops(records: Sequence[Record], factor: float) -> list[Record]:
        rng = np.random.default_rng(len(records))
        ops = [
            replace(
                one,
                scope="dense1",
                env={**one.env, "op_kind": "matmul"},
                quantities={"step_s": clusters.step(clusters.noise(rng, 5), 1e-4 * factor)},
            )
            for one in records
        ]
        return [*records, *ops]

    seen = _seen(with_ops(night(1), 1.0), with_ops(night(2), 1.3))
    (group,) = (row for row in seen.groups if row.by == "op")
    assert (group.group, group.slower) == ("matmul", 24)
    assert describe_changes(seen, "step_s")[-1] == "beyond 5 % and noise: 24 slower, 24 same"


def test_the_command_fails_on_what_it_is_told(tmp_path, capsys):
    slow = night(2, slower={"rnn": 1.1})
    slow[0] = replace(slow[0], status="oom", cause="out-of-memory", quantities={})
    old = _folder(tmp_path / "old", night(1))
    new = _folder(tmp_path / "new", slow[:-1])
    same = _folder(tmp_path / "same", night(3))
    words = ["compare", old, new, "--json"]
    assert run([*words, "--fail-on", "slower", "--margin", "5%"]) == 3
    document = json.loads(capsys.readouterr().out)["changes"]
    assert document["margin"] == 0.05
    first, *others = document["regressions"]
    assert (first["family"], first["ratio"]) == ("fc", None)
    assert first["reason"] == "in the second folder: oom (out-of-memory)"
    assert [row["family"] for row in others] == ["rnn"] * 6
    verdicts = document["verdicts"]
    assert (verdicts["slower"], verdicts["failed"], verdicts["vanished"]) == (6, 1, 1)
    assert run([*words, "--fail-on", "faster"]) == 0
    assert run(["compare", old, same, "--fail-on", "changed", "--margin", "0.05"]) == 0
    capsys.readouterr()
    assert run(["compare", old, new, "--fail-on", "slower"]) == 3
    said = capsys.readouterr().out.splitlines()
    assert sum("% slower (" in line for line in said) == 6
    assert said[-1].startswith("beyond 5 % and noise: ")
    assert run(["compare", new, old, "--fail-on", "slower"]) == 0  # the failure is gone


def test_folders_that_are_not_alike_are_said_so(tmp_path):
    other = [
        replace(one, method=replace(one.method, version="2.14.0"), env={**one.env, "host": "b"})
        for one in night(2)
    ]
    seen = _seen(night(1), other)
    assert seen.unlike == ("host test-host | b", "version 2.13.0 | 2.14.0")
    assert any(
        line.startswith("not like with like: host") for line in describe_changes(seen, "step_s")
    )


def test_folders_of_other_types_get_no_hint_at_an_option_that_is_refused(tmp_path, capsys):
    step = synthetic.measured(Workload("fc", {"layers": 1}, 1))
    in_bfloat16 = replace(step, workload=replace(step.workload, dtype="bfloat16"))
    folders = [
        _folder(tmp_path / name, [record]) for name, record in (("a", step), ("b", in_bfloat16))
    ]
    assert run(["compare", *folders]) == 0
    remarks = capsys.readouterr().err
    assert "nothing to compare" in remarks
    assert "--any-dtype" not in remarks


def test_a_workload_of_its_own():
    one = synthetic.measured(Workload("fc", {"layers": 1}, 1))
    assert _seen([one], [replace(one, taken_at="later")]).verdicts.failed == 0


def _trained(tmp_path: Path, name: str, accuracy: float) -> str:
    """Return a folder of networks whose accuracy lies about a number in 5 runs."""
    rng = np.random.default_rng(len(name))
    found = [
        replace(
            synthetic.measured(one),
            quantities={"accuracy": clusters.step(clusters.noise(rng, 5), accuracy)},
        )
        for one in WORKLOADS
    ]
    return _folder(tmp_path / name, found)


def test_an_accuracy_that_rises_is_better_and_one_that_falls_is_worse(tmp_path, capsys):
    half, most = _trained(tmp_path, "half", 0.50), _trained(tmp_path, "most", 0.95)
    words = ["--quantity", "accuracy", "--fail-on", "slower"]
    assert run(["compare", half, most, *words, "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    changes = seen["changes"]
    assert (len(changes["improvements"]), changes["regressions"]) == (24, [])
    assert {row["verdict"] for row in seen["rows"]} == {"faster"}
    assert run(["compare", most, half, *words]) == 3
    out, err = capsys.readouterr()
    assert "worse" in out
    assert "slower" not in out + err
    assert "worse, accuracy -4" in out  # 0.50 / 0.95 - 1 is -47.4 %


def test_a_wasted_share_is_no_good_one():
    assert [
        is_higher_better(name)
        for name in ("accuracy", "examples_per_s", "roof_fraction", "published_flop_share")
    ] == [True] * 4
    assert [
        is_higher_better(name)
        for name in ("step_s", "peak_bytes", "loss", "published_infeed_share")
    ] == [False] * 4
    assert not is_higher_better("published_examples_jitter_per_s")


def test_a_network_that_is_gone_fails(tmp_path, capsys):
    old, new = _folder(tmp_path / "old", night(1)), _folder(tmp_path / "new", night(3)[1:])
    assert run(["compare", new, old, "--fail-on", "changed"]) == 0  # one is new
    capsys.readouterr()
    assert run(["compare", old, new, "--json", "--fail-on", "changed"]) == 3
    seen = json.loads(capsys.readouterr().out)["changes"]
    (gone,) = seen["vanished"]
    assert (gone["family"], gone["reason"]) == ("fc", "not in the second folder")
    fails = {word: any(seen[key] for key in keys) for word, keys in FAIL_ON.items()}
    assert fails == {"slower": True, "changed": True, "vanished": True, "faster": False}


def test_table_and_line_hold_one_margin(tmp_path, capsys):
    slower = night(2, slower={"rnn": 1.1})
    old, new = _folder(tmp_path / "old", night(1)), _folder(tmp_path / "new", slower)
    for margin, number in (("5%", 6), ("20%", 0)):
        assert run(["compare", old, new, "--margin", margin, "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)
        verdicts = [row["verdict"] for row in seen["rows"]]
        assert verdicts.count("slower") == seen["changes"]["verdicts"]["slower"] == number
