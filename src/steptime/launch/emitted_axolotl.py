"""Sharding and adapters of a training in the words of Axolotl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptime.core.errors import InputError
from steptime.launch.job import Facts


def axolotl_sharding(zero: Any, data: Any, shard: Any) -> Mapping[str, Any]:
    """Return the sharding of the state over replicas in the words of Axolotl."""
    # `zero` is the stage of ZeRO; `shard` replicas share out the state, of `data` in all.
    if not isinstance(data, int) or data == 1:
        return {}
    if zero == 1:
        raise InputError("--emit axolotl: zero 1 needs DeepSpeed; nearest: --emit deepspeed")
    if not zero:  # plain data parallelism: every replica has all of the state
        return {"dp_replicate_size": data}
    shards = shard if isinstance(shard, int) and shard else data
    return {
        "dp_shard_size": shards,
        "dp_replicate_size": data // shards if data > shards else None,
        "fsdp_version": 2,
        "fsdp_config": {"reshard_after_forward": zero == 3},
    }


def axolotl_dtype(dtype: Any) -> Mapping[str, Any]:
    """Return the type of the products in the words of Axolotl; None is left out of the file."""
    return {
        "bf16": True if dtype == "bfloat16" else None,
        "bfloat16": True if dtype == "bfloat16-pure" else None,
        "fp16": True if dtype == "float16" else None,
    }


def axolotl_adapter(facts: Facts) -> Mapping[str, Any]:
    """Return LoRA in the words of Axolotl."""
    if "lora_rank" not in facts:
        return {}
    targets, weights = facts.get("lora_targets"), facts.get("weights")
    # A key whose value is None is left out of the file.
    return {
        "adapter": "qlora" if weights == "nf4" else "lora",
        "lora_r": facts["lora_rank"],
        "lora_target_linear": True if targets == "all-linear" else None,
        "lora_target_modules": targets if isinstance(targets, list) else None,
        "lora_modules_to_save": facts.get("modules_to_save"),
        "peft_use_dora": True if facts.get("adapter") == "dora" else None,
        "load_in_4bit": True if weights == "nf4" else None,
        "load_in_8bit": True if weights == "int8" else None,
    }
