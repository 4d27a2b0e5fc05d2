"""Hugging Face's `TrainingArguments`, TRL, and the configurations of Accelerate and DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from steptime.launch.job import TRAINING, JobBuilder
from steptime.launch.launchers import LaunchedProgram, visible_devices
from steptime.launch.settings import (
    Files,
    ToolSettings,
    count,
    float_type,
    note_unpriced,
    set_optimizer,
    take_facts,
)
from steptime.launch.tools.deepspeed import find_configuration, is_true, read_deepspeed

READ_FROM = "transformers 4.57, TRL 0.24, Accelerate 1.10, DeepSpeed 0.17"
DEFAULT_BATCH = 8
DORA = "dora"  # in the fact `adapter`; without it an adapter is LoRA
SWIFT_RANK = 8
SHARDING = {  # FSDP's strategies, by name and number
    **dict.fromkeys(("full_shard", "1", "hybrid_shard", "4"), 3),
    **dict.fromkeys(("shard_grad_op", "2", "hybrid_shard_zero2", "5"), 2),
    **dict.fromkeys(("no_shard", "3"), 0),
}
ACCELERATE_OPTIONS = (  # of `accelerate launch`, by their names in its configuration
    "zero_stage",
    "gradient_accumulation_steps",
    "offload_optimizer_device",
    "offload_param_device",
    "fsdp_sharding_strategy",
    "fsdp_reshard_after_forward",
    "fsdp_offload_params",
    "fsdp_activation_checkpointing",
)
OBJECTIVES = ("dpo", "grpo", "kto", "orpo", "cpo", "rloo", "ppo", "gkd", "reward", "sft", "simpo")
FACTS = {
    "per_device_train_batch_size": ("micro_batch", count),
    "gradient_accumulation_steps": ("accumulation", count),
    **dict.fromkeys(
        ("max_length", "max_seq_length", "max_seq_len", "model_max_length", "block_size"),
        ("length", count),
    ),
    **dict.fromkeys(("lora_r", "lora_rank", "use_llm_lora", "r"), ("lora_rank", count)),
    **dict.fromkeys(("num_generations", "group_size"), ("group", count)),
    "max_prompt_length": ("prompt", count),
    **dict.fromkeys(("max_completion_length", "max_new_tokens"), ("completion", count)),
}
UNPRICED = {
    "torch_compile": "compiled kernels are priced by a stack, --stack torch-compile",
    "neftune_noise_alpha": "noise on embeddings is not priced",
    "use_vllm": "making answers by vLLM is not part of the step",
    "use_unsloth": "Unsloth's kernels are not priced",
}


def read_trainer(launch: LaunchedProgram, settings: ToolSettings, files: Files) -> JobBuilder:
    """Read training arguments with the configurations that they and the launcher name.

    Args:
        launch: the program and its launcher.
        settings: arguments of the script, or keys of a YAML or JSON file.
        files: files that the arguments name.
    """
    deepspeed = find_configuration(settings)
    job = JobBuilder(tool=_name_tool(launch, has_deepspeed=deepspeed is not None), kind=TRAINING)
    job.model = settings.text("model_name_or_path", "model_name", "model_id", "model", "base_model")
    read_devices(job, launch)
    take_accelerate(job, launch, files)
    read_training(job, settings)
    read_adapter(job, settings)
    read_deepspeed(job, deepspeed, files)
    read_fsdp(job, settings)
    _read_objective(job, launch, settings)
    if settings.flag("use_liger_kernel"):
        job.set("loss", "chunked")
    if launch.program == "swift":
        _read_swift(job, settings)
    job.set_default("micro_batch", DEFAULT_BATCH)
    if "global_batch" not in job.facts:  # DeepSpeed's `train_batch_size`, which decides it
        job.set_default("accumulation", 1)
    job.set_default("optimizer", "adamw")
    note_unpriced(job, settings, UNPRICED)
    return job


def _name_tool(launch: LaunchedProgram, *, has_deepspeed: bool) -> str:
    """Return the tool of a command: TRL, else DeepSpeed, else the launcher, else transformers."""
    if launch.program == "trl":
        return "trl"
    if has_deepspeed or launch.launcher == "deepspeed":
        return "deepspeed"
    return launch.launcher or "transformers"


def _read_swift(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the defaults of ms-swift: LoRA on all linear layers, batches of 1, recompute."""
    job.tool = "swift"
    if (settings.text("train_type", "tuner_type") or "lora") == "lora":
        job.set_default("lora_rank", SWIFT_RANK)
        job.set_default("lora_targets", "all-linear")
    job.set_default("micro_batch", 1)
    job.set_default("recompute", "full")


