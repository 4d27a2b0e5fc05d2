"""Which hyperparameters matter: weights against numpy by hand, known effects, failed cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import synthetic
from every import every
from steptime.analysis.analyses import analysis
from steptime.analysis.sensitivities import regression
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.workload import Workload
from steptime.records.data import Data
from steptime.records.readers import read_path
from steptime.records.record import Quantity, Record, RecordMethod

ONE = analysis("sensitivity")
LAYERS, NODES, BATCHES = (2, 4, 8), (32, 64, 128, 256), (16, 64, 256)
Speed = Callable[[int, int, int], float | None]


def cells(speed: Speed, platform: str = "a", dtype: str = "float32", **more: Any) -> list[Record]:
    """Return a record for each network of a grid; one without a speed failed."""
    found = []
    for layers, nodes, batch in product(LAYERS, NODES, BATCHES):
        made = speed(layers, nodes, batch)
        params = {"layers": layers, "nodes": nodes, "inputs": 7, **more}
        found.append(
            Record(
                origin="published",
                method=RecordMethod("theirs", "1", {}),
                workload=Workload("fc", params, batch, dtype=dtype),
                platform=platform,
                quantities={}
                if made is None
                else {"published_flop_per_s": Quantity(made), "step_s": Quantity(batch / made)},
                status="ok" if made is not None else "oom",
            )
        )
    return found


def power(layers: int, nodes: int, batch: int) -> float:
    """Return a speed that a doubling of nodes doubles, of batch multiplies by 1.41."""
    return 1e9 * nodes * batch**0.5


def summary_of(records: Sequence[Record], **settings: Any) -> Mapping[str, Any]:
    return ONE.answer(Data.from_records(records), **settings).summary


def by_name(records: list[Record], **settings: Any) -> dict[str, Mapping[str, Any]]:
    return {
        row["hyperparameter"]: row
        for row in ONE.answer(Data.from_records(records), **settings).rows
    }


@every("scale", ["linear", "log"])
@every("order", [1, 2])
def test_weights_are_those_of_least_squares_on_z_scores(scale, order):
    rng = np.random.default_rng(1)
    noise = {key: rng.normal() for key in product(LAYERS, NODES, BATCHES)}

    def speed(layers: int, nodes: int, batch: int) -> float:
        return 1e6 * (nodes + 30 * layers + 0.3 * batch) * 2 ** noise[layers, nodes, batch]

    grid = np.array(list(product(LAYERS, NODES, BATCHES)), float)
    y = np.array([speed(*map(int, row)) for row in grid])
    if scale == "log":
        grid, y = np.log(grid), np.log(y)
    z = (grid - grid.mean(0)) / grid.std(0)
    names = ["layers", "nodes", "batch"]
    told, columns = list(names), [z]
    if order == 2:
        for i in range(3):
            for j in range(i, 3):
                name = f"{names[i]} x {names[j]}" if i != j else f"{names[i]}^2"
                told.append(name)
                columns.append((z[:, i] * z[:, j])[:, None])
    x = np.hstack(columns)
    x = (x - x.mean(0)) / x.std(0)
    target = (y - y.mean()) / y.std()
    by_hand, *_ = np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), target, rcond=None)
    r2 = 1 - ((target - np.column_stack([np.ones(len(x)), x]) @ by_hand) ** 2).sum() / len(y)

    found = summary_of(cells(speed), scale=scale, order=order)
    assert found["r2"] == pytest.approx(r2, abs=1e-9)
    weights = {name: found["weights"][name] for name in told}
    assert weights == pytest.approx(dict(zip(told, by_hand[1:], strict=True)), abs=1e-9)


def test_a_power_law_is_told_exactly():
    rows = by_name(cells(power), scale="log")
    assert rows["nodes"]["effect_ratio"] == pytest.approx(2)
    assert rows["nodes"]["effect_pairs"] == 3 * 3 * 3  # steps of nodes x layers x batches
    assert rows["batch"]["effect_ratio"] == pytest.approx(2**0.5)
    assert rows["layers"]["effect_ratio"] == pytest.approx(1)
    assert rows["layers"]["importance"] == pytest.approx(0, abs=1e-9)
    # the variance of log2(nodes) is 1.25, of log2(batch) / 2 it is 2/3
    assert rows["nodes"]["weight"] == pytest.approx((1.25 / (1.25 + 2 / 3)) ** 0.5)
    found = summary_of(cells(power), scale="log")
    assert found["r2"] == pytest.approx(1)
    assert found["r2_cross_validated"] == pytest.approx(1)
    assert [one["ratio"] for one in found["curves"] if one["hyperparameter"] == "nodes"] == (
        pytest.approx([1, 2, 4, 8])
    )


def test_an_effect_beyond_any_number_is_unknown():
    """From 1e-99 to 1e99 with the eighth of a doubling: 2 ** (8 * 658)."""
    near = {2: 1.0, 4: 2**0.125, 8: 2**0.25}
    found = cells(lambda layers, _, __: 10.0 ** (99 * (layers - 4) / 4))
    steep = [
        replace(one, workload=replace(one.workload, params={**one.workload.params, "layers": x}))
        for one in found
        if (x := near[int(one.workload.params["layers"])])
    ]
    assert by_name(steep)["layers"]["effect_ratio"] is None


def test_what_never_varies_has_no_weight_and_is_said():
    table = ONE.answer(Data.from_records(cells(power)))
    (row,) = (row for row in table.rows if row["hyperparameter"] == "inputs")
    assert row["weight"] is None
    assert row["note"] == "never varies"
    assert table.summary["never_varies"] == ["inputs"]
    assert "Never varies, so nothing is known of it: inputs." in ONE.describe(table)


def test_collinear_hyperparameters_are_said():
    records = [
        Record(
            origin="published",
            method=RecordMethod("theirs", "1", {}),
            workload=Workload("fc", {"nodes": n, "inputs": 3 * n}, batch),
            platform="a",
            quantities={"published_flop_per_s": Quantity(float(n * batch))},
        )
        for n in NODES
        for batch in BATCHES
    ]
    rows = by_name(records)
    assert rows["inputs"]["weight"] is None
    assert rows["inputs"]["note"] == "collinear with nodes"
    assert rows["nodes"]["weight"] > 0


def test_texts_are_held_against_the_most_frequent_of_them():
    records = [*cells(power), *cells(power)[:0]]
    records += cells(lambda *at: power(*at) * 3, dtype="bfloat16")[:20]
    rows = by_name(records, scale="log")
    assert rows["dtype=bfloat16"]["effect_ratio"] == pytest.approx(3)
    assert rows["dtype=bfloat16"]["effect_of"] == "having it"
    assert rows["dtype=bfloat16"]["note"] == "against float32"


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(7)
    truth, hits = 0.6, 0
    for _ in range(60):
        x = rng.normal(size=(80, 2))
        y = truth * x[:, 0] + (1 - truth**2) ** 0.5 * rng.normal(size=80)
        fit = regression.fit_columns(x, y, 400)
        assert fit.low is not None
        assert fit.high is not None
        hits += fit.low[0] <= truth <= fit.high[0]
    assert hits >= 52  # of 57 expected


def test_failed_cells_are_told_by_what_makes_them_fail():
    def speed(layers: int, nodes: int, batch: int) -> float | None:
        return None if nodes == 256 and layers > 2 else power(layers, nodes, batch)

    table = ONE.answer(Data.from_records(cells(speed)))
    by = {one["hyperparameter"]: one for one in table.summary["failures"]}
    assert table.summary["failed"] == 6
    assert by["nodes"]["failed_share"] == {"32": 0, "64": 0, "128": 0, "256": pytest.approx(2 / 3)}
    assert by["nodes"]["depends"] is True
    assert by["batch"]["depends"] is False
    said = " ".join(ONE.describe(table))
    assert "6 of 36 cells failed, not at random but by nodes (0 % at 32, 66.7 % at 256)" in said
    assert "medians by nodes are over survivors" in said
    row = next(row for row in table.rows if row["hyperparameter"] == "nodes")
    # the neighbours of a failed cell: half its nodes or two layers, at the same batch
    assert row["weight_if_failed_zero"] < row["weight_if_failed_low"] < row["weight"]
    assert row["weight_if_failed_high"] > row["weight_if_failed_low"]


def test_neighbours_differ_by_one_level_of_one_column():
    codes = np.array(list(product(range(3), range(3))))
    values = np.arange(9.0)
    values[[4, 5]] = np.nan
    low, high = regression.bound_by_neighbours(codes, values, [4, 0])
    assert (low[0], high[0]) == (1, 7)  # of 1, 3 and 7; 5 failed
    assert (low[1], high[1]) == (1, 3)


def test_who_wins_and_what_decides_it():
    rng = np.random.default_rng(3)
    noise = {key: rng.normal() for key in product(LAYERS, NODES, BATCHES)}
    a = cells(power, "a", "bfloat16-mixed")
    b = cells(lambda *at: power(*at) * (at[2] / 64) * 4 ** noise[at], "b")
    table = ONE.answer(Data.from_records([*a, *b]), against="b", platform="a")
    wins = table.summary["wins"]
    assert table.summary["networks"] == 36  # paired whatever the dtype
    assert table.summary["quantity"] == "examples_per_s"
    assert wins["share"] == np.mean([(at[2] / 64) * 4 ** noise[at] < 1 for at in noise])
    assert wins["accuracy_share"] > wins["majority_share"]
    assert wins["ridge"] == 0
    row = next(row for row in table.rows if row["hyperparameter"] == "batch")
    assert row["win_high"] < 0
    again = ONE.answer(Data.from_records([*a, *b]), against="b", of="step_s")
    assert again.summary["weights"] == pytest.approx(table.summary["weights"])


def test_logistic_weights_maximise_the_likelihood():
    from scipy.optimize import minimize

    rng = np.random.default_rng(5)
    z = rng.normal(size=(200, 2))
    wins = (rng.random(200) < 1 / (1 + np.exp(-(z[:, 0] - 0.5)))).astype(float)

    def loss(w: Any) -> float:
        at = w[0] + z @ w[1:]
        return float(np.logaddexp(0, at).sum() - wins @ at)

    found = minimize(loss, np.zeros(3), method="BFGS")
    made, reach, _ = regression.fit_logistic(z, wins, 0.0)
    assert made == pytest.approx(found.x[1:], abs=1e-4)
    assert reach == pytest.approx(1.96 * np.sqrt(np.diag(found.hess_inv))[1:], rel=0.1)


def test_winners_that_a_plane_tells_apart_are_said_in_place_of_infinite_weights():
    b = cells(lambda *at: power(*at) * (2 if at[2] > 16 else 0.5), "b")
    table = ONE.answer(Data.from_records([*cells(power, "a"), *b]), against="b")
    assert table.summary["wins"]["separable"] is True
    assert table.summary["wins"]["ridge"] == regression.RIDGE
    assert "a ridge of 1 keeps weights finite" in " ".join(ONE.describe(table))
    always = [*cells(power, "a"), *cells(lambda *at: power(*at) / 2, "b")]
    table = ONE.answer(Data.from_records(always), against="b")
    assert "a wins 100 % of the networks: nothing decides it." in ONE.describe(table)


def test_families_have_a_regression_each_and_too_few_networks_have_none():
    data = Data.from_records(synthetic.sweep())
    table = ONE.answer(data)
    regressions = [table.summary, *table.summary["others"]]
    assert {one["family"] for one in regressions} == {"fc", "cnn", "rnn", "transformer"}
    assert table.summary["too_few"] == []
    alone = [one for one in synthetic.sweep() if one.workload.model == "transformer"]
    few = ONE.answer(Data.from_records(alone), order=2)
    assert not few.rows
    (line,) = ONE.describe(few)
    assert line.startswith("Fewer networks than weights, so no regression: transformer on")
    assert line.endswith("(4 networks).")
    with pytest.raises(InputError, match="nothing to draw"):
        ONE.draw(few)


def test_an_overfit_is_seen():
    rng = np.random.default_rng(11)
    noise = {key: rng.normal() for key in product(LAYERS, NODES, BATCHES)}
    found = summary_of(cells(lambda *at: 1e9 * 2 ** noise[at]), order=2)
    assert found["r2"] > 0.2 > found["r2_cross_validated"]


def test_wrong_settings():
    data = Data.from_records([*cells(power, "a"), *cells(power, "b"), *cells(power, "c")])
    for settings, message in (
        ({"order": 3}, "--order: must be 1 or 2, not 3"),
        ({"scale": "lgo"}, "unknown scale 'lgo'; did you mean 'log'"),
        ({"of": "published_flop"}, "unknown quantity 'published_flop'"),
        ({"of": "nodes"}, "unknown quantity 'nodes'"),
        ({"on": "node"}, "unknown hyperparameter 'node'; did you mean 'nodes'?"),
        ({"platform": "d"}, "unknown platform 'd'"),
        ({"against": "b"}, "--against b: name another with --platform (a, c)"),
        ({"against": "b", "platform": "b"}, "--against b: name another"),
    ):
        with pytest.raises(InputError) as error:
            ONE.answer(data, **settings)
        assert message in str(error.value)


@pytest.mark.slow
def test_the_published_weights(shared):
    tpu, gpu = (
        read_path(shared / "paradnn" / f"{name}_fc.json.gz").records for name in ("tpu", "gpu")
    )
    found = summary_of(tpu)
    weights = {name: found["weights"][name] for name in ("layers", "nodes", "batch")}
    assert found["quantity"] == "published_flop_per_s"
    assert weights == pytest.approx({"layers": 0.1228, "nodes": 0.4655, "batch": 0.4725}, abs=1e-3)
    assert found["r2"] == pytest.approx(0.429, abs=1e-3)
    assert (found["networks"], found["failed"]) == (1724, 220)

    found = summary_of([*tpu, *gpu], against="v100-sxm2-16gb")
    weights = {name: found["weights"][name] for name in ("layers", "nodes", "batch")}
    assert weights == pytest.approx(
        {"layers": -0.1299, "nodes": -0.4985, "batch": 0.6020}, abs=1e-3
    )
    assert found["r2"] == pytest.approx(0.580, abs=1e-3)
    assert found["networks"] == 176
    assert found["never_varies"] == ["inputs", "outputs"]
    assert found["weights"]["inputs"] is None
    failed = {one["hyperparameter"]: one for one in found["failures"]}
    assert max(failed["layers"]["failed_share"], key=failed["layers"]["failed_share"].get) == "16"


@pytest.mark.slow
def test_the_picture(tmp_path):
    from steptime.reports.files import save

    for settings in ({}, {"order": 2, "scale": "log"}):
        spec = ONE.draw(ONE.answer(Data.from_records(synthetic.sweep()), **settings))
        json.dumps(spec, allow_nan=False)
        save(spec, tmp_path / "x.svg")
        svg = (tmp_path / "x.svg").read_text()
        assert "weight (standard deviations)" in svg
        assert "batch" in svg


@pytest.mark.parametrize(("of", "doubles"), [("published_flop_per_s", 2.0), ("step_s", 2.0)])
def test_against_is_above_1_where_the_platform_is_better(of, doubles):
    """`a` is nodes / 64 as fast as `b`: per doubling of nodes the ratio doubles, of time too.

    Rates of a over b: nodes / 64 = 1/2, 1, 2, 4; times b over a: the same. a wins where it is
    above 1: nodes 128 and 256 of four, one half; were a direction wrong, it would be one quarter.
    """
    a = cells(lambda *at: power(*at) * at[1] / 64, "a")
    b = cells(power, "b")
    data = Data.from_records([*a, *b])
    table = ONE.answer(data, against="b", platform="a", of=of, scale="log")
    row = next(row for row in table.rows if row["hyperparameter"] == "nodes")
    assert table.summary["wins"]["share"] == 0.5
    assert row["weight"] == pytest.approx(1.0)  # nodes explain all of the ratio
    assert row["effect_ratio"] == pytest.approx(doubles)
    turned = ONE.answer(data, against="a", platform="b", of=of, scale="log")
    other = next(row for row in turned.rows if row["hyperparameter"] == "nodes")
    assert turned.summary["wins"]["share"] == 0.25
    assert other["effect_ratio"] == pytest.approx(1 / doubles)
