"""NeMo Automodel's YAML as facts of a training."""

from __future__ import annotations

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

READ_FROM = "NeMo Automodel 0.2"
FACTS = {
    "distributed.tp_size": ("tensor", count),
    "distributed.pp_size": ("pipeline", count),
    "distributed.cp_size": ("context", count),
    "distributed.ep_size": ("expert", count),
    "distributed.dp_size": ("data", count),
    "step_scheduler.local_batch_size": ("micro_batch", count),
    "step_scheduler.global_batch_size": ("global_batch", count),
    "peft.dim": ("lora_rank", count),
}
LENGTHS = (
    "dataset.seq_length",
    "dataset.seq_len",
    "dataset.max_seq_length",
    "dataset.seq_len_length",
)
TABLES = ("distributed", "parallelizer", "model")  # one of which says recomputation
UNPRICED = {
    "compile.enabled": "compiled kernels are priced by a stack, --stack torch-compile",
}


def read_nemo(settings: ToolSettings, launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read a recipe of NeMo Automodel.

    Args:
        settings: keys of the YAML, and `--key` options that override them.
        launch: the command with its number of processes.
        files: not read; the recipe names no others.
    """
    del files
    job = JobBuilder(tool="nemo", kind=TRAINING)
    job.model = settings.text("model.pretrained_model_name_or_path", "model.model_name")
    job.model = job.model or settings.text("model.config.pretrained_model_name_or_path")
    trainer.read_devices(job, launch)
    take_facts(job, settings, FACTS)
    _read_strategy(job, settings)
    _read_length(job, settings)
    _read_adapter(job, settings)
    _read_types(job, settings)
    set_optimizer(job, settings.text("optimizer._target_"))
    _read_recomputation(job, settings)
    note_unpriced(job, settings, UNPRICED)
    return job


def _read_length(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the length of a sequence: that of packed ones, else that of the data set."""
    packed_length = settings.count("packed_sequence.packed_sequence_size")
    if packed_length:
        job.set("packed", True)
    length = packed_length or settings.count(*LENGTHS)
    if length:
        job.set("length", length)


def _read_adapter(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what LoRA adapts."""
    if "lora_rank" not in job.facts:  # all weights are trained
        return
    has_all_linear = settings.flag("peft.match_all_linear")
    targets = settings.texts("peft.target_modules")
    job.set("lora_targets", "all-linear" if has_all_linear else (targets or None))
    trainer.set_dora(job, settings, "peft.use_dora")


def _read_types(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the type of trained weights, which have no float32 copy, and of frozen ones."""
    stored_dtype = float_type(settings.text("model.torch_dtype", "model.dtype"))
    job.set("dtype", "bfloat16-pure" if stored_dtype == "bfloat16" else stored_dtype)
    if settings.flag("quantization.load_in_4bit"):
        job.set("weights", "nf4")


def _read_recomputation(job: JobBuilder, settings: ToolSettings) -> None:
    """Set recomputation, whose key stands in one of several tables."""
    flags = [settings.flag(f"{table}.activation_checkpointing") for table in TABLES]
    is_stated = any(flag is not None for flag in flags)
    if is_stated:
        job.set("recompute", "full" if any(flags) else "none")


def _read_strategy(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what the replicas share out."""
    strategy = settings.text("distributed.strategy", "distributed._target_") or ""
    name = strategy.lower()
    if "ddp" in name:
        job.set("zero", 0)
    elif "fsdp" in name and job.find_count("data") != 1:
        job.set("zero", 3)
    # Hybrid sharding: `copies` groups of replicas, each of which shards one copy of the state.
    copies = settings.count("distributed.dp_replicate_size") or 1
    replicas = job.find_count("data")
    if copies > 1 and replicas:
        job.set("shard", replicas // copies)
