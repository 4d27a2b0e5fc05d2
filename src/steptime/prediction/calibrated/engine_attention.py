"""Attention by the kernels of inference engines: prompts in tiles, new tokens in blocks of heads.

The constants are those of the stack (`kernels.*`), for GPUs of NVIDIA in 16 bit.
"""

from typing import Any

import numpy as np

from steptime.core.dtypes import HALVES, SIZE_BYTES
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    CLOCK_HZ,
    MULTIPROCESSORS,
    Constants,
    TimeParts,
    ceil,
    is_nvidia,
    latency_s,
    memory_rate,
    padded_width,
    stream_s,
)
from steptime.prediction.kernels import Rows

TILE = 128  # queries, and keys, of a tile of scores (FlashAttention 2 and 3, TensorRT-LLM)
EXPONENTIALS = (
    16  # of a multiprocessor in a clock: CUDA Programming Guide, throughput of arithmetic
)
FAST_EXPONENTIALS = 32  # of Blackwell Ultra: 10.7 T/s of 160 multiprocessors (NVIDIA, 2025-08)
REFERENCE_WIDTH = 128  # of heads for which the seconds of a block are stated
KEY_AND_VALUE = 2  # tensors that a head reads
WINDOWED_SHARE = 0.5  # of scores below which a window masks them at both ends


def runs_engine_kernels(kernels: Rows, device: Device, constants: Constants) -> bool:
    """Return whether attention runs by the kernels of a stack that has constants for them."""
    has_kernels = "kernels.attention_s" in constants and kernels.kind == "attention"
    is_described = len(kernels.figures) > 0
    is_half = kernels.dtype in HALVES and not has_trait(device, "unfused")
    return has_kernels and is_described and is_half and is_nvidia(device)


