"""Grouped products of experts in training: slower than dense ones by the share of a stack."""

from dataclasses import replace

import pytest

from steptime.calibration.cases import op_kernels
from steptime.hardware import catalog
from steptime.prediction import cost_model
from steptime.prediction.kernels import Kernels
from steptime.prediction.training import in_training

METHOD = cost_model("calibrated")
EXPERTS = ((1, 8192, 4096), (1, 8192, 8), (8, 28672, 4096), (8, 4096, 14336))
ATTRS = {"per_token": 2, "activation": "swiglu"}
DENSE = ((8192, 4096), (4096, 4096))


def price_matrix_kernels(stack: str, kind: str, pass_: str) -> float:
    """Return the seconds of an op's products in a training step on a v6e."""
    settings = replace(METHOD.settings, stack=stack)
    device = in_training(METHOD.derate(catalog.device("tpu-v6e"), "bfloat16", settings))
    shapes, attrs = (EXPERTS, ATTRS) if kind == "experts" else (DENSE, {})
    kernels = op_kernels(kind, shapes, attrs, "bfloat16", pass_)
    products = Kernels([kernel for kernel in kernels if kernel.unit == "matrix"])
    return float(METHOD.prices(products, device).value.sum())


@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_only_products_of_experts_reach_the_share(pass_: str) -> None:
    share = catalog.stack("maxtext-2025").training["training.grouped_share"].value
    seconds = {
        (stack, kind): price_matrix_kernels(stack, kind, pass_)
        for stack in ("maxtext-2024", "maxtext-2025")
        for kind in ("experts", "linear")
    }
    assert share < 1
    assert seconds["maxtext-2025", "experts"] == pytest.approx(
        seconds["maxtext-2024", "experts"] / share
    )
    assert seconds["maxtext-2025", "linear"] == seconds["maxtext-2024", "linear"]
