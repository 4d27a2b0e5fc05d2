"""MaxText's YAML and its `key=value` command line; a mesh of devices has an axis a parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from steptime.launch.job import MODEL_DEGREES, TRAINING, JobBuilder
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

READ_FROM = "MaxText 2025.10"
REPLICA_AXES = ("data", "fsdp", "fsdp_transpose")  # of the mesh; experts lie within replicas
SHARDED_AXES = ("fsdp", "fsdp_transpose")
AXES = (
    ("tensor", ("tensor", "tensor_transpose", "tensor_sequence")),
    ("context", ("context", "sequence", "context_autoregressive")),
    ("pipeline", ("pipeline",)),
    ("expert", ("expert",)),
)
FACTS = {
    "max_target_length": ("length", count),
    "gradient_accumulation_steps": ("accumulation", count),
    "num_slices": ("nodes", count),
}
POLICIES = {"full": "full", "none": "none", "save_qkv_proj": "selective"}
UNPRICED = {
    "optimizer_memory_host_offload": "states on the host are given by --offload optimizer",
    "parameter_memory_host_offload": "weights on the host are not priced",
    "use_iota_embed": "an embedding as a product is not priced",
}


def read_maxtext(settings: ToolSettings, launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read a configuration of MaxText.

    Args:
        settings: keys of the YAML and of the command line.
        launch: not read; the devices are those of the mesh.
        files: not read; the base configuration is known.
    """
    del launch, files
    job = JobBuilder(tool="maxtext", kind=TRAINING)
    job.model = settings.text("model_name")
    take_facts(job, settings, FACTS)
    _read_mesh(job, settings)
    job.set("dtype", float_type(settings.text("dtype")))
    kind = settings.text("quantization") or ""  # of the products, such as `te_fp8_delayedscaling`
    if "fp8" in kind or kind.startswith("te_"):
        job.set("dtype", "float8")
    job.set_default("dtype", "bfloat16")
    if float_type(settings.text("weight_dtype")) == "bfloat16":
        job.set("dtype", "bfloat16-pure")
    # A policy without an entry is None, which leaves the fact open.
    job.set("recompute", POLICIES.get(settings.text("remat_policy") or ""))
    set_optimizer(job, settings.text("opt_type"))
    job.set_default("optimizer", "adamw")
    per_device = settings.number("per_device_batch_size")
    if per_device is not None:
        _set_batch(job, per_device)
    note_unpriced(job, settings, UNPRICED)
    return job


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh.

    Attributes:
        between: degree between slices or nodes; 1 where it is open.
        within: degree within one; 1 where it is open.
        is_open: it takes the devices that are left (-1).
    """

    between: int
    within: int
    is_open: bool

    @property
    def degree(self) -> int:
        """Degree over all slices."""
        return self.between * self.within


def _read_axis(settings: ToolSettings, name: str) -> Axis:
    """Return an axis; `ici_fsdp_parallelism` takes the devices that are left unless it is said."""
    # An axis has a degree between slices or nodes (`dcn_`) and one within them (`ici_`). -1 means
    # all devices that the other axes leave: the axis is open, and counts as 1 until they are known.
    default_within = "-1" if name == "fsdp" else "1"
    between_text = settings.text(f"dcn_{name}_parallelism") or "1"
    within_text = settings.text(f"ici_{name}_parallelism") or default_within
    return Axis(
        between=1 if between_text == "-1" else int(between_text),
        within=1 if within_text == "-1" else int(within_text),
        is_open="-1" in {between_text, within_text},
    )


def _read_mesh(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the degrees of the mesh, as far as none takes the devices that are left."""
    stated_axes = [name for name in settings.values if name.endswith("_parallelism")]
    _read_degrees(job, settings, stated_axes)
    replica_axes = {name: _read_axis(settings, name) for name in REPLICA_AXES}
    sharded_axes = [replica_axes[name] for name in SHARDED_AXES]
    shard_count = prod(axis.degree for axis in sharded_axes)
    # With an open axis (-1) the number of replicas follows from that of the devices.
    has_open_axis = any(axis.is_open for axis in replica_axes.values())
    if not has_open_axis:
        _set_replicas(job, replica_axes, shard_count)
    # An `fsdp` axis shares out weights, gradients and states; a `data` axis copies them.
    shards_state = shard_count > 1 or any(axis.is_open for axis in sharded_axes)
    _set_zero_stage(job, 3 if shards_state else 0, is_default_mesh=not stated_axes)


def _read_degrees(job: JobBuilder, settings: ToolSettings, stated_axes: Sequence[str]) -> None:
    """Set each degree of the mesh that is above 1 or said (`ici_tensor_parallelism`)."""
    for fact, axis_names in AXES:
        degree = prod(_read_axis(settings, name).degree for name in axis_names)
        is_stated = any(f"_{name}_" in key for key in stated_axes for name in axis_names)
        if degree > 1 or is_stated:
            job.set(fact, degree)


def _set_zero_stage(job: JobBuilder, zero_stage: int, is_default_mesh: bool) -> None:
    """Set the stage of ZeRO; the default mesh is `ici_fsdp_parallelism: -1`, replicas alone."""
    if is_default_mesh:
        job.set_default("zero", zero_stage)
        # `data` follows from the devices later, and then counts as a default, too.
        job.defaults.append("data")
    else:
        job.set("zero", zero_stage)


def _set_replicas(job: JobBuilder, axes: Mapping[str, Axis], shards: int) -> None:
    """Set the number of replicas, how many share out the state, and the devices of a node."""
    # Ranks of experts read sequences of their own: they count as replicas.
    experts = job.find_count("expert") or 1
    replicas_per_slice = prod(axis.within for axis in axes.values()) * experts
    replicas = prod(axis.degree for axis in axes.values()) * experts
    job.set("data", replicas)
    # Hybrid sharding: the state is sharded within groups of replicas, which hold copies of it.
    has_several_groups = 1 < shards < replicas // experts
    if has_several_groups:
        job.set("shard", shards * experts)
    has_several_slices = replicas > replicas_per_slice
    if has_several_slices:
        devices_per_replica = prod(job.find_count(name) or 1 for name in MODEL_DEGREES)
        job.set("per_node", replicas_per_slice * devices_per_replica)


def _set_batch(job: JobBuilder, per_device: float) -> None:
    """Set the batch of a replica; MaxText says it for a device."""
    sequences = per_device * prod(job.find_count(name) or 1 for name in MODEL_DEGREES)
    if sequences == int(sequences):  # a device may have a part of a sequence
        job.set("micro_batch", int(sequences))
    else:
        job.notes.append(f"per_device_batch_size {per_device:g}: less than a sequence a replica")
