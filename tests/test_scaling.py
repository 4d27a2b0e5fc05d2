"""Data-parallel scaling: by hand, against the original Paleo, and against published figures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from steptime.predict.scaling import data_parallel
from steptime.predict.step_model import StepModel

REFERENCE = Path(__file__).parents[1].parent / "shared" / "reference" / "paleo"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="no ../shared/reference/paleo")
MS = 1e3


def paleo(
    network: str | Path, device: str, link: str | None, comp: float, comm: float, **options: Any
) -> StepModel:
    return StepModel(
        network, device, link, "paleo", {"ppp_comp": comp, "ppp_comm": comm, **options}
    )


@needs_reference
@pytest.mark.slow
def test_every_table_of_the_original() -> None:
    """54 cases, weak and strong, pipelined and not: 8 rows of compute and four exchanges each."""
    cases = json.loads(gzip.open(REFERENCE / "cases.json.gz").read())
    for case in cases.values():
        net = REFERENCE / "nets" / f"{case['net']}.json"
        for name, table in case["scaling"].items():
            scaling, pipeline = name.split("__")
            model = paleo(
                net,
                case["device"],
                case["network"],
                case["ppp_comp"],
                case["ppp_comm"],
                pipeline=pipeline == "pipeline",
            )
            rows = data_parallel(
                model, [row[0] for row in table["rows"]], case["batch_size"], scaling
            )
            for row, expected in zip(rows, table["rows"], strict=True):
                exchanges = ("one-to-all", "tree", "butterfly", "butterfly-mixing")
                found = [
                    row.workers,
                    row.global_batch,
                    1,
                    *(MS * s for s in (row.forward_s, row.backward_s, row.update_s)),
                    MS * row.compute_s,
                    *(MS * row.comm_s[exchange] for exchange in exchanges),
                ]
                assert found == pytest.approx(expected, rel=1e-9), (case["case"], name)
