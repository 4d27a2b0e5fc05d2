"""What a stack skips: scores outside of a window, experts that no token chose."""

import pytest

from steptime.core.graph import TensorSpec
from steptime.network.ops import cost_of
from steptime.network.ops.expert_loads import experts_read
from steptime.network.ops.sequence import share_in_window
from steptime.prediction.steps.step_model import StepModel


def _attention(length: int, keys: int, window: int, causal: bool) -> float:
    q, k = (TensorSpec((1, one, 8), "bfloat16") for one in (length, keys))
    return share_in_window(q, k, window, causal)


def test_a_window_leaves_what_its_places_see():
    assert _attention(4, 4, 2, causal=True) == (1 + 2 + 2 + 2) / 16
    assert _attention(4, 4, 2, causal=False) == (2 + 3 + 3 + 2) / 16
    assert _attention(4, 4, 9, causal=True) == (1 + 2 + 3 + 4) / 16
    assert _attention(4, 4, 9, causal=False) == 1
    assert _attention(1, 100, 10, causal=True) == 10 / 100  # a token beside a cache


def test_stacks_that_skip_a_window_execute_what_lies_in_it():
    def executed(stack: str) -> float:
        model = StepModel(
            "gpt_oss_20b:length=4096", "h100-sxm5", dtype="bfloat16", phase="infer",
            options={"stack": stack},
        )  # fmt: skip
        return sum(one.flop for one in model.lower_step().kernels if one.kind == "attention")

    whole = 4 * 4096**2 * 64 * 64  # of a layer, of 64 heads of 64
    seen = 4096 * 128 - 128 * 127 / 2  # scores of a head in a window of 128, in every other layer
    assert executed("torch-eager") == pytest.approx(24 * whole / 2)
    assert executed("vllm-2025") == pytest.approx(12 * whole / 2 + 12 * whole * seen / 4096**2)


def test_experts_are_read_that_a_token_is_expected_to_choose():
    assert experts_read(8, 2, 1) == 2
    assert experts_read(8, 2, 2) == 8 * (1 - 0.75**2)
    assert experts_read(256, 8, 32) == pytest.approx(163.3, abs=0.1)
    shapes = (1, 32, 4), (1, 32, 256), (256, 12, 4), (256, 4, 6)
    specs = tuple(TensorSpec(one, "bfloat16") for one in shapes)
    how = (("per_token", 8), ("activation", "swiglu"))
    _, moved = cost_of("experts", specs, how, specs[:1])
    each = 2 * (12 * 4 + 4 * 6)
    beside = 2 * (32 * 4 * 2 + 32 * 256)  # tokens in and out, and their logits
    assert moved == pytest.approx(beside + each * 256 * (1 - (31 / 32) ** 32), abs=1)
