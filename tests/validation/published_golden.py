"""Errors of published tables, written down and compared as `tests/golden` does command lines.

PYTHONPATH=tests/golden:. python tests/validation/published_golden.py    writes them anew
"""

import contextlib
import io
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import golden
from validation.__main__ import main

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WRITTEN = HERE / "golden.json"
LLM = ROOT.parent / "shared/reference/llm"
HELD = (HERE / "published.csv", ROOT / "docs/examples/papers.csv")  # always here
TABLES = (  # a kind of row each
    "collectives_dev.csv", "fastertransformer_gpt_dev.csv", "layer_ops_dev.csv",
    "llm_foundry_dev.csv", "models.csv",
)  # fmt: skip
SLOW = (
    "aic_serving_dev.csv", "ibm_fsdp_dev.csv", "jax_toolbox_dev.csv", "llama3_paper_dev.csv",
    "megatron_bridge_dev.csv", "mlperf_power_dev.csv", "mlperf_steps_dev.csv", "nemo_h100_dev.csv",
    "torchtitan_dev.csv", "trtllm_static_dev.csv", "vtrain_multi_dev.csv",
)  # fmt: skip
RARE = ("aic_serving_dev.csv",)  # takes a minute; a sample of it is not rare


@cache
def scored(table: Path) -> dict[str, Any]:
    """Return what `python -m validation TABLE --json` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([str(table), "--json"]) == 0
    return dict(json.loads(out.getvalue()))


def flat(document: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a document by their paths; rows of lists as sums of their columns."""
    return dict(golden.flat({name: one for name, one in document.items() if name != "path"}))


def write(found: dict[str, dict[str, Any]]) -> None:
    """Write what was found, a line a table."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(values, sort_keys=True)}"
        for name, values in found.items()
    ]
    WRITTEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    tables = [*HELD, *(LLM / name for name in (*TABLES, *SLOW))]
    write({table.name: flat(scored(table)) for table in tables})
    sys.exit(0)
