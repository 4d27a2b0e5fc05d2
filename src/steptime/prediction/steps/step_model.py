"""One network on one kind of device, ready for questions: the driver of every prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from steptime.build import make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.graph import Graph
from steptime.core.values import parse_count
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.defaults import settle_dtype
from steptime.hardware.device import Cluster, Device, Link
from steptime.hardware.stack import Stack
from steptime.prediction import DEFAULT, conformal, cost_model
from steptime.prediction.collectives import Collective, Startup
from steptime.prediction.fabric import Fabric
from steptime.prediction.host import Host
from steptime.prediction.kernel import Interval, Kernel, Settings
from steptime.prediction.kernels import Kernels
from steptime.prediction.lower import Lowered
from steptime.prediction.memory import Allocation, Moment, Needs, ProcessMemory
from steptime.prediction.method import Method, usual_stack
from steptime.prediction.outcome import Prediction
from steptime.prediction.prices import Prices
from steptime.prediction.remarks import list_remarks
from steptime.prediction.schedule import Timeline, schedule
from steptime.prediction.steps.network_steps import BatchGraph, NetworkSteps, RowFlop
from steptime.prediction.steps.states import add_host_states
from steptime.prediction.steps.step_setup import MethodChoice, ReplicaLink, StepSetup, resolve_link


class StepModel:
    """The step of a network on a device, part by part. Parts are worked out once a batch and kept.

    A model never changes: `on` and `of` return other models, which share what is equal.

    Args:
        network: model text (`resnet50`), a path or a workload.
        device: the device, by its name or path, or as the catalog returns it.
        link: the link of replicas, likewise; a `Fabric` or `Cluster` says more about what joins
            them.
        method: the method of prediction, or its name.
        options: options of the method, as text or as Python values.
        dtype: data type of a network that is no workload; None for the usual one.
        optimizer: its optimizer; None for the usual one.
        phase: its phase, `train` or `infer`.
        graph: the graph of the workload's step where it is built already; of one rank, too
            (`ops.ranks`).
        overlap: whether collectives of that graph overlap with its kernels.
        low: the type of 8 or 4 bits in which products of layers run, "" for none.
        assumes: whether the usual stack stands in if no option names one. It decides the data
            type, too, if nobody named it.

    Raises:
        InputError: for a name or a value that is not known.
    """

    def __init__(
        self,
        network: str | Path | Workload,
        device: str | Path | Device,
        link: str | Path | Link | Fabric | Cluster | None = None,
        method: str | Method = DEFAULT,
        options: Mapping[str, object] | None = None,
        dtype: str | None = None,
        optimizer: str | None = None,
        phase: str = "train",
        graph: Graph | None = None,
        overlap: bool = True,
        low: str = "",
        assumes: bool = False,
    ) -> None:
        base_method = method if isinstance(method, Method) else cost_model(method)
        if not isinstance(network, Workload):
            # Trusted text may name code to run: here it is the caller's own.
            model = read_model(str(network), trusted=True)
            network = make_workload(model, dtype=dtype, phase=phase, optimizer=optimizer)
        option_texts = {name: _format_option(value) for name, value in (options or {}).items()}
        choice = MethodChoice(base_method, option_texts, assumes)
        catalog_device = catalog.device(device, base_method.name)
        link_or_fabric = resolve_link(link)
        workload, setup = _make_setup(network, catalog_device, link_or_fabric, choice, overlap, low)
        ready_graph = None if graph is None else BatchGraph(workload.batch_per_replica, graph)
        self._start(NetworkSteps(workload, setup, ready_graph), setup)
        _ = setup.fabric  # raises for a link that joins no replicas

    def _start(self, steps: NetworkSteps, setup: StepSetup) -> None:
        self._steps = steps
        self._setup = setup
        self._timelines: dict[int, Timeline] = {}

    @classmethod
    def _from_parts(cls, steps: NetworkSteps, setup: StepSetup) -> StepModel:
        """Return the model of a network's steps on a device."""
        model = cls.__new__(cls)
        model._start(steps, setup)  # noqa: SLF001  # of this class
        return model

    def with_device(self, device: str | Path | Device) -> StepModel:
        """Return the model of the same network on another device.

        It shares the steps of this one, but where another device has another usual stack or data
        type and the user named none.
        """
        setup = self._setup
        other_device = catalog.device(device, setup.method.name)
        workload = settle_dtype(self.workload, other_device)
        has_other_dtype = workload.dtype != self.workload.dtype
        has_other_stack = (
            self.assumes and usual_stack(workload, other_device) != self.settings.stack
        )
        if has_other_dtype or has_other_stack:
            workload, other_setup = _make_setup(
                workload, other_device, setup.link, setup.choice, setup.overlap, setup.low_dtype
            )
            return self._from_parts(NetworkSteps(workload, other_setup), other_setup)
        # Otherwise graphs and kernels are shared, and only prices (and fabrics, whose cache begins
        # empty) differ.
        other_setup = replace(setup, device=other_device.in_phase(setup.phase), _fabrics={})
        return self._from_parts(self._steps.for_setup(other_setup), other_setup)

    def with_graph(self, graph: Graph, batch: int) -> StepModel:
        """Return the model of another graph, of a step on `batch` examples, on the same device."""
        workload = replace(self.workload, batch_per_replica=batch)
        steps = NetworkSteps(workload, self._setup, BatchGraph(batch, graph))
        return self._from_parts(steps, self._setup)

    @property
    def workload(self) -> Workload:
        """The network."""
        return self._steps.workload

    @property
    def device(self) -> Device:
        """The device."""
        return self._setup.device

    @property
    def effective_device(self) -> Device:
        """The device at the rates that kernels reach; raises `InputError` without a peak."""
        return self._setup.effective_device

    @property
    def method(self) -> Method:
        """The method under its options."""
        return self._setup.method

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the method, with an assumed stack."""
        return self._setup.options

    @property
    def assumes(self) -> bool:
        """Whether the stack is assumed."""
        return self._setup.choice.assumes_stack

    @property
    def settings(self) -> Settings:
        """The settings of the method."""
        return self._setup.settings

    @property
    def stack(self) -> Stack:
        """The software stack that runs the step."""
        return self._setup.stack

    @property
    def overlap(self) -> bool:
        """Whether collectives of ops overlap with kernels."""
        return self._setup.overlap

    @property
    def low_dtype(self) -> str:
        """The type of 8 or 4 bits in which products of layers run, "" for none."""
        return self._setup.low_dtype

    @property
    def fabric(self) -> Fabric | None:
        """The fabric of all devices that the link joins; None without a link."""
        return self._setup.fabric

    @property
    def collectives(self) -> Mapping[str, Collective]:
        """The collectives of the method by name."""
        return self._setup.method.collectives

    @property
    def startup(self) -> Startup:
        """The time that the stack adds to the messages of a collective."""
        return self._setup.startup

    @property
    def issue_s(self) -> float | None:
        """The host's time to issue one launch ahead of the device, None where it plays no part."""
        return self._setup.issue_s

    @property
    def process_memory(self) -> ProcessMemory:
        """The memory of the process on the device beside its tensors."""
        return self._setup.process_memory

    @property
    def parameters(self) -> int:
        """Trained parameters as the method counts them."""
        return self.lower_step().parameters

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, which the replicas exchange in a step."""
        return self.lower_step().gradient_bytes

    @property
    def gradients(self) -> Mapping[str, int]:
        """Bytes of the gradients by the forward op that first computes with a weight."""
        return self._steps.gradients

    def graph(self, batch: int | None = None) -> Graph:
        """Return the graph of a step on `batch` examples, the workload's own for None."""
        return self._steps.graph(batch)

    def lower_step(self, batch: int | None = None) -> Lowered:
        """Return the kernels of a step on `batch` examples."""
        return self._steps.lower_step(batch)

    def flop_by_row(self, batch: int | None = None) -> RowFlop:
        """Return the FLOP of each row by pass, by the counting convention."""
        return self._steps.flop_by_row(batch)

    def sizes(self, batch: int | None = None) -> Mapping[str, int]:
        """Return the bytes of tensors and ops that the stack holds unlike the graph, by name."""
        return self._steps.sizes(batch)

    def living_bytes(self, batch: int | None = None) -> list[int]:
        """Return the bytes that live before the first op of a step, and during each op."""
        return self._steps.living_bytes(batch)

    def allocations(self, batch: int | None = None) -> list[Allocation]:
        """Return the sizes that each moment of a step allocates and frees."""
        return self._steps.allocations(batch)

    def blocks(self, peak_bytes: int, batch: int | None = None) -> int:
        """Return the most bytes that the allocator holds beyond the `peak_bytes` of tensors."""
        return self._steps.blocks(peak_bytes, batch)

    def worst_moment(self, batch: int | None = None) -> Moment:
        """Return the moment at which most bytes of tensors live, with their purposes."""
        return self._steps.worst_moment(batch)

    def needs(self, batch: int | None = None) -> Needs:
        """Return the memory that a step on `batch` examples needs of the device."""
        return self.process_memory.needs(*self._steps.peak_memory(batch))

    def price(self, kernel: Kernel) -> Interval:
        """Return the seconds of a kernel on the device."""
        return self.price_kernels(Kernels([kernel])).intervals()[0]

    def price_kernels(self, kernels: Kernels) -> Prices:
        """Return the seconds of the distinct kernels on the device, without collectives."""
        return self._setup.price_kernels(kernels)

    def prices(self, batch: int | None = None) -> Prices:
        """Return the seconds of the distinct kernels of a step, collectives among them."""
        return self._setup.price_step(self.lower_step(batch).columns)

    def host(self, lowered: Lowered) -> Host | None:
        """Return the host that issues a step, None where it plays no part."""
        return self._setup.find_host(lowered)

    def timeline(self, batch: int | None = None) -> Timeline:
        """Return the times of a step on `batch` examples, row by row and in all."""
        size = self._steps.find_batch(batch)
        if size not in self._timelines:
            self._timelines[size] = self._schedule(size)
        return self._timelines[size]

    def _schedule(self, batch: int) -> Timeline:
        """Return the timeline of a step at a batch, with its widened interval and host states."""
        lowered = self.lower_step(batch)
        times = schedule(
            lowered,
            self.prices(batch),
            self.host(lowered),
            pipelined=self.settings.pipelined,
            overlap=self.overlap,
            # The factor of collectives at the slow end of what links reach.
            link_slowdown=1.0 if self.fabric is None else self.fabric.link_slowdown,
        )
        low_s, high_s = self.widen(times.step_s, times.low_s, times.high_s)
        return add_host_states(replace(times, low_s=low_s, high_s=high_s), self, batch)

    def widen(self, step_s: Any, low_s: Any, high_s: Any) -> tuple[Any, Any]:
        """Return the ends of the interval of a step by the campaigns of other people.

        The numbers may be arrays of several batches.
        """
        if self.method.name != "calibrated":
            return low_s, high_s
        is_fine_tuning = self.workload.tuning.has_frozen_weights
        kind = conformal.FINE_TUNINGS if is_fine_tuning else conformal.DEVICE_STEPS
        return conformal.widen(kind, step_s, low_s, high_s, self.device)

    def predict(self, batch: int | None = None) -> Prediction:
        """Return the prediction of a step on `batch` examples: times, memory, remarks."""
        needs = self.needs(batch)
        fits = needs.fit(self.device)
        remarks = self.remarks(batch)
        if not fits:
            remarks = (needs.too_large(self.device), *remarks)
        return Prediction(
            times=self.timeline(batch),
            lowered=self.lower_step(batch),  # the graph, lowered to kernels
            flop_by_row=self.flop_by_row(batch),
            needs=needs,
            fits=fits,
            remarks=remarks,
        )

    def remarks(self, batch: int | None = None) -> tuple[str, ...]:
        """Return remarks about what the prediction leaves out: ops, layers, figures, wishes."""
        return self.remarks_on(self.graph(batch))

    def remarks_on(self, graph: Graph) -> tuple[str, ...]:
        """Return the remarks of a step of a graph, equal for graphs of equal `remark_key`."""
        remarks = list_remarks(graph, self.method, self.workload.dtype, self.device, self.stack)
        is_fine_tuning = self.workload.tuning.has_frozen_weights
        if self.method.name == "calibrated" and is_fine_tuning and self.assumes:
            return (*remarks, conformal.describe_assumed_software(self.stack.name))
        return remarks

    def estimate_forward(self, batch: int) -> float:
        """Return the seconds of the forward pass of `batch` examples on one device."""
        return self.timeline(batch).forward_s

    def estimate_backward(self, batch: int) -> float:
        """Return the seconds of the backward pass of `batch` examples on one device."""
        return self.timeline(batch).backward_s

    def estimate_update(self) -> float:
        """Return the seconds in which one device applies the gradients, whatever the batch."""
        return self.timeline().update_s

    def estimate_comm(self, replicas: int, collective: str | None = None) -> float:
        """Return the seconds in which `replicas` add up their gradients.

        Args:
            replicas: number of replicas.
            collective: name of a collective; None for the method's own.

        Raises:
            InputError: for another name, and if several replicas have no link.
        """
        name = self.collective(collective)
        return self.collective_s(name, self.gradient_bytes, parse_count(replicas, "replicas"))

    def collective(self, name: str | None = None) -> str:
        """Return a collective's name, the method's own for None; raises `InputError` for others."""
        return self._setup.collective_name(name)

    def collective_s(self, name: str, size_bytes: float, replicas: int, end: int = 0) -> float:
        """Return the seconds of a collective among replicas (`StepSetup.collective_s`)."""
        return self._setup.collective_s(name, size_bytes, replicas, end)


def _make_setup(
    network: Workload,
    device: Device,
    link: ReplicaLink | None,
    choice: MethodChoice,
    overlap: bool,
    low_dtype: str,
) -> tuple[Workload, StepSetup]:
    """Return a workload with its data type, and its setup on a device."""
    device_in_phase = device.in_phase(network.phase)
    workload = settle_dtype(network, device_in_phase)
    # With `assumes`, options that the user left out depend on network and device.
    options = choice.options_for(workload, device_in_phase)
    setup = StepSetup(
        device=device_in_phase,
        dtype=workload.dtype,
        phase=workload.phase,
        choice=choice,
        options=options,
        method=choice.method.with_options(options),
        link=link,
        overlap=overlap,
        low_dtype=low_dtype or precision(workload.dtype).products,
    )
    return workload, setup


def _format_option(value: object) -> str:
    """Return an option's value as the command line has it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)
