"""LLaMA-Factory's `llamafactory-cli train`: its YAML or its options as facts of a training."""

from __future__ import annotations

from steptime.launch.job import TRAINING, JobBuilder
from steptime.launch.launchers import LaunchedProgram
from steptime.launch.settings import Files, ToolSettings, count, note_unpriced, take_facts
from steptime.launch.tools import trainer
from steptime.launch.tools.deepspeed import read_deepspeed

READ_FROM = "LLaMA-Factory 0.9.3"
DEFAULT_LENGTH = 2048
DEFAULT_RANK = 8
UNPRICED = {
    **trainer.UNPRICED,
    "use_galore": "GaLore's optimizer is not priced",
    "use_badam": "BAdam's optimizer is not priced",
    "use_apollo": "APOLLO's optimizer is not priced",
    "shift_attn": "shifted attention is not priced",
    "freeze_trainable_layers": "layers trained alone are given by --train",
}


def read_llamafactory(settings: ToolSettings, launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read the arguments of LLaMA-Factory.

    Args:
        settings: keys of its YAML or options of its command.
        launch: the command; it starts one process for each visible device.
        files: files that the arguments name.
    """
    job = JobBuilder(tool="llamafactory", kind=TRAINING)
    job.model = settings.text("model_name_or_path")
    trainer.read_devices(job, launch)
    trainer.take_accelerate(job, launch, files)
    take_facts(job, settings, {"cutoff_len": ("length", count)})
    trainer.read_training(job, settings)
    _read_method(job, settings)
    read_deepspeed(job, settings.text("deepspeed"), files)
    trainer.read_fsdp(job, settings)
    _read_memory(job, settings)
    _read_stage(job, settings)
    _set_defaults(job)
    note_unpriced(job, settings, UNPRICED)
    return job


def _read_method(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what is trained: adapters by default, else all weights or some layers."""
    method = settings.text("finetuning_type") or "lora"
    if method in {"lora", "oft"}:
        trainer.read_adapter(job, settings)
        job.set_default("lora_rank", DEFAULT_RANK)
        job.set_default("lora_targets", "all-linear")
    else:  # a rank says nothing without an adapter
        job.facts.pop("lora_rank", None)
    if method == "freeze":
        job.notes.append("finetuning_type freeze: layers trained alone are given by --train")


def _read_memory(job: JobBuilder, settings: ToolSettings) -> None:
    """Set recomputation, packing, and a loss that is computed in chunks."""
    saves_activations = settings.flag("disable_gradient_checkpointing")
    if saves_activations is not None:
        job.set("recompute", "none" if saves_activations else "full")
    job.set_default("recompute", "full")
    if settings.flag("enable_liger_kernel"):
        job.set("loss", "chunked")
    if settings.flag("packing", "neat_packing"):
        job.set("packed", True)


def _read_stage(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the objective of preference or reinforcement learning, which is a stage here."""
    stage = settings.text("stage") or "sft"
    if stage not in {"sft", "pt"}:
        job.set("objective", stage)
        job.notes.append(f"stage {stage}: the step of one model is priced, not its {stage} parts")


def _set_defaults(job: JobBuilder) -> None:
    """Set what LLaMA-Factory takes where nothing is said."""
    job.set_default("length", DEFAULT_LENGTH)
    job.set_default("micro_batch", trainer.DEFAULT_BATCH)
    job.set_default("accumulation", 1)
    job.set_default("optimizer", "adamw")
    if (job.find_count("devices") or 1) > 1:  # DDP, which shares out nothing
        job.set_default("zero", 0)
