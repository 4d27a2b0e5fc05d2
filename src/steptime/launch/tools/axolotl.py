"""Axolotl's YAML as facts of a job: its keys, and its defaults where a key is not there."""

from __future__ import annotations

from steptime.launch.job import TRAINING, JobBuilder
from steptime.launch.launchers import LaunchedProgram
from steptime.launch.settings import (
    Files,
    ToolSettings,
    count,
    note_unpriced,
    set_optimizer,
    take_facts,
)
from steptime.launch.tools import trainer
from steptime.launch.tools.deepspeed import read_deepspeed

READ_FROM = "Axolotl 0.12"
FACTS = {
    "micro_batch_size": ("micro_batch", count),
    "gradient_accumulation_steps": ("accumulation", count),
    "sequence_len": ("length", count),
    "tensor_parallel_size": ("tensor", count),
    "context_parallel_size": ("context", count),
    "expert_parallel_size": ("expert", count),
    "lora_r": ("lora_rank", count),
    "trl.num_generations": ("group", count),
    "trl.max_completion_length": ("completion", count),
}
UNPRICED = {
    "torch_compile": "compiled kernels are priced by a stack, --stack torch-compile",
    "unfrozen_parameters": "parameters trained alone are given by --train",
    "relora_steps": "ReLoRA is priced as LoRA",
}
LOSS_PLUGINS = ("cut_cross_entropy", "liger_fused_linear_cross_entropy", "chunked_cross_entropy")


def read_axolotl(settings: ToolSettings, launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read the keys of an Axolotl file.

    Args:
        settings: keys of the file, and options of the command that override them.
        launch: the command, for the number of processes.
        files: files that the keys name, such as a DeepSpeed JSON.
    """
    job = JobBuilder(tool="axolotl", kind=TRAINING)
    job.model = settings.text("base_model")
    take_facts(job, settings, FACTS)
    _read_degrees(job, settings)
    trainer.read_devices(job, launch)
    trainer.take_accelerate(job, launch, files)
    _read_types(job, settings)
    _read_adapter(job, settings)
    read_deepspeed(job, settings.text("deepspeed"), files)
    trainer.read_fsdp(job, settings)
    _read_memory(job, settings)
    rule = settings.text("rl")
    if rule:
        job.set("objective", rule.lower())
        job.notes.append(f"rl {rule}: the step of one model is priced, not its {rule} parts")
    for name in ("micro_batch", "accumulation"):
        job.set_default(name, 1)
    job.set_default("optimizer", "adamw")
    job.set_default("recompute", "none")
    note_unpriced(job, settings, UNPRICED)
    return job


def _read_degrees(job: JobBuilder, settings: ToolSettings) -> None:
    """Set replicas and devices where the file names the degrees of sharding."""
    shards, copies = settings.count("dp_shard_size"), settings.count("dp_replicate_size")
    if shards is None and copies is None:  # the devices say how many replicas
        return
    # Hybrid sharding: `copies` groups of `shards` devices, each of which shards one copy of the
    # state. A missing size is 1.
    job.set("data", (shards or 1) * (copies or 1))
    if (copies or 1) > 1 and shards:
        job.set("shard", shards)


def _read_types(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the type of the products, and how frozen weights are kept."""
    bf16_text = (settings.text("bf16", "bfloat16") or "").lower()
    # `bf16: full`, or the key `bfloat16`: weights are bfloat16, too.
    is_pure = bf16_text == "full" or (bf16_text == "true" and settings.text("bfloat16"))
    is_mixed = bf16_text in {"true", "auto", "1"}
    if is_pure:
        job.set("dtype", "bfloat16-pure")
    elif is_mixed:
        job.set("dtype", "bfloat16")
    elif settings.flag("fp16", "float16"):
        job.set("dtype", "float16")
    if settings.flag("fp8"):
        job.set("dtype", "float8")
    if settings.flag("load_in_4bit"):
        job.set("weights", "nf4")
    elif settings.flag("load_in_8bit"):
        job.set("weights", "int8")
    set_optimizer(job, settings.text("optimizer"))


def _read_adapter(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what LoRA adapts; without an adapter its keys do nothing."""
    if settings.text("adapter") not in {"lora", "qlora", "llama-adapter", "loftq"}:
        job.facts.pop("lora_rank", None)  # a rank without an adapter is not used
        return
    if settings.flag("lora_target_linear"):
        job.set("lora_targets", "all-linear")
    elif targets := settings.texts("lora_target_modules"):
        is_pattern = any(mark in " ".join(targets) for mark in "\\*(|[")  # a regular expression
        if is_pattern:
            job.notes.append("lora_target_modules is a pattern: attention's products are taken")
        else:
            job.set("lora_targets", "all-linear" if targets == ["all-linear"] else targets)
    job.set("modules_to_save", settings.texts("lora_modules_to_save") or None)
    trainer.set_dora(job, settings, "peft_use_dora")


def _read_memory(job: JobBuilder, settings: ToolSettings) -> None:
    """Set packing, recomputation and what lies on the host."""
    if settings.flag("sample_packing"):
        job.set("packed", True)
    # `false`, `true`, or a variant, such as `offload`, which recomputes as well.
    checkpointing = (settings.text("gradient_checkpointing") or "").lower()
    if checkpointing in {"offload", "offload_disk"}:
        job.set("offload_activations", True)
    if checkpointing:
        is_off = checkpointing in {"false", "null"}
        job.set("recompute", "none" if is_off else "full")
    if (settings.text("activation_offloading") or "").lower() in {"true", "legacy", "disk"}:
        job.set("offload_activations", True)
    # A plugin is in the list of plugins, or switched on by a key of its name.
    plugins = " ".join([*settings.texts("plugins"), *settings.values]).lower()
    if any(name in plugins for name in LOSS_PLUGINS):
        job.set("loss", "chunked")
