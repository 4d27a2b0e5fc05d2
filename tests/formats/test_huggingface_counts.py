"""Small configurations of types: parameters and FLOP as transformers and torch count them.

Each class was built on the device `meta` by transformers 5.24 and ran under torch 2.13's
`FlopCounterMode` with a batch of 2; products are what that counter sees.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from every import every
from steptime.build import build, make_workload, read_model
from steptime.network.count import count
from steptime.network.ops import OPS

BATCH = 2
TOLERANCE = 0.01  # relative: torch counts the padding of a convolution that is cut off again


class Case(NamedTuple):
    """A configuration, what stands behind the file, and both counts."""

    table: dict[str, Any]
    settings: str
    parameters: int
    flop: int


def _cases() -> list[Case]:
    """Return the cases of a file of one object a line."""
    path = Path(__file__).with_name("huggingface_counts.jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [Case(row["config"], row["settings"], row["parameters"], row["flop"]) for row in rows]


CASES = _cases()


@every("case", CASES)
def test_both_count_the_same(case, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(case.table), encoding="utf-8")
    text = f"{path}:{case.settings}" if case.settings else str(path)
    graph = build(make_workload(read_model(text), BATCH, phase="infer"))
    flop = sum(op.flop for op in count(graph).ops if OPS[op.kind].work)
    assert graph.parameters == case.parameters
    assert abs(flop - case.flop) <= TOLERANCE * case.flop
    trained = build(make_workload(read_model(text), BATCH, phase="train"))
    assert trained.parameters == case.parameters
