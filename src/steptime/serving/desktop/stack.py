"""Stacks that run language models on one's own machine: their constants, from `data/desktop`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from steptime.core.errors import InputError, unknown
from steptime.core.toml_files import DATA, read_packaged_toml
from steptime.hardware.device import Device

FOLDER = "desktop"
DEFAULT = "llama.cpp"
CPU = "cpu"
OTHER = "rocm"  # the backend of a GPU whose maker no backend names
DEVICE_KINDS = ("gpu", CPU)  # that stacks of one's own machine run on
BACKEND_KEYS = (
    "bandwidth_share",
    "cache_share",
    "kernel_s",
    "weight_flop_share",
    "product_share",
    "vector_share",
    "hop_s",
    "context_bytes",
)
MEMORY_KEYS = ("ubatch", "cache_block", "logit_bytes", "activation_bytes", "loads_embedding")


class DesktopBackend(NamedTuple):
    """How a stack runs on the devices of a maker.

    Args:
        name: its name, such as `cuda`.
        bandwidth_share: share of the bandwidth of memory at which weights are read.
        hbm_share: the same of stacked memory (HBM).
        cache_share: share of the bandwidth at which keys and values are read.
        kernel_s: seconds of a kernel beside its bytes.
        weight_flop_share: multiple of the work to unpack a weight (`decode_flop` of its type).
        product_share: share of the peak of matrix products that prefill reaches.
        vector_share: multiple of the float32 peak that prefill of packed weights reaches at most.
        hop_s: seconds that a token takes from a device to the next.
        context_bytes: memory of driver and kernels.
    """

    name: str
    bandwidth_share: float
    hbm_share: float
    cache_share: float
    kernel_s: float
    weight_flop_share: float
    product_share: float
    vector_share: float
    hop_s: float
    context_bytes: float


@dataclass(frozen=True)
class MemoryRule:
    """What a stack holds beside weights and cache.

    Args:
        ubatch: tokens that pass at once.
        cache_block: tokens to whose multiple the cache is rounded up.
        logit_bytes: bytes of a result of the head for each token that passes; 0 for the last alone.
        activation_bytes: bytes of a number between layers.
        loads_embedding: whether the table of embeddings lies on the device.
    """

    ubatch: int
    cache_block: int
    logit_bytes: float
    activation_bytes: float
    loads_embedding: bool


@dataclass(frozen=True)
class DesktopStack:
    """A stack that runs a language model on one's own machine.

    Args:
        name: its name.
        since: the month of which it is the state.
        source: where its constants are from.
        weights: the kind of its files: gguf, mlx or exl.
        memory: its rules of memory.
        backends: its backends, by name.
        makers: the backend of each maker of devices.
        decode_spread: 80 % of decode times are within this, in ln.
        prefill_spread: 80 % of prefill times are within this, in ln.
        default_context: tokens that the cache has room for by default; 0 for those of the request.
    """

    name: str
    since: str
    source: str
    weights: str
    memory: MemoryRule
    backends: Mapping[str, DesktopBackend]
    makers: Mapping[str, str]
    decode_spread: float
    prefill_spread: float
    default_context: int

    def backend(self, device: Device) -> DesktopBackend:
        """Return the backend of a device.

        Raises:
            InputError: for a device that the stack has no backend of.
        """
        if device.kind not in DEVICE_KINDS:
            nearest = "nearest: --stack vllm"
            raise InputError(
                f"stack {self.name} runs on GPUs and CPUs, not {device.name}; {nearest}"
            )
        maker = device.datasheet.maker or ""
        name = CPU if device.kind == "cpu" else self.makers.get(maker, OTHER)
        if name not in self.backends:
            nearest = f"nearest: --stack {DEFAULT}"
            raise InputError(f"stack {self.name} does not run on {device.name}; {nearest}")
        return self.backends[name]


@cache
def desktop_stacks() -> Mapping[str, DesktopStack]:
    """Return the stacks by name, the default first."""
    paths = sorted((DATA / FOLDER).glob("*.toml"), key=lambda path: path.stem != DEFAULT)
    tables = {path.stem: read_packaged_toml(f"{FOLDER}/{path.name}") for path in paths}
    return {name: _make_stack(name, tables) for name in tables}


def is_desktop_stack(name: str | None) -> bool:
    """Whether a name is that of a stack of one's own machine."""
    return name is not None and name.lower() in desktop_stacks()


def find_stack(name: str) -> DesktopStack:
    """Return the stack of a name; raises `InputError` for another."""
    stack = desktop_stacks().get(name.lower())
    if stack is None:
        raise unknown("--stack", name, desktop_stacks())
    return stack


def _make_stack(name: str, tables: Mapping[str, Mapping[str, Any]]) -> DesktopStack:
    """Return the stack of a table; what it does not say is as in the one that it is `like`."""
    table = tables[name]
    if "like" in table:  # a stack that differs from another one in a few keys
        table = {**tables[table["like"]], **table}
    backend_tables: Mapping[str, Mapping[str, Any]] = table["backends"]
    if table["weights"] == "exl":  # ExLlama runs on CUDA alone
        backend_tables = {"cuda": backend_tables["cuda"]}
    backends = {}
    makers: dict[str, str] = {}  # the backend of each maker of devices
    for backend_name, backend_table in backend_tables.items():
        backends[backend_name] = _backend_of(backend_name, backend_table)
        makers.update(dict.fromkeys(backend_table["makers"], backend_name))
    memory = {key: table["memory"][key]["value"] for key in MEMORY_KEYS}
    memory["loads_embedding"] = bool(memory["loads_embedding"])  # 0 or 1 in the table
    return DesktopStack(
        name=table["name"],
        since=table["since"],
        source=table["source"],
        weights=table["weights"],
        memory=MemoryRule(**memory),
        backends=backends,
        makers=makers,
        decode_spread=table["decode_spread"]["value"],
        prefill_spread=table["prefill_spread"]["value"],
        default_context=table.get("default_context", {"value": 0})["value"],
    )


def _backend_of(name: str, row: Mapping[str, Any]) -> DesktopBackend:
    """Return the backend of a table."""
    values = {key: row[key]["value"] for key in BACKEND_KEYS}
    hbm_share = row.get("hbm_share", row["bandwidth_share"])["value"]
    return DesktopBackend(name=name, hbm_share=hbm_share, **values)
