"""Losses that never hold whole logits, and experts of few bits, beside published memory."""

import pytest

import steptime

GIB = 2**30


@pytest.mark.parametrize(
    ("length", "reserved_gib"), [(8192, 16.3), (32768, 25.8), (131072, 66.5), (262144, 124.5)]
)
def test_long_sequences_with_liger_need_the_published_memory(
    length: int, reserved_gib: float
) -> None:
    """Llama 3.1 8B, ZeRO 3, states on the host: stas00/ml-engineering, when-to-upgrade-gpus."""
    answer = steptime.plan(
        "llama3_1_8b",
        "h200-sxm",
        data=8,
        zero=3,
        global_batch=8,
        length=length,
        recompute="full",
        offload="optimizer",
        host_link="pcie-5-x16",
        stack="fsdp-liger-2025",
    )
    assert answer.fits
    assert answer.memory.needed_bytes / GIB == pytest.approx(reserved_gib, rel=0.15)


@pytest.mark.rare  # a loss in chunks saves the logits by the same stack, of a small model
def test_experts_in_4_bit_fit_a_card() -> None:
    """GLM-4.5-Air by QLoRA with its experts in nf4: axolotl-ai-cloud/axolotl, examples/glm45."""
    sizes = {}
    for stack in ("unsloth-2024", "axolotl-2025"):
        answer = steptime.fit(
            "glm4_5_air:length=2048",
            "h100-sxm5",
            batch=2,
            dtype="bfloat16",
            optimizer="adam8bit",
            lora="r=16,on=attention",
            weights="nf4-dq",
            recompute="full",
            options={"stack": stack},
        )
        sizes[stack] = answer.needed_bytes / GIB
    assert sizes["axolotl-2025"] == pytest.approx(63.4, rel=0.15)
    assert sizes["unsloth-2024"] > 2.5 * sizes["axolotl-2025"]


@pytest.mark.slow
def test_a_chunked_loss_saves_the_logits() -> None:
    """A loss in chunks needs less by about the logits in 16 and 32 bits."""
    needed = {}
    for stack in ("unsloth-2024", "axolotl-2025"):
        answer = steptime.fit(
            "llama3_1_8b:length=4096",
            "rtx-4090",
            batch=2,
            dtype="bfloat16",
            lora="r=16",
            weights="nf4",
            recompute="full",
            options={"stack": stack},
        )
        needed[stack] = answer.needed_bytes
    logits = 2 * 4096 * 128256
    saved_bytes = needed["unsloth-2024"] - needed["axolotl-2025"]
    assert 4 * logits < saved_bytes < 9 * logits
