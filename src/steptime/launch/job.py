"""The job of a launch command or recipe: its facts (degrees, batches, types) by our names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from steptime.core.errors import InputError

FactValue = str | int | float | bool | list[str]
Facts = dict[str, FactValue]

SERVING = "serve"
TRAINING = "train"


@dataclass(frozen=True)
class LaunchJob:
    """A job that a tool would start.

    Attributes:
        tool: name of the tool, such as `vllm`.
        kind: `serve` or `train`.
        model: what the tool was told to load: an id on the Hugging Face Hub, a path, or model text
            of a family; None where it names none.
        facts: degrees of parallelism, batch sizes, types and limits that the job decides.
        defaults: names of the facts that rest on a default which the tool documents.
        not_used: options that no fact holds, as written.
        notes: options that matter for time or memory and cannot be priced.
    """

    tool: str
    kind: str
    model: str | None
    facts: Facts
    defaults: tuple[str, ...] = ()
    not_used: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class JobBuilder:
    """Collects the facts of a job while its options are read.

    Attributes:
        tool: name of the tool.
        kind: `serve` or `train`.
        model: what the tool was told to load.
        facts: facts so far.
        defaults: names of the facts that rest on a documented default.
        not_used: options without a fact, as written.
        notes: remarks on what cannot be priced.
    """

    tool: str
    kind: str
    model: str | None = None
    facts: Facts = field(default_factory=dict)
    defaults: list[str] = field(default_factory=list)
    not_used: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def set(self, name: str, value: FactValue | None) -> None:
        """Set a fact that the job says; None leaves it open."""
        if value is None:
            return
        self.facts[name] = value
        if name in self.defaults:
            self.defaults.remove(name)

    def set_default(self, name: str, value: FactValue | None) -> None:
        """Set a fact to the tool's documented default unless the job says it."""
        if name not in self.facts and value is not None:
            self.facts[name] = value
            self.defaults.append(name)

    def find_count(self, name: str) -> int | None:
        """Return a fact that is a whole number, None where it is open."""
        value = self.facts.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def finish(self) -> LaunchJob:
        """Return the job."""
        return LaunchJob(
            tool=self.tool,
            kind=self.kind,
            model=self.model,
            facts=self.facts,
            defaults=tuple(name for name in self.defaults if name in self.facts),
            not_used=tuple(dict.fromkeys(self.not_used)),
            notes=tuple(dict.fromkeys(self.notes)),
        )


MODEL_DEGREES = ("tensor", "pipeline", "context")  # devices of one replica
DEVICE_FACTS = ("devices", "nodes", "per_node")


def complete_training(job: JobBuilder, device_count: int | None) -> None:
    """Fill in what follows: data from devices, accumulation from the global batch, and so on.

    `tensor x pipeline x context x data = devices`, and
    `global_batch = micro_batch x accumulation x data`.

    Args:
        job: the job; changed in place.
        device_count: number of devices that the user gives beside the file, which then counts
            instead of the file's; None without.

    Raises:
        InputError: if the devices are no multiple of those of one replica, or the global batch is
            none of `micro_batch x data`.
    """
    # devices = tensor x pipeline x context (one replica) x data (the number of replicas)
    if device_count is not None:
        _use_device_count(job, device_count)
    replica_devices = prod(job.find_count(name) or 1 for name in MODEL_DEGREES)
    all_devices = job.find_count("devices")
    replicas = job.find_count("data")
    if all_devices is not None and replicas is None:
        if all_devices % replica_devices:
            raise InputError(
                f"{job.tool}: one replica needs {replica_devices} devices, and the job starts "
                f"{all_devices}; give the number with --device-count, such as {replica_devices}"
            )
        # Not by `JobBuilder.set`, which would take it off the list of defaults: a tool whose
        # default mesh has all devices as replicas has put it there.
        job.facts["data"] = all_devices // replica_devices
    elif all_devices is None and replicas is not None:
        job.set("devices", replicas * replica_devices)
    _complete_batches(job)
    _complete_sharding(job)
    job.facts.pop("nodes", None)  # `per_node` says it


def _use_device_count(job: JobBuilder, device_count: int) -> None:
    """Let the number of devices that the user gives count instead of the file's."""
    started_count = job.find_count("devices")
    if started_count is not None and started_count != device_count:
        job.notes.append(
            f"the job starts {started_count} devices; the answer is for {device_count}"
        )
        for name in ("data", "shard", "nodes"):  # follow from the devices
            job.facts.pop(name, None)
        if "global_batch" in job.facts:  # which is kept, and decides it
            job.facts.pop("accumulation", None)
    job.set("devices", device_count)


def _complete_batches(job: JobBuilder) -> None:
    """Fill in the one of micro-batch, accumulation and global batch that is open.

    `global_batch = micro_batch x accumulation x replicas`: the one that is missing follows.
    """
    replicas = job.find_count("data")
    micro_batch = job.find_count("micro_batch")
    accumulation = job.find_count("accumulation")
    global_batch = job.find_count("global_batch")
    if replicas is None:  # the number of devices is open
        return
    if global_batch is None:
        if micro_batch is not None:
            job.set("global_batch", micro_batch * (accumulation or 1) * replicas)
    elif micro_batch is None:
        if accumulation is not None:
            job.set("micro_batch", max(1, global_batch // (accumulation * replicas)))
    elif "accumulation" not in job.facts:
        job.set("accumulation", _count_accumulation(job.tool, global_batch, micro_batch, replicas))


def _count_accumulation(tool: str, global_batch: int, micro_batch: int, replicas: int) -> int:
    """Return the passes of a step; raises `InputError` if they do not divide the global batch."""
    pass_sequences = micro_batch * replicas  # of one forward pass on all replicas
    if global_batch % pass_sequences:
        nearest = max(1, round(global_batch / pass_sequences)) * pass_sequences
        raise InputError(
            f"{tool}: a global batch of {global_batch} is no multiple of {micro_batch} "
            f"sequences on {replicas} replicas; nearest: {nearest}"
        )
    return global_batch // pass_sequences


def _complete_sharding(job: JobBuilder) -> None:
    """Drop a shard group that is all replicas: `shard` is said where it is fewer."""
    # Without `shard` all replicas share out the state.
    if job.find_count("shard") is not None and job.find_count("shard") == job.find_count("data"):
        del job.facts["shard"]


def complete_serving(job: JobBuilder) -> None:
    """Fill in the number of devices of a server: `tensor x pipeline x data`.

    With data-parallel attention the ranks lie within the tensor group.
    """
    # Data-parallel attention runs on the devices of the tensor group: it adds no devices.
    is_data_within_tensor = "attention_data" in job.facts
    data = 1 if is_data_within_tensor else (job.find_count("data") or 1)
    if "tensor" in job.facts:
        devices = data * prod(job.find_count(name) or 1 for name in MODEL_DEGREES)
        # If the command says neither degree, the number of devices is a default, too.
        is_default = "tensor" in job.defaults and "data" not in _explicit_facts(job)
        if is_default:
            job.set_default("devices", devices)
        else:
            job.set("devices", devices)
    node_count = job.find_count("nodes")
    device_count = job.find_count("devices")
    if node_count is not None and node_count > 1 and device_count:
        fills_all_nodes = device_count % node_count == 0
        if fills_all_nodes:
            job.set("per_node", device_count // node_count)
    job.facts.pop("nodes", None)


def _explicit_facts(job: JobBuilder) -> Mapping[str, FactValue]:
    """Return the facts that rest on no default."""
    return {name: value for name, value in job.facts.items() if name not in job.defaults}
