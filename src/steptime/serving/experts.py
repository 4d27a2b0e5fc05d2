"""Layers of experts in a server: their grouped products, and the traffic beside these."""

from collections.abc import Sequence

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.graph import Graph, Op
from steptime.hardware.device import Device
from steptime.planning.ranks.rank_model import RankModel
from steptime.prediction.kernel import Kernel

PASSES_OVER_ROWS = 2  # a tensor between two kernels is written and read


def routed_traffic_s(rank: RankModel, graph: Graph, op: Op) -> float:
    """Return the seconds of the memory traffic of a layer of experts beside its products.

    Servers keep each step of the layer in memory: the result of each row of a token and an expert
    until it is summed, what the first product makes of the row, and its activation.

    Args:
        rank: the rank whose device moves the bytes.
        graph: the graph of the step.
        op: the layer of experts.
    """
    x, _logits, up, down, *_biases = (graph.tensors[name] for name in op.inputs)
    width = x.shape[-1]
    _experts, first_width, _ = up.shape  # the result of the first product
    _experts, _, second_width = down.shape  # the operand of the second product
    routed_rows = float(str(op.attrs["per_token"])) * x.size / width
    # Each tensor between two kernels is written, then read.
    element_bytes = PASSES_OVER_ROWS * SIZE_BYTES[x.dtype]
    summed_bytes = element_bytes * routed_rows * width
    activated_bytes = element_bytes * routed_rows * (first_width + second_width)
    return rank.traffic_s("gather", summed_bytes) + rank.traffic_s("mul", activated_bytes)


def kernel_seconds(
    rank: RankModel,
    kernels: Sequence[Kernel],
    device: Device,
    grouped_share: float,
    grouped_factor: float = 1.0,
) -> list[float]:
    """Return the seconds of each kernel; products of experts reach a share of the usual rate.

    Args:
        rank: the rank that runs the kernels.
        kernels: the kernels.
        device: the device, whose rate in 8 and 4 bit is what servers reach with any product.
        grouped_share: the share that grouped products in 16 bit reach of the rate of dense ones.
        grouped_factor: how many times as long grouped products take beside that.
    """
    times = rank.kernel_seconds(kernels, device)
    grouped_indices = [i for i, kernel in enumerate(kernels) if kernel.kind == "experts"]
    if grouped_indices and grouped_share != 1:
        peaks = {**device.datasheet.peak_flop_per_s}
        # Grouped products are priced on a device of a lower peak: other limits stay as they are.
        peaks[rank.compute_dtype] *= grouped_share
        grouped_device = device.with_figures(peak_flop_per_s=peaks)
        grouped_s = rank.kernel_seconds([kernels[i] for i in grouped_indices], grouped_device)
        for i, seconds in zip(grouped_indices, grouped_s, strict=True):
            times[i] = seconds
    for i in grouped_indices:
        times[i] *= grouped_factor
    return times