def engine_attention(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of an attention kernel of an inference engine.

    Prompts take the products and exponentials of whole tiles of scores, and traffic of the kernels
    that bring keys and values into the cache. New tokens take one block of threads for each
    sequence and key head, at least `kernels.decode_block_s` of a multiprocessor.
    """
    _batch, queries, _keys, _width = kernels.products[0]
    is_decode = queries <= 1
    decode_s = _decode_blocks_s(kernels, device, constants)
    compute_s = np.where(is_decode, decode_s, _prefill_s(kernels, device, constants))
    memory_s = stream_s(kernels.bytes, device, constants)
    # Other kernels bring the prompt's queries, keys and values into the cache: so many times the
    # bytes of the attention are moved beside it.
    moves = constants.get("kernels.prefill_moves", 0.0)
    moved_s = moves * kernels.bytes / memory_rate(device, constants)
    call_s = latency_s(device, constants, "kernels.attention_s")
    gap_s = constants["launch.gap_s"] * kernels.launches + call_s
    return TimeParts(compute_s, memory_s, gap_s + np.where(is_decode, 0.0, moved_s))


def _prefill_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the arithmetic of prompts: products, exponentials that are not hidden, and blocks."""
    batch, queries, _keys, _width = kernels.products[0]
    # Kernels that copy tensors by hardware (Hopper and later) have constants of their own.
    if has_trait(device, "copied_tensors"):
        peak_share = constants["kernels.prefill_share_tensor"]
        exposed_share = constants.get("kernels.softmax_tensor", 0.0)
        block_s = _scale_block_s(kernels, device, constants, "kernels.prefill_block_tensor_s")
    else:
        peak_share = constants["kernels.prefill_share"]
        exposed_share = constants.get("kernels.softmax", 0.0)
        block_s = 0.0  # to start and end a block of threads
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    scores = batch * _count_tile_scores(kernels)
    product_s = _score_flop(kernels, scores) / (
        device.datasheet.peak_flop_per_s[kernels.dtype] * peak_share
    )
    exposed_s = exposed_share * _exponential_s(scores, device)
    block_count = batch * ceil(queries, TILE)  # one for each tile of queries
    return product_s + exposed_s + block_count / multiprocessors * block_s


def _score_flop(kernels: Rows, scores: Any) -> Any:
    """Return the FLOP of so many scores: a product with a key, and one with a value."""
    width = kernels.products[0][3]
    value_width = kernels.products[1][2]
    return 2.0 * scores * (padded_width(width) + padded_width(value_width))


def _exponential_s(scores: Any, device: Device) -> Any:
    """Return the seconds of the exponentials of a softmax, one for each score."""
    is_fast = has_trait(device, "fast_exponentials")
    exponentials = FAST_EXPONENTIALS if is_fast else EXPONENTIALS
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    clock_hz = device.datasheet.clock_hz or CLOCK_HZ
    return scores / (exponentials * clock_hz * multiprocessors)


def _count_tile_scores(kernels: Rows) -> Any:
    """Return the scores of a head in tiles that a mask does not hide as a whole.

    A causal mask cuts the last tile of each row of tiles in two, a window the first one, too.
    """
    batch, queries, keys, width = kernels.products[0]
    value_width = kernels.products[1][2]
    all_scores = queries * keys
    # The kernel's FLOP leave out hidden scores, so that they tell the visible share.
    visible_share = kernels.flop / (2.0 * batch * all_scores * (width + value_width))
    is_unmasked = visible_share >= 1
    has_window = visible_share < WINDOWED_SHARE
    tile_rows = ceil(queries, TILE)
    # The mask's edge cuts a tile of each row of tiles, a window's second edge another one. The
    # hidden half of a cut tile is computed, too.
    edge_count = np.where(is_unmasked, 0.0, np.where(has_window, 2.0, 1.0))
    tiled_scores = visible_share * all_scores + edge_count * tile_rows * (TILE * TILE / 2)
    padded_scores = tile_rows * TILE * ceil(keys, TILE) * TILE
    return np.where(is_unmasked, padded_scores, np.minimum(tiled_scores, padded_scores))


def _decode_blocks_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the seconds of blocks of threads that each read the keys of one head of a sequence.

    A block takes up to `kernels.packed_heads` heads that share keys. Where `packed_limit` or a
    window leaves heads apart, each has a block of its own, `kernels.decode_head_s` long if that is
    stated, and reads shared keys again, `kernels.head_bytes` in a clock of a multiprocessor.
    """
    heads, *_ = kernels.products[0]  # of all sequences
    shared_heads, _in_window = kernels.figures
    is_new = has_trait(device, "tensor_memory")
    packed_heads = constants["kernels.packed_heads_new" if is_new else "kernels.packed_heads"]
    block_name = _decode_block_constant(device, constants)
    block_s = _scale_block_s(kernels, device, constants, block_name)
    # A block counts the same for several heads as for one: either reads the keys once.
    key_heads = heads / shared_heads
    packed_s = key_heads * ceil(shared_heads, packed_heads) * block_s
    single_head_s = heads * _single_head_s(kernels, block_s, device, constants)
    has_single_heads = _has_block_per_head(kernels, device, constants)
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    blocks_s = np.where(has_single_heads, single_head_s, packed_s) / multiprocessors
    # All blocks together, but never less than the longest of them.
    return np.maximum(blocks_s, _walk_s(kernels, device, constants))


def _decode_block_constant(device: Device, constants: Constants) -> str:
    """Return the name of the constant with the seconds of a block of threads on a device."""
    # One block, not several, has room in the shared memory of GPUs for graphics.
    is_small = not has_trait(device, "stacked_memory")
    if is_small and "kernels.decode_block_small_s" in constants:
        return "kernels.decode_block_small_s"
    is_new = has_trait(device, "tensor_memory")
    return "kernels.decode_block_new_s" if is_new else "kernels.decode_block_s"


def _has_block_per_head(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return whether each head has a block of its own, instead of one for heads that share keys."""
    shared_heads, in_window = kernels.figures
    has_single_heads: Any = np.zeros(np.shape(shared_heads), dtype=bool)
    if "kernels.packed_limit" in constants:
        # Before GPUs with tensor memory, heads that share no keys are among them.
        shares_no_keys = (shared_heads <= 1) & (not has_trait(device, "tensor_memory"))
        has_single_heads = (shared_heads > constants["kernels.packed_limit"]) | shares_no_keys
    if constants.get("kernels.windows_unpacked") and not has_trait(device, "copied_tensors"):
        has_single_heads = has_single_heads | (in_window > 0)
    return has_single_heads


def _single_head_s(kernels: Rows, block_s: Any, device: Device, constants: Constants) -> Any:
    """Return the seconds of a block for one head, `block_s` unless a constant says otherwise."""
    heads, queries, _keys, width = kernels.products[0]  # of all sequences
    shared_heads, _in_window = kernels.figures
    head_s = block_s
    if "kernels.decode_head_s" in constants:
        head_s = _scale_block_s(kernels, device, constants, "kernels.decode_head_s")
    if "kernels.head_bytes" in constants:
        bytes_per_s = constants["kernels.head_bytes"] * (device.datasheet.clock_hz or CLOCK_HZ)
        # The kernel's FLOP leave out keys that a window hides.
        product_flop = 2.0 * heads * queries * width
        keys = kernels.flop / (KEY_AND_VALUE * product_flop)
        head_bytes = KEY_AND_VALUE * SIZE_BYTES[kernels.dtype] * keys * width
        # One of the heads that share keys brings them from memory, the others from the cache.
        head_s = head_s + head_bytes * (1 - 1 / shared_heads) / bytes_per_s
    return head_s


def _walk_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the seconds of a block that reads all keys of a sequence, one tile after the other.

    FlashAttention 2 splits the keys of a sequence over several blocks only where heads share them.
    The memory answers late, whatever the clock: 10,000 keys of 128 take 10,000 times
    `kernels.decode_key_s`.
    """
    # On devices that copy tensors by hardware (Hopper and later), kernels split any sequence.
    splits_any_sequence = has_trait(device, "copied_tensors")
    if splits_any_sequence or "kernels.decode_key_s" not in constants:
        return 0.0
    _heads, _queries, keys, width = kernels.products[0]
    shared_heads, in_window = kernels.figures
    is_unsplit = (shared_heads <= 1) & (in_window == 0)  # one block reads all keys of a head
    walk_s = keys * width / REFERENCE_WIDTH * constants["kernels.decode_key_s"]
    return np.where(is_unsplit, walk_s, 0.0)


def _scale_block_s(kernels: Rows, device: Device, constants: Constants, name: str) -> Any:
    """Return the seconds of a block on a multiprocessor, half of which grow with the head's width.

    They are stated for heads of `REFERENCE_WIDTH` and a clock of `CLOCK_HZ`.
    """
    if name not in constants:
        return 0.0
    _batch, _queries, _keys, width = kernels.products[0]
    relative_width = (width + REFERENCE_WIDTH) / (2 * REFERENCE_WIDTH)
    return latency_s(device, constants, name) * relative_width
