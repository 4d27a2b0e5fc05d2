"""`flex_attention` of torch in ops that an export can follow.

`torch.nn.attention.flex_attention` takes functions that choose keys and change scores. Torch does
not export it on a CPU with gradients, so it is replaced before the user's file is imported: by
fused attention, or by two products around a softmax where a function changes the scores or the
module asks for their sums. Block masks have no values, since masks cost nothing.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.attention.flex_attention
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import _disable_current_modes

MAX_POSITIONS = 1024  # queries and keys of which a mask is computed: a sample of longer sequences
BLOCK = 128  # queries or keys of a block, torch's default
ASSUMPTIONS: list[str] = []  # of the attention that this process has traced so far, in words
UNKNOWN_MASK = "flex_attention is counted over all keys, of which its block mask may leave out some"

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of example, head, query, key
ScoreFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # of a score and those

library: Any = torch.nn.attention.flex_attention
_SIGNATURE_OF_MASKS = inspect.signature(library.create_block_mask)


def replace_flex_attention() -> None:
    """Replace `flex_attention` and `create_block_mask` of torch for this process."""
    library.flex_attention = attend
    library.create_block_mask = make_block_mask


def make_block_mask(mask_mod: MaskFunction, *args: Any, **kwargs: Any) -> Any:
    """Return a block mask in which all blocks count; takes what torch's `create_block_mask` takes.

    Args:
        mask_mod: the function that chooses keys.
        args: further arguments, of which the lengths of queries and keys count.
        kwargs: those with a name.
    """
    arguments = _SIGNATURE_OF_MASKS.bind(mask_mod, *args, **kwargs).arguments
    lengths = (arguments["Q_LEN"], arguments["KV_LEN"])
    rows, columns = (-(-length // BLOCK) for length in lengths)
    return library.BlockMask.from_kv_blocks(
        torch.full((1, 1, rows), columns, dtype=torch.int32),
        torch.arange(columns, dtype=torch.int32).expand(1, 1, rows, columns),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=lengths,
        compute_q_blocks=False,
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreFunction | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Attend as `flex_attention` does, in ops that an export can follow.

    Args:
        query: `[examples, heads, queries, width]`.
        key: `[examples, key heads, keys, width]`.
        value: `[examples, key heads, keys, value width]`.
        score_mod: changes a score.
        block_mask: chooses keys; its function counts, not its blocks.
        scale: the factor of scores; None for the usual one.
        enable_gqa: whether heads share keys.
        return_lse: whether the logarithm of the sum of exponentials is returned, too.
        kernel_options: has no effect on what is computed.
        return_aux: which sums are returned, too.
    """
    is_causal = _is_causal(block_mask, query, key)
    wants_sums = return_lse or return_aux is not None
    if score_mod is None and not wants_sums:
        return scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
    positions = _make_positions(query, key)
    if score_mod is not None:
        scores = score_mod(scores, *positions)
    if block_mask is not None:
        mask = block_mask.mask_mod(*positions)
        scores = scores.masked_fill(~mask, -torch.inf)
    output = scores.softmax(-1) @ value
    if return_aux is not None:
        sums, maxima = scores.logsumexp(-1), scores.amax(-1)
        return output, library.AuxOutput(lse=sums, max_scores=maxima)
    return (output, scores.logsumexp(-1)) if return_lse else output


def _make_positions(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the numbers of examples, heads, queries and keys, each along its own axis."""
    examples, heads, queries, _ = query.shape
    lengths = (examples, heads, queries, key.shape[2])
    example, head, row, column = (torch.arange(n, device=query.device) for n in lengths)
    return example[:, None, None, None], head[:, None, None], row[:, None], column


def _is_causal(block_mask: Any, query: Tensor, key: Tensor) -> bool:
    """Whether a block mask leaves a query the keys up to its own; notes any other mask."""
    if block_mask is None:
        return False
    mask = _compute_mask(block_mask.mask_mod, query.shape[2], key.shape[2])
    if mask is None:
        _note(UNKNOWN_MASK)
        return False
    is_square = query.shape[2] == key.shape[2]
    if is_square and torch.equal(mask, torch.ones_like(mask).tril()):
        return True
    share = float(mask.float().mean())
    if share < 1:
        _note(
            "flex_attention is counted over all keys, though its block mask leaves"
            f" {share:.0%} of the scores"
        )
    return False


def _compute_mask(
    mask_mod: MaskFunction, queries: int | torch.SymInt, keys: int | torch.SymInt
) -> Tensor | None:
    """Return the mask of the first example and head, of a sample of positions, None if unknown.

    A mask that reads traced tensors has no values.
    """
    if not (isinstance(queries, int) and isinstance(keys, int)):
        return None
    with _disable_current_modes():
        first = torch.tensor(0)
        rows, columns = (_sample_positions(length) for length in (queries, keys))
        try:
            mask = mask_mod(first, first, rows[:, None], columns)
        except Exception:  # noqa: BLE001  # a function of a user may raise anything
            return None
        has_values = type(mask) is Tensor and mask.device.type == "cpu"
        return mask.expand(len(rows), len(columns)) if has_values else None


def _sample_positions(length: int) -> Tensor:
    """Return evenly spaced positions of a sequence, with its first and last; all of a short one."""
    return torch.linspace(0, length - 1, min(length, MAX_POSITIONS)).round().long()


def _note(assumption: str) -> None:
    if assumption not in ASSUMPTIONS:
        ASSUMPTIONS.append(assumption)
