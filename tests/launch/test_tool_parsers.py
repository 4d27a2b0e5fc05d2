"""What is emitted passes the parsers of the tools themselves: make test-parsers."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from steptime.launch.emit import emit_job
from steptime.launch.shell import read_script
from tests.launch.test_emit import ADAPTER, JOBS, MODEL, STEP

pytestmark = pytest.mark.parsers
SCRIPT = Path(__file__).with_name("parse_emitted.py")
FILE_TOOLS = {"trl", "axolotl"}
OPTIMIZERS = {"adamw": "adamw_torch", "adam8bit": "adamw_bnb_8bit"}
TRAINING = [
    (tool, facts)
    for tool, _, facts in JOBS
    if tool in {"trl", "axolotl", "accelerate", "deepspeed"}
] + [
    ("axolotl", {**STEP, **ADAPTER, "data": 8, "devices": 8, "zero": 3}),
    ("trl", {**STEP, "optimizer": "adam8bit", "zero": 3, "devices": 8}),
    ("accelerate", {**STEP, **ADAPTER, "zero": 2, "devices": 8}),
    ("accelerate", {**STEP, "dtype": "float16", "recompute": "none", "zero": 3, "devices": 2}),
    ("deepspeed", {**STEP, "zero": 3, "devices": 8}),
    ("deepspeed", {**STEP, "dtype": "float16", "optimizer": "adam8bit", "zero": 2, "devices": 8}),
]


def write_job(tool, facts, folder):
    """Write the files of a job, and return the words behind the tool's command."""
    text = emit_job(tool, "train", MODEL, facts)
    if tool in FILE_TOOLS:
        (folder / "job.yaml").write_text(text)
        return []
    script = read_script(text)
    for name, content in script.files.items():
        (folder / name).write_text(content)
    words = [*script.commands[-1].words]
    assert words[0] == tool
    return words[2:] if tool == "accelerate" else words[1:]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Parse all jobs in one process: importing the tools is what takes long."""
    jobs = []
    for tool, facts in TRAINING:
        folder = tmp_path_factory.mktemp(tool)
        jobs.append((tool, str(folder), write_job(tool, facts, folder)))
    run = subprocess.run(
        [os.environ["STEPTIME_PARSERS"], str(SCRIPT)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("index", range(len(TRAINING)))
def test_a_tool_understands_what_is_emitted_for_it(index, answers):
    (tool, facts), answer = TRAINING[index], answers[index]
    assert isinstance(answer, dict), answer
    assert answer["model"] == MODEL
    for name in ("micro_batch", "accumulation", "length"):
        assert answer[name] == facts[name]
    assert answer["optimizer"] == OPTIMIZERS[facts["optimizer"]]
    assert answer["recompute"] == (facts["recompute"] != "none")
    assert answer["lora_rank"] == facts.get("lora_rank")
    assert answer["lora_targets"] == facts.get("lora_targets")
    assert bool(answer["four_bit"]) == (facts.get("weights") == "nf4")
    assert answer["bf16"] == facts["dtype"].startswith("bfloat16")
    assert answer["fp16"] == (facts["dtype"] == "float16")
    if tool == "axolotl":
        assert answer["unknown"] == []
        zero, data = facts.get("zero"), facts.get("data", 1)
        assert (answer["shards"] or 1) == (data if zero else 1)
        assert (answer["copies"] or 1) == (1 if zero else data)
        assert (answer["tensor"] or 1) == facts.get("tensor", 1)
        assert (answer["context"] or 1) == facts.get("context", 1)
        return
    if tool == "trl":
        assert answer["fsdp"] == (facts.get("zero") == 3)
        return
    assert answer["devices"] == facts["devices"]
    assert answer["nodes"] == facts["devices"] // facts.get("per_node", facts["devices"])
    if tool == "deepspeed" or answer["deepspeed"]:
        assert answer["stage"] == facts["zero"]
    else:
        assert (answer["fsdp"], answer["reshards"]) == (True, facts["zero"] == 3)
