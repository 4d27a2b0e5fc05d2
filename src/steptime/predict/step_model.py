"""One network on one kind of device, ready to be asked: the parts of a training step, in seconds.

From these parts users compose simulations of their own; `scaling` and `model_parallel` do so too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from steptime import catalog
from steptime.build import build_step, make_workload, read_model
from steptime.core.errors import InputError, unknown
from steptime.core.graph import Graph
from steptime.core.hardware import Device, Link
from steptime.core.ranges import whole_number
from steptime.core.workload import Workload
from steptime.predict import DEFAULT, cost_model
from steptime.predict.costs import Costs, costs, gradient_bytes
from steptime.predict.estimate import Estimate, estimate
from steptime.predict.parallel.collectives import Fabric, fabric_of, schemes


class StepModel:
    """The training step of a network, part by part.

    `network` is model text (`resnet50`), a path or a workload; `device` and `link` are names,
    paths or what the catalog gives; a `Fabric` in place of a link says more about what joins the
    workers. `options` are those of the method, as text or as Python values. Steps are computed
    once a batch and kept. Raises `InputError` for what is not known.

    `settings` are the method's assumptions, `fabric` is None without a link, `as_paleo` tells
    whether communication follows the published rules: no latency, and faults kept.
    """

    def __init__(
        self,
        network: str | Path | Workload,
        device: str | Path | Device,
        link: str | Path | Link | Fabric | None = None,
        method: str = DEFAULT,
        options: Mapping[str, object] | None = None,
        dtype: str = "float32",
        optimizer: str = "sgd",
    ) -> None:
        chosen = cost_model(method)
        self.method = chosen
        self.options = {name: _text(value) for name, value in (options or {}).items()}
        self.settings = chosen.chosen(self.options)
        self.workload = (
            network
            if isinstance(network, Workload)
            else make_workload(read_model(str(network)), None, dtype, "train", optimizer)
        )
        self.device = device if isinstance(device, Device) else catalog.device(device)
        self.as_paleo = chosen.as_published
        self.fabric = self._fabric(link)
        self.collectives = schemes(self.as_paleo)
        self._latest: tuple[int, Graph] | None = None
        self._costs: dict[int, Costs] = {}
        self._estimates: dict[int, Estimate] = {}

    def _fabric(self, link: str | Path | Link | Fabric | None) -> Fabric | None:
        if link is None:
            return None
        found = catalog.link(link) if isinstance(link, str | Path) else link
        return fabric_of(
            found, self.settings.ppp_comm, self.as_paleo, self.device.memory_bytes_per_s
        )

    @property
    def parameters(self) -> int:
        """Trained parameters as the method counts them (Paleo: a bias for every filter)."""
        return self.costs(self.workload.batch_per_replica).parameters

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, which the workers exchange in a step."""
        batch = self.workload.batch_per_replica
        return gradient_bytes(self.graph(batch), self.costs(batch), self.settings)

    @cached_property
    def gradients(self) -> Mapping[str, int]:
        """Bytes of the gradients by the forward op that first computes with a weight."""
        graph = self.graph(self.workload.batch_per_replica)
        found: dict[str, int] = {}
        for op in graph.ops:
            if op.part == "update":
                found[op.of] = found.get(op.of, 0) + graph.tensors[op.inputs[-1]].size_bytes
        return found

    def graph(self, batch: int) -> Graph:
        """Give the graph of a training step on `batch` examples; the latest one is kept."""
        if self._latest is None or self._latest[0] != batch:
            size = whole_number(batch, "batch")
            self._latest = (batch, build_step(replace(self.workload, batch_per_replica=size)))
        return self._latest[1]

    def costs(self, batch: int) -> Costs:
        """Give the work of a step on `batch` examples."""
        if batch not in self._costs:
            self._costs[batch] = costs(self.graph(batch), self.workload.dtype, self.settings)
        return self._costs[batch]

    def estimate(self, batch: int) -> Estimate:
        """Give the times of a step on `batch` examples, row by row and in all."""
        if batch not in self._estimates:
            found = self.costs(batch)
            dtype = self.workload.dtype
            self._estimates[batch] = estimate(found, self.device, dtype, self.settings)
        return self._estimates[batch]

    def estimate_forward(self, batch: int) -> float:
        """Give the seconds of the forward pass of `batch` examples on one device."""
        return self.estimate(batch).forward_s

    def estimate_backward(self, batch: int) -> float:
        """Give the seconds of the backward pass of `batch` examples on one device."""
        return self.estimate(batch).backward_s

    def estimate_update(self) -> float:
        """Give the seconds in which one device applies the gradients, whatever the batch."""
        return self.estimate(self.workload.batch_per_replica).update_s

    def estimate_comm(self, workers: int, collective: str | None = None) -> float:
        """Give the seconds in which `workers` add up their gradients.

        `collective` is a name of the table of collectives; None is the method's own. Raises
        `InputError` for another name, and where more than one worker has no link.
        """
        name = self.collective(collective)
        return self.collective_s(name, self.gradient_bytes, whole_number(workers, "workers"))

    def collective(self, name: str | None = None) -> str:
        """Give a collective's name, the method's own for None; raises `InputError` for others."""
        if name is None:
            return self.method.collective
        if name not in self.collectives:
            raise unknown("collective", name, self.collectives)
        return name

    def collective_s(self, name: str, size_bytes: float, workers: int) -> float:
        """Return the seconds of an exchange of `size_bytes` by one collective.

        Without a link there is one worker only, who exchanges nothing.
        """
        if self.fabric is None:
            if workers > 1:
                raise no_link(workers)
            return 0.0
        return self.collectives[name](size_bytes, workers, self.fabric)

    def exchange_s(self, size_bytes: float, workers: int) -> dict[str, float]:
        """Return the seconds of an exchange of `size_bytes` by the name of each collective."""
        return {name: self.collective_s(name, size_bytes, workers) for name in self.collectives}


def no_link(workers: int) -> InputError:
    """Give the error of workers that nothing joins."""
    return InputError(f"{workers} replicas need a link: --link LINK (steptime list links)")


def _text(value: object) -> str:
    """Give an option's value as the command line has it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)
