"""Losses that torch.export cannot trace although the shape of their result is known."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

REDUCTION_NONE = 0  # torch's number of `reduction="none"`


@torch.library.custom_op("steptime::ctc_loss", mutates_args=())
def traced_ctc_loss(log_probs: Tensor, targets: Tensor, reduction: int) -> Tensor:
    """Stand for `torch.ctc_loss` in a traced module; it is never computed."""
    raise NotImplementedError  # tracing calls the fake below, and nothing runs the graph


@traced_ctc_loss.register_fake
def _ctc_loss_shape(log_probs: Tensor, targets: Tensor, reduction: int) -> Tensor:
    """Return an empty loss: one of each sequence, or their mean or sum."""
    is_batched = log_probs.dim() > 2  # [time, batch, classes]
    has_losses = reduction == REDUCTION_NONE and is_batched
    return log_probs.new_empty(log_probs.shape[1:2] if has_losses else ())


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """Record a CTC loss; torch takes its working memory, which lengths decide, for an output."""
    # Lengths, blank and infinities decide values, and a trace needs only the shape of the loss.
    loss: Tensor = traced_ctc_loss(log_probs, targets, int(reduction))
    return loss


@contextlib.contextmanager
def traceable_losses() -> Iterator[None]:
    """Let modules call losses that can be traced while the block runs."""
    before = torch.ctc_loss
    torch.ctc_loss = _ctc_loss
    try:
        yield
    finally:
        torch.ctc_loss = before
