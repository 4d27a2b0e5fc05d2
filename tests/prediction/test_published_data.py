"""Our counts and our roofline beside measurements that others published.

These tests read reference data beside the checkout and are skipped where it is absent.
docs/validation.md quotes their numbers.
"""

from __future__ import annotations

import csv
import gzip
import json
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from steptime.build import Choice, build, make_workload, read_model
from steptime.hardware import catalog
from steptime.network.count import count
from steptime.prediction.records import records
from steptime.prediction.steps.step_model import StepModel

EVERY = 12  # of so many rows one, for time; with 1 it is the table of docs/validation.md


def load(path: Path) -> Any:
    with gzip.open(path, "rt") as stream:
        return json.load(stream)


def test_paradnn_counts_three_times_our_forward_products(shared):
    # its `fl` is 6 * batch * multiply-adds, rounded to 3-4 digits: forward is a third of that
    data = load(shared / "paradnn/gpu_fc.json.gz")
    ratios = []
    for label, giga_flop in zip(data["labels"], data["fl"], strict=True):
        forward = count(build(make_workload(read_model(label), phase="infer")))
        products = sum(op.flop for op in forward.ops if op.kind == "linear")
        ratios.append(giga_flop * 1e9 / (3 * products))
    assert len(ratios) == 176
    assert min(ratios) > 0.999
    assert max(ratios) < 1.02


def test_paradnn_parameters_are_ours_rounded_to_ten_thousand(shared):
    data = load(shared / "paradnn/tpu_fc.json.gz")
    for label, published in list(zip(data["labels"], data["params"], strict=True))[::20]:
        parameters = build(make_workload(read_model(label), phase="infer")).parameters
        assert parameters == pytest.approx(published, abs=5_001)


def slowdowns(path: Path, device: str, method: str) -> list[tuple[float, float]]:
    """Return (measured seconds a step, measured / predicted) of the rows that succeeded.

    The measured networks have `layers` square layers besides the input layer, and Adam.
    """
    found_device = catalog.device(device)
    found = []
    with gzip.open(path, "rt") as stream:
        for row in islice(csv.DictReader(stream, skipinitialspace=True), 0, None, EVERY):
            measured = float(row["duration"]) / 100  # the column is of 100 steps
            if measured == 0:
                continue
            sizes = {
                "layers": int(row["layers"]) + 1,
                "nodes": row["nodes"],
                "inputs": row["input_size"],
                "outputs": row["output_size"],
            }
            workload = make_workload(Choice("fc", sizes), row["batch_size"], optimizer="adam")
            record = records(StepModel(workload, found_device, method=method))[0]
            found.append((measured, measured / float(record.quantities["step_s"].value or 0)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "device", "method", "large_steps"),
    [
        pytest.param("fc_T4_dev.csv.gz", "t4", "roofline", 1.65, marks=pytest.mark.rare),
        pytest.param(
            "fc_A100_dev.csv.gz", "a100-pcie-80gb", "roofline", 1.18, marks=pytest.mark.rare
        ),
        ("fc_T4_dev.csv.gz", "t4", "analytic", 1.61),
        ("fc_A100_dev.csv.gz", "a100-pcie-80gb", "analytic", 1.14),
    ],
)
def test_no_published_step_beats_the_prediction(shared, file, device, method, large_steps):
    found = slowdowns(shared / "pytorch-paradnn" / file, device, method)
    assert len(found) > 80
    assert min(ratio for _, ratio in found) > 1  # both are bounds
    # steps over 50 ms are bound by the device, shorter ones also by launches and the host
    assert median(ratio for step, ratio in found if step > 0.05) == pytest.approx(
        large_steps, rel=0.05
    )
