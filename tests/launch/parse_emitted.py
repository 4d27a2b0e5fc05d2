"""Parse an emitted job with the parsers of its own tool; run in an environment of these tools.

Reads a JSON list of (tool, folder of the job's files, words) from its input and prints a list of
what the tools understood: objects, or the text of an error. The words are those behind `accelerate
launch` or `deepspeed`; TRL and Axolotl have one file, job.yaml.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["DS_BUILD_OPS"] = "0"
LIMITS = ["--use_cpu", "true", "--output_dir", "out"]  # no CUDA device is asked for


def parse_trl_file() -> dict[str, Any]:
    from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    words = ["--config", "job.yaml", *LIMITS]
    _, training, model = parser.parse_args_and_config(words, fail_with_unknown_args=True)
    return describe_training(training, model)


def parse_script_words(words: list[str]) -> dict[str, Any]:
    """Parse the words of a training script as TRL's do, by `TrainingArguments` and peft."""
    from transformers import HfArgumentParser
    from trl import ModelConfig, SFTConfig

    parser = HfArgumentParser((SFTConfig, ModelConfig))
    training, model = parser.parse_args_into_dataclasses([*words, *LIMITS])
    return describe_training(training, model)


def describe_training(training: Any, model: Any) -> dict[str, Any]:
    from trl import get_peft_config

    adapter = get_peft_config(model)  # peft's LoraConfig
    return {
        "model": model.model_name_or_path,
        "micro_batch": training.per_device_train_batch_size,
        "accumulation": training.gradient_accumulation_steps,
        "length": training.max_length,
        "bf16": training.bf16,
        "fp16": training.fp16,
        "optimizer": str(training.optim.value),
        "recompute": training.gradient_checkpointing,
        "fsdp": bool(training.fsdp),
        "lora_rank": adapter and adapter.r,
        "lora_targets": adapter and sorted(adapter.target_modules),
        "four_bit": model.load_in_4bit,
    }


def parse_accelerate_words(words: list[str]) -> dict[str, Any]:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    arguments = launch_command_parser().parse_args(words)
    arguments, *_ = _validate_launch_command(arguments)
    return {
        **parse_script_words(arguments.training_script_args),
        "devices": arguments.num_processes,
        "nodes": arguments.num_machines,
        "precision": arguments.mixed_precision,
        "fsdp": arguments.use_fsdp,
        "reshards": str(arguments.fsdp_reshard_after_forward).lower() == "true",
        "deepspeed": arguments.use_deepspeed,
        "stage": arguments.zero_stage,
    }


def parse_deepspeed_words(words: list[str]) -> dict[str, Any]:
    from deepspeed.launcher.runner import parse_args
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
    from trl import SFTConfig

    arguments = parse_args(words)
    user_words = list(arguments.user_args)
    place = user_words.index("--deepspeed")
    path = user_words[place + 1]
    del user_words[place : place + 2]  # it asks for a process group as soon as it is parsed
    answer = parse_script_words(user_words)
    training = SFTConfig(
        output_dir="out",
        use_cpu=True,
        per_device_train_batch_size=answer["micro_batch"],
        gradient_accumulation_steps=answer["accumulation"],
        bf16=answer["bf16"],
        fp16=answer["fp16"],
    )
    wrapped = HfTrainerDeepSpeedConfig(path)
    wrapped.trainer_config_process(training)
    config = DeepSpeedConfig(wrapped.config)
    return {
        **answer,
        "devices": max(arguments.num_gpus, 1) * max(arguments.num_nodes, 1),
        "nodes": max(arguments.num_nodes, 1),
        "stage": int(config.zero_optimization_stage),
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "accumulation": config.gradient_accumulation_steps,
    }


def parse_axolotl_file() -> dict[str, Any]:
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig

    data = yaml.safe_load(Path("job.yaml").read_text(encoding="utf-8"))
    unknown = set(data) - set(AxolotlInputConfig.model_fields)
    sys.modules["ring_flash_attn"] = ModuleType("ring_flash_attn")  # it is there; needs CUDA
    dataset = {"path": "a/b", "type": "completion"}
    own = {"datasets": [dataset], "learning_rate": 1e-4}  # a recipe needs them, and no time does
    config = AxolotlInputConfig(**data, **own)
    return {
        "unknown": sorted(unknown),
        "model": config.base_model,
        "micro_batch": config.micro_batch_size,
        "accumulation": config.gradient_accumulation_steps,
        "length": config.sequence_len,
        "bf16": bool(config.bf16 or config.bfloat16),
        "fp16": bool(config.fp16),
        "optimizer": str(getattr(config.optimizer, "value", config.optimizer)),
        "recompute": bool(config.gradient_checkpointing),
        "tensor": config.tensor_parallel_size,
        "context": config.context_parallel_size,
        "shards": config.dp_shard_size,
        "copies": config.dp_replicate_size,
        "lora_rank": config.lora_r,
        "lora_targets": config.lora_target_modules and sorted(config.lora_target_modules),
        "four_bit": config.load_in_4bit,
    }


PARSERS = {
    "trl": lambda words: parse_trl_file(),
    "accelerate": parse_accelerate_words,
    "deepspeed": parse_deepspeed_words,
    "axolotl": lambda words: parse_axolotl_file(),
}


def parse_job(tool: str, folder: str, words: list[str]) -> dict[str, Any] | str:
    os.chdir(folder)
    try:
        return PARSERS[tool](words)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the test shows it
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    output = os.dup(1)
    os.dup2(2, 1)  # what the tools print is no answer
    answers = [parse_job(*job) for job in json.load(sys.stdin)]
    os.write(output, json.dumps(answers).encode())
