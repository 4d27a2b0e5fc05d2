"""Small configurations of types: parameters and FLOP as transformers and torch count them.

Each class was built on the device `meta` by transformers 5.24 and ran under torch 2.13's
`FlopCounterMode` with a batch of 2; products are what that counter sees.
"""

from __future__ import annotations

import json
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


CASES = (
    Case(
        {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "num_hidden_layers": 3},
        "length=128",
        49_930_752,
        25_556_115_456,
    ),
    Case(
        {
            "model_type": "mamba",
            "architectures": ["MambaModel"],
            "num_hidden_layers": 3,
            "hidden_size": 1000,
            "time_step_rank": 48,
            "expand": 3,
        },
        "length=128",
        78_643_000,
        14_506_416_000,
    ),
    Case(
        {
            "model_type": "falcon_mamba",
            "architectures": ["FalconMambaForCausalLM"],
            "num_hidden_layers": 3,
        },
        "length=128",
        49_930_752,
        25_556_115_456,
    ),
    Case(
        {"model_type": "jamba", "architectures": ["JambaForCausalLM"], "num_hidden_layers": 8},
        "length=128",
        13_295_237_088,
        1_619_255_754_752,
    ),
    Case(
        {
            "model_type": "jamba",
            "architectures": ["JambaForCausalLM"],
            "num_hidden_layers": 4,
            "attn_layer_offset": 0,
            "num_experts": 1,
        },
        "length=128",
        1_599_419_232,
        681_944_678_400,
    ),
)


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
