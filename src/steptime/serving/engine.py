"""Settings of an inference engine that decide its memory and its steps, by its own options."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.core.errors import InputError


@dataclass(frozen=True)
class Engine:
    """Settings of an engine; None is what its stack does by default.

    Args:
        memory_share: share of the device's memory that it may use: vLLM's
            `gpu_memory_utilization`, SGLang's `mem_fraction_static` (weights and cache alone),
            TensorRT-LLM's `free_gpu_memory_fraction` (of what weights and buffers leave).
        max_model_len: tokens of the longest sequence that it accepts.
        step_tokens: tokens of a step at most: `max_num_batched_tokens`, `chunked_prefill_size`.
        max_sequences: sequences of a replica at once: `max_num_seqs`.
        chunked_prefill: whether prompts are read in parts, beside the tokens of others.
    """

    memory_share: float | None = None
    max_model_len: int | None = None
    step_tokens: int | None = None
    max_sequences: int | None = None
    chunked_prefill: bool | None = None

    def constants(self) -> dict[str, float]:
        """Return the constants of a stack that the settings replace."""
        constants: dict[str, float] = {}
        if self.memory_share is not None:
            constants["memory_share"] = self.memory_share
        tokens = self.step_tokens
        if tokens is None and self.chunked_prefill is False:
            tokens = self.max_model_len  # else the longest prompt would never be read
        if tokens is not None:
            # The budget of a step is the limit of a prompt's chunk as well.
            constants |= {"step_tokens": float(tokens), "chunk_tokens": float(tokens)}
        return constants

    def check_length(self, input_tokens: int, output_tokens: int) -> None:
        """Raise `InputError` for a request that is longer than the engine accepts."""
        longest, tokens = self.max_model_len, input_tokens + output_tokens
        if longest is None or tokens <= longest:
            return
        nearest = f"--max-model-len {tokens}"
        # A shorter prompt helps only if the answer leaves room for one.
        if output_tokens < longest:
            nearest = f"--input {longest - output_tokens}"
        text = f"serve: {tokens:,} tokens, and --max-model-len is {longest:,}"
        raise InputError(f"{text}; nearest: {nearest}")
