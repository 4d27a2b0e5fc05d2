"""Layouts and widths that libraries ask for: copies of images, heads that are padded."""

from steptime.calibration.cases import op_kernels
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from steptime.prediction.calibrated.attention import attention
from steptime.prediction.kernel import Settings
from steptime.prediction.lower import lower


def _constants() -> dict[str, float]:
    found: dict[str, Constant] = dict(catalog.priors("gpu", "torch-eager"))
    return {name: one.value for name, one in found.items()}


def _attention_s(width: int) -> float:
    shape = (8, 4096, 16 * width)
    how = {"heads": 16, "kv_heads": 16, "causal": False}
    [kernel] = op_kernels("attention", (shape,) * 3, how, "float16")
    device = catalog.device("a100-sxm4-80gb")
    return float(attention(kernel, device, _constants()).compute_s)


def test_heads_of_40_take_as_long_as_heads_of_64():
    """FlashAttention has kernels of 32, 64, 96 and 128 columns: 40 run as 64."""
    assert abs(_attention_s(40) / _attention_s(64) - 1) < 1e-6
    assert _attention_s(72) < _attention_s(96) * (1 + 1e-6)
    assert _attention_s(128) > _attention_s(96)


def test_group_norm_copies_images_that_lie_channels_last():
    """Two copies, each of which reads and writes: four passes more, and two kernels."""
    shape = (2, 64, 32, 32)
    specs = {"x": TensorSpec(shape, "float16"), "y": TensorSpec(shape, "float16")}
    specs |= {name: TensorSpec((64,), "float16") for name in ("w", "b")}
    op = Op("norm", "group_norm", ("x", "w", "b"), ("y",), {"groups": 32})
    graph = Graph("net", specs, (op,), ("x",), ("w", "b"), ("y",))
    first, last, compiled = (
        lower(graph, "float16", Settings(stack=stack, channels_last=is_last)).kernels[0]
        for stack, is_last in (
            ("torch-eager", False),
            ("torch-eager", True),
            ("torch-compile", True),
        )
    )
    assert last.bytes - first.bytes == 4 * specs["x"].size_bytes
    assert (last.launches, first.launches) == (5, 3)
    assert compiled.launches == 1
