"""What is emitted for another tool is read back to the same facts."""

import pytest

from steptime.core.errors import InputError
from steptime.core.toml_files import read_packaged_toml
from steptime.launch.emit import emit_job
from steptime.launch.reader import read_launch
from steptime.network.families import find_network_name

MODEL = "Qwen/Qwen3-8B"
SERVER = {"tensor": 2, "data": 4, "devices": 8, "max_model_len": 8192, "max_num_seqs": 64}
STEP = {
    "micro_batch": 2,
    "accumulation": 4,
    "length": 2048,
    "dtype": "bfloat16",
    "optimizer": "adamw",
    "recompute": "full",
}
ADAPTER = {"lora_rank": 16, "lora_targets": ["q_proj", "v_proj"], "weights": "nf4"}
DORA = {**ADAPTER, "adapter": "dora", "modules_to_save": ["embed_tokens", "lm_head"]}
JOBS = [
    ("vllm", "serve", {**SERVER, "expert": 8, "kv_dtype": "float8", "weights": "float8"}),
    ("vllm", "serve", {**SERVER, "dtype": "float16", "gpu_memory_utilization": 0.9}),
    ("sglang", "serve", {**SERVER, "kv_dtype": "float8", "mem_fraction_static": 0.85}),
    ("axolotl", "train", {**STEP, "data": 8, "zero": 3, "devices": 8, "global_batch": 64}),
    ("axolotl", "train", {**STEP, "data": 4, "zero": 2, "tensor": 2, "context": 2, "devices": 16}),
    ("axolotl", "train", {**STEP, **ADAPTER, "dtype": "bfloat16-pure", "data": 2}),
    ("trl", "train", {**STEP, **ADAPTER, "zero": 3, "devices": 4}),
    ("trl", "train", {**STEP, **DORA, "zero": 3, "devices": 4}),
    ("axolotl", "train", {**STEP, **DORA, "data": 2}),
    ("trl", "train", {**STEP, "dtype": "float16", "recompute": "none", "devices": 2}),
    ("deepspeed", "train", {**STEP, "zero": 1, "devices": 16, "per_node": 8, "data": 16}),
    ("deepspeed", "train", {**STEP, **ADAPTER, "zero": 2, "devices": 4}),
    ("accelerate", "train", {**STEP, "zero": 3, "devices": 16, "per_node": 8}),
    ("accelerate", "train", {**STEP, "zero": 1, "devices": 4, "optimizer": "adam8bit"}),
    (
        "megatron",
        "train",
        {
            "micro_batch": 1,
            "global_batch": 64,
            "accumulation": 16,
            "length": 4096,
            "dtype": "bfloat16",
            "tensor": 2,
            "pipeline": 2,
            "virtual": 2,
            "data": 4,
            "zero": 1,
            "devices": 16,
            "per_node": 8,
            "sequence_parallel": True,
            "recompute": "selective",
        },
    ),
]


@pytest.mark.parametrize(("tool", "kind", "facts"), JOBS)
def test_a_job_is_read_back(tool, kind, facts, tmp_path):
    text = emit_job(tool, kind, MODEL, facts)
    path = tmp_path / ("job.yaml" if tool in {"axolotl", "trl"} else "job.sh")
    path.write_text(text)
    job = read_launch(str(path), device_count=facts.get("devices") if tool == "trl" else None)
    assert job.kind == kind
    assert {name: job.facts.get(name) for name in facts} == facts
    assert MODEL.rpartition("/")[2] in job.model


@pytest.mark.parametrize(
    ("tool", "facts", "message"),
    [
        ("axolotl", {**STEP, "pipeline": 2}, "it has no pipeline 2; nearest: --emit megatron"),
        ("trl", {**STEP, "zero": 1}, "nearest: --emit deepspeed"),
        ("megatron", {**STEP, "zero": 3}, "nearest: --zero 1"),
        ("megatorn", STEP, "unknown --emit 'megatorn'; did you mean 'megatron'"),
    ],
)
def test_what_a_tool_cannot_say_is_refused(tool, facts, message):
    with pytest.raises(InputError, match=message):
        emit_job(tool, "train", MODEL, facts)


def test_a_context_of_llama_server_is_that_of_all_slots():
    command = emit_job("llama-server", "serve", MODEL, {"max_model_len": 4096, "max_num_seqs": 4})
    facts = read_launch(command).facts
    assert (facts["context_total"], facts["max_num_seqs"], facts["gpu_layers"]) == (16384, 4, "all")


def test_ids_of_the_hub_are_read_as_their_networks():
    ids = read_packaged_toml("hub_ids.toml")
    assert {name: find_network_name(hub_id) for name, hub_id in ids.items()} == {
        name: name for name in ids
    }
