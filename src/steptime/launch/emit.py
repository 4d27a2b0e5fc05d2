"""Write the facts of a job (degrees, batches, types) as a command or recipe of another tool.

What is written is read back by `reader.read_launch` to the same facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from steptime.core.errors import InputError, check_choice
from steptime.launch.emitted_axolotl import axolotl_adapter, axolotl_dtype, axolotl_sharding
from steptime.launch.emitted_guesses import sglang_speculation, vllm_speculation
from steptime.launch.emitted_words import (
    argument_words,
    format_command,
    format_yaml,
    option_words,
    prepend_file,
)
from steptime.launch.job import SERVING, Facts
from steptime.launch.settings import split_names

GPUS_OF_NODE = 8
OPTIMIZER_WORDS = {  # of transformers' TrainingArguments
    "adam": "adamw_torch",
    "adamw": "adamw_torch",
    "adam8bit": "adamw_bnb_8bit",
    "paged_adam8bit": "paged_adamw_8bit",
    "paged_adam": "paged_adamw_32bit",
    "sgd": "sgd",
    "rmsprop": "rmsprop",
}
LLAMA_TYPE = re.compile(r"q\d_\d|iq\d_nl")  # of a cache, in the words of llama.cpp
LLAMA_CACHES = {"int8": "q8_0", "float8": "q8_0", "int4": "q4_0", "float4": "q4_0"}
FSDP_WORDS = {3: "full_shard auto_wrap", 2: "shard_grad_op auto_wrap"}
MEGATRON_OPTIONS = {  # of ms-swift, by fact
    "tensor": "--tensor_model_parallel_size",
    "pipeline": "--pipeline_model_parallel_size",
    "context": "--context_parallel_size",
    "expert": "--expert_model_parallel_size",
    "expert_tensor": "--expert_tensor_parallel_size",
    "virtual": "--num_virtual_stages_per_pipeline_rank",
    "micro_batch": "--micro_batch_size",
    "global_batch": "--global_batch_size",
    "length": "--max_length",
}
DEGREES = split_names(
    "tensor pipeline context expert expert_tensor virtual zero shard stages schedule "
    "sequence_parallel"
)


def emit_job(tool: str, kind: str, model: str, facts: Facts) -> str:
    """Return the command or recipe of a tool.

    Args:
        tool: name of the tool, such as `vllm`.
        kind: `serve` or `train`.
        model: id of the model on the Hugging Face Hub, or a path.
        facts: facts of the job (`LaunchJob.facts`).

    Raises:
        InputError: for an unknown tool, and for a fact that the tool has no option for.
    """
    check_emitter(tool, kind)
    return (SERVING_EMITTERS | TRAINING_EMITTERS)[tool](model, facts)


def check_emitter(tool: str, kind: str) -> None:
    """Raise `InputError` for a tool that cannot be emitted for a kind of job."""
    check_choice("--emit", tool, SERVING_EMITTERS if kind == SERVING else TRAINING_EMITTERS)


def _refuse_other_degrees(
    tool: str, facts: Facts, expressible: Iterable[str], nearest: str
) -> None:
    """Raise `InputError` for a degree above 1 that a tool has no option for."""
    defaults = {None, 0, 1, "1f1b"}  # 1f1b is the schedule of pipelines without another one
    for name in DEGREES - set(expressible):
        value = facts.get(name)
        if value not in defaults:
            raise InputError(f"--emit {tool}: it has no {name} {value}; nearest: --emit {nearest}")


def _emit_vllm(model: str, facts: Facts) -> str:
    words = ["vllm", "serve", model]
    words += option_words(
        facts,
        {
            "tensor": "--tensor-parallel-size",
            "pipeline": "--pipeline-parallel-size",
            "data": "--data-parallel-size",
            "dtype": "--dtype",
            "max_model_len": "--max-model-len",
            "max_num_seqs": "--max-num-seqs",
            "max_num_batched_tokens": "--max-num-batched-tokens",
            "gpu_memory_utilization": "--gpu-memory-utilization",
        },
    )
    if _has_experts(facts):  # vLLM has a flag in place of their number
        words.append("--enable-expert-parallel")
    if facts.get("chunked_prefill") is False:
        words.append("--no-enable-chunked-prefill")
    words += vllm_speculation(facts)
    return format_command(
        [*words, *_quantisation_words(facts, "--quantization", "--kv-cache-dtype")]
    )


def _has_experts(facts: Facts) -> bool:
    """Return whether the experts lie on several ranks."""
    experts = facts.get("expert")
    return isinstance(experts, int) and experts > 1


def _quantisation_words(
    facts: Facts, weights_option: str, cache_option: str, cache_word: str = "fp8"
) -> list[str]:
    """Return the options of weights that are quantised while they are loaded, and of the cache.

    Raises:
        InputError: for weights that a checkpoint must hold already, and for a cache of another type
            than 8 bits with an exponent.
    """
    weights = facts.get("weights")
    cache = facts.get("kv_dtype")
    # Types to which a server can quantise weights while it loads them.
    word_by_weights = {"float8": "fp8", "mxfp4": "mxfp4", "nf4": "bitsandbytes"}
    words: list[str] = []
    if weights is not None:
        if weights not in word_by_weights:
            raise InputError(
                f"--emit: weights {weights} need a checkpoint that holds them; name its id as "
                "MODEL by its config.json; nearest: --weights float8"
            )
        words += [weights_option, word_by_weights[str(weights)]]
    if cache not in {None, "float8", "bfloat16", "float16"}:
        raise InputError(f"--emit: the tool keeps no cache as {cache}; nearest: --kv float8")
    if cache == "float8":
        words += [cache_option, cache_word]
    return words


def _emit_sglang(model: str, facts: Facts) -> str:
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    words += option_words(
        facts,
        {
            "tensor": "--tp-size",
            "pipeline": "--pp-size",
            "data": "--dp-size",
            "dtype": "--dtype",
            "max_model_len": "--context-length",
            "max_num_seqs": "--max-running-requests",
            "max_num_batched_tokens": "--chunked-prefill-size",
            "mem_fraction_static": "--mem-fraction-static",
        },
    )
    if facts.get("chunked_prefill") is False:
        words += ["--chunked-prefill-size", "-1"]  # whole prompts
    if _has_experts(facts):
        words += ["--ep-size", str(facts["expert"])]
    words += sglang_speculation(facts)
    return format_command(
        [*words, *_quantisation_words(facts, "--quantization", "--kv-cache-dtype", "fp8_e4m3")]
    )


def _emit_llama_server(model: str, facts: Facts) -> str:
    """Write the command of llama.cpp's server, which reads a GGUF file of the model's name."""
    degrees = {name: facts.get(name) for name in ("tensor", "pipeline", "data", "expert")}
    if any(value not in {None, 1} for value in degrees.values()):
        raise InputError("--emit llama-server: it splits layers over cards; nearest: --emit vllm")
    file_name = f"{model.rpartition('/')[2]}.gguf"
    gpu_layers = str(facts.get("gpu_layers", 99))  # more layers than there are: all of them
    words = ["llama-server", "-m", file_name, "--n-gpu-layers", gpu_layers]
    max_length = facts.get("max_model_len")
    if isinstance(max_length, int):
        # llama.cpp shares out one context among its slots.
        max_sequences = facts.get("max_num_seqs")
        slots = max_sequences if isinstance(max_sequences, int) else 1
        words += ["--ctx-size", str(max_length * slots), "--parallel", str(slots)]
    cache_type = _llama_cache_type(str(facts.get("kv_dtype")))
    if cache_type is not None:
        words += ["--cache-type-k", cache_type, "--cache-type-v", cache_type]
    return format_command(words)


def _llama_cache_type(cache_dtype: str) -> str | None:
    """Return the type of a cache in the words of llama.cpp, None if it has no word for it."""
    is_llama_type = LLAMA_TYPE.fullmatch(cache_dtype) is not None
    return cache_dtype if is_llama_type else LLAMA_CACHES.get(cache_dtype)


def _training_arguments(facts: Facts) -> Mapping[str, Any]:
    """Return the facts of a training as `TrainingArguments` and TRL's model arguments."""
    dtype = facts.get("dtype")
    arguments: Mapping[str, Any] = {
        "per_device_train_batch_size": facts.get("micro_batch"),
        "gradient_accumulation_steps": facts.get("accumulation", 1),
        "max_length": facts.get("length"),
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "dtype": "bfloat16" if dtype == "bfloat16-pure" else None,
        "optim": OPTIMIZER_WORDS.get(str(facts.get("optimizer")), "adamw_torch"),
        "gradient_checkpointing": facts.get("recompute") == "full",
        "packing": facts.get("packed"),
        **_adapter_arguments(facts),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _adapter_arguments(facts: Facts) -> Mapping[str, Any]:
    """Return LoRA and the type of frozen weights as TRL's model arguments."""
    if "lora_rank" not in facts:
        return {}
    return {
        "use_peft": True,
        "lora_r": facts["lora_rank"],
        "lora_target_modules": facts.get("lora_targets"),
        "lora_modules_to_save": facts.get("modules_to_save"),
        "use_dora": True if facts.get("adapter") == "dora" else None,
        "load_in_4bit": True if facts.get("weights") == "nf4" else None,
        "load_in_8bit": True if facts.get("weights") == "int8" else None,
    }


def _emit_trl(model: str, facts: Facts) -> str:
    _refuse_other_degrees("trl", facts, {"zero"}, "megatron")
    zero = facts.get("zero", 0)  # FSDP shards gradients as well as states: it has no stage 1
    if zero == 1:
        raise InputError("--emit trl: it has no zero 1; nearest: --emit deepspeed")
    sharding = {"fsdp": FSDP_WORDS[int(str(zero))]} if zero else {}
    return format_yaml({"model_name_or_path": model, **_training_arguments(facts), **sharding})


def _emit_axolotl(model: str, facts: Facts) -> str:
    """Write a recipe of Axolotl."""
    _refuse_other_degrees("axolotl", facts, {"tensor", "context", "zero", "shard"}, "megatron")
    zero, data, shard = (facts.get(name) for name in ("zero", "data", "shard"))
    values: Mapping[str, Any] = {
        "base_model": model,
        "sequence_len": facts.get("length"),
        "micro_batch_size": facts.get("micro_batch"),
        "gradient_accumulation_steps": facts.get("accumulation", 1),
        "optimizer": OPTIMIZER_WORDS.get(str(facts.get("optimizer")), "adamw_torch"),
        **axolotl_dtype(facts.get("dtype")),
        "gradient_checkpointing": facts.get("recompute") == "full",
        "sample_packing": facts.get("packed"),
        "tensor_parallel_size": facts.get("tensor"),
        "context_parallel_size": facts.get("context"),
        "attn_implementation": "flash_attention_2" if facts.get("context", 1) != 1 else None,
        **axolotl_sharding(zero, data, shard),
        **axolotl_adapter(facts),
    }
    return format_yaml({name: value for name, value in values.items() if value is not None})


def _emit_deepspeed(model: str, facts: Facts) -> str:
    _refuse_other_degrees("deepspeed", facts, {"zero"}, "megatron")
    config: Mapping[str, Any] = {
        "zero_optimization": {"stage": facts.get("zero", 0)},
        "bf16": {"enabled": "auto"},  # "auto" takes the value of the training arguments
        "fp16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
    }
    words = ["deepspeed", *_device_words(facts, "--num_gpus", "--num_nodes"), "train.py"]
    words += ["--model_name_or_path", model, *argument_words(_training_arguments(facts))]
    command = format_command([*words, "--deepspeed", "ds_config.json"])
    return prepend_file("ds_config.json", json.dumps(config, indent=2) + "\n", command)


def _device_words(facts: Facts, per_node_option: str, nodes_option: str) -> list[str]:
    """Return the number of processes of a node and of nodes."""
    device_count = int(str(facts.get("devices", 1)))
    per_node = _devices_of_node(facts)
    words = [per_node_option, str(per_node)]
    if device_count > per_node:  # several nodes
        words += [nodes_option, str(device_count // per_node)]
    return words


def _devices_of_node(facts: Facts) -> int:
    """Return the number of devices of a node: as the job says, at most `GPUS_OF_NODE`."""
    device_count = int(str(facts.get("devices", 1)))
    return int(str(facts.get("per_node") or min(device_count, GPUS_OF_NODE)))


def _emit_accelerate(model: str, facts: Facts) -> str:
    """Write a configuration of Accelerate and the command that reads it."""
    _refuse_other_degrees("accelerate", facts, {"zero"}, "megatron")
    device_count = int(str(facts.get("devices", 1)))
    per_node = _devices_of_node(facts)
    precision_words = {"bfloat16": "bf16", "float16": "fp16"}
    config: Mapping[str, Any] = {
        **_accelerate_sharding(facts.get("zero", 0)),
        "num_processes": device_count,
        "num_machines": max(1, device_count // per_node),
        "mixed_precision": precision_words.get(str(facts.get("dtype")), "no"),
    }
    command = ["accelerate", "launch", "--config_file", "accelerate.yaml", "train.py"]
    arguments = ["--model_name_or_path", model, *argument_words(_training_arguments(facts))]
    return prepend_file(
        "accelerate.yaml", format_yaml(config), format_command([*command, *arguments])
    )


def _accelerate_sharding(zero_stage: Any) -> Mapping[str, Any]:
    """Return the keys of a stage of ZeRO: FSDP does stages 2 and 3, DeepSpeed has stage 1, too."""
    if zero_stage in {2, 3}:
        fsdp_config = {"fsdp_version": 2, "fsdp_reshard_after_forward": zero_stage == 3}
        return {"distributed_type": "FSDP", "fsdp_config": fsdp_config}
    if zero_stage:
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": zero_stage}}
    return {"distributed_type": "MULTI_GPU"}


def _emit_megatron(model: str, facts: Facts) -> str:
    """Write ms-swift's `megatron sft`, which loads a model by its id into Megatron-LM."""
    if facts.get("zero") not in {None, 0, 1}:
        raise InputError("--emit megatron: it shares out states alone; nearest: --zero 1")
    expressible = {"tensor", "pipeline", "context", "expert", "expert_tensor", "virtual", "zero"}
    _refuse_other_degrees("megatron", facts, {*expressible, "sequence_parallel"}, "axolotl")
    words = ["megatron", "sft", "--model", model, *option_words(facts, MEGATRON_OPTIONS)]
    flags = {
        "--sequence_parallel": facts.get("sequence_parallel"),
        "--use_distributed_optimizer": facts.get("zero") == 1,
        "--bf16": facts.get("dtype") == "bfloat16",
        "--fp16": facts.get("dtype") == "float16",
    }
    words += [word for flag, is_on in flags.items() if is_on for word in (flag, "true")]
    if facts.get("recompute") in {"full", "selective"}:
        words += ["--recompute_granularity", str(facts["recompute"])]
    words += _megatron_adapter(facts)
    device_words = _device_words(facts, "NPROC_PER_NODE", "NNODES")  # names and values in turn
    names, values = device_words[::2], device_words[1::2]
    variables = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    return " ".join([*variables, format_command(words)])


def _megatron_adapter(facts: Facts) -> list[str]:
    """Return LoRA as options of ms-swift; none without it."""
    if "lora_rank" not in facts:
        return []
    targets = facts.get("lora_targets", "all-linear")
    words = ["--train_type", "lora", "--lora_rank", str(facts["lora_rank"])]
    words += ["--target_modules", *(targets if isinstance(targets, list) else [str(targets)])]
    if facts.get("adapter") == "dora":
        words += ["--use_dora", "true"]
    saved_modules = facts.get("modules_to_save")
    if isinstance(saved_modules, list):
        words += ["--modules_to_save", *saved_modules]
    return words


Emitter = Callable[[str, Facts], str]
SERVING_EMITTERS: dict[str, Emitter] = {
    "vllm": _emit_vllm,
    "sglang": _emit_sglang,
    "llama-server": _emit_llama_server,
}
TRAINING_EMITTERS: dict[str, Emitter] = {
    "axolotl": _emit_axolotl,
    "trl": _emit_trl,
    "deepspeed": _emit_deepspeed,
    "accelerate": _emit_accelerate,
    "megatron": _emit_megatron,
}
