"""A few rows of what others published, wherever the tests run: tests/data/published/README.md."""

from __future__ import annotations

import csv
import io
import json
from statistics import median

import pytest

from every import every
from places import TESTS
from steptime.build import build, make_workload, read_model
from steptime.cli.main import run
from steptime.grids.replicas import data_parallel
from steptime.hardware import catalog
from steptime.hardware.device import Link
from steptime.network.count import count
from steptime.network.ops import OPS
from steptime.paleo.method import PUBLISHED
from steptime.prediction.fabric import Fabric
from steptime.prediction.kernel import Kernel
from steptime.prediction.price import roofline
from steptime.prediction.steps.step_model import StepModel

FOLDER = TESTS / "data" / "published"
EXCHANGES = ("one-to-all", "tree", "butterfly", "butterfly-mixing")
Row = dict[str, str]


def rows_of(name: str) -> list[Row]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def exchanges(row: Row) -> list[float]:
    return [float(row[f"{name.replace('-', '_')}_s"]) for name in EXCHANGES]


def told(row: Row) -> str:
    return "-".join(list(row.values())[:6])


@every("row", rows_of("paleo_steps"), ids=told)
def test_a_step_is_that_of_the_original_paleo(row):
    options = {"ppp_comp": row["compute_share"], "ppp_comm": row["link_share"]}
    model = StepModel(row["network"], row["device"], row["link"], "paleo", options)
    (step,) = data_parallel(model, [int(row["workers"])], int(row["batch"]), row["scaling"])
    parts = [float(row[f"{part}_s"]) for part in ("forward", "backward", "update")]
    assert [step.forward_s, step.backward_s, step.update_s] == pytest.approx(parts, rel=1e-9)
    assert [step.communication_s[name] for name in EXCHANGES] == pytest.approx(
        exchanges(row), rel=1e-9
    )


@every("row", rows_of("paleo_exchanges"), ids=told)
def test_an_exchange_is_that_of_the_original_paleo(row):
    link = catalog.link(row["link"])
    assert isinstance(link, Link)
    fabric = Fabric(link, efficiency=float(row["link_share"]))
    found = [
        PUBLISHED[name](float(row["bytes"]), int(row["workers"]), fabric) for name in EXCHANGES
    ]
    assert found == pytest.approx(exchanges(row), rel=1e-12)


LAYERS = {
    "AlexNet": [*(f"CONV{i}" for i in range(1, 6)), "FC6", "FC7", "FC8"],
    "VGG16": [
        *(f"CONV{i}-{j}" for i, most in ((1, 2), (2, 2), (3, 3), (4, 3), (5, 3))
          for j in range(1, most + 1)),
        *("FC6", "FC7", "FC8"),
    ],
}  # fmt: skip


@every("row", rows_of("fodlam_sums"), ids=lambda row: "-".join(row.values())[:20])
def test_sums_are_those_of_the_original_fodlam(row, capsys, monkeypatch):
    layers = [n for n in LAYERS[row["table"]] if row["layers"] == "all" or n.startswith("FC")]
    text = json.dumps({"net": row["table"], "layers": layers})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run(["energy", "--method", "fodlam"]) == 0
    found = json.loads(capsys.readouterr().out)[row["part"]]
    assert found["energy"] == pytest.approx(float(row["energy_j"]), rel=1e-12)
    assert found["latency"] == pytest.approx(float(row["latency_s"]), rel=1e-12)


@every("row", rows_of("paradnn_fc"), ids=told)
def test_paradnn_counts_as_we_do_and_no_board_beats_its_peak(row):
    sizes = ",".join(f"{key}={row[key]}" for key in ("layers", "nodes", "inputs", "outputs"))
    workload = make_workload(read_model(f"fc:{sizes}"), row["batch"], phase="infer")
    graph = build(workload)
    products = sum(op.flop for op in count(graph).ops if OPS[op.kind].work)
    most = 1.02 if row["device"] == "v100" else 1.07  # the TPU's profiler counts a few ops more
    assert 0.999 < float(row["flop"]) / (3 * products) < most  # rounded to 3 or 4 digits
    assert graph.parameters == pytest.approx(int(row["parameters"]), rel=0.005, abs=5_001)
    peaks = catalog.device(row["device"]).datasheet.peak_flop_per_s
    flop_per_s = float(row["examples_per_s"]) * float(row["flop"]) / int(row["batch"])
    assert flop_per_s < max(peaks.values())


def test_no_published_product_beats_the_roofline():
    shares = []
    for row in rows_of("products"):
        b, m, n, k = (int(row[name]) for name in ("batch", "m", "n", "k"))
        moved = 4 * b * (m * k + k * n + m * n)
        work = (2 * b * m * n * k, moved)
        kernel = Kernel("product", "matmul", "forward", "float32", "matrix", *work)
        bound_s = roofline(kernel, catalog.device(row["device"])).value
        shares.append(bound_s / float(row["time_s"]))
        assert shares[-1] < 1.0, row
    assert 0.2 < median(shares) < 0.9  # nor does half of them take ten times as long


@every("row", rows_of("timm_networks"), ids=told)
def test_timm_counts_as_we_do_and_no_step_beats_the_roofline(row):
    text = f"{row['network']}:image={row['image']}"
    graph = build(make_workload(read_model(text), 1, phase="infer"))
    products = sum(op.flop for op in count(graph).ops if OPS[op.kind].work)
    assert products / 2e9 == pytest.approx(float(row["gmac"]), rel=0.01)
    assert graph.parameters / 1e6 == pytest.approx(float(row["parameters_M"]), abs=0.01)
    workload = make_workload(read_model(text), row["batch"], "float16-mixed", row["phase"])
    bound = StepModel(workload, row["device"], method="roofline").timeline()
    assert 0.1 < bound.step_s / float(row["step_s"]) < 1


def test_every_file_has_its_source():
    text = (FOLDER / "README.md").read_text("utf-8")
    for path in FOLDER.glob("*.csv"):
        assert f"| `{path.name}` |" in text
        assert path.stat().st_size < 10_000
