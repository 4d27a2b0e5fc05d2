"""The difference between a prompt's prefill on a server and the step that `predict` answers."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.prediction.kernel import Kernel
from steptime.prediction.training import LAST, piece_of
from steptime.serving.attention_shape import ATTENDING
from steptime.serving.phases import Phases

ROUNDING_SHARE = 1e-12  # of a sum of seconds: smaller differences of two sums are zero


def explain_predict_difference(phases: Phases, tokens: int) -> dict[str, float]:
    """Return the parts by which a prompt's prefill on one device differs from `predict` [s].

    The parts are: weights in their stored format; merged products of one input; attention as newer
    devices run it, with the format of the cache; the head for the last token alone; rows sorted by
    expert, casts and gaps between kernels; waiting for the host; and the server's own time.
    """
    graph, plain_kernels = phases.lower(tokens)
    stored_kernels = phases.store_weights(graph, plain_kernels)  # read in their stored format
    merged_kernels = phases.merge_products(graph, stored_kernels)
    attention_ops = {op.name for op in graph.ops if op.kind in ATTENDING}
    attention_kernels = [kernel for kernel in merged_kernels if kernel.op in attention_ops]
    plain_s = _price_network(phases, plain_kernels)
    stored_s = _price_network(phases, stored_kernels)
    merged_s = _price_network(phases, merged_kernels)
    attention_s = _price_network(phases, attention_kernels)
    prefill = phases.price_prefill(1, tokens)
    last_token_s = phases.price_pieces(1)[LAST].seconds
    head_s = phases.price_pieces(tokens)[LAST].seconds
    # The server's kernels but for attention, with a head for all tokens as `predict` has it, less
    # the same kernels without casts, sorted rows and gaps.
    server_kernels_s = prefill.products_s + prefill.other_s - last_token_s + head_s
    rows_s = server_kernels_s - (merged_s - attention_s)
    exposed_issue_s = max(0.0, _issue_network_s(phases, plain_kernels) - plain_s)
    return {
        "weights_s": stored_s - plain_s,
        "merged_s": merged_s - stored_s,
        "attention_s": prefill.attention_s - attention_s,
        "last_token_s": last_token_s - head_s,
        "rows_s": rows_s if abs(rows_s) > ROUNDING_SHARE * merged_s else 0.0,
        "host_s": prefill.host_s - phases.server_s(1) - exposed_issue_s,
        "server_s": phases.server_s(1) + phases.prompt_overhead_s(tokens),
    }


def _price_network(phases: Phases, kernels: Sequence[Kernel]) -> float:
    """Return the seconds of the kernels of each piece, with all copies of the piece."""
    kernels_s = phases.problem.rank.kernel_seconds(kernels, phases.device)
    return _sum_over_network(phases, kernels, kernels_s)


def _issue_network_s(phases: Phases, kernels: Sequence[Kernel]) -> float:
    """Return the time at which the host has issued the kernels of all layers."""
    start_s = phases.issue_s([])
    kernels_s = [phases.issue_s([kernel]) - start_s for kernel in kernels]
    return start_s + _sum_over_network(phases, kernels, kernels_s)


def _sum_over_network(
    phases: Phases, kernels: Sequence[Kernel], kernels_s: Sequence[float]
) -> float:
    """Return the sum of seconds, each as often as the piece of its kernel is in the network."""
    return sum(
        phases.piece_counts.get(piece_of(kernel.op), 0) * kernel_s
        for kernel, kernel_s in zip(kernels, kernels_s, strict=True)
    )
