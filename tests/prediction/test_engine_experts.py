"""Layers of experts of one rank by the kernels of engines, under expert parallelism."""

import numpy as np
import pytest

from steptime import evaluate, predict_op
from steptime.calibration.cases import op_kernels
from steptime.calibration.one_op import KernelTime
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.prediction import cost_model
from steptime.prediction.calibrated.stream import stream
from steptime.prediction.kernel import Settings
from steptime.prediction.kernels import Kernels

# 400 rows of 200 tokens; 2 of 8 experts lie on a rank, which has 100 rows
SHAPES = ((200, 512), (200, 8), (2, 2 * 256, 512), (2, 512, 256))
ATTRS = {"per_token": 2, "activation": "swiglu", "expert": 4, "routing": "balanced"}


@pytest.mark.parametrize(
    ("stack", "dtype", "name", "is_moved"),
    [
        ("vllm-2026", "bfloat16", "h100", True),
        ("vllm-2026", "float8", "l40s", True),
        ("vllm-2026", "float8", "h100", False),  # FlashInfer's kernels leave them out
        ("vllm-2026", "bfloat16", "b200", False),
        ("sglang-2025", "float8", "h100", True),
        ("sglang-2025", "bfloat16", "b200", True),
        ("sglang-2025", "float4", "b200", False),  # no kernels of Triton
        ("trt-llm-2025", "bfloat16", "h100", False),
    ],
)
def test_triton_moves_the_rows_of_experts_on_other_ranks(stack, dtype, name, is_moved):
    settings = Settings(stack=stack)
    kernels = op_kernels("experts", SHAPES, ATTRS, dtype, settings=settings)
    groups = [rows for kernel in kernels for rows, _ in Kernels([kernel]).groups]
    (route,) = [group for group in groups if group.kind == "route"]
    # zeros of both products are written and read, and an activation of 256 is written
    remote_bytes = 300 * 2 * (2 * (512 + 512) + 256)
    assert float(route.figures[0][0]) == remote_bytes
    device = cost_model("calibrated").derate(catalog.device(name), "bfloat16", settings)
    no_bytes = np.zeros(1)
    operand_bytes = route.figures[1]
    variants = [
        route,
        route._replace(figures=(no_bytes, operand_bytes)),
        route._replace(bytes=route.bytes + remote_bytes, figures=(no_bytes, operand_bytes)),
    ]
    actual_s, local_s, all_s = (
        float(stream(rows, device, device.constants).memory_s[0]) for rows in variants
    )
    assert local_s < all_s
    assert actual_s == (all_s if is_moved else local_s)


def test_expert_parallelism_leaves_a_rank_its_share_of_rows_and_experts():
    def ask(ranks: int, **attrs: object) -> KernelTime:
        shapes = ((8192, 2048), (8192, 64), (64 // ranks, 1536, 2048), (64 // ranks, 2048, 768))
        named = {"per_token": 8, "activation": "swiglu", "expert": ranks, **attrs}
        return predict_op("experts", shapes, "bfloat16", "b200", named, stack="vllm")

    one, eight = ask(1), ask(8)
    assert one.assumed == eight.assumed == {"routing": "uniform"}
    assert eight.rank_load.rows == one.rank_load.rows / 8 == 8192
    assert 2 < one.seconds / eight.seconds < 8  # the call itself is not shared out
    skewed = ask(8, routing="power_law_1.2")
    assert not skewed.assumed
    assert skewed.rank_load.imbalance > 1.5
    assert skewed.seconds > 1.3 * eight.seconds
    assert "busiest rank" in skewed._repr_html_()
    assert "routing (assumed)" in eight._repr_html_()
    linear = predict_op("linear", ((64, 512), (512, 512)), "bfloat16", "b200")
    assert linear.rank_load is None
    assert not linear.assumed
    for attrs, message in (
        ({"expert": 4}, "on each of 4 ranks"),
        ({"routing": "even"}, "balanced"),
    ):
        with pytest.raises(InputError, match=message):
            ask(8, **attrs)


def test_a_measured_layer_of_a_rank_is_evaluated_with_its_kernels():
    row = {"kind": "experts", "shapes": SHAPES, "attrs": ATTRS, "dtype": "bfloat16"}
    answer = evaluate([{**row, "device": "h100", "stack": "vllm", "seconds": 1e-4}])
    predicted_s = predict_op("experts", SHAPES, "bfloat16", "h100", ATTRS, stack="vllm").seconds
    (worst,) = answer.to_dict()["worst"]
    assert [op["kind"] for op in worst["ops"]] == ["route", "experts"]
    assert sum(op["step_s"] for op in worst["ops"]) == pytest.approx(predicted_s, rel=0.05)
