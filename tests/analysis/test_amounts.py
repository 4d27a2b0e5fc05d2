"""What many pairs amount to, against the rows of these pairs and the standard library."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest

import synthetic
from steptime.analysis.analyses import analysis
from steptime.analysis.comparison.watch import find_changes
from steptime.core.copying import replace
from steptime.records.data import Data
from steptime.records.record import Record
from told import by_column, predicted_and_measured, two_folders


def folder(seed: int) -> list[Record]:
    """Return predictions and measurements of some networks on some hosts, in any order."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    found = []
    for workload in draw.sample(synthetic.workloads(), 5):
        found += synthetic.predicted(workload)
        for host in draw.sample(["zeta", "alpha", "n1"], draw.randint(1, 3)):
            record = synthetic.measured(
                workload, runs=draw.choice((1, 3)), slower=draw.choice((0.4, 1, 3)), seed=host
            )
            if draw.random() < 0.1:
                record = replace(record, quantities={}, status="oom", cause="killed")
            found.append(replace(record, env={**record.env, "host": host}))
    draw.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_levels_errors_and_groups_follow_from_their_pairs(seed):
    records = folder(seed)
    levels = by_column([("a", records)], "host")
    for told in levels.levels:
        mine = [row for row in levels.pairs if row["level"] == told["level"]]
        ratios = [row["ratio"] for row in mine]
        words = Counter(row["verdict"] for row in mine)
        assert told["pairs"] == len(mine)
        assert {word: told[word] for word in ("faster", "slower", "same", "unsure")} == {
            word: words[word] for word in ("faster", "slower", "same", "unsure")
        }
        if mine:
            assert told["geometric_mean_ratio"] == pytest.approx(statistics.geometric_mean(ratios))
            assert told["median_ratio"] == pytest.approx(statistics.median(ratios))
            assert (told["min_ratio"], told["max_ratio"]) == (min(ratios), max(ratios))

    both = predicted_and_measured(records)
    ratios = [row["ratio"] for row in both.pairs]
    off = both.found.summary()
    assert off["median_error"] == pytest.approx(statistics.median(abs(1 / r - 1) for r in ratios))
    assert off["within_factor_2"] == sum(0.5 <= r <= 2 for r in ratios) / len(ratios)
    farthest = sorted(ratios, key=lambda ratio: -max(ratio, 1 / ratio))
    assert [row["ratio"] for row in off["worst"]] == farthest[:3]

    errors = analysis("errors").answer(Data.from_records(records)).rows
    assert sum(row["pairs"] for row in errors) == len(ratios)
    numbers = analysis("results").answer(Data.from_records(records)).summary["prediction"]
    for name in ("pairs", "median_error", "geometric_mean_ratio", "within_factor_2"):
        assert numbers[name] == pytest.approx(off[name])
    assert [row["ratio"] for row in numbers["worst"]] == pytest.approx(farthest[:3])

    folders = two_folders(records, folder(seed)[::2])
    by_family: dict[str, list[float]] = {}
    for row in folders.pairs:
        if row["verdict"] is not None:
            by_family.setdefault(row["family"], []).append(row["ratio"])
    groups = {row.group: row for row in find_changes(folders.found).groups}
    assert {name: row.pairs for name, row in groups.items()} == {
        name: len(some) for name, some in by_family.items()
    }
    for name, some in by_family.items():
        mean = statistics.geometric_mean(some)
        assert groups[name].geometric_mean_ratio == pytest.approx(mean)