def read_devices(job: JobBuilder, launch: LaunchedProgram) -> None:
    """Set the number of devices and of those of a node, as the launcher says them."""
    settings = launch.settings
    is_torchrun = launch.launcher == "torchrun"
    nodes, per_node = _nodes_of(launch)
    if per_node is None and not is_torchrun:  # other launchers start a process a visible device
        per_node = visible_devices(launch.environment)
    # A process drives one device. Accelerate states their number, other launchers those of a node.
    processes = _digits(settings.text("num_processes"))
    if processes is None and per_node is not None:
        processes = per_node * (nodes or 1)
    if processes is not None:
        job.set("devices", processes)
        if nodes and nodes > 1:
            job.set("per_node", processes // nodes)
    elif is_torchrun and "nproc_per_node" not in settings:
        job.set_default("devices", nodes or 1)  # torchrun starts one process a node by default


def _nodes_of(launch: LaunchedProgram) -> tuple[int | None, int | None]:
    """Return the number of nodes and of the processes of one, None where a launcher says none."""
    settings, environment = launch.settings, launch.environment
    include = settings.text("include", "i")
    if include:  # DeepSpeed's `host1:0,1@host2:0,1`; all hosts have as many devices as the first
        hosts = include.split("@")
        device_indices = hosts[0].partition(":")[2].split(",")
        return len(hosts), len(device_indices)
    nodes = _node_count(settings.text("nnodes", "num_machines", "num_nodes"))
    nodes = nodes or _node_count(environment.get("NNODES") or environment.get("SLURM_NNODES"))
    per_node = _digits(settings.text("nproc_per_node", "num_gpus", "nproc"))
    if per_node is None and not launch.launcher:
        per_node = _digits(environment.get("NPROC_PER_NODE"))
    return nodes, per_node


def _node_count(text: str | None) -> int | None:
    """Return the number of nodes; of an elastic range `1:4` the larger one."""
    return _digits(text.rpartition(":")[2]) if text else None


def _digits(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) > 0 else None


def read_training(job: JobBuilder, settings: ToolSettings) -> None:
    """Set batch, length, type, optimizer and recomputation from training arguments."""
    take_facts(job, settings, FACTS)
    if settings.flag("bf16"):
        job.set("dtype", "bfloat16")
    elif settings.flag("fp16"):
        job.set("dtype", "float16")
    stored_dtype = float_type(settings.text("dtype", "torch_dtype", "model_dtype"))
    trains_stored_bf16 = stored_dtype == "bfloat16" and "dtype" not in job.facts  # no autocast
    if settings.flag("pure_bf16") or trains_stored_bf16:
        job.set("dtype", "bfloat16-pure")  # weights are bfloat16, too
    set_optimizer(job, settings.text("optim", "optimizer"))
    recomputes = settings.flag("gradient_checkpointing", "grad_checkpoint")
    if recomputes is not None:
        job.set("recompute", "full" if recomputes else "none")
    if settings.flag("packing"):
        job.set("packed", True)
    _read_weights(job, settings)


def _read_weights(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the type of frozen weights: 4 or 8 bits by bitsandbytes."""
    if settings.flag("load_in_4bit", "use_4bit_quantization", "use_4bit"):
        job.set("weights", "nf4")
    elif settings.flag("load_in_8bit", "use_8bit_quantization"):
        job.set("weights", "int8")
    elif (bits := settings.text("quantization_bit", "bits")) is not None:
        job.set("weights", {"4": "nf4", "8": "int8"}.get(bits))


def read_adapter(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what LoRA adapts."""
    targets = settings.texts("lora_target_modules", "target_modules", "lora_target")
    if targets in (["all-linear"], ["all"]):
        job.set("lora_targets", "all-linear")
    elif targets:
        job.set("lora_targets", targets)
    saved_modules = settings.texts("modules_to_save", "lora_modules_to_save", "additional_target")
    job.set("modules_to_save", saved_modules or None)
    set_dora(job, settings, "use_dora")
    uses_adapter = settings.flag("use_peft", "use_peft_lora", "use_lora")
    if uses_adapter is False:  # not None, which is unsaid
        for name in ("lora_rank", "lora_targets", "adapter", "modules_to_save"):
            job.facts.pop(name, None)


def set_dora(job: JobBuilder, settings: ToolSettings, *flags: str) -> None:
    """Set that LoRA's matrices have trained magnitudes, by the flags that say it."""
    if settings.flag(*flags):
        job.set("adapter", DORA)


def take_accelerate(job: JobBuilder, launch: LaunchedProgram, files: Files) -> None:
    """Set what the file and the options of `accelerate launch` say."""
    if launch.launcher != "accelerate":  # nothing to read
        return
    path = launch.settings.text("config_file")
    config = (files.read_mapping(path) if path else None) or {}
    if path and not config:
        _read_configuration_name(job, path)
    # The file first, then the options of the command line, which win.
    read_accelerate(job, config, files)
    _take_accelerate_options(job, launch.settings, files)


def _take_accelerate_options(job: JobBuilder, options: ToolSettings, files: Files) -> None:
    """Set what the options of `accelerate launch` say."""
    if options.text("mixed_precision"):
        _set_mixed_precision(job, options.text("mixed_precision"))
    if options.flag("multi_gpu"):
        job.set("zero", 0)  # DDP
    parallel = {name: options.text(name) for name in ACCELERATE_OPTIONS if name in options}
    _read_accelerate_deepspeed(job, parallel, files)
    read_deepspeed(job, options.text("deepspeed_config_file"), files)
    sharding_options = ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")
    states_sharding = not parallel.keys().isdisjoint(sharding_options)
    uses_default_sharding = options.flag("use_fsdp") and "zero" not in job.facts
    if states_sharding or uses_default_sharding:
        _read_sharding(job, parallel, "fsdp_")
    _read_fsdp_savings(job, parallel, "fsdp_")


def _read_configuration_name(job: JobBuilder, path: str) -> None:
    """Set the sharding that the name of an absent configuration says, such as `zero3.yaml`."""
    name = path.rpartition("/")[2].lower()
    stage = re.search(r"zero[-_]?(?:stage)?[-_]?([0-3])", name)
    if stage:
        job.set("zero", int(stage[1]))
    elif "fsdp" in name:
        job.set("zero", 3)
    elif name.startswith(("ddp", "multi_gpu")):
        job.set("zero", 0)
    job.notes.append(f"{path}: is not here; its name alone is read")


def read_accelerate(job: JobBuilder, config: Mapping[str, Any], files: Files) -> None:
    """Set what a configuration file of Accelerate says."""
    processes = config.get("num_processes")
    if processes and "devices" not in job.facts:
        device_count = int(processes)
        node_count = int(config.get("num_machines") or 1)
        job.set("devices", device_count)
        if node_count > 1:
            job.set("per_node", device_count // node_count)
    _set_mixed_precision(job, str(config.get("mixed_precision", "")))
    kind = str(config.get("distributed_type", "")).upper()
    if kind == "FSDP":
        _read_fsdp_config(job, config.get("fsdp_config") or {}, "fsdp_")
    elif kind == "DEEPSPEED":
        _read_accelerate_deepspeed(job, config.get("deepspeed_config") or {}, files)
    elif kind == "MULTI_GPU":
        job.set("zero", 0)  # DDP
    _read_parallelism(job, config.get("parallelism_config") or {})


def _read_parallelism(job: JobBuilder, degrees: Mapping[str, Any]) -> None:
    """Set the degrees in the table `parallelism_config` of a configuration of Accelerate."""
    for key, fact in (("tp_size", "tensor"), ("cp_size", "context")):
        if value := degrees.get(f"parallelism_config_{key}"):
            job.set(fact, int(value))
    copies = int(degrees.get("parallelism_config_dp_replicate_size") or 1)
    shards = degrees.get("parallelism_config_dp_shard_size")
    if copies > 1 and shards:
        job.set("shard", int(shards))


def _set_mixed_precision(job: JobBuilder, text: str | None) -> None:
    words = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
    job.set("dtype", words.get((text or "").lower()))


def _read_fsdp_config(job: JobBuilder, config: Mapping[str, Any], prefix: str) -> None:
    """Set what a table of FSDP options says, whose keys may have a prefix."""
    _read_sharding(job, config, prefix)
    _read_fsdp_savings(job, config, prefix)


def _fsdp_option(config: Mapping[str, Any], prefix: str, name: str) -> Any:
    return config.get(f"{prefix}{name}", config.get(name))


def _read_sharding(job: JobBuilder, config: Mapping[str, Any], prefix: str) -> None:
    """Set what FSDP shares out; all where nothing is said."""
    strategy = str(_fsdp_option(config, prefix, "sharding_strategy")).lower()
    reshard = _fsdp_option(config, prefix, "reshard_after_forward")
    zero_stage = SHARDING.get(strategy)
    if zero_stage is None and reshard is not None:
        # A strategy's name, or a truth value: without resharding, weights stay gathered (ZeRO 2).
        default_stage = 3 if is_true(reshard) else 2
        zero_stage = SHARDING.get(str(reshard).lower(), default_stage)
    job.set("zero", 3 if zero_stage is None else zero_stage)
    devices_per_node = job.find_count("per_node")
    if strategy.startswith("hybrid_shard") and devices_per_node:
        job.set("shard", devices_per_node)  # sharded within a node, copied between nodes


def _read_fsdp_savings(job: JobBuilder, config: Mapping[str, Any], prefix: str) -> None:
    """Set what FSDP keeps on the host or computes again."""
    places = ("offload_params", "cpu_offload")
    if any(is_true(_fsdp_option(config, prefix, name)) for name in places):
        job.set("offload", True)
    if is_true(_fsdp_option(config, prefix, "activation_checkpointing")):
        job.set("recompute", "full")


def _read_accelerate_deepspeed(job: JobBuilder, config: Mapping[str, Any], files: Files) -> None:
    """Set what the table of DeepSpeed in Accelerate's configuration says."""
    if "zero_stage" in config:
        job.set("zero", int(config["zero_stage"]))
    if config.get("gradient_accumulation_steps") not in {None, "auto"}:
        job.set("accumulation", int(config["gradient_accumulation_steps"]))
    places = (config.get("offload_optimizer_device"), config.get("offload_param_device"))
    if any(str(place) in {"cpu", "nvme"} for place in places):
        job.set("offload", True)
    read_deepspeed(job, config.get("deepspeed_config_file"), files)


def read_fsdp(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what the arguments `fsdp` and `fsdp_config` of a trainer say."""
    # `--fsdp "full_shard offload"`, and a table `fsdp_config`.
    words = " ".join(settings.texts("fsdp")).lower().replace(",", " ").split()
    for word in words:
        if word in SHARDING:
            job.set("zero", SHARDING[word])
        elif word == "offload":
            job.set("offload", True)
    nested = {
        name.partition(".")[2]: settings.text(name)
        for name in list(settings.values)
        if name.startswith("fsdp_config.")
    }
    if words or nested:
        # The table sets ZeRO 3 if it says nothing of sharding: then the stage of `--fsdp` counts.
        stage_of_words = job.facts.get("zero")
        _read_fsdp_config(job, nested, "fsdp_")
        if stage_of_words is not None and "reshard_after_forward" not in nested:
            job.set("zero", stage_of_words)


def _read_objective(job: JobBuilder, launch: LaunchedProgram, settings: ToolSettings) -> None:
    """Set the objective of preference or reinforcement learning, if it is not plain training."""
    objective = _find_objective(job, launch, settings)
    if objective is not None and objective != "sft":
        job.set("objective", objective)
        job.notes.append(
            f"objective {objective}: the step of one model is priced, not its {objective} parts"
        )
    if objective != "grpo":
        # GRPO alone generates answers, so only its step depends on the length of each part.
        job.facts.pop("prompt", None)
        job.facts.pop("completion", None)


def _find_objective(job: JobBuilder, launch: LaunchedProgram, settings: ToolSettings) -> str | None:
    """Return the objective in the command's name, else the one that the options belong to."""
    command = f"{launch.program} {' '.join(launch.words[:2])}".lower()
    for objective in OBJECTIVES:
        if re.search(rf"(?<![a-z]){objective}(?![a-z])", command):
            return objective
    compares_answers = "group" in job.facts  # the number of answers to each prompt
    if compares_answers or "reward_funcs" in settings:  # answers are scored in groups
        return "grpo"
    if "beta" in settings and "prompt" in job.facts:
        return "dpo"
    return None
