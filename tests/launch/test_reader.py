"""What is understood of launch commands and recipes, by hand from each tool's documentation."""

import json

import pytest

from steptime.core.errors import InputError
from steptime.launch.reader import read_launch

LINES = {
    # vLLM: sizes of 1024 by K and of 1000 by k; experts lie on tensor x data ranks
    "vllm serve Qwen/Qwen3-8B -tp 4 --max-model-len 32K --max-num-batched-tokens 8k": {
        "tensor": 4,
        "devices": 4,
        "max_model_len": 32768,
        "max_num_batched_tokens": 8000,
        "gpu_memory_utilization": 0.9,
    },
    "vllm serve --enforce-eager m/x --tensor_parallel_size=2 -dp 4 --enable-expert-parallel": {
        "tensor": 2,
        "data": 4,
        "devices": 8,
        "expert": 8,
    },
    "VLLM_USE_V1=1 python -m vllm.entrypoints.openai.api_server --model m/x -q awq": {
        "weights": "int4",
        "tensor": 1,
    },
    'vllm serve m/x --speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'': {
        "speculative": 2,
        "draft": "mtp",
    },
    "vllm serve m/x --no-enable-prefix-caching --kv-cache-dtype fp8_e5m2": {
        "prefix_caching": False,
        "kv_dtype": "float8",
    },
    "docker run --rm --gpus all -p 8000:8000 vllm/vllm-openai:v0.11.0 --model m/x -tp 2": {
        "tensor": 2
    },
    "python3 -m sglang.launch_server --model-path m/x --tp 8 --dp 8 --enable-dp-attention": {
        "tensor": 8,
        "attention_data": 8,
        "devices": 8,
    },
    "python -m sglang.launch_server --model m/x --tp 16 --nnodes 2 --chunked-prefill-size -1": {
        "devices": 16,
        "per_node": 8,
        "chunked_prefill": False,
    },
    "trtllm-serve serve m/x --tp_size 4 --pp_size 2 --kv_cache_free_gpu_memory_fraction 0.8": {
        "tensor": 4,
        "pipeline": 2,
        "devices": 8,
        "kv_free_fraction": 0.8,
    },
    "llama-server -hf a/gemma-3-12b-GGUF:Q4_K_M -c 8192 -np 4 -ngl 20 -ctk q8_0 -ctv q8_0": {
        "weights": "q4_k_m",
        "context_total": 8192,
        "max_num_seqs": 4,
        "gpu_layers": 20,
        "kv_dtype": "q8_0",
    },
    "./build/bin/llama-server -m a/qwen3-30b-a3b-IQ4_XS.gguf --cpu-moe -ctk q4_0": {
        "weights": "iq4_xs",
        "experts_on_cpu": "all",
        "kv_dtype_k": "q4_0",
        "kv_dtype_v": "float16",
    },
    "OLLAMA_CONTEXT_LENGTH=16384 ollama run llama3.1:8b-instruct-q8_0": {
        "weights": "q8_0",
        "max_model_len": 16384,
    },
    "torchrun --nproc_per_node=4 --nnodes 2 sft.py --model_name_or_path m/x --bf16 "
    "--per_device_train_batch_size 2 --fsdp 'full_shard auto_wrap'": {
        "devices": 8,
        "per_node": 4,
        "data": 8,
        "zero": 3,
        "micro_batch": 2,
        "accumulation": 1,
        "global_batch": 16,
        "dtype": "bfloat16",
    },
    "deepspeed --include localhost:0,1,3 t.py --model_name_or_path m/x --deepspeed zero2.json": {
        "devices": 3,
        "zero": 2,
        "micro_batch": 8,
    },
    "accelerate launch --num_processes 4 --use_deepspeed --zero_stage 2 --mixed_precision fp16 "
    "train.py --model_name_or_path m/x --optim adamw_bnb_8bit": {
        "devices": 4,
        "zero": 2,
        "dtype": "float16",
        "optimizer": "adam8bit",
    },
    "trl dpo --model_name_or_path m/x --load_in_4bit --use_peft --lora_r 32 --max_length 1024": {
        "objective": "dpo",
        "weights": "nf4",
        "lora_rank": 32,
        "length": 1024,
    },
    "llamafactory-cli train --model_name_or_path m/x --finetuning_type lora --pure_bf16": {
        "lora_rank": 8,
        "lora_targets": "all-linear",
        "length": 2048,
        "dtype": "bfloat16-pure",
        "recompute": "full",
    },
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 "
    "--num-attention-heads 16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
    "--num-layers-per-virtual-pipeline-stage 3 --micro-batch-size 2 --global-batch-size 64 --bf16 "
    "--use-distributed-optimizer --recompute-activations --seq-length 4096": {
        "tensor": 2,
        "pipeline": 2,
        "virtual": 4,
        "data": 2,
        "accumulation": 16,
        "zero": 1,
        "recompute": "selective",
    },
    "accelerate launch --config_file configs/zero3.yaml --num_processes 4 t.py "
    "--model_name_or_path m/x --bf16": {
        "zero": 3,
        "devices": 4,
        "dtype": "bfloat16",
    },
    "swift sft --model m/x --torch_dtype bfloat16 --max_length 1024": {
        "lora_rank": 8,
        "lora_targets": "all-linear",
        "micro_batch": 1,
    },
    "swift sft --model m/x --use_dora true --modules_to_save embed_tokens lm_head": {
        "lora_rank": 8,
        "adapter": "dora",
        "modules_to_save": ["embed_tokens", "lm_head"],
    },
    "srun -N 2 bash -c 'torchrun --nnodes 2 --nproc_per_node 8 t.py --model_name_or_path m/x'": {
        "devices": 16,
        "per_node": 8,
    },
    "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama2-7b "
    "ici_fsdp_parallelism=4 ici_tensor_parallelism=2 per_device_batch_size=2": {
        "data": 4,
        "tensor": 2,
        "zero": 3,
        "devices": 8,
        "micro_batch": 4,
        "global_batch": 16,
    },
    "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama2-7b "
    "ici_data_parallelism=-1 ici_fsdp_parallelism=1": {"zero": 0},  # replicas that share nothing
}
RECIPES = {
    "axolotl.yaml": (
        (
            "base_model: m/x\nsequence_len: 4096\nmicro_batch_size: 2\nadapter: lora\nlora_r: 32\n"
            "lora_target_linear: true\nload_in_8bit: true\nbf16: full\ndeepspeed: zero3.json\n"
        ),
        {
            "length": 4096,
            "lora_rank": 32,
            "lora_targets": "all-linear",
            "weights": "int8",
            "dtype": "bfloat16-pure",
            "zero": 3,
            "global_batch": 8,
        },
    ),
    "trl.yml": (
        (
            "model_name_or_path: m/x\nper_device_train_batch_size: 4\n"
            "gradient_checkpointing: true\n"
            "bf16: true\nmax_length: 2048\npacking: true\nfsdp: shard_grad_op\n"
        ),
        {"micro_batch": 4, "recompute": "full", "packed": True, "zero": 2, "data": 4},
    ),
    "training.json": (
        json.dumps({"model_name_or_path": "m/x", "per_device_train_batch_size": 1, "fp16": True}),
        {"micro_batch": 1, "dtype": "float16", "global_batch": 4},
    ),
    "titan.toml": (
        (
            '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n'
            "[training]\nlocal_batch_size = 1\nglobal_batch_size = 32\nseq_len = 8192\n"
            "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 2\n"
            'tensor_parallel_degree = 1\n[activation_checkpoint]\nmode = "full"\n'
        ),
        {"data": 4, "shard": 2, "zero": 3, "accumulation": 8, "dtype": "float8"},
    ),
    "nemo.yaml": (
        (
            "step_scheduler: {global_batch_size: 32, local_batch_size: 2}\n"
            "model: {pretrained_model_name_or_path: m/x}\n"
            "distributed: {_target_: nemo_automodel.FSDP2Manager, tp_size: 2, dp_size: null}\n"
            "peft: {dim: 8, target_modules: [q_proj, v_proj]}\n"
        ),
        {
            "tensor": 2,
            "data": 2,
            "accumulation": 8,
            "zero": 3,
            "lora_targets": ["q_proj", "v_proj"],
        },
    ),
    "maxtext.yml": (
        "model_name: llama3-8b\nper_device_batch_size: 2\nmax_target_length: 4096\n",
        {"data": 4, "zero": 3, "micro_batch": 2, "global_batch": 8, "dtype": "bfloat16"},
    ),
    "accelerate.yaml": (
        (
            "distributed_type: FSDP\nnum_processes: 4\nnum_machines: 1\nmixed_precision: bf16\n"
            "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n"
        ),
        {"devices": 4, "zero": 2, "dtype": "bfloat16"},
    ),
    "deepspeed.json": (
        json.dumps(
            {
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                "bf16": {"enabled": True},
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 2,
            }
        ),
        {"zero": 2, "offload": True, "micro_batch": 4, "global_batch": 32},
    ),
    "compose.yaml": (
        (
            "services:\n  db: {image: postgres}\n  llm:\n    image: lmsysorg/sglang:latest\n"
            "    environment: {TP: '4'}\n"
            "    command: python3 -m sglang.launch_server --model-path m/x --tp ${TP:-1}\n"
        ),
        {"tensor": 4},
    ),
    "pod.yaml": (
        (
            "kind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n"
            "      - name: llm\n"
            "        image: vllm/vllm-openai:latest\n        command: [/bin/sh, -c]\n"
            "        args: ['vllm serve m/x --tensor-parallel-size 8']\n"
        ),
        {"tensor": 8},
    ),
    "job.sbatch": (
        (
            "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
            "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_PER_NODE \\\n"
            "  train.py --model_name_or_path m/x --per_device_train_batch_size 1\n"
        ),
        {"devices": 8, "per_node": 4},
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_understood(line):
    job = read_launch(line)
    expected = LINES[line]
    assert {name: job.facts.get(name) for name in expected} == expected


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_understood(name, tmp_path):
    text, expected = RECIPES[name]
    path = tmp_path / name
    path.write_text(text)
    job = read_launch(str(path), device_count=None if "devices" in expected else 4)
    assert {name: job.facts.get(name) for name in expected} == expected


def test_what_is_beside_a_command_is_read_from_its_folder(tmp_path):
    (tmp_path / "zero1.json").write_text('{"zero_optimization": {"stage": 1}}')
    line = "deepspeed --num_gpus 2 t.py --model_name_or_path m/x --deepspeed zero1.json"
    assert read_launch(line, tmp_path).facts["zero"] == 1


def test_defaults_and_unused_options_are_named():
    job = read_launch("vllm serve m/x --port 80 --cpu-offload-gb 4")
    assert job.defaults == ("tensor", "pipeline", "data", "gpu_memory_utilization", "devices")
    assert set(job.not_used) == {"--port 80", "--cpu-offload-gb 4"}
    assert job.notes == ("--cpu-offload-gb 4: weights on the host are not priced",)


def test_a_shape_of_megatron_is_model_text():
    line = (
        "torchrun --node_rank $UNKNOWN pretrain_gpt.py --num-layers 4 --hidden-size 256 "
        "--num-attention-heads 8 --num-query-groups 2 --ffn-hidden-size 512 --swiglu "
        "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
        "--untie-embeddings-and-output-weights --tensor-model-parallel-size 1"
    )
    assert read_launch(line).model == (
        "transformer:layers=4,width=256,heads=8,kv_heads=2,ffn=512,"
        "norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no"
    )


@pytest.mark.parametrize("text", ["llama3_8b", "llama3 8b", "ls -l", "absent.yaml", "fc:layers=2"])
def test_other_text_is_no_job(text):
    assert read_launch(text) is None


@pytest.mark.parametrize("name", ["settings.toml", "config.json", "values.yaml"])
def test_other_files_are_no_job(name, tmp_path):
    texts = {
        "settings.toml": 'family = "fc"\n',
        "config.json": '{"model_type": "llama", "hidden_size": 64}',
        "values.yaml": "image: nginx\n",
    }
    (tmp_path / name).write_text(texts[name])
    assert read_launch(str(tmp_path / name)) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vllm serve m/x -tp two", "-tp two: a whole number is needed"),
        ("axolotl train absent.yaml", "absent.yaml: there is no such file"),
        ("torchrun --nproc_per_node 6 pretrain_gpt.py --tensor-model-parallel-size 4", "needs 4"),
        (
            (
                "torchrun --nproc_per_node 4 pretrain_gpt.py --tensor-model-parallel-size 2 "
                "--micro-batch-size 4 --global-batch-size 12"
            ),
            "nearest: 16",
        ),
    ],
)
def test_what_cannot_be_is_refused(line, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        read_launch(line)
