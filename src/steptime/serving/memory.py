"""The memory of a device that serves a language model, by part, and the batch that fits."""

from math import inf
from typing import Any

from steptime.serving.phases import Phases

BLOCK = 16  # tokens of a page of the cache
MAX_SEQUENCES = 1e9  # finite where a sequence takes next to no memory


def paged(tokens: int) -> int:
    """Return the tokens that the pages of a sequence's cache have room for."""
    return -(-tokens // BLOCK) * BLOCK


def largest_running_sequences(phases: Phases, length: int, prompt: int) -> int:
    """Return the number of sequences of `length` tokens that fit, over all ranks of a replica.

    Where a step has no budget of tokens, all prompts are read at once.
    """
    is_fixed = phases.fixed["activations_bytes"]
    activation_bytes = 0 if is_fixed else phases.activation_bytes(prompt)
    sequence_bytes = phases.kv_bytes(paged(length)) + activation_bytes
    room_bytes = phases.room_bytes
    if room_bytes < sequence_bytes:
        return 0
    return phases.plan.data * int(min(room_bytes / sequence_bytes, MAX_SEQUENCES))


def memory_of(phases: Phases, batch: int, length: int, prompt: int) -> dict[str, Any]:
    """Return the bytes of a device by part, with so many sequences at their end."""
    sequences = -(-batch // phases.plan.data)
    parts = dict(phases.fixed)
    weights = next(iter(parts))
    parts[weights] = phases.weight_bytes
    activations_bytes = parts["activations_bytes"] or phases.activation_bytes(sequences * prompt)
    parts["activations_bytes"] = activations_bytes
    cache_bytes = sequences * phases.kv_bytes(paged(length))
    parts = {weights: parts.pop(weights), "cache_bytes": cache_bytes, **parts}
    total, room = sum(parts.values()), phases.planner.room_bytes
    is_known = room < inf
    return {
        "needed_bytes": total,
        "usable_bytes": room if is_known else None,
        "over_bytes": max(0.0, total - phases.usable_bytes) if is_known else None,
        "by_part": parts,
        "cache_bytes_per_token": phases.kv_token_bytes,
        "largest_running_sequences": largest_running_sequences(phases, length, prompt)
        if is_known
        else None,
    }
