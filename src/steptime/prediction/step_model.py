"""One network on one kind of device, ready to be asked: the driver of every prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from steptime.build import make_workload, read_model
from steptime.core.dtypes import PRECISIONS
from steptime.core.errors import check_choice
from steptime.core.graph import PASSES, Graph, Part
from steptime.core.values import parse_count
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.constants import value_of
from steptime.hardware.defaults import settle_dtype
from steptime.hardware.device import Cluster, Device, Link
from steptime.hardware.stack import Stack
from steptime.network.count import live_bytes, op_work
from steptime.prediction import DEFAULT, conformal, cost_model
from steptime.prediction.calibrated.interval import of_host
from steptime.prediction.collectives import EXCHANGES, Fabric, Startup, fabric_of_group
from steptime.prediction.host import Host, host_of, issuing
from steptime.prediction.kernel import Exchange, Interval, Kernel
from steptime.prediction.kernels import Kernels, Prices
from steptime.prediction.lower import Lowered, stack_of
from steptime.prediction.memory import (
    Allocation,
    Moment,
    Needs,
    ProcessMemory,
    blocks_bytes,
    find_process_memory,
    kept_sizes,
    list_allocations,
    worst_moment,
)
from steptime.prediction.method import Method, stack_option, usual_stack
from steptime.prediction.outcome import Prediction
from steptime.prediction.price import issue_s
from steptime.prediction.remarks import list_remarks, no_link
from steptime.prediction.schedule import Timeline, schedule
from steptime.prediction.states import beyond_device, sizes_away, with_states
from steptime.prediction.step_graphs import build_steps
from steptime.prediction.training import LOW_BYTES, as_trained, graph_dtype, in_training, sizes_of


class StepModel:
    """The step of a network, part by part.

    `network` is model text (`resnet50`), a path or a workload; `device` and `link` are names,
    paths or what the catalog gives; a `Fabric` or a `Cluster` in place of a link says more about
    what joins the replicas. `options` are those of the method, as text or as Python values. `graph`
    is that of the workload's step where it is built already, of one rank too (`ops.ranks`), whose
    exchanges `overlap` with its kernels. Products of layers run in the type `low` where it names
    one. Where `options` name no stack, a question `assumes` that which usually runs such a step on
    the device, which decides the data type too where nobody said it. Steps are computed once a
    batch and kept. Raises `InputError` for what is not known.

    `method` is the method under these options, `seen` the device as its kernels find it; `fabric`
    is None without a link.
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
        chosen = method if isinstance(method, Method) else cost_model(method)
        if not isinstance(network, Workload):
            choice = read_model(str(network), trusted=True)
            network = make_workload(choice, None, dtype, phase, optimizer)
        self.device = catalog.device(device, chosen.name).in_phase(network.phase)
        self.workload = network = settle_dtype(network, self.device)
        self.options = {name: _text(value) for name, value in (options or {}).items()}
        self.assumes = assumes and "stack" in chosen.options and "stack" not in self.options
        self._chosen = chosen, dict(self.options)
        if self.assumes:
            self.options |= stack_option(usual_stack(network, self.device))
        self.method = chosen.under(self.options)
        self.settings = replace(self.method.settings, pages=self.device.is_cpu)
        self.overlap, self.low = overlap, low
        self._link = link
        self.fabric = self._fabric(link)
        self.collectives = self.method.collectives
        self._latest = None if graph is None else (self.workload.batch_per_replica, graph)
        self._build_graph: Callable[[int], Graph] | None = None
        self._lowered: dict[int, Lowered] = {}
        self._counted: dict[int, Mapping[str, Mapping[Part, float]]] = {}
        self._memory: dict[int, tuple[int, int]] = {}
        self._timelines: dict[int, Timeline] = {}
        self._among: dict[int, Fabric | None] = {}

    def _fabric(
        self,
        link: str | Path | Link | Fabric | Cluster | None,
        replicas: int = 1,
        ranks: range | None = None,
    ) -> Fabric | None:
        """Return what joins ranks of a cluster, all of them if none are said, or other replicas."""
        if isinstance(link, Cluster):
            link = fabric_of_group(link, range(link.device_count) if ranks is None else ranks)
        if link is None:
            return None
        found = catalog.link(link) if isinstance(link, str | Path) else link
        return self.method.joins(found, self.device.memory_bytes_per_s, replicas)

    def among(self, replicas: int) -> Fabric | None:
        """Return what joins so many replicas, None without a link."""
        if replicas not in self._among:
            again = not isinstance(self._link, Cluster)
            self._among[replicas] = self._fabric(self._link, replicas) if again else self.fabric
        return self._among[replicas]

    def on(self, device: str | Path | Device) -> StepModel:
        """Return the model of the same network on another device; what it runs is kept.

        That is so under one stack and data type: where none is named, another device has its own.
        """
        found = catalog.device(device, self.method.name)
        workload = settle_dtype(self.workload, found)
        again = workload.dtype != self.workload.dtype or (
            self.assumes and usual_stack(workload, found) != self.settings.stack
        )
        method, options = self._chosen if again else (self.method, None)
        how = workload, found, self._link, method, options
        assumes = again and self.assumes
        other = StepModel(*how, overlap=self.overlap, low=self.low, assumes=assumes)
        first = int(found.is_cpu != self.device.is_cpu)  # a CPU's kernels know pages
        kept = () if again else ("options", "assumes", "_chosen", *_KEPT[first:3], "_latest")
        vars(other).update({name: vars(self)[name] for name in kept})
        return other

    def of(self, graph: Graph, batch: int) -> StepModel:
        """Return the model of another graph, of a step on `batch` examples, on the same device."""
        other = copy(self)
        other.workload = replace(self.workload, batch_per_replica=batch)
        vars(other).update({name: {} for name in _KEPT}, _latest=(batch, graph))
        vars(other).pop("gradients", None)
        return other

    @cached_property
    def seen(self) -> Device:
        """The device as kernels find it; raises `InputError` where it has no peak for the dtype."""
        found = self.method.sees(self.device, self.workload.dtype, self.settings)
        share, peaks = self.settings.compute_efficiency, self.device.peak_flop_per_s
        lower = {name: peaks[name] * share for name in LOW_BYTES if name in peaks}
        if self.low:
            found = replace(found, peak_flop_per_s={**found.peak_flop_per_s, **lower})
        return in_training(found) if self.workload.phase == "train" else found

    @cached_property
    def said(self) -> Mapping[str, float]:
        """The constants that the stack says, {} of a method without any."""
        known = [name for name in self.device.peak_flop_per_s if name in PRECISIONS]
        settings = replace(self.settings, tf32="auto")
        return self.method.sees(self.device, known[0], settings).constants if known else {}

    def price(self, kernel: Kernel) -> Interval:
        """Return the seconds of a kernel on the device."""
        return self.priced(Kernels([kernel])).intervals()[0]

    def priced(self, kernels: Kernels) -> Prices:
        """Return the seconds of kernels that differ on the device, without exchanges."""
        return self.method.prices(kernels, self.seen)

    @cached_property
    def stack(self) -> Stack:
        """The software stack that runs the step."""
        return stack_of(self.settings)

    @cached_property
    def issue_s(self) -> float | None:
        """The host's time to issue one launch ahead of the device, None where it plays no part."""
        return issue_s(self.device, self.settings)

    @cached_property
    def start(self) -> Startup:
        """What the stack adds to the messages of an exchange."""
        use, said = "training" if self.workload.phase == "train" else "serving", self.seen.constants
        return Startup(*(value_of(f"{use}.exchange_{name}", said) for name in Startup._fields))

    def host(self, lowered: Lowered) -> Host | None:
        """Return when the host has issued each pass, None where it plays no part.

        The method `calibrated` knows the host by the stack; others count launches.
        """
        constants = self.seen.constants
        found = host_of(lowered.calls, constants, self.settings.waits)
        if found is not None:
            ends, steps = of_host(constants), self.device.calibration.get("steps", ())
            trains = self.workload.phase == "train"
            after_s = value_of("training.step_s", constants) if trains else 0.0
            return found._replace(ends=ends, steps=steps, after_s=after_s)
        return issuing(lowered.launches, self.issue_s)

    @property
    def parameters(self) -> int:
        """Trained parameters as the method counts them."""
        return self.lowered().parameters

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, which the replicas exchange in a step."""
        return self.lowered().gradient_bytes

    @cached_property
    def gradients(self) -> Mapping[str, int]:
        """Bytes of the gradients by the forward op that first computes with a weight."""
        graph, held = self.graph(), self.sizes()
        found: Counter[str] = Counter()
        for op in graph.ops:
            if op.part == "update":
                found[op.of] += held.get(op.inputs[-1], graph.tensors[op.inputs[-1]].size_bytes)
        return found

    def graph(self, batch: int | None = None) -> Graph:
        """Return the graph of a step on `batch` examples, the workload's own if none are said.

        The latest one is kept.
        """
        wanted = self.workload.batch_per_replica if batch is None else parse_count(batch, "batch")
        if self._latest is None or self._latest[0] != wanted:
            dtype = graph_dtype(self.workload.dtype, self.stack.master_weights)
            tuning = self.workload.tuning.under(self.stack.tuning_ways)
            if self._build_graph is None:
                workload = replace(self.workload, dtype=dtype, tuning=tuning)
                self._build_graph = build_steps(workload)
            self._latest = (wanted, self._build_graph(wanted))
        return self._latest[1]

    def lowered(self, batch: int | None = None) -> Lowered:
        """Return the kernels of a step on `batch` examples."""
        wanted = self.workload.batch_per_replica if batch is None else batch
        if wanted not in self._lowered:
            graph = self.graph(wanted)
            step = self.method.lower(graph, self.workload.dtype, self.settings)
            types = self.workload.dtype, self.stack.master_weights
            made = as_trained(step, graph, self.said, *types, self.low)
            self._lowered[wanted] = with_states(made, graph, self.workload.tuning)
        return self._lowered[wanted]

    def sizes(self, batch: int | None = None) -> Mapping[str, int]:
        """Return the bytes of what the stack holds otherwise than the graph has it, by name."""
        types, graph = (self.workload.dtype, self.stack.master_weights), self.graph(batch)
        away = sizes_away(graph, self.workload.tuning)
        return kept_sizes(graph, self.stack) | sizes_of(graph, self.said, *types) | away

    def living(self, batch: int | None = None) -> list[int]:
        """Return the bytes that live before the first op of a step, and during each op."""
        return live_bytes(self.graph(batch), self.stack, self.sizes(batch))

    def allocations(self, batch: int | None = None) -> list[Allocation]:
        """Return the sizes that each moment of a step allocates and frees."""
        return list_allocations(self.graph(batch), self.stack, self.sizes(batch))

    def blocks(self, peak_bytes: int, batch: int | None = None) -> int:
        """Return what the allocator takes at most beyond the `peak_bytes` of tensors."""
        return blocks_bytes(self.graph(batch), self.stack, peak_bytes, self.sizes(batch))

    def worst_moment(self, batch: int | None = None) -> Moment:
        """Return when most tensors live in a step, and what they are for."""
        return worst_moment(self.graph(batch), self.stack, self.sizes(batch))

    def counted(self, batch: int | None = None) -> Mapping[str, Mapping[Part, float]]:
        """Return the FLOP of each row by pass, by the convention: what no software stack changes.

        Layers of a file count by its rules. FLOP of no row are those of "".
        """
        wanted = self.workload.batch_per_replica if batch is None else batch
        if wanted in self._counted:
            return self._counted[wanted]
        graph, lowered = self.graph(batch), self.lowered(batch)
        every: Iterable[tuple[str, Part, float]] = (
            ((one.op, one.pass_, one.flop) for one in lowered.kernels)
            if lowered.by_layer
            else ((op.of or op.name, op.part, op_work(graph, op)[0]) for op in graph.ops)
        )
        names = ("", *(row.name for row in lowered.rows))
        found: dict[str, dict[Part, float]] = {name: dict.fromkeys(PASSES, 0) for name in names}
        for name, pass_, flop in every:
            found[name if name in found else ""][pass_] += flop
        return self._counted.setdefault(wanted, found)

    def timeline(self, batch: int | None = None) -> Timeline:
        """Return the times of a step on `batch` examples, row by row and in all."""
        wanted = self.workload.batch_per_replica if batch is None else batch
        if wanted not in self._timelines:
            lowered, overlaps = self.lowered(wanted), (self.settings.pipelined, self.overlap)
            prices, host = self.prices(wanted), self.host(lowered)
            slowdown = 1.0 if self.fabric is None else self.fabric.slowest
            times = schedule(lowered, prices, host, *overlaps, slowdown)
            low_s, high_s = self.widen(times.step_s, times.low_s, times.high_s)
            times = replace(times, low_s=low_s, high_s=high_s)
            self._timelines[wanted] = beyond_device(times, self, wanted)
        return self._timelines[wanted]

    def widen(self, step_s: Any, low_s: Any, high_s: Any) -> tuple[Any, Any]:
        """Return the ends of the interval of a step as campaigns of others say.

        The numbers may be arrays of several batches.
        """
        if self.method.name != "calibrated":
            return low_s, high_s
        is_whole = not self.workload.tuning.freezes
        kind = conformal.DEVICE_STEPS if is_whole else conformal.FINE_TUNINGS
        is_assumed = self.assumes and not is_whole
        return conformal.widen(kind, step_s, low_s, high_s, self.device, is_assumed)

    def prices(self, batch: int | None = None) -> Prices:
        """Return the seconds of the kernels that differ of a step on `batch` examples."""
        columns = self.lowered(batch).columns
        found = self.priced(columns)
        for i, one in enumerate(columns.distinct):
            if one.exchange is not None:
                found.value[i] = self._exchanged(one.kind, one.exchange, one.bytes)
        return found

    def _exchanged(self, kind: str, group: Exchange, size_bytes: float) -> float:
        """Return the seconds of an exchange of ops, by the table of collectives."""
        if group.ranks == 1:
            return 0.0
        fabric = self.among(group.ranks)
        if isinstance(self._link, Cluster):
            ranks = range(0, group.ranks * group.stride, group.stride)
            fabric = self._fabric(self._link, ranks=ranks)
        if fabric is None:
            raise no_link(group.ranks, self.device)
        one = EXCHANGES.get(kind) or self.collectives[self.collective()]
        return self.start.after(one(size_bytes, group.ranks, fabric), fabric)

    def predict(self, batch: int | None = None) -> Prediction:
        """Return the prediction of a step on `batch` examples: times, memory, remarks."""
        lowered, needs = self.lowered(batch), self.needs(batch)
        fits, remarks = needs.fit(self.device), self.remarks(batch)
        if not fits:
            remarks = (needs.too_large(self.device), *remarks)
        counted = self.counted(batch)
        return Prediction(self.timeline(batch), lowered, counted, needs, fits, remarks)

    def needs(self, batch: int | None = None) -> Needs:
        """Return the memory that a step on `batch` examples needs of the device."""
        wanted = self.workload.batch_per_replica if batch is None else batch
        if wanted not in self._memory:
            peak = max(self.living(wanted))
            self._memory[wanted] = peak, self.blocks(peak, wanted)
        return self.process_memory.needs(*self._memory[wanted])

    @cached_property
    def process_memory(self) -> ProcessMemory:
        """What the process has on the device beside its tensors."""
        return find_process_memory(self.device, self.stack, self.workload.phase)

    def remarks(self, batch: int | None = None) -> tuple[str, ...]:
        """Return what the prediction leaves out: ops, layers, figures, wishes that it ignores."""
        return self.remarks_on(self.graph(batch))

    def remarks_on(self, graph: Graph) -> tuple[str, ...]:
        """Return the remarks of a step of a graph, equal for graphs of equal `remark_key`."""
        return list_remarks(graph, self.method, self.workload.dtype, self.device, self.stack)

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

        `collective` is a name of the table of collectives; None is the method's own. Raises
        `InputError` for another name, and where more than one replica has no link.
        """
        name = self.collective(collective)
        return self.collective_s(name, self.gradient_bytes, parse_count(replicas, "replicas"))

    def collective(self, name: str | None = None) -> str:
        """Return a collective's name, the method's own for None; raises `InputError` for others."""
        if name is None:
            return self.method.collective
        return check_choice("collective", name, self.collectives)

    def collective_s(self, name: str, size_bytes: float, replicas: int, end: int = 0) -> float:
        """Return the seconds of an exchange of `size_bytes` by one collective.

        Without a link there is one replica only, which exchanges nothing. Infinite for a collective
        that the link cannot run. At an `end` of the rates that links reach they are slow (-1) or
        quick (1).
        """
        if (fabric := self.among(replicas)) is None:
            if replicas > 1:
                raise no_link(replicas, self.device)
            return 0.0
        link_end = fabric.link_end(end) if end else fabric
        return self.start.after(self.collectives[name](size_bytes, replicas, link_end), link_end)


_KEPT = ("_lowered", "_counted", "_memory", "_timelines")  # by batch


def _text(value: object) -> str:
    """Return an option's value as the command line has it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)
