"""DeepSpeed's configuration, in a file of its own or inside of training arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from steptime.launch.job import JobBuilder
from steptime.launch.settings import Files, ToolSettings, flatten_mapping, set_optimizer

DEEPSPEED_COUNTS = (  # keys of a configuration that are numbers or "auto", and their facts
    ("train_micro_batch_size_per_gpu", "micro_batch"),
    ("gradient_accumulation_steps", "accumulation"),
    ("train_batch_size", "global_batch"),
    ("tensor_parallel.autotp_size", "tensor"),
)


def find_configuration(settings: ToolSettings) -> str | None:
    """Return the path of a DeepSpeed configuration, or its JSON; None without.

    A JSON file of training arguments may hold the configuration itself.
    """
    # Training arguments may hold the configuration itself (keys `deepspeed.NAME`), which is
    # returned as JSON, or the path of its file.
    prefix = "deepspeed."
    inner_names = [name for name in list(settings.values) if name.startswith(prefix)]
    if not inner_names:
        return settings.text("deepspeed", "deepspeed_config")
    return json.dumps({name.removeprefix(prefix): settings.text(name) for name in inner_names})


def read_deepspeed(job: JobBuilder, config: str | None, files: Files) -> None:
    """Set what a DeepSpeed configuration says.

    Args:
        job: the job.
        config: path of the JSON file, or the JSON itself; None without.
        files: the files that the job names. A file that is not there is known by its name alone:
            `zero3.json` says the stage.
    """
    if not config:
        return
    is_inline = config.lstrip().startswith("{")
    data = json.loads(config) if is_inline else files.read_mapping(config)
    if data is None:
        _read_name(job, config)
        return
    text_by_key = {name: values[0] for name, values in flatten_mapping(data) if values}
    _read_zero(job, text_by_key)
    for key, dtype in (("bf16.enabled", "bfloat16"), ("fp16.enabled", "float16")):
        if is_true(text_by_key.get(key)):
            job.set("dtype", dtype)
    for key, fact in DEEPSPEED_COUNTS:
        is_number = text_by_key.get(key, "auto").isdigit()
        if is_number and fact not in job.facts:  # training arguments win
            job.set(fact, int(text_by_key[key]))
    if "optimizer" not in job.facts:
        set_optimizer(job, text_by_key.get("optimizer.type"))


def _read_name(job: JobBuilder, path: str) -> None:
    """Set what the name of an absent configuration says, such as `zero3_offload.json`."""
    stage = re.search(r"(?:zero|z)[-_]?(?:stage)?[-_]?([0-3])", path.lower())
    job.set("zero", int(stage[1]) if stage else None)
    if "offload" in path.rpartition("/")[2].lower():
        job.set("offload", True)
    job.notes.append(f"{path}: is not here; its name alone is read")


def _read_zero(job: JobBuilder, text_by_key: Mapping[str, str]) -> None:
    """Set the stage of ZeRO, and whether states or weights lie on the host or a disk."""
    stage = text_by_key.get("zero_optimization.stage")
    if stage is not None:
        job.set("zero", int(float(stage)))
    offload_keys = (
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_param.device",
    )
    if any(text_by_key.get(key) in {"cpu", "nvme"} for key in offload_keys):
        job.set("offload", True)


def is_true(value: Any) -> bool:
    """Return whether a value of a configuration is true, as a word or a number, too."""
    return str(value).lower() in {"true", "1", "yes"}
