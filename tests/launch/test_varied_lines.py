"""Lines written otherwise: variables, launchers, `--option=value`; nothing is lost silently."""

import json
from pathlib import Path

import pytest

from steptime.launch.reader import read_launch

TRAIN = "train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1"
LINES = {
    "HF_HOME=/x vllm serve Qwen/Qwen3-8B --tensor-parallel-size=2 --max-model-len=32k": {
        "tensor": 2,
        "max_model_len": 32_000,
    },
    "vllm serve --model 'Qwen/Qwen3-8B' -tp=4 -dp 2 --max-num-batched-tokens 16K": {
        "tensor": 4,
        "data": 2,
        "max_num_batched_tokens": 16_384,
    },
    'MODEL=Qwen/Qwen3-8B; TP=${TP:-4}; vllm serve "$MODEL" --tensor-parallel-size $TP': {
        "tensor": 4
    },
    "srun --nodes 2 --gres gpu:8 --exclusive vllm serve Qwen/Qwen3-8B -pp 2": {"pipeline": 2},
    "mpirun -np 2 --bind-to none -x NCCL_DEBUG trtllm-serve Qwen/Qwen3-8B --tp_size=2": {
        "tensor": 2
    },
    f"accelerate launch --num_processes=8 --use_fsdp --fsdp_offload_params true {TRAIN}": {
        "zero": 3,
        "offload": True,
    },
    f"accelerate launch --num_processes=8 --fsdp_sharding_strategy 2 --use_fsdp {TRAIN}": {
        "zero": 2
    },
    f"accelerate launch --num_processes=8 --use_deepspeed --zero_stage=3 "
    f"--offload_optimizer_device=cpu --gradient_accumulation_steps=4 {TRAIN}": {
        "zero": 3,
        "offload": True,
        "accumulation": 4,
    },
    "srun -N 2 --mpi=pmix trtllm-llmapi-launch trtllm-serve Qwen/Qwen3-8B --tp_size 16": {
        "tensor": 16
    },
    f"accelerate launch --multi_gpu --num_processes 4 --mixed_precision fp16 {TRAIN}": {
        "zero": 0,
        "data": 4,
    },
    f"deepspeed --num_gpus 8 {TRAIN} --deepspeed configs/zero3_cpuoffload_all.json": {
        "zero": 3,
        "offload": True,
    },
    "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-14B --micro_batch_size 1 --packing true": {
        "packed": True
    },
    "llama-server -m Qwen3-8B-Q4_K_M.gguf -ngl 99 -ctk q8_0 -ctv q8_0": {"kv_dtype": "q8_0"},
    "LLAMA_ARG_N_PARALLEL=4 LLAMA_ARG_UBATCH=256 llama-server -m Qwen3-8B-Q4_K_M.gguf -ngl 9": {
        "max_num_seqs": 4,
        "ubatch": 256,
    },
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_understood_however_it_is_written(line):
    job = read_launch(line, Path())
    assert job is not None
    assert {name: job.facts.get(name) for name in LINES[line]} == LINES[line]


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        (
            "vllm serve Qwen/Qwen3-8B --unknown-thing 5 --lr 1e-5",
            ("--unknown-thing 5", "--lr 1e-5"),
        ),
        ("vllm serve Qwen/Qwen3-8B --dtype=auto --max-num-seqs auto", ()),
        ("vllm serve Qwen/Qwen3-8B --kv-cache-dtype strange", ("--kv-cache-dtype strange",)),
        ("python -m sglang.launch_server --model Qwen/Qwen3-8B --foo-bar=3", ("--foo-bar 3",)),
        (f"deepspeed --num_gpus 4 {TRAIN} --foo 1", ("--foo 1",)),
        ("trl sft --model_name_or_path Qwen/Qwen3-8B --odd_option 4", ("--odd_option 4",)),
    ],
)
def test_what_decides_nothing_is_listed(line, lost):
    job = read_launch(line, Path(), 1)
    assert job is not None
    for text in lost:
        assert any(text.split()[0] in unused for unused in job.not_used), job.not_used


def test_the_longest_sequence_that_fits_is_said_to_be_left_open():
    job = read_launch("vllm serve Qwen/Qwen3-8B --max-model-len auto", Path())
    assert job is not None
    assert any(note.startswith("max_model_len auto") for note in job.notes)


TUNE = """
model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 8}
batch_size: 2
gradient_accumulation_steps: 4
"""


def test_settings_behind_the_file_of_a_recipe_win(tmp_path):
    (tmp_path / "lora.yaml").write_text(TUNE)
    line = "tune run lora_dpo_distributed --config lora.yaml batch_size=4 model.lora_rank=32"
    job = read_launch(line, tmp_path)
    assert job is not None
    facts = {"micro_batch": 4, "lora_rank": 32, "accumulation": 4, "objective": "dpo"}
    assert {name: job.facts.get(name) for name in facts} == facts


def test_accumulation_that_a_recipe_says_does_not_follow_the_devices(tmp_path):
    (tmp_path / "lora.yaml").write_text(TUNE)
    line = "tune run lora_finetune_distributed --config lora.yaml"
    job = read_launch(line, tmp_path, device_count=2)
    assert job is not None
    assert (job.facts["accumulation"], job.facts["global_batch"]) == (4, 2 * 4 * 2)


@pytest.mark.parametrize("is_inside", [True, False])
def test_deepspeeds_whole_batch_decides_the_accumulation(tmp_path, is_inside):
    deepspeed = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2},
    }
    (tmp_path / "ds.json").write_text(json.dumps(deepspeed))
    arguments = {
        "model_name_or_path": "Qwen/Qwen3-8B",
        "gradient_checkpointing": True,
        "deepspeed": deepspeed if is_inside else "ds.json",
    }
    (tmp_path / "train.json").write_text(json.dumps(arguments))
    job = read_launch(str(tmp_path / "train.json"), device_count=4)
    assert job is not None
    facts = {"zero": 2, "micro_batch": 4, "accumulation": 4, "global_batch": 64, "data": 4}
    assert {name: job.facts.get(name) for name in facts} == facts
