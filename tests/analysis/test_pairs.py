"""Pairs: ratios by hand, verdicts that hold together, and a reason for all that has no partner."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

import steptime
import synthetic
from steptime.analysis.comparison import pair_rows
from steptime.analysis.errors import make_error_table
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.tables.table import LazySequence
from steptime.core.workload import Workload
from steptime.questions.compare import answer as compare_answer
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record import Quantity, Record, RecordMethod
from steptime.reports.page import page
from told import by_column, predicted_and_measured, two_folders, two_platforms

FC = Workload("fc", {"layers": 4}, 64)


def a_prediction(step_s: float, **more: float) -> Record:
    quantities = {"step_s": step_s, "flop": 6e9, "traffic_bytes": 2e9} | more
    held = {name: Quantity(value=value) for name, value in quantities.items()}
    return replace(synthetic.predicted(FC)[0], quantities=held)


def a_measurement(*samples: float, **more: Any) -> Record:
    record = replace(synthetic.measured(FC), quantities={"step_s": Quantity(samples=samples)})
    return replace(record, **more)


def test_measured_beside_predicted_by_hand():
    found = predicted_and_measured([a_prediction(0.1), a_measurement(0.2, 0.2, 0.2)])
    (pair,) = found.pairs
    assert (pair["a"]["value"], pair["b"]["value"]) == (0.1, pytest.approx(0.2))
    assert pair["ratio"] == pytest.approx(2.0)  # 0.2 / 0.1
    assert pair["flop_per_s"] == pytest.approx(3e10)  # 6e9 FLOP in 0.2 s
    assert pair["peak_fraction"] == pytest.approx(3e10 / 204e9)
    # intensity 6e9 / 2e9 = 3 FLOP/byte, below the ridge 204 / 39: the roof is 3 * 39e9
    assert pair["roof_fraction"] == pytest.approx(3e10 / (3 * 39e9))
    assert pair["verdict"] is None
    assert found.unpaired == []


def test_the_roof_of_a_result_is_the_lower_of_peak_and_traffic():
    for traffic, roof in ((2e9, 3 * 39e9), (6e8, 204e9)):  # 3 and 10 FLOP/byte; the ridge: 5.2
        data = Data.from_records(
            [a_prediction(0.1, traffic_bytes=traffic), a_measurement(0.2, 0.2, 0.2)]
        )
        (row,) = data.results
        assert row["roof_flop_per_s"] == pytest.approx(roof)
        assert row["roof_fraction"] == pytest.approx(3e10 / roof)


def test_errors_by_family_by_hand(tmp_path, capsys):
    records = []
    for batch, (predicted, measured) in enumerate([(1.0, 2.0), (1.0, 4.0), (3.0, 2.0)], start=1):
        workload = replace(FC, batch_per_replica=batch)
        records += [
            replace(a_prediction(predicted), workload=workload),
            a_measurement(measured, workload=workload),
        ]
    (row,) = make_error_table(Data.from_records(records)).rows
    # predicted / measured - 1: -0.5, -0.75, 0.5; the ratios 2, 4 and 2/3
    assert (row["family"], row["pairs"], row["median_error_share"]) == ("fc", 3, 0.5)
    assert row["geometric_mean_ratio"] == pytest.approx((2 * 4 * 2 / 3) ** (1 / 3))
    assert row["within_factor_2_share"] == pytest.approx(2 / 3)
    assert (row["farthest"], row["farthest_ratio"]) == ("fc batch 2", 4.0)
    said = predicted_and_measured(records).found.summary()
    for name in ("median_error", "within_factor_2"):
        assert said[name] == row[f"{name}_share"]
    assert (said["pairs"], said["worst"][0]["name"]) == (3, "fc batch 2")
    assert predicted_and_measured(records[:1]).found.summary()["median_error"] is None
    with store.open_writer(tmp_path) as writer:
        writer.append_all(records)
    assert run(["analyse", "errors", str(tmp_path)]) == 0
    assert "50 %" in capsys.readouterr().out
    text, _ = page(records, "results")
    assert "How far predictions are from measurements</h2>" in text
    assert "The largest median error is 50 %, of roofline for fc on" in text
    assert "How far predictions" not in page(records[:1], "results")[0]


def test_all_that_has_no_partner_has_a_reason():
    other = replace(synthetic.predicted(FC)[0], platform="h100-sxm5")
    lonely = synthetic.measured(replace(FC, batch_per_replica=1))
    oom = synthetic.failed(FC, "oom", "killed", "no memory")
    found = predicted_and_measured([a_prediction(0.1), oom, other, lonely])
    assert found.pairs == []
    assert {row["reason"] for row in found.unpaired} == {
        "measured: oom (killed)",
        "not measured",
        "not predicted",
    }


def test_of_predictions_the_last_counts_and_runs_of_several_rounds_are_pooled():
    records = [
        a_prediction(0.1),
        a_prediction(0.4),
        a_measurement(0.2, 0.2, env={"round": 0}),
        a_measurement(0.4, 0.4, env={"round": 1}),
        synthetic.failed(FC, "failed", "crashed", "in round 2"),
    ]
    (pair,) = predicted_and_measured(records).pairs
    assert pair["ratio"] == pytest.approx(0.75)  # the middle of 0.2 and 0.4 over 0.4
    assert pair["b"]["runs"] == 2
    (row,) = Data.from_records(records).results
    assert (row["status"], row["runs"], row["samples_n"]) == ("ok", 2, 4)
    assert row["measured_s"] == pytest.approx(0.3)


def test_the_table_of_results_has_the_pairs_of_compare():
    draw = random.Random(1)  # noqa: S311  # data, no secret
    stacks = [{}, {"stack": "torch"}, {"stack": "torch-compile"}]
    records = []
    for _ in range(120):
        workload = replace(FC, batch_per_replica=2 ** draw.randrange(6))
        step_s, method = draw.uniform(0.1, 0.2), draw.choice(("torch", "jax", "null"))
        drawn = [step_s * draw.uniform(1, 1.1) for _ in range(draw.randrange(1, 4))]
        one = a_measurement(*drawn, method=replace(synthetic.TORCH, name=method))
        stated = {"step_s": Quantity(value=step_s, low=0.9 * step_s, high=1.1 * step_s)}
        made = (
            replace(a_prediction(step_s), env=draw.choice(stacks)),
            a_prediction(step_s, traffic_bytes=0),
            replace(a_prediction(step_s), status="oom", cause="memory"),
            one,
            one,
            replace(one, quantities=stated),
            synthetic.failed(FC, "oom", "killed", "no memory"),
            replace(one, origin="published", env={"duplicate_of": "x"}),
            replace(one, origin="published", quantities=stated),
        )
        records.append(replace(draw.choice(made), workload=workload))
    data = Data.from_records(records)
    rows = [row for row in data.results if row["ratio"]]
    ends = (("ratio", "ratio"), ("measured_s", "value"), ("measured_low_s", "low"))
    ends = (*ends, ("measured_high_s", "high"), *((one, one) for one in pair_rows.SHARES))
    want = sorted([row[mine] or 0 for mine, _ in ends] for row in rows)
    pairs = predicted_and_measured(records).pairs
    assert len(pairs) == len(rows) > 20
    assert want == sorted([{**pair["b"], **pair}[one] or 0 for _, one in ends] for pair in pairs)


def test_two_folders_pair_equal_options_and_say_what_differs():
    torch = synthetic.TORCH
    one, two = (replace(torch, options={"threads": n}) for n in (1, 2))
    slow, fast = [0.2 + i * 1e-5 for i in range(20)], [0.1 + i * 1e-5 for i in range(20)]
    a = [a_measurement(*slow, method=one), a_measurement(*fast, method=two)]
    b = [a_measurement(*slow, method=one), a_measurement(*slow, method=two)]
    verdicts = [pair["verdict"] for pair in two_folders(a, b).pairs]
    assert verdicts == ["same", "slower"]
    (pair,) = two_folders(a[:1], b[1:]).pairs
    assert pair["differing_options"] == ["threads"]
    assert two_folders(a, b[1:]).unpaired[0]["reason"] == (
        "not with these options in the second folder"
    )
    newer = replace(b[0], method=RecordMethod("torch", "2.14", {"threads": 1}))
    assert len(two_folders(a[:1], [newer]).pairs) == 1


def test_two_folders_pair_versions_of_a_file_if_asked():
    def measure(sha256, *samples, model="nets.Net.pt2"):
        workload = Workload(model, {"sha256": sha256}, 4)
        return replace(a_measurement(*samples), workload=workload)

    slow, fast = [0.2 + i * 1e-5 for i in range(20)], [0.1 + i * 1e-5 for i in range(20)]
    other = measure("cc", *fast, model="nets.Other.pt2")
    before, after = [measure("aa", *fast), other], [measure("bb", *slow), other]
    plain = two_folders(before, after)
    assert [pair["verdict"] for pair in plain.pairs] == ["same"]
    assert len(plain.unpaired) == 2
    versions = two_folders(before, after, "step_s", None, True)
    assert sorted(pair["verdict"] for pair in versions.pairs) == ["same", "slower"]
    assert not versions.unpaired


def test_versions_of_a_file_are_paired_by_its_name_unless_two_of_a_folder_share_it():
    def measure(file, sha256, *samples):
        table = {"sha256": sha256, "file": file}
        workload = replace(Workload("net.pt2", {}, 4), **table)
        return replace(a_measurement(*samples), workload=workload)

    slow, fast = [0.2 + i * 1e-5 for i in range(20)], [0.1 + i * 1e-5 for i in range(20)]
    before = [measure("/main/net.pt2", "aa" * 32, *fast)]
    after = [measure("/branch/net.pt2", "bb" * 32, *slow)]
    versions = two_folders(before, after, "step_s", None, True)
    assert [pair["verdict"] for pair in versions.pairs] == ["slower"]

    both = [measure("/main/net.pt2", "aa" * 32, *fast), measure("/old/net.pt2", "cc" * 32, *slow)]
    assert not two_folders(both, after, "step_s", None, True).pairs
    paired = two_folders(both, both, "step_s", None, True).pairs
    assert [pair["verdict"] for pair in paired] == ["same", "same"]


def test_the_ratio_is_that_of_the_times_beside_it_and_its_interval_holds_it():
    # half of A's samples, those after a slow start, are fast: the steady step is not the median
    a = [2.4 - i * 1e-4 for i in range(11)] + [1.4 + i * 1e-4 for i in range(9)]
    b = [2.39 + (i % 5) * 1e-4 for i in range(20)]
    (pair,) = two_folders([a_measurement(*a)], [a_measurement(*b)]).pairs
    assert pair["a"]["value"] == pytest.approx((2.399 + 2.3991) / 2)  # nine are smaller
    assert pair["ratio"] == pair["b"]["value"] / pair["a"]["value"]
    assert pair["ratio"] < 1
    assert pair["ratio_low"] <= pair["ratio"] <= pair["ratio_high"]
    assert pair["verdict"] != "slower"


def test_rows_of_one_network_are_told_apart_by_whatever_differs():
    torch = synthetic.TORCH
    ways = [
        {"gpu": gpu, "input": "dataset", "staging": staging, "threads": 2}
        for gpu in ("p100", "v100")
        for staging in ("shared", "local")
    ]
    records = [
        a_measurement(0.2, 0.2, method=replace(torch, options=way), env={"host": f"node{i}"})
        for i, way in enumerate(ways)
    ]
    assert [row["name"] for row in Data.from_records([a_prediction(0.1), *records]).results] == [
        "fc batch 64, p100, shared",
        "fc batch 64, p100, local",
        "fc batch 64, v100, shared",
        "fc batch 64, v100, local",
    ]
    found = predicted_and_measured([a_prediction(0.1), *records])
    assert len({pair["name"] for pair in found.pairs}) == 4
    assert [row["host"] for row in Data.from_records(records).results] == [
        "node0",
        "node1",
        "node2",
        "node3",
    ]
    here = a_measurement(0.2, env={"host": "a"}), a_measurement(0.2, env={"host": "b"})
    assert [row["host"] for row in Data.from_records(here).results] == [
        "a, b"
    ]  # one method: one row


def test_two_platforms_pair_like_with_like():
    here = synthetic.PLATFORM
    records = [a_prediction(0.1), a_measurement(0.2, 0.2, 0.2)]
    records += [replace(record, platform="other") for record in records[:1]]
    found = two_platforms(records, here, "other")
    (pair,) = found.pairs
    assert (pair["a"]["origin"], pair["b"]["origin"]) == ("predicted", "predicted")
    assert pair["ratio"] == 1.0
    assert [row["reason"] for row in found.unpaired] == ["not on other"]
    with pytest.raises(InputError, match="unknown platform 'othr'; did you mean 'other'"):
        two_platforms(records, here, "othr")
    with pytest.raises(InputError, match="itself"):
        two_platforms(records, here, here)


def test_two_platforms_of_a_cluster_pair_whatever_word_a_gpu_was_asked_for_by():
    torch = synthetic.TORCH
    records = [
        a_measurement(
            *[time + i * 1e-5 for i in range(20)],
            platform=platform,
            method=replace(torch, options={"gpu": gpu, "allocation": gpu, "staging": staging}),
        )
        for platform, gpu, time in (("p100-pcie-16gb", "p100", 0.2), ("v100-sxm2-16gb", "v", 0.1))
        for staging in ("local", "shared")
    ]
    found = two_platforms(records, "p100-pcie-16gb", "v100-sxm2-16gb")
    assert found.unpaired == []
    assert [pair["differing_options"] for pair in found.pairs] == [["allocation", "gpu"]] * 2
    assert {pair["verdict"] for pair in found.pairs} == {"faster"}


def test_pairs_of_unlike_types_have_one_name_and_no_type():
    here = a_prediction(0.1)
    half = replace(here.workload, dtype="bfloat16-mixed")
    other = replace(here, platform="other", workload=half)
    (pair,) = two_platforms([here, other], here.platform, "other", any_dtype=True).pairs
    assert (pair["dtype"], pair["a"]["dtype"], pair["b"]["dtype"]) == (
        None, "float32", "bfloat16-mixed",
    )  # fmt: skip
    assert "bfloat16" not in pair["name"]


def test_a_handful_of_what_has_no_partner_is_shown(tmp_path, capsys):
    with store.open_writer(tmp_path) as writer:
        writer.append_all([r for w in synthetic.workloads() for r in synthetic.predicted(w)])
    assert run(["compare", str(tmp_path)]) == 0
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("note: unpaired: ")]
    assert len(lines) == 9
    assert re.fullmatch(r"note: unpaired: and \d+ more; --json has all", lines[-1])


def test_another_quantity_and_an_unknown_one():
    memory = {"peak_bytes": Quantity(value=3e6)}
    records = [a_prediction(0.1, peak_bytes=2e6), a_measurement(0.2)]
    records[1] = replace(records[1], quantities={**records[1].quantities, **memory})
    (pair,) = predicted_and_measured(records, "peak_bytes").pairs
    assert pair["ratio"] == 1.5
    assert (pair["ratio_low"], pair["ratio_high"]) == (None, None)
    with pytest.raises(InputError, match="did you mean 'step_s'"):
        predicted_and_measured(records, "stp_s")


def test_verdicts_of_equal_folders_seldom_cry_wolf():
    a = [synthetic.measured(w, runs=5, seed="a") for w in synthetic.workloads()]
    found = two_folders(a, a)
    assert len(found.pairs) == 24
    assert {pair["verdict"] for pair in found.pairs} <= {"same", "unsure"}


def test_ops_pair_where_both_sides_have_them():
    op = replace(a_prediction(0.01), scope="dense0")
    found = predicted_and_measured([a_prediction(0.1), op, a_measurement(0.2)])
    assert [pair["scope"] for pair in found.pairs] == [""]
    assert found.unpaired == []
    both = [op, replace(a_measurement(0.02), scope="dense0")]
    (pair,) = predicted_and_measured(both).pairs
    assert (pair["scope"], pair["ratio"]) == ("dense0", pytest.approx(2.0))


def on_host(host: str, step_s: float, **more: Any) -> Record:
    samples = [step_s * (1 + i * 1e-4) for i in range(20)]
    return a_measurement(*samples, env={**synthetic.ENV, "host": host}, **more)


def test_a_column_of_which_no_record_says_anything_is_not_called_unknown():
    with pytest.raises(InputError, match="--by gpu: no step here says its gpu"):
        by_column([("", [synthetic.measured(synthetic.workloads()[0])])], "gpu")


def test_each_level_stands_against_the_first_or_the_one_that_is_told():
    records = [on_host("n1", 0.1), on_host("n2", 0.1), on_host("n3", 0.2), a_prediction(0.1)]
    found = by_column([("results", records)], "host")
    assert found.against == "n1"
    assert [(row["level"], row["pairs"]) for row in found.levels] == [("n2", 1), ("n3", 1)]
    assert [row["geometric_mean_ratio"] for row in found.levels] == pytest.approx([1, 2])
    assert [row["verdict"] for row in found.pairs] == ["same", "slower"]
    assert [(row["against"], row["level"]) for row in found.pairs] == [("n1", "n2"), ("n1", "n3")]
    assert {row["name"] for row in found.pairs} == {"fc batch 64"}  # the level is no part of it
    assert found.pairs[0]["differ"] == []
    told = by_column([("results", records)], "host", against="n3")
    assert [row["geometric_mean_ratio"] for row in told.levels] == pytest.approx([0.5, 0.5])


def test_levels_of_threads_options_dtypes_hyperparameters_folders_and_predictions():
    def record(step_s: float, platform: str, **options: Any) -> Record:
        method = replace(synthetic.TORCH, options={**synthetic.TORCH.options, **options})
        return a_measurement(step_s, platform=platform, method=method)

    eight, two, fused = (
        record(0.1, "cpu-8t", threads=8),
        record(0.3, "cpu-2t", threads=2),
        record(0.2, "cpu-8t", threads=8, compile=True),
    )
    # a platform's name may hold the threads: a single candidate is found all the same
    (pair,) = by_column([("", [eight, two])], "threads").pairs
    assert (pair["against"], pair["level"]) == ("2", "8")
    assert pair["ratio"] == pytest.approx(1 / 3)
    (pair,) = by_column([("", [eight, fused])], "compile").pairs
    assert (pair["against"], pair["level"], pair["ratio"]) == ("no", "yes", pytest.approx(2))
    half = replace(eight, workload=replace(FC, dtype="float16"))
    assert by_column([("", [eight, half])], "dtype").levels[0]["pairs"] == 1
    deep = replace(eight, workload=replace(FC, params={"layers": 8}))
    (pair,) = by_column([("", [deep, eight])], "layers").pairs
    assert (pair["against"], pair["level"], pair["name"]) == ("4", "8", "fc batch 64")
    wide = replace(eight, workload=replace(FC, batch_per_replica=128))
    (pair,) = by_column([("", [wide, eight])], "batch").pairs
    assert (pair["against"], pair["level"], pair["name"]) == ("64", "128", "fc")
    (pair,) = by_column([("old", [eight]), ("new", [fused])], "folder").pairs
    assert (pair["against"], pair["level"], pair["differ"]) == ("old", "new", ["compile no | yes"])
    other = replace(a_prediction(0.4), method=RecordMethod("paleo", "1"))
    (pair,) = by_column([("", [a_prediction(0.1), other, eight])], "predicted_by").pairs
    assert (pair["against"], pair["level"], pair["ratio"]) == ("roofline", "paleo", 4)


def test_what_differs_inside_a_pair_is_said(tmp_path, capsys):
    one, two = (replace(synthetic.TORCH, options={"threads": n, "gpu": "p100"}) for n in (1, 2))
    far = replace(one, options={"threads": 1, "staging": "local"})
    records = [on_host("n1", 0.1, method=one), on_host("n2", 0.2, method=two, platform="h100")]
    with store.open_writer(tmp_path) as writer:
        writer.append_all([*records, on_host("n3", 0.2, method=far, platform="t4")])
    assert run(["compare", str(tmp_path), "--by", "platform"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "host n1 | n2, threads 1 | 2" in said
    assert "host n1 | n3, gpu p100 | -, staging - | local" in said


@pytest.mark.parametrize("command", ["compare", "analyse speedup"])
def test_more_rows_than_are_held_are_written_as_few_are(command, tmp_path, capsys, monkeypatch):
    far = RecordMethod("torch", "2.13.0", {"threads": 2, "gpu": "p\"'100"})
    records = [
        on_host(f"n{at}", 0.1 * batch + at, workload=replace(FC, batch_per_replica=batch))
        for batch in (1, 2, 4)
        for at in (1, 2, 3)
    ]
    with store.open_writer(tmp_path) as writer:
        writer.append_all([*records, on_host("n4", 0.2, method=far)])
    asked = [
        [*command.split(), str(tmp_path), "--by", "host", "--format", form]
        for form in ("json", "csv")
    ]

    def answers() -> list[str]:
        assert [run(words) for words in asked] == [0, 0]
        return capsys.readouterr().out.split("\nname,")

    few = answers()
    monkeypatch.setattr(pair_rows, "MAX_ROWS_IN_MEMORY", 1)
    monkeypatch.setattr(pair_rows, "CHUNK_ROWS", 2)
    many = answers()
    assert json.loads(few[0]) == json.loads(many[0])
    assert few[1] == many[1]
    names, *pairs = (line.split(",") for line in few[1].splitlines())
    assert len(pairs) == 6
    if command == "compare":
        assert names[-6:] == ["a", "b", "ratio", "ratio_low", "ratio_high", "verdict"]
        for *_, a, b, ratio, _low, _high, _verdict in pairs:  # plain numbers
            assert float(ratio) == pytest.approx(float(b) / float(a))


def test_many_pairs_are_made_anew_on_each_pass(tmp_path, monkeypatch):
    with store.open_writer(tmp_path) as writer:
        writer.append_all(synthetic.sweep())
    few = steptime.compare(tmp_path, by="batch")
    assert len(few.rows) > 3
    monkeypatch.setattr(pair_rows, "MAX_ROWS_IN_MEMORY", 2)
    monkeypatch.setattr(pair_rows, "CHUNK_ROWS", 3)
    monkeypatch.setattr(compare_answer, "MAX_PRINTED_PAIRS", 3)
    many = steptime.compare(tmp_path, by="batch")
    assert isinstance(few.rows, tuple)
    assert isinstance(many.rows, LazySequence)
    assert many.rows[1:3] == [*many.rows][1:3]
    assert many.rows[-1] == few.rows[-1]
    assert many.to_dict() == many.to_dict() == few.to_dict()
    hidden = len(many.rows) - 3
    assert f"... and {hidden} more; --json has all" in str(many)
