"""Files that commands read: records, rows of ops, a table with its mapping, an experiment."""

from __future__ import annotations

import json
from pathlib import Path

import synthetic
from steptime.records.store import open_writer

EXPERIMENT = """
name = "e"
backend = "null"
threads = 1
budget_s = 0.02
[[networks]]
family = "fc"
layers = 1
nodes = 8
"""
COLUMNS = """
model = "{network}"
device = "{gpu}"
batch = "{batch}"
[quantities]
step_s = { column = "took_ms", scale = 0.001 }
"""
CELLS = "network,gpu,batch,took_ms\nresnet18,T4,8,50\nresnet18,T4,16,100\n"


def write_files(folder: Path) -> None:
    """Write records, rows.jsonl, rows.csv, columns.toml and experiment.toml into a folder."""
    (folder / "experiment.toml").write_text(EXPERIMENT, "utf-8")
    (folder / "columns.toml").write_text(COLUMNS, "utf-8")
    (folder / "rows.csv").write_text(CELLS, "utf-8")
    rows = [
        {"kind": "linear", "shapes": [[8 * k, 256], [256, 256], [256]], "dtype": "float32",
         "device": "t4", "seconds": (20 + k) * 1e-6}
        for k in (1, 8, 64, 256)
    ]  # fmt: skip
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with open_writer(folder / "records") as writer:
        writer.append_all(synthetic.sweep())
