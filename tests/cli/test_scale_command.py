"""The command `scale`: its document, its table, and one line for whatever is wrong."""

from __future__ import annotations

import pytest

import split_alexnet
import steptime
from printed import answer
from steptime.cli.main import run
from steptime.core.tables.text_table import text
from steptime.core.toml_files import DATA
from steptime.prediction.collectives import COLLECTIVES

NET = ["scale", "fc:layers=1,nodes=64,inputs=32,outputs=8", "--device", "V100"]
LINKED = [*NET, "--link", "ethernet-25"]
ROW = [
    "replicas",
    "global_batch",
    "batch",
    "forward_s",
    "backward_s",
    "update_s",
    "compute_s",
    "communication_s",
    "overlap_s",
    "exposed_communication_s",
    "step_s",
    "low_s",
    "high_s",
    "speedup",
    "efficiency",
    "examples_per_s",
    "tokens_per_s",
    "epoch_s",
    "train_s",
    "device_hours",
    "cost_total",
    "peak_bytes",
    "needed_bytes",
    "collectives",
    "forward_lower_s",
    "forward_upper_s",
    "backward_lower_s",
    "backward_upper_s",
    "data",
    "model",
    "notes",
]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert run(words) == 0
    return capsys.readouterr().out.splitlines()


def test_document(capsys):
    found = answer(capsys, *LINKED, "--replicas", "1,2,4,...,16", "--batch", "8")
    assert (found["link"], found["batch"], found["scaling"]) == ("ethernet-25", 8, "weak")
    assert (found["parallel"], found["collective"], found["method"]) == (
        "data",
        "ring",
        "calibrated",
    )
    assert found["parameters"] == 32 * 64 + 64 + 64 * 8 + 8
    assert found["gradient_bytes"] == 4 * found["parameters"]
    assert [row["replicas"] for row in found["rows"]] == [1, 2, 4, 8, 16]
    for row in found["rows"]:
        assert list(row) == ROW
        exchanges = {item["collective"]: item["communication_s"] for item in row["collectives"]}
        assert list(exchanges) == [name for name in COLLECTIVES if name in exchanges]
        assert {*COLLECTIVES} - {*exchanges} <= {"in-switch"}  # of nodes with a switch
        assert row["communication_s"] == exchanges["ring"]
        assert row["global_batch"] == 8 * row["replicas"]
        assert row["step_s"] == pytest.approx(row["compute_s"] + row["communication_s"])
    assert (found["examples"], found["epochs"], found["billing"]) == (None, None, None)
    assert found["latency_s"] == pytest.approx(22e-6)
    unknown = answer(capsys, *NET, "--link", "neuronlink-3", "--replicas", "2")
    assert any("no latency is known" in note for note in unknown["notes"])


def test_workers_default_and_order(capsys):
    assert [r["replicas"] for r in answer(capsys, *LINKED)["rows"]] == [1, 2, 4, 8, 16, 32, 64, 128]
    found = answer(capsys, *LINKED, "--replicas", "9,1..4")
    assert [row["replicas"] for row in found["rows"]] == [1, 2, 3, 4, 9]


