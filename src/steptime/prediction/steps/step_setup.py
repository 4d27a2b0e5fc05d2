"""The setup of a predicted step: a device with its stack, method and link, without a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from steptime.core.dtypes import PRECISIONS
from steptime.core.errors import check_choice
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.constants import value_of
from steptime.hardware.device import Cluster, Device, Link
from steptime.hardware.stack import Stack
from steptime.prediction.calibrated.interval import host_bounds
from steptime.prediction.collectives import EXCHANGES, Startup
from steptime.prediction.fabric import Fabric, fabric_of_group
from steptime.prediction.host import Host, find_host, host_of_launches
from steptime.prediction.kernel import Exchange, Settings
from steptime.prediction.kernels import Kernels
from steptime.prediction.lower import Lowered, stack_of
from steptime.prediction.memory import ProcessMemory, find_process_memory
from steptime.prediction.method import Method, stack_option, usual_stack
from steptime.prediction.price import issue_s
from steptime.prediction.prices import Prices
from steptime.prediction.remarks import no_link
from steptime.prediction.training import LOW_BYTES, in_training

ReplicaLink = Link | Fabric | Cluster  # of replicas


@dataclass(frozen=True)
class MethodChoice:
    """A method with the options that the user set.

    Attributes:
        method: the method without options.
        options: options of the user, as texts.
        may_assume_stack: whether the usual stack stands in if no option names one.
    """

    method: Method
    options: Mapping[str, str]
    may_assume_stack: bool = False

    @property
    def assumes_stack(self) -> bool:
        """Whether the stack is assumed."""
        return (
            self.may_assume_stack and "stack" in self.method.options and "stack" not in self.options
        )

    def options_for(self, workload: Workload, device: Device) -> Mapping[str, str]:
        """Return the options with the assumed stack of a step, if it is assumed."""
        if not self.assumes_stack:
            return self.options
        return {**self.options, **stack_option(usual_stack(workload, device))}


@dataclass(frozen=True, eq=False)
class StepSetup:
    """A device with its stack, method and link.

    Attributes:
        device: the device.
        dtype: data type of the step.
        phase: `train` or `infer`.
        choice: the method as the user chose it.
        options: options of the method, with an assumed stack.
        method: the method under these options.
        link: what joins replicas; None for a single one.
        overlap: whether collectives of ops overlap with kernels.
        low_dtype: the type of 8 or 4 bits in which products of layers run, "" for none.
    """

    device: Device
    dtype: str
    phase: str
    choice: MethodChoice
    options: Mapping[str, str]
    method: Method
    link: ReplicaLink | None = None
    overlap: bool = True
    low_dtype: str = ""
    _fabrics: dict[int, Fabric | None] = field(default_factory=dict, repr=False)

    @cached_property
    def settings(self) -> Settings:
        """The settings of the method; kernels know new pages on a CPU alone."""
        return replace(self.method.settings, pages=self.device.is_cpu)

    @cached_property
    def stack(self) -> Stack:
        """The software stack that runs the step."""
        return stack_of(self.settings)

    @cached_property
    def effective_device(self) -> Device:
        """The device at the rates that kernels reach, with the constants of their price.

        Raises:
            InputError: if the device has no peak of the data type.
        """
        device = self.method.derate(self.device, self.dtype, self.settings)
        # Products may run in types of 8 and 4 bit, whose peaks the method alone does not keep.
        if self.low_dtype:
            efficiency = self.settings.compute_efficiency
            published_peaks = self.device.datasheet.peak_flop_per_s
            peaks = dict(device.datasheet.peak_flop_per_s)
            for name in LOW_BYTES:
                if name in published_peaks:
                    peaks[name] = published_peaks[name] * efficiency
            device = device.with_figures(peak_flop_per_s=peaks)
        return in_training(device) if self.phase == "train" else device

    @cached_property
    def stack_constants(self) -> Mapping[str, float]:
        """The constants of the stack on the device; none for a method without any."""
        dtypes = [name for name in self.device.datasheet.peak_flop_per_s if name in PRECISIONS]
        if not dtypes:
            return {}
        settings = replace(self.settings, tf32="auto", host_name="")  # neither changes them
        return self.method.derate(self.device, dtypes[0], settings).constants

    @cached_property
    def issue_s(self) -> float | None:
        """The host's time to issue one launch ahead of the device, None where it plays no part."""
        return issue_s(self.device, self.settings)

    @cached_property
    def startup(self) -> Startup:
        """The time that the stack adds to the messages of a collective."""
        use = "training" if self.phase == "train" else "serving"
        constants = self.effective_device.constants
        return Startup(*(value_of(f"{use}.exchange_{name}", constants) for name in Startup._fields))

    @cached_property
    def process_memory(self) -> ProcessMemory:
        """The memory of the process on the device beside its tensors."""
        return find_process_memory(self.device, self.stack, self.phase)

    @cached_property
    def fabric(self) -> Fabric | None:
        """The fabric of all devices that the link joins; None without a link."""
        if isinstance(self.link, Cluster):
            return self._join_ranks(self.link, range(self.link.device_count))
        return self._join_replicas(1)

    def fabric_of_replicas(self, replicas: int) -> Fabric | None:
        """Return the fabric of a number of replicas; None without a link."""
        if isinstance(self.link, Cluster):
            return self.fabric
        if replicas not in self._fabrics:
            self._fabrics[replicas] = self._join_replicas(replicas)
        return self._fabrics[replicas]

    def _join_replicas(self, replicas: int) -> Fabric | None:
        """Return the fabric of replicas over a link or fabric."""
        if self.link is None or isinstance(self.link, Cluster):
            return None
        memory_bytes_per_s = self.device.datasheet.memory_bytes_per_s
        return self.method.join_devices(self.link, memory_bytes_per_s, replicas)

    def _join_ranks(self, cluster: Cluster, ranks: range) -> Fabric | None:
        """Return the fabric of a group of ranks of a cluster; None for a single rank."""
        fabric = fabric_of_group(cluster, ranks)
        if fabric is None:
            return None
        return self.method.join_devices(fabric, self.device.datasheet.memory_bytes_per_s)

    def price_kernels(self, kernels: Kernels) -> Prices:
        """Return the seconds of the distinct kernels on the device, without collectives."""
        return self.method.prices(kernels, self.effective_device)

    def price_step(self, kernels: Kernels) -> Prices:
        """Return the seconds of the distinct kernels of a step, collectives among them."""
        prices = self.price_kernels(kernels)
        for i, kernel in enumerate(kernels.distinct):
            if kernel.exchange is not None:
                seconds = self._price_exchange(kernel.kind, kernel.exchange, kernel.bytes)
                prices.value[i] = seconds
        return prices

    def _price_exchange(self, kind: str, group: Exchange, size_bytes: float) -> float:
        """Return the seconds of the collective of an op.

        Raises:
            InputError: if nothing joins the ranks.
        """
        if group.ranks == 1:
            return 0.0
        if isinstance(self.link, Cluster):
            # As the op has it: every `stride`-th rank of the cluster.
            ranks = range(0, group.ranks * group.stride, group.stride)
            fabric = self._join_ranks(self.link, ranks)
        else:
            fabric = self.fabric_of_replicas(group.ranks)
        if fabric is None:
            raise no_link(group.ranks, self.device)
        if kind in EXCHANGES:
            collective = EXCHANGES[kind]
        else:  # all-reduces have several algorithms, of which the method has one
            collective = self.method.collectives[self.method.collective]
        return self.startup.add_to(collective(size_bytes, group.ranks, fabric), fabric)

    def find_host(self, lowered: Lowered) -> Host | None:
        """Return the host that issues a step, None where it plays no part.

        The method `calibrated` knows the host by the stack; others count launches.
        """
        constants = self.effective_device.constants
        host = find_host(lowered.calls, constants, self.settings.waits)
        if host is None:
            return host_of_launches(lowered.launches, self.issue_s)  # no constants of a host
        is_training = self.phase == "train"
        return host._replace(
            end_factors=host_bounds(constants),
            measured_steps=self.device.calibration.steps,
            after_kernels_s=value_of("training.step_s", constants) if is_training else 0.0,
        )

    def collective_name(self, name: str | None = None) -> str:
        """Return a collective's name, the method's own for None; raises `InputError` for others."""
        if name is None:
            return self.method.collective
        return check_choice("collective", name, self.method.collectives)

    def collective_s(self, name: str, size_bytes: float, replicas: int, end: int = 0) -> float:
        """Return the seconds of a collective of `size_bytes`.

        Without a link there is one replica only, which exchanges nothing. Infinite for a collective
        that the link cannot run.

        Args:
            name: name of the collective.
            size_bytes: bytes of each replica.
            replicas: number of replicas.
            end: end of the rates that links reach: -1 slow, 1 quick, 0 neither.

        Raises:
            InputError: if several replicas have no link.
        """
        fabric = self.fabric_of_replicas(replicas)
        if fabric is None:
            if replicas > 1:
                raise no_link(replicas, self.device)
            return 0.0
        # -1 and 1 are the slow and the quick end of rates; 0 is the predicted rate.
        if end:
            fabric = fabric.with_link_rates(end)
        collective = self.method.collectives[name]
        return self.startup.add_to(collective(size_bytes, replicas, fabric), fabric)


def resolve_link(link: str | Path | ReplicaLink | None) -> ReplicaLink | None:
    """Return a link by its name or path; what is no text is returned as it is."""
    return catalog.link(link) if isinstance(link, str | Path) else link
