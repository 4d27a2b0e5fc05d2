"""Facts of a launched job as options of `fit`, `plan` and `serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from steptime.core.adapters import FEW_BITS
from steptime.core.dtypes import find_quantised_type
from steptime.core.workload import LORA, OPTIMIZERS, STATES
from steptime.launch.job import Facts, LaunchJob
from steptime.network.tuning import SAVED_NAMES
from steptime.questions.launched.desktop_settings import DESKTOP_STACKS, make_desktop_options
from steptime.questions.launched.question_settings import QuestionSettings
from steptime.questions.launched.server_settings import (
    set_checkpoint_type_option,
    set_rank_options,
    set_speculation_options,
)

PRECISIONS = {
    "bfloat16": "bfloat16-mixed",
    "float16": "float16-mixed",
    "bfloat16-pure": "bfloat16",
    "float8": "float8",
    "float32": "float32",
}
ADAPTED_PRODUCTS_BY_LAYER = {  # what LoRA adapts, by several tools' names of a layer
    **{f"{name}_proj": name for name in ("q", "k", "v", "gate", "up", "down")},
    **dict.fromkeys(("o_proj", "output_proj", "out_proj", "linear_proj", "c_proj"), "o+out"),
    **dict.fromkeys(("qkv_proj", "query_key_value", "linear_qkv", "c_attn"), "q+k+v"),
    **dict.fromkeys(("mlp", "gate_up_proj"), "gate+up+down"),
    "linear_fc1": "gate+up",
    "linear_fc2": "down",
}
SERVED_TYPES = {"float8", "int8", "int4", "float4", "mxfp4"}  # of weights
CACHE_TYPES = SERVED_TYPES
ENGINE_OPTIONS = {
    "max_num_seqs": "max_running_sequences",
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "chunked_prefill": "chunked_prefill",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "mem_fraction_static": "gpu_memory_utilization",
    "kv_free_fraction": "gpu_memory_utilization",
}
USUAL_TOKENS = 1024 + 128  # of a request, without options
ANSWER_PARTS = 9  # of a short sequence the answer is one part of nine, as 128 of 1024 + 128
SERVING_STACKS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trt-llm"}
FRAMEWORK_STACKS = {"megatron": "megatron"}
CHUNKED_LOSS_STACK = "axolotl-2025"  # computes the loss without whole logits
SHARDED_CHUNKED_LOSS_STACK = "fsdp-liger-2025"
PLAN_FACTS = (  # facts of a job that are options of `plan` by the same name
    "tensor",
    "pipeline",
    "virtual",
    "data",
    "context",
    "expert",
    "expert_tensor",
    "zero",
    "shard",
    "per_node",
    "schedule",
    "sequence_parallel",
    "global_batch",
)


def make_fit_settings(job: LaunchJob, _user_options: Mapping[str, Any]) -> QuestionSettings:
    """Return the options of `fit` for a training job, whatever options the user gives."""
    settings = QuestionSettings()
    settings.set_from_facts(job.facts, {"micro_batch": "batch"})
    _set_step_options(settings, job)
    devices = job.facts.get("devices")
    if isinstance(devices, int) and devices > 1:
        settings.notes.append(
            f"the job runs on {devices} devices; fit answers for one of them that holds the whole "
            "model: plan splits it"
        )
    if job.facts.get("recompute") == "selective":
        # Without the option nothing is recomputed.
        del settings.options["recompute"]
        settings.notes.append("recompute selective: fit knows full or none; none is counted")
    if job.facts.get("loss") == "chunked":
        settings.options["stack"] = CHUNKED_LOSS_STACK
    if settings.options.get("offload") == "both":
        settings.options["offload"] = "optimizer"
    settings.note_unpriced_facts(
        job.facts, {"offload_activations": "activations on the host are in plan alone"}
    )
    return settings


def make_plan_settings(job: LaunchJob, _user_options: Mapping[str, Any]) -> QuestionSettings:
    """Return the options of `plan` for a training job, whatever options the user gives."""
    settings = QuestionSettings()
    settings.set_from_facts(job.facts, {name: name for name in PLAN_FACTS})
    settings.set_from_facts(job.facts, {"micro_batch": "microbatch"})
    _set_step_options(settings, job)
    stages = job.facts.get("stages")
    if isinstance(stages, list):
        settings.options["stages"] = ",".join(stages)
    if "data" not in job.facts:
        settings.notes.append(
            "the job leaves the number of devices open: one replica is priced (--device-count)"
        )
    has_replicas = job.facts.get("data", 1) != 1
    if not has_replicas:  # there is nothing to shard over
        for name in ("zero", "shard"):
            settings.options.pop(name, None)
    if job.facts.get("offload_activations"):
        offloads_optimizer = settings.options.get("offload") == "optimizer"
        settings.options["offload"] = "both" if offloads_optimizer else "activations"
    has_tensor_parallelism = job.facts.get("tensor", 1) != 1
    if not has_tensor_parallelism:
        settings.options.pop("sequence_parallel", None)
    if job.tool in FRAMEWORK_STACKS:
        settings.options["stack"] = FRAMEWORK_STACKS[job.tool]
    if job.facts.get("loss") == "chunked":
        # From stage 2 on ZeRO shards as FSDP does, whose stack with chunked losses is another one.
        is_sharded = job.facts.get("zero", 0) not in {0, 1}
        stack = SHARDED_CHUNKED_LOSS_STACK if is_sharded else CHUNKED_LOSS_STACK
        settings.options["stack"] = stack
    return settings


def _set_step_options(settings: QuestionSettings, job: LaunchJob) -> None:
    """Set what is common to the steps of `fit` and `plan`."""
    facts = job.facts
    settings.set_from_facts(facts, {"length": "length", "update_early": "update_early"})
    if facts.get("recompute") != "none":
        settings.set_from_facts(facts, {"recompute": "recompute"})
    dtype = PRECISIONS.get(str(facts.get("dtype")))
    if dtype:
        settings.options["dtype"] = dtype
    _set_optimizer_option(settings, facts)
    _set_adapter_options(settings, facts)
    if facts.get("offload"):
        settings.options["offload"] = "optimizer"
        settings.notes.append("offload: the optimizer's states lie on the host; weights do not")
    settings.note_unpriced_facts(
        facts,
        {
            "packed": "the lengths of its documents are not known; --packed N prices them",
        },
    )


def _set_optimizer_option(settings: QuestionSettings, facts: Facts) -> None:
    """Set the optimizer where it is one that is priced."""
    optimizer = facts.get("optimizer")
    if optimizer in OPTIMIZERS or optimizer in STATES:
        settings.options["optimizer"] = optimizer
    elif optimizer is not None:
        settings.notes.append(f"optimizer {optimizer}: is not priced; adam is taken")


def _set_adapter_options(settings: QuestionSettings, facts: Facts) -> None:
    """Set the adapter, what is trained beside it, and the type of the frozen weights."""
    if "lora_rank" not in facts:
        return
    targets = facts.get("lora_targets")
    products_text = ""
    if targets == "all-linear":
        products_text = ",on=linear"
    elif isinstance(targets, list):
        # `on` names products inside the layers of the network; the head lies outside.
        inner_layers = [name for name in targets if name not in {"output", "lm_head"}]
        product_names = [ADAPTED_PRODUCTS_BY_LAYER.get(name, name) for name in inner_layers]
        products_text = f",on={'+'.join(product_names)}"
    adapter_text = f"r={facts['lora_rank']}{products_text}"
    adapter = facts.get("adapter", LORA)
    if adapter == LORA:
        settings.options["lora"] = adapter_text
    else:
        settings.options["adapter"] = f"{adapter},{adapter_text}"
    _set_saved_modules_option(settings, facts)
    if facts.get("weights") in FEW_BITS:
        settings.options["weights"] = facts["weights"]
    elif "weights" in facts:
        settings.notes.append(f"weights {facts['weights']}: are not priced in training")


def _set_saved_modules_option(settings: QuestionSettings, facts: Facts) -> None:
    """Set the modules that are trained whole; those of no language model have a note."""
    saved_modules = facts.get("modules_to_save")
    if not isinstance(saved_modules, list):
        return
    priced_modules = [name for name in saved_modules if name in SAVED_NAMES]
    if priced_modules:
        settings.options["modules_to_save"] = ",".join(priced_modules)
    unpriced_modules = [name for name in saved_modules if name not in priced_modules]
    if unpriced_modules:
        settings.notes.append(
            f"modules_to_save {', '.join(unpriced_modules)}: these are trained whole, which is not "
            "priced"
        )


def make_serve_settings(job: LaunchJob, user_options: Mapping[str, Any]) -> QuestionSettings:
    """Return the options of `serve` for a serving job.

    Args:
        job: the job.
        user_options: options that the user gives, which say whether requests come as a load.
    """
    settings = QuestionSettings()
    facts = job.facts
    # llama.cpp and Ollama have options of their own; the engines below share theirs.
    if job.tool in DESKTOP_STACKS:
        settings.options.update(make_desktop_options(job.tool, facts, user_options))
        slots_reason = "all slots are priced as running requests; --running-sequences 1 prices one"
        reason_by_fact = {
            "speculative": "guessed tokens are not priced",
            "max_num_seqs": slots_reason,
        }
        settings.note_unpriced_facts(facts, reason_by_fact)
        return settings
    settings.set_from_facts(
        facts, {name: name for name in ("tensor", "pipeline", "data", "per_node")}
    )
    set_rank_options(settings, facts)
    set_speculation_options(settings, facts)
    if facts.get("dtype") in {"bfloat16", "float16"}:
        settings.options["dtype"] = facts["dtype"]
    _set_served_type_options(settings, facts)
    set_checkpoint_type_option(settings, job, user_options)
    if job.tool in SERVING_STACKS:
        settings.options["stack"] = SERVING_STACKS[job.tool]
    else:
        settings.notes.append(f"{job.tool}: its kernels are not known; vLLM's are priced")
    settings.note_unpriced_facts(
        facts,
        {
            "kv_tokens": "the cache that fits is counted instead",
            "concurrency": "--concurrency prices so many users",
            # Context-parallel ranks: each holds a part of every sequence.
            "context": "sequences that devices share out are not priced",
        },
    )
    settings.set_from_facts(facts, ENGINE_OPTIONS)
    _shorten_requests(settings, user_options)
    return settings


def _shorten_requests(settings: QuestionSettings, user_options: Mapping[str, Any]) -> None:
    """Set requests that an engine of short sequences accepts, where the user names none."""
    has_user_lengths = not {"input", "output", "requests"}.isdisjoint(user_options)
    max_tokens = settings.options.get("max_model_len")
    if has_user_lengths or not isinstance(max_tokens, int):
        return
    has_room_for_usual_request = max_tokens >= USUAL_TOKENS
    if has_room_for_usual_request:
        return
    output_tokens = max(1, max_tokens // ANSWER_PARTS)
    input_tokens = max_tokens - output_tokens
    settings.options.update(input=max(1, input_tokens), output=output_tokens)
    settings.notes.append(
        f"max_model_len {max_tokens}: requests of {input_tokens} and {output_tokens} tokens are "
        "priced; --input and --output name others"
    )


def _set_served_type_options(settings: QuestionSettings, facts: Facts) -> None:
    """Set the types of weights and of keys and values."""
    weights = facts.get("weights")
    priced_weights = find_quantised_type(str(weights), SERVED_TYPES) if weights else None
    if priced_weights:
        settings.options["weights"] = priced_weights
        if priced_weights != weights:
            settings.notes.append(f"weights {weights}: are priced as {priced_weights}")
    elif weights:
        settings.notes.append(f"weights {weights}: are not priced; 16 bits are counted")
    cache_dtype = facts.get("kv_dtype", facts.get("kv_dtype_k"))
    priced_cache = find_quantised_type(str(cache_dtype), CACHE_TYPES) if cache_dtype else None
    is_16_bit = cache_dtype in ("bfloat16", "float16")  # what is counted by default
    if priced_cache:
        settings.options["kv"] = priced_cache
    elif cache_dtype and not is_16_bit:
        settings.notes.append(f"kv_dtype {cache_dtype}: is not priced; 16 bits are counted")


MAKE_SETTINGS_BY_QUESTION: Mapping[
    str, Callable[[LaunchJob, Mapping[str, Any]], QuestionSettings]
] = {
    "fit": make_fit_settings,
    "plan": make_plan_settings,
    "serve": make_serve_settings,
}
