"""torchtitan's TOML of 2025, and the options of its command line, as facts of a training."""

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

READ_FROM = "torchtitan 0.2"
FACTS = {
    "training.local_batch_size": ("micro_batch", count),
    "training.batch_size": ("micro_batch", count),
    "training.global_batch_size": ("global_batch", count),
    "training.seq_len": ("length", count),
    **{
        f"{table}.{degree}_parallel_degree": (fact, count)
        for table in ("training", "experimental", "parallelism")
        for degree, fact in (
            ("tensor", "tensor"),
            ("pipeline", "pipeline"),
            ("context", "context"),
            ("expert", "expert"),
            ("expert_tensor", "expert_tensor"),
        )
    },
}
UNPRICED = {
    "parallelism.enable_async_tensor_parallel": "async tensor parallelism is not priced",
    "compile.enable": "compiled kernels are priced by a stack, --stack torch-compile",
    "training.compile": "compiled kernels are priced by a stack, --stack torch-compile",
}
SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "zbvzerobubble": "zero-bubble",
    "interleavedzerobubble": "zero-bubble",
    "dualpipev": "dualpipe",
}


def read_torchtitan(settings: ToolSettings, launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read a configuration of torchtitan.

    Args:
        settings: keys of the TOML, and `--table.key` options that override them.
        launch: the command; `NGPU` is the number of processes.
        files: not read; the configuration names no others.
    """
    del files
    job = JobBuilder(tool="torchtitan", kind=TRAINING)
    job.model = _name_model(settings)
    trainer.read_devices(job, launch)
    if launch.environment.get("NGPU", "").isdigit():
        job.set("devices", int(launch.environment["NGPU"]))
    take_facts(job, settings, FACTS)
    _read_replicas(job, settings)
    _read_pipeline(job, settings)
    _read_dtype(job, settings)
    set_optimizer(job, settings.text("optimizer.name"))
    job.set_default("optimizer", "adamw")
    job.set("recompute", settings.text("activation_checkpoint.mode"))
    job.set_default("recompute", "selective")
    if settings.flag("training.enable_cpu_offload"):
        job.set("offload", True)
    if "global_batch" not in job.facts:  # which says how many microbatches there are
        job.set_default("accumulation", 1)
    note_unpriced(job, settings, UNPRICED)
    return job


def _name_model(settings: ToolSettings) -> str | None:
    """Return the network: its family and flavor, `llama3_8b`, else the folder of its files."""
    family = settings.text("model.name")
    flavor = settings.text("model.flavor")
    if family and flavor:
        return f"{family}_{flavor.lower()}"
    return settings.text("model.hf_assets_path")


def _read_dtype(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the type of the products: float8 by a converter, else bfloat16."""
    converters = " ".join(settings.texts("model.converters", "quantize.converters"))
    job.set("dtype", "float8" if "float8" in converters else None)  # None stays open
    if settings.text("training.dtype") == "bfloat16":
        job.set("dtype", "bfloat16-pure")
    job.set_default("dtype", "bfloat16")


def _read_replicas(job: JobBuilder, settings: ToolSettings) -> None:
    """Set replicas, and what they share out; -1 means all devices that are left."""
    shard_text = _read_degree_text(settings, "data_parallel_shard_degree") or "-1"
    copies = int(_read_degree_text(settings, "data_parallel_replicate_degree") or "1")
    if shard_text == "1":
        job.set("zero", 0)
    else:  # stage 3 shards weights, too
        job.set("zero", 2 if _keeps_gathered_weights(job, settings) else 3)
    takes_all_devices = shard_text == "-1"
    if takes_all_devices:  # the number of shards is not known before that of the devices
        if copies > 1:
            job.notes.append(f"{copies} copies share out nothing between them")
        return
    shard_count = int(shard_text)
    job.set("data", shard_count * max(1, copies))
    job.facts.pop("devices", None)  # they follow from the replicas
    if copies > 1 and shard_count > 1:
        job.set("shard", shard_count)


def _read_degree_text(settings: ToolSettings, key: str) -> str | None:
    """Return a key of parallelism, which older files have in the table of the training."""
    return settings.text(*(f"{table}.{key}" for table in ("parallelism", "training")))


def _keeps_gathered_weights(job: JobBuilder, settings: ToolSettings) -> bool:
    """Return whether weights stay gathered after the forward pass.

    With a pipeline they do by default, as each microbatch would gather them again.
    """
    reshard = _read_degree_text(settings, "fsdp_reshard_after_forward") or "default"
    has_pipeline = (job.find_count("pipeline") or 1) > 1
    return reshard == "never" or (reshard == "default" and has_pipeline)


def _read_pipeline(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the schedule of a pipeline."""
    text = settings.text(
        "parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule"
    )
    if text and (job.find_count("pipeline") or 1) > 1:
        job.set("schedule", SCHEDULES.get(text.lower(), text.lower()))
