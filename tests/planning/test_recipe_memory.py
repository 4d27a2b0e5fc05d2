"""Memory of trainings whose recipes keep little: weights in 8 bit, a compiled step, 16-bit Adam."""

import pytest

import steptime
from steptime.hardware import catalog
from steptime.prediction.conformal import judge_memory

LORA_70B_BYTES = 168.8e9  # `max_memory_usage` of NVIDIA's logs of MLPerf Training v5.0 on B200
HEAD_AND_EMBEDDING = 2 * 32000 * 8192  # parameters of Llama 2 70B outside its layers


def plan_lora(stack: str):
    return steptime.plan(
        "llama2_70b",
        "b200-sxm",
        data=8,
        zero=1,
        global_batch=8,
        length=8192,
        dtype="float8",
        lora="r=16,on=attention",
        stack=stack,
    )


def test_a_fine_tuning_in_8_bit_needs_the_published_memory() -> None:
    answer = plan_lora("megatron-mlperf-2025")
    assert answer.fits
    assert answer.memory.needed_bytes == pytest.approx(LORA_70B_BYTES, rel=0.05)


@pytest.mark.slow
def test_saved_inputs_of_swiglu_in_8_bit_save_half_of_them() -> None:
    saving = (
        plan_lora("megatron-2025").memory.needed_bytes
        - plan_lora("megatron-mlperf-2025").memory.needed_bytes
    )
    inputs = 80 * 2 * 8192 * 28672  # numbers of all layers
    assert saving == pytest.approx(inputs, rel=0.05)  # a byte each, and what is lost between blocks


@pytest.mark.slow
def test_weights_in_8_bit_have_a_transposed_copy_on_hopper_alone() -> None:
    weights = {}
    for device, stack in (
        ("b200-sxm", "megatron-2025"),
        ("h200-sxm", "megatron-2025"),
        ("h200-sxm", "megatron-2024"),
    ):
        answer = steptime.plan(
            "llama2_70b", device, data=8, zero=1, dtype="float8", stack=stack, length=2048
        )
        weights[device, stack] = answer.to_dict()["memory"]["by_part"]["weights_bytes"]
    parameters = 68976648192
    layers = parameters - HEAD_AND_EMBEDDING - 8192
    ends = 2 * (HEAD_AND_EMBEDDING + 8192)
    assert weights["b200-sxm", "megatron-2025"] == layers + ends
    assert weights["h200-sxm", "megatron-2025"] == 2 * layers + ends
    assert weights["h200-sxm", "megatron-2024"] == 3 * layers + ends


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "device", "devices", "microbatch", "length", "offload"),
    [
        ("gemma3_12b", "tpu-v6e", 256, 1, 32768, "none"),
        ("llama3_1_8b", "tpu-v6e", 8, 3, 8192, "activations"),
        ("llama3_1_70b", "tpu-v6e", 128, 4, 8192, "activations"),
        ("llama3_1_405b", "tpu-v7", 256, 6, 8192, "activations"),
    ],
)
def test_steps_of_maxtext_that_ran_are_not_told_to_run_out_of_memory(
    model: str, device: str, devices: int, microbatch: int, length: int, offload: str
) -> None:
    """AI-Hypercomputer/tpu-recipes, trillium and ironwood."""
    answer = steptime.plan(
        model,
        device,
        data=devices,
        zero=3,
        microbatch=microbatch,
        global_batch=microbatch * devices,
        length=length,
        recompute="full",
        offload=offload,
        host_link=None if offload == "none" else "pcie-5-x16",
        stack="maxtext-2025",
    )
    tpu = catalog.device(device)
    verdict = judge_memory(answer.memory.needed_bytes, tpu.datasheet.usable_bytes, tpu)
    assert verdict.verdict != "no"


@pytest.mark.slow
def test_states_of_automodel_have_16_bit() -> None:
    """GPT-OSS 20B on a node of H100: NVIDIA-NeMo/Automodel, docs/performance-summary.mdx."""
    answer = steptime.plan(
        "gpt_oss_20b",
        "h100-sxm5",
        data=8,
        expert=8,
        zero=3,
        microbatch=2,
        global_batch=256,
        length=4096,
        stack="automodel-2025",
    )
    assert answer.fits
    parts = answer.to_dict()["memory"]["by_part"]
    assert parts["states_bytes"] == pytest.approx(3 * parts["gradients_bytes"])
