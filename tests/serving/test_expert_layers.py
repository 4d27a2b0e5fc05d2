"""Layers of experts in a server: bytes of routed rows, and the rate of grouped products."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from steptime.core.graph import Graph, Op, TensorSpec
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.planning.ranks.rank_model import RankModel
from steptime.prediction.kernel import Kernel
from steptime.serving.experts import kernel_seconds, routed_traffic_s

TOKENS, WIDTH, INNER, EXPERTS, PER_TOKEN = 10, 64, 32, 8, 2


class CountingRank:
    """A rank that moves a byte a second and computes at the device's peak."""

    compute_dtype = "bfloat16"

    def traffic_s(self, _kind: str, size_bytes: float, _flop: float = 0.0) -> float:
        return size_bytes

    def kernel_seconds(self, kernels: Sequence[Kernel], device: Device) -> list[float]:
        return [kernel.flop / device.datasheet.peak_flop_per_s[kernel.dtype] for kernel in kernels]


RANK = cast(RankModel, CountingRank())


def expert_layer() -> tuple[Graph, Op]:
    shapes: dict[str, tuple[int, ...]] = {
        "x": (1, TOKENS, WIDTH),
        "logits": (1, TOKENS, EXPERTS),
        "up": (EXPERTS, 2 * INNER, WIDTH),
        "down": (EXPERTS, WIDTH, INNER),
        "y": (1, TOKENS, WIDTH),
    }
    attrs: Any = {"per_token": PER_TOKEN, "activation": "swiglu"}
    op = Op("block1/experts", "experts", ("x", "logits", "up", "down"), ("y",), attrs)
    tensors = {name: TensorSpec(shape, "bfloat16") for name, shape in shapes.items()}
    return Graph("layer", tensors, (op,), tuple(shapes)[:4], (), ("y",)), op


def test_routed_rows_are_written_and_read_between_kernels() -> None:
    rows = TOKENS * PER_TOKEN
    numbers_of_row = WIDTH + 2 * INNER + INNER  # the result, both halves of the gate, activated
    assert routed_traffic_s(RANK, *expert_layer()) == 2 * 2 * rows * numbers_of_row


def product(kind: str, dtype: str) -> Kernel:
    return Kernel("block1/mlp", kind, "forward", dtype, "matrix", 1e12, 1e6)


def test_grouped_products_in_16_bit_reach_a_share_of_the_rate_of_dense_ones() -> None:
    device = catalog.device("h100-sxm5")
    kernels = [product("linear", "bfloat16"), product("experts", "bfloat16")]
    dense_s, grouped_s = kernel_seconds(RANK, kernels, device, 0.5)
    assert grouped_s == pytest.approx(2 * dense_s)


def test_grouped_products_take_a_factor_longer_and_dense_ones_do_not() -> None:
    device = catalog.device("b200-sxm")
    for dtype in ("bfloat16", "float8"):
        kernels = [product("linear", dtype), product("experts", dtype)]
        plain_s = kernel_seconds(RANK, kernels, device, 0.5)
        dense_s, grouped_s = kernel_seconds(RANK, kernels, device, 0.5, 1.4)
        assert [dense_s, grouped_s] == pytest.approx([plain_s[0], 1.4 * plain_s[1]])


def test_grouped_products_in_8_bit_have_the_rate_that_servers_reach_in_8_bit() -> None:
    device = catalog.device("h100-sxm5")
    kernels = [product("linear", "float8"), product("experts", "float8")]
    dense_s, grouped_s = kernel_seconds(RANK, kernels, device, 0.5)
    assert grouped_s == dense_s
