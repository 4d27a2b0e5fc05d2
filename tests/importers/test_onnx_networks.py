"""Networks of ONNX files: exact figures of those that the onnx package ships, any batch, phase."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.graph import check
from steptime.count import Count, count
from steptime.ops import OPS

# FLOP of products and convolutions at batch 1, float constants
LIGHT = {
    "bvlc_alexnet": (1_309_120_768, 60_965_224),
    "densenet121": (5_668_323_328, 8_062_504),
    "inception_v1": (2_863_112_704, 6_998_552),
    "inception_v2": (4_037_703_680, 11_214_888),
    "resnet50": (8_178_368_512, 25_557_032),
    "shufflenet": (249_329_056, 1_393_320),
    "squeezenet": (698_303_872, 1_235_496),
    "vgg19": (39_264_124_928, 143_667_240),
    "zfnet512": (2_963_454_016, 87_250_536),
}


def light(name: str) -> str:
    """Return the path of a network in the onnx package; skips without it."""
    onnx = pytest.importorskip("onnx")
    return str(Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx")


def counted(model: str, batch: int, phase: str = "infer") -> Count:
    """Return what a step costs."""
    graph = build_step(make_workload(read_model(model), batch, phase=phase))
    check(graph)
    return count(graph)


def of_products(found: Count) -> int:
    """Return the FLOP of matrix products and convolutions alone."""
    return sum(op.flop for op in found.ops if OPS[op.kind].work)


@pytest.mark.parametrize("name", LIGHT)
def test_published_networks_are_exact(name: str) -> None:
    one, eight = (counted(light(name), batch) for batch in (1, 8))
    assert (of_products(one), one.parameters) == LIGHT[name]
    assert of_products(eight) == 8 * of_products(one)
    assert eight.flop == 8 * one.flop


def test_a_network_of_a_file_can_be_trained() -> None:
    """ResNet-50 ends with a softmax, which is part of the loss; backward is twice forward, less
    the gradient of the image: 2 * 7*7*3*64 * 112*112."""
    found = counted(light("resnet50"), 2, "train")
    assert of_products(found) == 2 * (3 * LIGHT["resnet50"][0] - 236_027_904)


@pytest.mark.slow
def test_reading_needs_no_framework() -> None:
    code = (
        "import sys; from steptime.cli.main import run; run(['count', sys.argv[1]]);"
        "sys.exit([m for m in ('onnx', 'torch', 'jax', 'keras', 'numpy', 'google.protobuf')"
        " if m in sys.modules] or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, light("squeezenet")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
