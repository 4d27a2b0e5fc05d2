"""The TPU compiler, which needs no TPU, counts what we count: FLOP, bytes and memory of a step."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.jax, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "benchmarks/tpu_compile.py"


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("libtpu", reason="needs the TPU compiler: pip install libtpu")
    spec = importlib.util.spec_from_file_location("tpu_compile", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_loops(graph: Any) -> int:
    """FLOP of all steps of recurrent layers but one: XLA counts the body of a loop once."""
    left_out = 0
    for op in graph.ops:
        if op.kind == "lstm":
            x, _, w_hh = (graph.tensors[name].shape for name in op.inputs[:3])
            # a step: the state's product, its gradient, and that of the weights
            left_out += (x[1] - 1) * 3 * 2 * x[0] * w_hh[0] * w_hh[1]
    return left_out


RATIOS = {  # TPU compiler / ours: of FLOP, of bytes, of memory
    "fc": ((0.98, 1.05), (1.0, 2.0), (0.8, 1.1)),
    # dropout draws its mask, and what lies in the padding of a map is not counted
    "deep_mnist": ((0.95, 1.1), (1.0, 4.0), (0.3, 1.2)),
    # arrays are padded to tiles of 8 x 128, and a loop writes its slices whole
    "rnn": ((0.95, 1.1), (1.0, 6.0), (0.2, 1.1)),
    # temporaries lie in the vector memory of a core where they fit, and not in its HBM
    "transformer": ((0.98, 1.1), (1.0, 2.0), (0.2, 1.1)),
}


@pytest.mark.parametrize("name", RATIOS)
def test_the_tpu_compiler_counts_what_we_count(script, name):
    (model,) = (model for model in script.MODELS if model.startswith(f"{name}:"))
    compiled, graph = script.compiled_for("v5e:2x2", model)
    theirs, ours = script.measured(compiled), script.ours(graph)
    ours["flop"] -= of_loops(graph)
    for quantity, (low, high) in zip(theirs, RATIOS[name], strict=True):
        assert low < theirs[quantity] / ours[quantity] < high, quantity
    # what is there in any case: weights, twice where they are not donated, and inputs
    least = sum(graph.tensors[n].size_bytes for n in (*graph.weights, *graph.inputs))
    assert theirs["memory_bytes"] >= least
