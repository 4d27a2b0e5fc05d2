"""What is run: a network with its hyperparameters, batch, dtype, phase, optimizer and plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

Value = int | float | str | bool

PHASES = ("train", "infer")
OPTIMIZERS = ("sgd", "momentum", "rmsprop", "adam")
NO_OPTIMIZER = "none"


@dataclass(frozen=True)
class Plan:
    """How a step is spread over devices: replicas, tensor-parallel width, pipeline stages."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True)
class Workload:
    """One cell of a sweep. `params` holds the hyperparameters, but for details at their defaults.

    In phase `infer` the optimizer is "none", so that one inference has one key. A network of a file
    has the file's name as `model` and the hash of its content among `params`; `file` says where it
    lies, which is no part of the key.
    """

    model: str
    params: Mapping[str, Value]
    batch_per_replica: int
    dtype: str = "float32"
    phase: str = "train"
    optimizer: str = "sgd"
    plan: Plan = field(default_factory=Plan)
    file: str = ""

    @cached_property
    def key(self) -> str:
        """Content hash, the same on every machine and in every version that means the same."""
        table = workload_to_json(self)
        table.pop("file", None)
        text = json.dumps(table, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def global_batch(self) -> int:
        """Examples of a step, of all replicas."""
        return self.batch_per_replica * self.plan.data

    @property
    def label(self) -> str:
        """Model text that gives this network again, such as `fc:layers=4,nodes=256`."""
        if self.file:
            return self.file
        settings = ",".join(f"{k}={_text(v)}" for k, v in self.params.items())
        return f"{self.model}:{settings}" if settings else self.model


def _text(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def workload_to_json(workload: Workload) -> dict[str, Any]:
    """Return the workload as JSON values."""
    table = {
        "model": workload.model,
        "params": dict(workload.params),
        "batch_per_replica": workload.batch_per_replica,
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        "plan": asdict(workload.plan),
    }
    return table | ({"file": workload.file} if workload.file else {})


def workload_from_json(table: Mapping[str, Any]) -> Workload:
    """Return the workload back from `workload_to_json`."""
    return Workload(**{**table, "plan": Plan(**table["plan"])})
