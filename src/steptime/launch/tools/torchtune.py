"""torchtune's `tune run RECIPE --config FILE` as facts of a training."""

from __future__ import annotations

import re

from steptime.launch.job import TRAINING, JobBuilder
from steptime.launch.launchers import LaunchedProgram
from steptime.launch.settings import (
    Files,
    ToolSettings,
    count,
    float_type,
    note_unpriced,
    set_optimizer,
    take_facts,
)
from steptime.launch.tools import trainer

READ_FROM = "torchtune 0.6"
OBJECTIVES = ("dpo", "ppo", "grpo")  # in the name of a recipe: `lora_dpo_distributed`
SHARD_GROUPS = "shard_groups"  # a fact of this module alone: it becomes `shard`
FACTS = {
    "batch_size": ("micro_batch", count),
    "gradient_accumulation_steps": ("accumulation", count),
    "tokenizer.max_seq_len": ("length", count),
    "tensor_parallel_dim": ("tensor", count),
    "context_parallel_dim": ("context", count),
    "data_parallel_replicate_dim": (SHARD_GROUPS, count),
    "model.lora_rank": ("lora_rank", count),
}
UNPRICED = {
    "enable_fp8_training": "products in float8 are given by --dtype float8",
    "custom_sharded_layers": "layers that are sharded apart are not priced",
}


def read_torchtune(settings: ToolSettings, launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read a configuration of torchtune.

    Args:
        settings: keys of the YAML, and `key=value` words of the command that override them.
        launch: the command with its recipe and number of processes.
        files: not read; the configuration names no others.
    """
    del files
    job = JobBuilder(tool="torchtune", kind=TRAINING)
    # The function that builds the network, such as `lora_llama3_8b`.
    builder = (settings.text("model._component_") or "").rpartition(".")[2]
    folder = (settings.text("checkpointer.checkpoint_dir") or "").rstrip("/")
    job.model = _model_of(builder) or folder.rpartition("/")[2] or None
    trainer.read_devices(job, launch)
    take_facts(job, settings, FACTS)
    _read_recipe_name(job, f"{launch.program} {' '.join(launch.words[:2])}")
    if builder.startswith(("qlora", "qdora")) or settings.flag("model.quantize_base"):
        job.set("weights", "nf4")
    _set_shard_size(job)
    _read_targets(job, settings)
    trainer.set_dora(job, settings, "model.use_dora")
    if builder.startswith(("dora", "qdora")):
        job.set("adapter", trainer.DORA)
    weight_dtype = float_type(settings.text("dtype"))
    # torchtune keeps weights and optimizer states in `dtype`, without a float32 master copy.
    job.set("dtype", "bfloat16-pure" if weight_dtype == "bfloat16" else weight_dtype)
    set_optimizer(job, settings.text("optimizer._component_", "optimizer.optimizer"))
    _read_memory(job, settings)
    job.set_default("accumulation", 1)
    note_unpriced(job, settings, UNPRICED)
    return job


def _read_recipe_name(job: JobBuilder, recipe: str) -> None:
    """Set what the name of a recipe says: its sharding and its objective.

    Args:
        job: the job.
        recipe: first words of the command, one of which is the recipe: `lora_dpo_distributed`.
    """
    if "distributed" in recipe:  # these recipes use FSDP, which shards as ZeRO 3 does
        job.set("zero", 3)
    elif "single_device" in recipe:
        job.set("devices", 1)
    _set_objective(job, recipe)


def _set_objective(job: JobBuilder, recipe: str) -> None:
    """Set the objective of a recipe of preference or reinforcement learning."""
    objective = next((name for name in OBJECTIVES if f"{name}_" in recipe), None)
    if objective:
        job.set("objective", objective)
        job.notes.append(
            f"objective {objective}: the step of one model is priced, not its {objective} parts"
        )


def _set_shard_size(job: JobBuilder) -> None:
    """Set how many devices share out the weights, from the number of groups that do."""
    shard_groups = job.facts.pop(SHARD_GROUPS, None)
    if isinstance(shard_groups, int) and shard_groups > 1:
        devices = job.find_count("devices")
        job.set("shard", devices // shard_groups if devices else None)


def _model_of(builder: str) -> str | None:
    """Return the network that a builder makes: `qlora_gemma2_9b` is `gemma2_9b`."""
    name = re.sub(r"^(q?lora|dora|qdora|full)_", "", builder)
    return re.sub(r"_(instruct|base|it)$", "", name) or None


def _read_targets(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the products that LoRA adapts."""
    if "lora_rank" not in job.facts:  # all weights are trained
        return
    targets = settings.texts("model.lora_attn_modules")
    for key, name in (("apply_lora_to_mlp", "mlp"), ("apply_lora_to_output", "output")):
        if settings.flag(f"model.{key}"):
            targets.append(name)
    job.set("lora_targets", targets or None)


def _read_memory(job: JobBuilder, settings: ToolSettings) -> None:
    """Set packing, recomputation, and what lies on the host or is applied early."""
    recomputes = settings.flag("enable_activation_checkpointing")
    if recomputes is not None:
        job.set("recompute", "full" if recomputes else "none")
    for key, fact in (
        ("enable_activation_offloading", "offload_activations"),
        ("optimizer_in_bwd", "update_early"),
        ("fsdp_cpu_offload", "offload"),
        ("dataset.packed", "packed"),
    ):
        if settings.flag(key):
            job.set(fact, True)
    loss = settings.text("loss._component_") or ""
    if "Chunked" in loss or "LinearCrossEntropy" in loss:
        job.notes.append(f"loss {loss.rpartition('.')[2]}: needs less memory than is counted")
