"""MLPerf's networks that no name stands for are modules in `examples/mlperf`, read as a user's."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from steptime.build import build, make_workload, read_model

FOLDER = Path(__file__).resolve().parents[2] / "examples/mlperf"
pytestmark = [
    pytest.mark.framework,
    pytest.mark.slow,
    pytest.mark.usefixtures("exported_here"),
]


def linear(*widths: int) -> int:
    """Return the parameters of linear layers of these widths."""
    return sum((a + 1) * b for a, b in pairwise(widths))


def lstm(inputs: int, width: int) -> int:
    """Return the parameters of a layer of LSTM, both of its biases included."""
    return 4 * width * (inputs + width + 2)


def filters(*convolutions: tuple[int, int, int]) -> int:
    """Return the parameters of convolutions of (channels, filters, kernel), each with a norm."""
    return sum(n * m * k**2 + 2 * m for n, m, k in convolutions)


def plain(*convolutions: tuple[int, int, int]) -> int:
    """Return the parameters of convolutions of (channels, filters, kernel), each with a bias."""
    return sum((n * k**2 + 1) * m for n, m, k in convolutions)


def volumes(*convolutions: tuple[int, int]) -> int:
    """Return the parameters of convolutions of (channels, filters) of 3 x 3 x 3, with a norm."""
    return sum(27 * n * m + 2 * m for n, m in convolutions)


LEVELS = (32, 64, 128, 256, 320, 320)
GROUP = ((64, 64, 3), (128, 128, 3), (256, 256, 3))
HEADS = tuple(zip((256, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4), strict=True))
CASES = {  # a module and its inputs: parameters by hand, the shape that it makes of a batch of 3
    "ncf.py:NCF:4:int64,4:int64": (
        (138_493 + 26_744) * (64 + 128) + linear(256, 256, 128, 64) + linear(128, 1),
        (3, 1),
    ),
    "dlrm.py:DLRM:4x13,4x26:int64": (
        26 * 1000 * 128 + linear(13, 512, 256, 128)
        + linear(128 + 27 * 26 // 2, 1024, 1024, 512, 256, 1),
        (3, 1),
    ),
    "minigo.py:MiniGo:2x13x19x19": (
        filters((13, 256, 3), *[(256, 256, 3)] * 38, (256, 2, 1), (256, 1, 1))
        + linear(2 * 361, 362) + linear(361, 256, 1),
        (3, 363),
    ),
    "gnmt.py:GNMT:2x25:int64,2x26:int64": (
        32_320 * 1024 + 2 * lstm(1024, 1024)  # read in both directions
        + lstm(2048, 1024) + 2 * lstm(1024, 1024)
        + lstm(1024, 1024) + 3 * lstm(2048, 1024)
        + 2 * 1024**2 + linear(1024, 1) + linear(1024, 32_320),
        (3, 26, 32_320),
    ),
    "rnnt.py:RNNT:2x200x240,2x20:int64": (
        lstm(240, 1024) + lstm(1024, 1024) + lstm(2048, 1024) + 2 * lstm(1024, 1024)
        + 1023 * 512 + 2 * lstm(512, 512) + linear(1024, 512) + linear(512, 512, 1024),
        (3, 100, 20, 1024),
    ),
    "ssd.py:SSD:2x3x300x300": (
        filters((3, 64, 7), *[GROUP[0]] * 6, (64, 128, 3), (64, 128, 1), *[GROUP[1]] * 7)
        + filters((128, 256, 3), (128, 256, 1), *[GROUP[2]] * 11)
        + plain((256, 256, 1), (256, 512, 3), (512, 256, 1), (256, 512, 3), (512, 128, 1))
        + plain((128, 256, 3), *[(256, 128, 1), (128, 256, 3)] * 2)
        + plain(*[(n, (4 + 81) * boxes, 3) for n, boxes in HEADS]),
        (3, 85, 8732),
    ),
    "unet3d.py:UNet3D:2x1x64x64x64": (
        volumes((1, 32), *[(n, n) for n in LEVELS], *pairwise(LEVELS))
        + volumes(*[pair for n in LEVELS[:-1] for pair in ((2 * n, n), (n, n))])
        + sum(8 * m * n + n for n, m in pairwise(LEVELS))
        + 32 * 3 + 3,
        (3, 3, 64, 64, 64),
    ),
}  # fmt: skip
UNROLLED = [text for text in CASES if text.startswith(("rnnt.py", "gnmt.py"))]
"""Recurrent networks whose export writes out each step: half a minute each."""


@pytest.mark.parametrize(
    "text",
    [pytest.param(text, marks=pytest.mark.rare) if text in UNROLLED else text for text in CASES],
)
def test_a_module_has_the_parameters_and_the_result_of_the_publication(text):
    parameters, shape = CASES[text]
    work = make_workload(read_model(f"{FOLDER}/{text}", trusted=True), 3, phase="infer")
    graph = build(work)
    assert graph.parameters == parameters
    assert graph.tensors[graph.outputs[0]].shape == shape
    assert not graph.unmodelled
