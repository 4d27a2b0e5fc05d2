"""The breakdown: shares by hand, published profiles, and which record of an op counts."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl
import pytest

from steptime.analysis.analyses import analysis
from steptime.analysis.breakdown_cells import NO_OP_NAME, sum_groups
from steptime.core.copying import replace
from steptime.core.tables.table import Table
from steptime.core.workload import Workload
from steptime.records.data import Data
from steptime.records.frames.frame_columns import SCHEMA
from steptime.records.readers import read_path
from steptime.records.record import NO_OP, Quantity, Record, RecordMethod
from steptime.reports.charts import draw


def _record(scope: str, origin: str = "measured", kind: str = "", **values: float) -> Record:
    name = {"measured": "torch-profiler" if scope else "torch", "predicted": "roofline"}[origin]
    options = {"peak_flop_per_s": 1e3} if origin == "predicted" else {"threads": 1}
    return Record(
        origin=origin,
        method=RecordMethod(name, "1", options),
        workload=Workload("net", {"width": 8}, 4),
        platform="t4",
        quantities={key: Quantity(value) for key, value in values.items()},
        scope=scope,
        env={"op_kind": kind} if kind else {},
        taken_at="2026-01-01T00:00:00+00:00",
    )


def _op(scope: str, kind: str, forward: float, backward: float, **more: float) -> Record:
    times = {"forward_s": forward, "backward_s": backward, "update_s": 0.0}
    return _record(scope, kind=kind, **times, step_s=forward + backward, **more)


MEASURED = [
    _record("", step_s=10.0),
    _op("a/linear", "linear", 2, 3),
    _op("b/linear", "linear", 1, 1),
    _op("b/relu", "relu", 0.5, 0.5),
    _record("optimizer", kind="optimizer", forward_s=0, backward_s=0, update_s=1, step_s=1),
    _record(NO_OP, kind=NO_OP, step_s=3.0),
]
PREDICTED = [
    _record("", "predicted", step_s=8.0),
    _record("a/linear", "predicted", "linear", forward_s=1, backward_s=2, update_s=0.5, step_s=3.5,
            flop=600, forward_flop=200, traffic_bytes=50),
    _record("b/linear", "predicted", "linear", forward_s=1, backward_s=1, update_s=0.5, step_s=2.5,
            flop=300, forward_flop=100, traffic_bytes=50),
    _record("b/relu", "predicted", "relu", forward_s=0.5, backward_s=0.5, update_s=0, step_s=1,
            flop=100, forward_flop=50, traffic_bytes=100),
]  # fmt: skip


def _table(records: list[Record], **settings: object) -> Table:
    return analysis("breakdown").answer(Data.from_records(records), **settings)


def _by_name(table: Table) -> dict[str, dict[str, object]]:
    return {row["name"]: dict(row) for row in table.rows}


def test_the_step_is_that_of_all_samples_and_of_the_last_prediction():
    def measured(*samples: float) -> Record:
        return replace(MEASURED[0], quantities={"step_s": Quantity(samples=samples)})

    steps = [measured(9.0, 9.0, 9.0, 9.0, 12.0), measured(12.0)]  # together 9, of medians 10.5
    early = replace(PREDICTED[0], quantities={"step_s": Quantity(16.0)})
    data = Data.from_records([*steps, *MEASURED[1:], early, *PREDICTED])
    rows = _by_name(analysis("breakdown").answer(data))
    assert rows["linear"]["measured_share"] == pytest.approx(7 / 9)
    assert rows["linear"]["predicted_share"] == pytest.approx(5 / 8)
    assert data.results[0]["measured_s"] == 9.0  # as results has it


def test_shares_measured_beside_predicted_by_hand():
    table = _table([*MEASURED, *PREDICTED])
    rows = _by_name(table)
    assert list(rows) == ["linear", "relu", "update", NO_OP_NAME]
    linear = rows["linear"]
    assert (linear["measured_s"], linear["predicted_s"]) == (7, 5)
    assert linear["measured_share"] == pytest.approx(0.7)  # 7 of 10
    assert linear["predicted_share"] == pytest.approx(5 / 8)
    assert linear["ratio"] == pytest.approx(7 / 5)
    assert linear["flop_share"] == pytest.approx(0.9)
    assert linear["bytes_share"] == pytest.approx(0.5)
    assert linear["intensity_flop_per_byte"] == pytest.approx(9)
    assert linear["peak_fraction"] == pytest.approx(900 / 7 / 1000)
    assert linear["predicted_peak_fraction"] == pytest.approx(900 / 5 / 1000)
    assert linear["ops"] == 2
    assert (rows["update"]["measured_s"], rows["update"]["predicted_s"]) == (1, 1)
    assert (rows[NO_OP_NAME]["measured_s"], rows[NO_OP_NAME]["predicted_s"]) == (1, 1)
    assert rows[NO_OP_NAME]["measured_share"] == pytest.approx(0.1)  # 9 of 10 are of ops
    assert table.summary["profiling_overhead_share"] == pytest.approx(0.2)  # 12 s, not 10 s
    for side in ("measured_share", "predicted_share"):
        assert sum(row[side] for row in table.rows) == pytest.approx(1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("by", "shares"),
    [
        ("layer", {"a": 0.5, "b": 0.3, "update": 0.1, NO_OP_NAME: 0.1}),
        ("op", {"a/linear": 0.5, "b/linear": 0.2, "b/relu": 0.1, "update": 0.1, NO_OP_NAME: 0.1}),
    ],
)
def test_by_layer_and_op(by, shares):
    rows = _by_name(_table([*MEASURED, *PREDICTED], by=by))
    assert {name: row["measured_share"] for name, row in rows.items()} == pytest.approx(shares)


def test_ops_slower_than_the_step_without_profiler_are_of_the_profiled_one():
    table = _table([_record("", step_s=5.0), *MEASURED[1:]])
    assert table.summary["of_profiled_step"] == 1
    assert _by_name(table)["linear"]["measured_share"] == pytest.approx(7 / 12)


def test_several_networks_count_the_same_and_zero_where_they_lack_the_op():
    from steptime.core.copying import replace

    other = [
        replace(one, workload=Workload("net", {"width": 9}, 4))
        for one in (_record("", step_s=100.0), _op("a/linear", "linear", 100, 0))
    ]
    table = _table([*MEASURED, *other])
    assert _by_name(table)["linear"]["measured_share"] == pytest.approx((0.7 + 1) / 2)
    assert _by_name(table)["relu"]["measured_share"] == pytest.approx(0.05)
    each = _table([*MEASURED, *other], by_network=True, model="width 9")
    assert {row["name"]: row["measured_share"] for row in each.rows} == {
        "linear": 1.0,
        NO_OP_NAME: 0.0,
    }
    moved = [replace(one, platform="elsewhere") for one in MEASURED]
    said = analysis("breakdown").describe(_table([*MEASURED, *moved]))
    assert "linear (elsewhere) " in said[0]
    assert said[0].startswith("Of the measured step in the mean of 2 networks: ")


def _other(records: list[Record], width: int = 9) -> list[Record]:
    """Return records as those of another network."""
    return [replace(record, workload=Workload("net", {"width": width}, 4)) for record in records]


def test_networks_with_ops_on_one_side_alone_are_not_mixed_with_others():
    alone = _table([*MEASURED, *PREDICTED])
    mixed = _table([*MEASURED, *PREDICTED, *_other(PREDICTED), *_other(MEASURED[:1])])
    assert [dict(row) for row in mixed.rows] == [dict(row) for row in alone.rows]
    assert mixed.summary["omitted_networks"] == 1
    assert "1 network with ops measured or predicted alone left out: --by-network shows them." in (
        analysis("breakdown").describe(mixed)
    )
    each = _table([*MEASURED, *PREDICTED, *_other(PREDICTED)], by_network=True)
    assert {row["network"] for row in each.rows} == {
        "net width 8, batch 4",
        "net width 9, batch 4",
    }


def test_strategies_of_one_network_are_not_one_row():
    def exchanged_by(records: list[Record]) -> list[Record]:
        options = {"threads": 1, "strategy": "allreduce"}
        return [
            replace(record, method=replace(record.method, options=options)) for record in records
        ]

    table = _table([*MEASURED, *exchanged_by(MEASURED)], by_network=True, by="layer")
    assert {row["network"].rpartition(", ")[2] for row in table.rows} == {
        "no strategy",
        "allreduce",
    }


def test_a_share_of_the_peak_is_of_the_networks_that_have_the_op_on_both_sides():
    without_relu = [record for record in MEASURED if record.scope != "b/relu"]
    faster = [
        replace(record, method=RecordMethod("roofline", "1", {"peak_flop_per_s": 4e3}))
        for record in _other(PREDICTED)
    ]
    rows = _by_name(_table([*MEASURED, *PREDICTED, *_other(without_relu), *faster]))
    assert rows["relu"]["peak_fraction"] == pytest.approx(100 / 1000)  # of the first network alone
    assert rows["linear"]["peak_fraction"] == pytest.approx(1800 / (7 * 1000 + 7 * 4000))


def test_the_last_prediction_counts():
    from steptime.core.copying import replace

    later = [
        replace(one, taken_at="2026-02-01T00:00:00+00:00", method=RecordMethod("analytic", "1", {}))
        for one in PREDICTED[:2]
    ]
    assert _by_name(_table([*PREDICTED, *later]))["linear"]["ops"] == 1


def test_a_peak_or_a_share_that_is_no_number_is_unknown():
    wrong = [
        replace(one, method=RecordMethod("roofline", "1", {"peak_flop_per_s": "x"}))
        for one in PREDICTED
    ]
    assert {row["peak_fraction"] for row in _table(MEASURED + wrong).rows} == {None}
    empty = replace(_op("c", "linear", 1, 1), quantities={"published_flop_share": Quantity()})
    assert _table([*MEASURED, replace(empty, origin="published")]).rows


def test_rows_are_of_each_op_where_asked():
    rows = _table([*MEASURED, *PREDICTED], by="op").rows
    assert [row["name"] for row in rows] == ["a/linear", "b/linear", "b/relu", "update", NO_OP_NAME]


def test_pictures_of_one_network_and_of_several():
    one = draw("breakdown", [*MEASURED, *PREDICTED])
    boxes = one["data"]["values"]
    assert {"measured step", "predicted step"} <= {box["op"] for box in boxes}
    inner = [box for box in boxes if box["level"] == 1]
    assert [box["op"] for box in inner] == ["forward", "backward", "update"]
    assert inner[1]["from"] == pytest.approx(0.35)
    assert inner[0]["to"] == pytest.approx(0.35, abs=2e-3)  # with a gap to the next


def test_op_time_of_published_profiles(shared):
    records = read_path(shared / "paradnn/fc_trace_10sec_opbreakdown.json.gz").records
    table = _table(records)
    rows = _by_name(table)
    said = {"infeed": 0.2731, "output fusion": 0.1816, "cross-replica-sum": 0.1599}
    for name, share in said.items():
        assert rows[name]["measured_share"] == pytest.approx(share, abs=5e-5)
    assert "while" not in rows
    # another way: the mean over networks of what the files say, in plain Python
    sums: dict[str, float] = defaultdict(float)
    for record in records:
        sums[record.scope] += record.quantities["published_time_share"].value or 0.0
    networks = len({record.workload.key for record in records})
    for name, row in rows.items():
        if name != NO_OP_NAME:
            assert row["measured_share"] == pytest.approx(sums[name] / networks)
    assert rows["output fusion"]["peak_fraction"] < 1  # type: ignore[operator]
    assert draw("breakdown", records)["data"]["values"]


def test_sums_of_many_ops_are_the_same_bits_again():
    """Sums inside of Polars' `group_by` add in the order in which threads end."""
    count = 60_000
    times = np.random.default_rng(1).uniform(0.1, 1.0, count)
    values = {
        "scope": [f"op {at}" for at in range(count)],
        "op_kind": [f"kind {at % 15}" for at in range(count)],
        **dict.fromkeys(("forward_s", "backward_s", "update_s"), times),
        **dict.fromkeys(("workload_key", "platform", "method", "method_options"), "same"),
        "origin": "predicted",
        "env": "{}",
    }
    columns = [
        pl.Series(name, values[name], dtype=kind).alias(name)
        if isinstance(values.get(name), list | np.ndarray)
        else pl.repeat(values.get(name), count, dtype=kind, eager=True).alias(name)
        for name, kind in SCHEMA.items()
    ]
    records = pl.DataFrame(columns).lazy()
    first, *again = [sum_groups(records, "kind") for _ in range(4)]
    assert all(sums.equals(first) for sums in again)
