"""The memory of a device that serves a language model, and the sequences that fit."""

from dataclasses import dataclass, replace
from math import inf

from steptime.serving.phases import Phases

PAGE_TOKENS = 16  # tokens of a page of the cache
MAX_TOKENS = 2**40  # of a cache, finite where a token takes next to no memory
MAX_SEQUENCES = 1e9  # finite where a sequence takes next to no memory


@dataclass(frozen=True)
class ServerMemory:
    """Bytes of a device that serves.

    Args:
        weights_bytes: the weights.
        cache_bytes: keys, values and states of sequences at their end.
        activations_bytes: tensors of the largest step.
        buffers_bytes: buffers of the software.
        context_bytes: memory of the driver.
        over_bytes: by how much the device has too little; None where its memory is unknown.
        cache_bytes_per_token: keys and values of a token.
        largest_running_sequences: sequences that fit at their end; None where the memory is
            unknown.
        cache_tokens: tokens that the cache of a replica has room for; None where the memory is
            unknown.
        longest_context: tokens of a sequence at most, with so many at once; None where the memory
            is unknown.
    """

    weights_bytes: float
    cache_bytes: float
    activations_bytes: float
    buffers_bytes: float
    context_bytes: float
    over_bytes: float | None
    cache_bytes_per_token: float
    largest_running_sequences: int | None
    cache_tokens: int | None = None
    longest_context: int | None = None

    @property
    def needed_bytes(self) -> float:
        """The sum of the parts."""
        return sum(
            (
                self.weights_bytes,
                self.cache_bytes,
                self.activations_bytes,
                self.buffers_bytes,
                self.context_bytes,
            )
        )


def round_up_to_pages(tokens: int) -> int:
    """Return the tokens that the pages of a sequence's cache have room for."""
    return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def _prompt_activation_bytes(phases: Phases, tokens: int) -> float:
    """Return the activations of prompts of so many tokens, 0 if the stack limits a step's tokens.

    With such a limit the activations are fixed, whatever the prompts.
    """
    has_token_limit = phases.fixed_bytes["activations_bytes"] > 0
    return 0.0 if has_token_limit else phases.activation_bytes(tokens)


def largest_running_sequences(phases: Phases, length: int, prompt: int) -> int:
    """Return the number of sequences of `length` tokens that fit, over all ranks of a replica.

    Where a step has no budget of tokens, all prompts are read at once.
    """
    cache_bytes = phases.kv_bytes(round_up_to_pages(length))
    sequence_bytes = cache_bytes + _prompt_activation_bytes(phases, prompt)
    room_bytes = phases.room_bytes
    if room_bytes < sequence_bytes:
        return 0
    return phases.plan.data * int(min(room_bytes / sequence_bytes, MAX_SEQUENCES))


def cache_tokens(phases: Phases, length: int) -> int:
    """Return the tokens that the cache of a replica has room for, in sequences of one length.

    Layers with a window and states keep a part of a sequence, so the number depends on the length.
    """
    if phases.room_bytes <= 0:
        return 0
    sequence_tokens = round_up_to_pages(length)
    sequence_bytes = phases.kv_bytes(sequence_tokens)
    # Any number where a sequence takes no bytes.
    sequences = phases.room_bytes / sequence_bytes if sequence_bytes else inf
    pages = int(min(sequences * sequence_tokens, MAX_TOKENS)) // PAGE_TOKENS
    return phases.plan.data * pages * PAGE_TOKENS


def longest_context(phases: Phases, running_sequences: int) -> int:
    """Return the tokens of a sequence at most, with so many at once on all ranks of a replica.

    Bisection over pages: the memory of a sequence only grows with its length. A limit of the
    engine counts, the length that the network was trained for does not.
    """
    sequences = max(1, -(-running_sequences // phases.plan.data))

    def fits(pages: int) -> bool:
        tokens = pages * PAGE_TOKENS
        prompts_bytes = _prompt_activation_bytes(phases, sequences * tokens)
        return sequences * phases.kv_bytes(tokens) + prompts_bytes <= phases.room_bytes

    fitting_pages = 0
    # Bisection between a length that fits and one that does not.
    excessive_pages = MAX_TOKENS // PAGE_TOKENS
    while excessive_pages - fitting_pages > 1:
        middle = (fitting_pages + excessive_pages) // 2
        if fits(middle):
            fitting_pages = middle
        else:
            excessive_pages = middle
    limit = phases.engine.max_model_len
    tokens = fitting_pages * PAGE_TOKENS
    return tokens if limit is None else min(tokens, limit)


def memory_of(phases: Phases, running_sequences: int, length: int, prompt: int) -> ServerMemory:
    """Return the memory of a device with so many sequences at their end.

    Args:
        phases: the bytes of a replica.
        running_sequences: sequences of all ranks of the replica.
        length: tokens of a sequence at its end.
        prompt: tokens of its prompt.
    """
    sequences = -(-running_sequences // phases.plan.data)
    fixed_bytes = phases.fixed_bytes
    # One of both is 0: activations are fixed, or those of the prompts.
    prompts_bytes = _prompt_activation_bytes(phases, sequences * prompt)
    memory = ServerMemory(
        weights_bytes=fixed_bytes["weights_bytes"],
        cache_bytes=sequences * phases.kv_bytes(round_up_to_pages(length)),
        activations_bytes=fixed_bytes["activations_bytes"] + prompts_bytes,
        buffers_bytes=fixed_bytes["buffers_bytes"],
        context_bytes=fixed_bytes["context_bytes"],
        over_bytes=None,
        cache_bytes_per_token=phases.kv_token_bytes,
        largest_running_sequences=None,
    )
    has_capacity = phases.problem.rank.room_bytes < inf
    if not has_capacity:
        return memory
    return replace(
        memory,
        over_bytes=max(0.0, memory.needed_bytes - phases.usable_bytes),
        largest_running_sequences=largest_running_sequences(phases, length, prompt),
        cache_tokens=cache_tokens(phases, phases.engine.max_model_len or length),
        longest_context=longest_context(phases, running_sequences),
    )
