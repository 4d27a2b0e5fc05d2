"""The memory of a language model on one's own machine, by the rules of its stack."""

from dataclasses import dataclass, replace

from steptime.planning.ranks.shape import Shape
from steptime.serving.desktop.caches import layer_caches, number_bytes
from steptime.serving.desktop.machine import Machine, Placing
from steptime.serving.desktop.stack import MemoryRule

MASK_BYTES = 2  # of a place of a mask, in 16 bits
SCORE_BYTES = 4  # of a score of attention that is not fused, in 32 bits
MAX_CONTEXT = 1 << 24  # tokens up to which the longest context is searched


@dataclass(frozen=True)
class DesktopDemand:
    """What is asked of a machine.

    Args:
        context: tokens that the cache of a sequence has room for.
        sequences: sequences at once, each with such a cache.
        cache_type: how keys and values are kept.
        ubatch: tokens that pass at once.
        has_flash_attention: whether attention is one fused kernel.
    """

    context: int
    sequences: int
    cache_type: str
    ubatch: int
    has_flash_attention: bool


@dataclass(frozen=True)
class DesktopMemory:
    """Bytes of the fullest device, and of the host.

    Args:
        weights_bytes: weights on the device.
        cache_bytes: keys and values on the device.
        buffers_bytes: the compute buffer.
        context_bytes: driver and kernels.
        host_bytes: weights and cache on the host.
        cache_bytes_per_token: keys and values of a token in all layers.
        usable_bytes: memory that the process may use of a device; None where unknown.
    """

    weights_bytes: float
    cache_bytes: float
    buffers_bytes: float
    context_bytes: float
    host_bytes: float
    cache_bytes_per_token: float
    usable_bytes: float | None

    @property
    def needed_bytes(self) -> float:
        """The sum of what the device holds."""
        parts = (self.weights_bytes, self.cache_bytes, self.buffers_bytes, self.context_bytes)
        return sum(parts)

    @property
    def over_bytes(self) -> float | None:
        """By how much the device has too little; None where its memory is unknown."""
        if self.usable_bytes is None:
            return None
        return max(0.0, self.needed_bytes - self.usable_bytes)


def predict_memory(
    shape: Shape, machine: Machine, placing: Placing, demand: DesktopDemand
) -> DesktopMemory:
    """Return the memory of the fullest device of a machine, and of its host."""
    rule = machine.stack.memory
    caches = layer_caches(shape)
    # The cache grows in blocks.
    context = -(-demand.context // rule.cache_block) * rule.cache_block
    cached_number_bytes = number_bytes(demand.cache_type)

    def cache_bytes(layer: int) -> float:
        cache = caches[layer]
        tokens = cache.cached_tokens(context, demand.ubatch)
        return demand.sequences * (
            cached_number_bytes * cache.token_numbers * tokens + cache.state_bytes
        )

    buffers_bytes = compute_buffer_bytes(shape, rule, demand, context)
    context_bytes = machine.backend.context_bytes
    # By rows all devices share each layer; `device_weights_bytes` are divided already.
    cache_shares = machine.device_count if placing.is_split_by_rows else 1
    weights_and_caches = [  # bytes of each device
        (placing.device_weights_bytes(device_number), sum(map(cache_bytes, layers)) / cache_shares)
        for device_number, layers in enumerate(placing.device_layers)
    ]
    weights_bytes, cache_size_bytes = max(weights_and_caches, key=sum)  # of the fullest device
    # All layers are on the host: nothing lies on the device.
    if not placing.layers_on_device:
        weights_bytes, cache_size_bytes = 0.0, 0.0
    host_cache_bytes = sum(map(cache_bytes, placing.host_layers))
    return DesktopMemory(
        weights_bytes=weights_bytes,
        cache_bytes=cache_size_bytes,
        buffers_bytes=buffers_bytes,
        context_bytes=context_bytes,
        host_bytes=placing.host_weights_bytes + host_cache_bytes,
        cache_bytes_per_token=sum(cached_number_bytes * cache.token_numbers for cache in caches),
        usable_bytes=machine.device.datasheet.usable_bytes,
    )


def compute_buffer_bytes(
    shape: Shape, rule: MemoryRule, demand: DesktopDemand, context: int
) -> float:
    """Return the bytes of the buffer of a step: the largest of head, feed-forward and attention.

    All tensors of a step that live at once have room in it; layers use it one after the other.
    """
    parameters = shape.kind_settings
    caches = layer_caches(shape)
    tokens = min(demand.ubatch, context)
    width = int(parameters["width"])
    ffn = int(parameters["ffn"])
    if shape.experts:
        expert_ffn = int(parameters["expert_ffn"] or ffn)
        ffn = max(ffn, int(parameters["experts_per_token"]) * expert_ffn)
    hidden_bytes = tokens * width * rule.activation_bytes
    head_bytes = tokens * shape.vocabulary * rule.logit_bytes + hidden_bytes
    # Three hidden tensors live at once (residual, norm, result), beside two of the part's width.
    feed_forward_bytes = 3 * hidden_bytes + 2 * tokens * ffn * rule.activation_bytes
    largest = max(caches, key=lambda cache: cache.query_numbers)
    attended_tokens = max(cache.cached_tokens(context, demand.ubatch) for cache in caches)
    # Queries and the result of attention, keys and values.
    query_numbers = 2 * largest.query_numbers + largest.token_numbers
    attention_bytes = 3 * hidden_bytes + tokens * query_numbers * rule.activation_bytes
    attention_bytes += tokens * attended_tokens * MASK_BYTES
    if not demand.has_flash_attention:  # which writes no scores
        attention_bytes += tokens * attended_tokens * largest.heads * SCORE_BYTES
    return max(head_bytes, feed_forward_bytes, attention_bytes)


def longest_context(
    shape: Shape, machine: Machine, placing: Placing, demand: DesktopDemand, limit: int
) -> int | None:
    """Return the longest context that fits, up to `limit` tokens; None where memory is unknown."""

    def does_fit(context: int) -> bool:
        memory = predict_memory(shape, machine, placing, replace(demand, context=context))
        return not memory.over_bytes

    if machine.device.datasheet.usable_bytes is None:
        return None
    block = machine.stack.memory.cache_block
    fitting_blocks = 0
    excessive_blocks = -(-min(limit, MAX_CONTEXT) // block)
    if does_fit(excessive_blocks * block):
        return min(limit, excessive_blocks * block)
    # Bisection between a context that fits and one that does not.
    while excessive_blocks - fitting_blocks > 1:
        middle = (fitting_blocks + excessive_blocks) // 2
        if does_fit(middle * block):
            fitting_blocks = middle
        else:
            excessive_blocks = middle
    return fitting_blocks * block
