"""Lines written otherwise: variables, launchers, `--option=value`; nothing is lost silently."""

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
    "llama-server -m Qwen3-8B-Q4_K_M.gguf -ngl 99 -ctk q8_0 -ctv q8_0": {"kv_dtype": "q8_0"},
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
