"""Classes of devices and stacks that no fitted row tells, beside figures that others published.

docs/validation.md has the table that this makes. Its figures are of one run each, by hands that
nobody knows: none was fitted but those that the page names.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import steptime
from every import every
from steptime.core.toml_files import DATA, read_toml

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
SIZES = (2048, 4096, 8192, 10240)
SQUARES = {  # TFLOP/s of products of two square matrices of these sizes
    "products of AMD's Instinct": (
        ("mi210", "float32", 31.85, 33.13, 33.02, 33.68),
        ("mi210", "float16", 106.24, 117.08, 120.18, 127.16),
        ("mi210", "bfloat16", 102.47, 120.55, 124.18, 130.83),
        ("mi210", "float32", 34.6, 32.3, 37.9, None),  # rocBLAS alone
        ("mi250", "float16", 112.9, None, 151.9, None),
    ),
    "products of AMD's Radeon": (
        ("rx-6800", "float32", 14.08, 13.73, 13.39, 13.41),
        ("rx-6600-xt", "float32", 8.17, 8.31, 8.34, 8.35),
        ("rx-7900-xtx", "float32", 19.20, 22.82, 23.27, 23.28),
        ("rx-7900-xtx", "bfloat16", 46.34, 82.57, 88.09, 86.85),
        ("rx-7700-xt", "float32", 8.90, 8.69, 8.44, 8.52),
        ("rx-7700-xt", "float16", 53.15, 55.87, 50.70, 50.56),
        ("rx-9070-xt", "float32", 14.71, 14.94, 17.46, 17.41),
        ("rx-9070-xt", "float16", 113.89, 124.64, 90.53, 117.91),
    ),
    "float32 products of H100, H200 and H20": (
        ("h100-sxm5", "float32", 49.58, 51.88, 51.81, 49.61),
        ("h100-pcie", "float32", 33.31, 36.51, 36.95, 35.80),
        ("h20", "float32", 24.68, 30.27, 31.99, 31.94),
        ("h200-sxm", "float32", None, 51.34, None, None),
    ),
    "bfloat16 products of H100, H200 and B200": (
        ("h100-sxm5", "bfloat16", 676.59, 788.72, 797.51, 719.72),
        ("h200-sxm", "bfloat16", None, 790.29, None, None),
        ("b200-sxm", "bfloat16", 1006, 1532, 1610, 1696.03),
        ("h20", "bfloat16", 120.27, 133.41, 138.60, 142.25),
    ),
    "bfloat16 products of Hopper's cards": (
        ("h100-pcie", "bfloat16", 449.09, 495.93, 492.84, 471.79),
        ("h800-pcie", "bfloat16", 483.89, 503.83, 499.46, 487.22),
    ),
    "float32 products of GeForce 40, L4 and L20": (
        ("rtx-4090", "float32", 53.84, 53.02, 53.41, 51.43),
        ("rtx-4070-super", "float32", None, 24.6, None, None),
        ("rtx-4060-ti", "float32", 13.40, 13.20, 15.62, 14.99),
        ("rtx-4060", "float32", 8.08, 8.08, 7.47, 7.35),
        ("l4", "float32", 15.38, 12.53, 10.66, 11.11),
        ("l20", "float32", 37.27, 36.35, 35.88, 35.27),
    ),
    "float16 products of GeForce 40, L4 and L20": (
        ("rtx-4090", "float16", 159.38, 168.38, 155.50, 156.88),
        ("rtx-4060-ti", "float16", 44.75, 45.03, 47.58, 47.80),
        ("rtx-4060", "float16", 32.64, 31.47, 30.68, 30.24),
        ("l4", "bfloat16", 70.89, 54.91, 59.40, 56.90),
        ("l20", "float16", 104.66, 113.26, 108.96, 106.53),
    ),
    "float32 products of GeForce 50 and PRO Blackwell": (
        ("rtx-5090", "float32", 69.83, 64.50, 66.91, 65.46),
        ("rtx-5070", "float32", 22.92, 22.36, 22.89, 22.36),
        ("rtx-5050", "float32", 8.45, 7.39, 8.74, 8.46),
        ("rtx-pro-6000-blackwell-server", "float32", 57.10, 78.61, 78.99, 74.88),
    ),
    "float16 products of GeForce 50 and PRO Blackwell": (
        ("rtx-5090", "float16", 173.86, 217.99, 223.98, 220.03),
        ("rtx-5090", "bfloat16", 171.53, 182.19, 234.66, 236.99),
        ("rtx-5070", "float16", 56.04, 65.54, 66.28, 66.13),
        ("rtx-5050", "float16", 23.11, 24.53, 24.23, 24.24),
        ("rtx-pro-6000-blackwell-server", "bfloat16", 257.19, 399.93, 417.34, 387.01),
    ),
}
COPIES = "copies and sums of AMD's Instinct"
STREAMS = (  # TB/s of a copy, of a sum of two tensors
    ("mi210", 1.24, 1.115),  # the sum: the least that AMD accepts
    ("mi100", 0.94, 0.91),  # both
    ("mi250", 1.2, 1.1),  # both
    ("mi300x", 4.11, 4.14),
    ("mi300a", 3.83, 3.455),
)
ELEMENTS = 2**27
NETWORKS = {  # dtype, model, batch, device, phase and stack of a step; milliseconds
    "image networks on GeForce 40 and 50": (
        ("float16", "resnet50", 374, "rtx-4090", "infer", "torch-eager", 374 / 4.453),
        ("float32", "resnet50", 193, "rtx-4090", "infer", "torch-eager", 193 / 2.386),
        ("float16", "resnet50", 12, "rtx-5090", "train", "torch-eager", 8.28),
        ("float32", "resnet50", 12, "rtx-5090", "train", "torch-eager", 11.2),
        ("float16", "vgg16", 12, "rtx-5090", "train", "torch-eager", 10.12),
        ("float32", "vgg16", 12, "rtx-5090", "train", "torch-eager", 19.5),
        ("float16", "resnet18", 12, "rtx-5090", "train", "torch-eager", 3.65),
        ("float32", "resnet18", 12, "rtx-5090", "train", "torch-eager", 4.70),
    ),
    "ResNet-50 compiled": (
        ("float32", "resnet50", 16, "a100-sxm4-40gb", "infer", "torch-compile", 5.024),
        ("float32", "resnet50", 1, "v100-sxm2-16gb", "infer", "torch-compile", 3.82),
        ("float32", "resnet50", 4, "v100-sxm2-16gb", "infer", "torch-compile", 4.731),
        ("float32", "resnet50", 16, "v100-sxm2-16gb", "infer", "torch-compile", 12.089),
        ("float32", "resnet50", 1, "t4", "infer", "torch-compile", 4.321),
        ("float32", "resnet50", 4, "t4", "infer", "torch-compile", 11.388),
        ("float32", "resnet50", 16, "t4", "infer", "torch-compile", 37.604),
    ),
}


class Fact(NamedTuple):
    """Seconds as predicted, with the ends of the interval, and as published."""

    predicted: float
    low: float
    high: float
    published: float


def of_op(kind: str, shapes: list[list[int]], dtype: str, device: str, seconds: float) -> Fact:
    one = steptime.predict_op(kind, shapes, dtype, device)
    return Fact(one.seconds, one.low, one.high, seconds)


def products(name: str) -> Iterator[Fact]:
    for device, dtype, *rates in SQUARES[name]:
        for size, rate in zip(SIZES, rates, strict=True):
            if rate:
                yield of_op("matmul", [[size, size]] * 2, dtype, device, 2e-12 * size**3 / rate)


def streams() -> Iterator[Fact]:
    for device, copied, added in STREAMS:
        for kind, tensors, rate in (("relu", 2, copied), ("add", 3, added)):
            seconds = 4e-12 * tensors * ELEMENTS / rate
            yield of_op(kind, [[ELEMENTS]] * (tensors - 1), "float32", device, seconds)


def networks(name: str) -> Iterator[Fact]:
    for dtype, model, batch, device, phase, stack, published_ms in NETWORKS[name]:
        step = steptime.predict(
            model, device, batch, dtype=dtype, phase=phase, options={"stack": stack}
        )
        passes_s = step.forward_s + step.backward_s  # what was timed updates nothing
        share = passes_s / step.step_s
        yield Fact(passes_s, step.low_s * share, step.high_s * share, published_ms / 1e3)


def told(facts: list[Fact]) -> tuple[float, float, int]:
    """Return the mean error and the bias in percent, and how many the intervals hold."""
    off = [one.predicted / one.published - 1 for one in facts]
    covered = sum(one.low <= one.published <= one.high for one in facts)
    mape, bias = (100 * sum(values) / len(off) for values in (map(abs, off), off))
    return mape, bias, covered


CLASSES = {
    **{name: (products, name) for name in SQUARES},
    COPIES: (streams,),
    **{name: (networks, name) for name in NETWORKS},
}
NEAR = (4, 6, 4)  # in percent and figures: a fit of constants on other rows moves these a little


@every("name", CLASSES)
def test_the_page_says_how_far_off_a_class_is(name):
    made, *of = CLASSES[name]
    facts = list(made(*of))
    page = PAGE.read_text()
    start = f"| {name} | {len(facts)} |"
    assert start in page
    cells = page.partition(start)[2].splitlines()[0].split("|")
    said = [float(cell.strip().rstrip("%")) for cell in cells[:3]]
    found = told(facts)
    shown = f"{start} {found[0]:.0f}% | {found[1]:+.0f}% | {found[2]} |"
    for value, was, near in zip(found, said, NEAR, strict=True):
        assert value == pytest.approx(was, abs=near), shown


def figures(table: Mapping[str, object]) -> Iterator[float]:
    for value in table.values():
        if isinstance(value, dict):
            yield from figures(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield float(value)


def test_no_file_of_a_device_holds_a_figure_that_is_scored():
    """Within a thousandth, and above 100: small whole numbers meet by chance."""
    rates = [
        (row[0], rate) for rows in SQUARES.values() for row in rows for rate in row[2:] if rate
    ]
    rates += [(name, 1e3 * rate) for name, *pair in STREAMS for rate in pair]
    held = [
        (name, rate)
        for name, rate in rates
        for one in figures(read_toml(DATA / "devices" / f"{name}.toml"))
        if rate > 100 and one == pytest.approx(rate, rel=1e-3)
    ]
    assert held == []
