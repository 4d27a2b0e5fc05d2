"""The profile run of an engine: the memory that it sets aside before it sizes its cache.

vLLM reads `max_num_batched_tokens` dummy tokens, samples once for `max_num_seqs` sequences, and
takes the larger peak of the two from the memory of the cache (vllm/v1/worker/gpu_worker.py,
`determine_available_memory`; gpu_model_runner.py, `profile_run` and `_dummy_sampler_run`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steptime.core.units import format_bytes
from steptime.core.workload import Plan
from steptime.planning.ranks.shape import Shape
from steptime.serving.kernels import HALF_BYTES

if TYPE_CHECKING:
    from steptime.serving.phases import Phases

SMALL_DEVICE_SEQUENCES = 256  # default of vLLM on small devices
HIDDEN_COPIES = 6.0  # tensors of a token between layers: residual, norm, two products
ATTENTION_COPIES = 2.0  # tensors of queries, keys and values


@dataclass(frozen=True)
class ProfileRun:
    """The sizes that decide the peak of a profile run on a rank.

    Args:
        width: numbers of a token between layers.
        attention_numbers: queries, keys and values of a token, of a rank.
        inner_numbers: numbers of a token in the feed-forward part, of a rank.
        vocabulary: logits of a token, which each rank gathers.
    """

    width: int
    attention_numbers: float
    inner_numbers: float
    vocabulary: int

    def forward_bytes(self, tokens: float) -> float:
        """Return the bytes that live around a layer while a step reads so many tokens.

        A rank reads and writes its share of attention and feed-forward part, and has the hidden
        state whole.
        """
        layer_numbers = self.inner_numbers + ATTENTION_COPIES * self.attention_numbers
        numbers_per_token = HIDDEN_COPIES * self.width + layer_numbers
        return HALF_BYTES * tokens * numbers_per_token

    def sampler_bytes(self, sequences: float, logit_bytes: float) -> float:
        """Return the bytes of the logits of so many sequences while their tokens are drawn."""
        return sequences * self.vocabulary * logit_bytes


def read_profile_run(shape: Shape, plan: Plan, attention_numbers: float) -> ProfileRun:
    """Return the sizes of the profile run of a network under a plan."""
    return ProfileRun(
        width=int(shape.kind_settings["width"]),
        attention_numbers=attention_numbers,
        inner_numbers=_inner_numbers(shape, plan),
        vocabulary=shape.vocabulary,
    )


def _inner_numbers(shape: Shape, plan: Plan) -> float:
    """Return the numbers of a token in the feed-forward part of a rank.

    A mixture writes each token once for each of its experts: first gate and up projection, then,
    in the same buffer, the result of the down projection at full width; the product of gate and up
    lies beside it (vllm/model_executor/layers/fused_moe/fused_moe.py: `intermediate_cache13` and
    `intermediate_cache2`). Ranks that share out experts read the tokens of all of them.
    """
    settings = shape.kind_settings
    if not settings["experts"]:
        return 2.0 * int(settings["ffn"]) / plan.tensor  # gate and up projection
    inner = int(settings["expert_ffn"]) / plan.tensor
    # Gate and up projection, then in the same buffer the result of the down projection.
    buffer = max(2.0 * inner, float(settings["width"]))
    gated = inner  # the product of gate and up, which lies beside it
    return int(settings["experts_per_token"]) * (buffer + gated)


def describe_sampler(phases: Phases) -> list[str]:
    """Describe the memory that sampling takes from the cache; nothing if layers take more.

    For example `drawing tokens for 1,024 sequences takes 7.779 GB of a device from the cache`.
    """
    tokens = phases.limit("step_tokens")
    sampler_bytes, forward_bytes = phases.sampler_bytes(tokens), phases.activation_bytes(tokens)
    if sampler_bytes <= forward_bytes:
        return []
    sequences = int(phases.max_sampled_sequences(tokens))
    text = f"drawing tokens for {sequences:,} sequences takes {format_bytes(sampler_bytes)} of a"
    text += " device from the cache (vLLM to 0.15 sorts all logits; 0.19 and later take a third)"
    if sequences > SMALL_DEVICE_SEQUENCES:
        text += f"; nearest that takes less: --max-running-sequences {SMALL_DEVICE_SEQUENCES}"
    return [text]