def test_training_time_and_cost(capsys):
    money = ["--examples", "1000000", "--epochs", "90", "--price", "0.90"]
    found = answer(capsys, *LINKED, "--batch", "10", "--replicas", "4", *money)
    (row,) = found["rows"]
    assert row["epoch_s"] == pytest.approx(1_000_000 / 40 * row["step_s"])
    assert row["train_s"] == pytest.approx(90 * row["epoch_s"])
    assert row["device_hours"] == pytest.approx(row["train_s"] * 4 / 3600)
    assert row["cost_total"] == pytest.approx(row["device_hours"] * 0.90)  # by the second
    assert (found["examples"], found["epochs"]) == (1_000_000, 90)
    assert (found["cost_per_hour"], found["billing"]) == (0.9, "second")
    assert found["currency"] is None
    priced = [
        *LINKED,
        "--replicas",
        "4",
        "--examples",
        "1000000",
        "--epochs",
        "90",
        "--price",
        "0.9",
    ]
    (by_hour,) = answer(capsys, *priced, "--billing", "hour")["rows"]
    started = -(-row["train_s"] // 3600)
    assert by_hour["cost_total"] == pytest.approx(started * 4 * 0.90)
    (row,) = answer(capsys, *LINKED, "--replicas", "4", "--examples", "1000")["rows"]
    assert row["train_s"] == row["epoch_s"]
    assert row["cost_total"] is None


def test_options_of_the_exchange(capsys):
    def comm(*words: str) -> dict[str, float]:
        nodes = () if "--per-node" in words else ("--per-node", "1")
        (row,) = answer(capsys, *LINKED, "--replicas", "16", *nodes, *words)["rows"]
        return {item["collective"]: item["communication_s"] for item in row["collectives"]}

    plain = comm()
    start = 4e-5  # of an exchange under torch-eager, beside its messages
    waiting = start + 2 * 4 * 22e-6  # up and down a tree of 16, ethernet-25's latency each
    compressed = comm("--compression", "4")["tree"]
    assert compressed - waiting == pytest.approx((plain["tree"] - waiting) / 4)
    late = comm("--latency-us", "100")
    assert late["tree"] == pytest.approx(plain["tree"] + 2 * 4 * (100e-6 - 22e-6))
    quick = comm("--inside", "nvlink-2", "--per-node", "4")
    assert quick["hierarchical"] < plain["hierarchical"]
    assert quick["ring"] < plain["ring"]  # it waits between nodes only where it crosses them
    narrow = comm("--inside", "nvlink-2", "--per-node", "4", "--links-per-node", "1")
    assert quick["hierarchical"] < narrow["hierarchical"]  # a link each by default
    shared = comm("--servers", "4")["parameter-server"]
    messages = start + 2 * 16 * 22e-6  # from and to each worker, one after another
    assert shared - messages == pytest.approx((plain["parameter-server"] - messages) / 4)
    deep = ["scale", "resnet50", "--device", "V100", "--link", "ethernet-25", "--replicas", "8"]
    (plainly,) = answer(capsys, *deep)["rows"]
    (hidden,) = answer(capsys, *deep, "--overlap")["rows"]
    assert plainly["overlap_s"] == 0 < hidden["overlap_s"]
    assert hidden["step_s"] == pytest.approx(plainly["step_s"] - hidden["overlap_s"])


def test_hybrid_and_model(capsys, tmp_path):
    net = str(split_alexnet.write(tmp_path, 2))
    words = ["scale", net, "--device", "K20", "--link", "pcie2", "--method", "paleo"]
    (row,) = answer(capsys, *words, "--parallel", "hybrid", "--replicas", "2")["rows"]
    assert list(row["data"]) == ["forward_s", "backward_s", "update_s", "sync_s"]
    assert list(row["model"]) == ["forward_s", "backward_s", "update_s"]
    parts = [*row["data"].values(), *row["model"].values()]
    assert row["step_s"] == pytest.approx(sum(parts))
    assert (row["replicas"], row["global_batch"]) == (2, 256)
    (row,) = answer(capsys, *words, "--parallel", "model")["rows"]
    for part in ("forward", "backward"):
        assert row[f"{part}_lower_s"] <= row[f"{part}_upper_s"]
    found = answer(capsys, *words, "--parallel", "hybrid")
    ops = {op["name"]: op for op in found["ops"]}
    fed = ops["dense/fc6@1"]
    assert fed["device"] == 1
    assert fed["fetch_s"] == pytest.approx(128 * 5 * 5 * 256 * 4 / 2**30 / 8)  # pcie2: 8 GB/s
    assert fed["forward_s"] == fed["forward_compute_s"] + fed["forward_memory_s"]
    assert fed["forward_memory_s"] > fed["fetch_s"] > ops["conv1"]["fetch_s"] == 0
    whole = sum(op["forward_s"] for op in found["ops"] if "@" not in op["name"])
    assert found["rows"][0]["data"]["forward_s"] == pytest.approx(whole)
    table = "\n".join(shown(capsys, *words, "--parallel", "hybrid"))
    assert "model parallel" in table
    assert "hybrid (paleo, tree)" in table
    assert " - " in "\n".join(shown(capsys, *words, "--parallel", "model"))


def test_strong_scaling_shares_a_global_batch(capsys):
    words = ["scale", "resnet18", "--device", "v100", "--link", "aws", "--replicas", "1,2,4"]
    weak = answer(capsys, *words, "--batch", "64")
    strong = answer(capsys, *words, "--scaling", "strong", "--global-batch", "64")
    assert (weak["batch"], weak["global_batch"]) == (64, None)
    assert (strong["batch"], strong["global_batch"]) == (None, 64)
    assert [row["batch"] for row in weak["rows"]] == [64, 64, 64]
    assert [row["global_batch"] for row in weak["rows"]] == [64, 128, 256]
    assert [row["batch"] for row in strong["rows"]] == [64, 32, 16]
    assert [row["global_batch"] for row in strong["rows"]] == [64, 64, 64]
    assert weak["rows"][0]["step_s"] == strong["rows"][0]["step_s"]
    assert run([*words, "--scaling", "strong", "--global-batch", "64"]) == 0
    assert "over aws, global batch 64, strong scaling" in capsys.readouterr().out


def test_table(capsys):
    words = ["scale", "vgg16", "--device", str(DATA / "devices/k80.toml")]
    words += ["--link", "aws", "--replicas", "1,2,4"]
    assert run([*words, "--examples", "100000", "--price", "0.9"]) == 0
    printed = capsys.readouterr()
    title, head, *rows = printed.out.splitlines()
    assert title.startswith("vgg16 on K80 over aws, batch 64 a replica, weak scaling (calibrated")
    assert head.split()[:3] == ["replicas", "cost", "training"]
    for column in ("global batch", "communication", "speed-up", "speed"):
        assert column in head
    assert "hidden" not in head  # nothing is
    assert len(rows) == 3 + 3
    assert rows[3] == (
        "assumed: --stack torch-eager, --channels-last no, --host any-server, --dtype float32, "
        "--optimizer sgd; "
        "all-reduce after the backward pass, not during it (--overlap)"
    )
    assert rows[4].startswith("stops paying at 2 replicas")
    assert rows[5] == (
        "training: 1 epoch of 100,000 examples; a device costs 0.9 per hour, paid by the second"
    )
    assert "note: K80 lies beyond what was measured: not said: " in printed.err


def test_cost_is_shown_in_80_columns():
    scaled = steptime.scale(
        "resnet50", "v100", link="ethernet-25", examples=1e6, price="$0.9", replicas=[1, 8]
    )
    table = text(scaled.tables()[0], 80)
    assert "hidden columns" in table
    (head,) = [line for line in table.splitlines() if line.lstrip().startswith("replicas")]
    assert head.split()[:3] == ["replicas", "cost", "training"]
    assert (scaled.currency, scaled.cost_per_hour) == ("USD", 0.9)
    assert scaled.headline[-1].startswith("training: 1 epoch of 1,000,000 examples")


def test_what_does_not_fit_is_told(capsys):
    words = ["scale", "vgg16", "--device", "V100", "--batch", "1000"]
    (alone,) = answer(capsys, *words, "--replicas", "1")["notes"][:1]
    assert alone.startswith("out of memory by")
    several = answer(capsys, *words, "--replicas", "1,2", "--link", "nvlink-2")["notes"][0]
    assert several == f"batch 1000 (optimizer sgd): {alone}"
