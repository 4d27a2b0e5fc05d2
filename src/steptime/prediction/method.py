"""A method of prediction: functions that lower a graph and price kernels, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from steptime.build import build
from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.graph import Graph
from steptime.core.values import number_of
from steptime.core.workload import Plan, Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device, Link
from steptime.hardware.software import defaults_for, resolve_stack
from steptime.hardware.topology import effective_link
from steptime.prediction.collectives import COLLECTIVES, Collective
from steptime.prediction.fabric import Fabric, derate_fabric, fabric_of
from steptime.prediction.kernel import Interval, Kernel, Settings, as_interval
from steptime.prediction.kernels import Kernels
from steptime.prediction.lower import Lowered, lower
from steptime.prediction.price import derate_device, roofline
from steptime.prediction.prices import Prices

ANALYTIC = Settings()


@dataclass(frozen=True)
class Option:
    """An option of a method: its meaning, its default as text, and how a text changes the method.

    `read` returns the changed method and raises `ValueError`, saying what is allowed.
    """

    meaning: str
    default: str
    read: Callable[[Method, str], Method]


def refuse_few(replicas: int, examples: int) -> str:
    """Raise `InputError`: each replica needs an example."""
    raise InputError(f"{replicas} replicas cannot share a batch of {examples} examples")


@dataclass(frozen=True, eq=False)  # what is priced is kept by method
class Method:
    """A method of prediction: functions that lower and price a step, and settings of the user.

    Attributes:
        name: its name.
        version: its version, for records.
        lower: returns the kernels of a step, from its graph, data type and settings.
        price: returns the seconds of one kernel, or of `Rows` if it takes `arrays`, on a device.
        options: the settings that a user may change.
        settings: the settings under the options so far.
        derate: returns the device at the rates that kernels reach, with the constants of the price.
        notes: returns remarks that a reader must know, from a graph, data type, device and
            settings.
        collective: the collective by which replicas reduce gradients unless the user names one.
        collectives: the collectives by name.
        links: returns a fabric with the rates that its links reach.
        latency: whether messages over links have a latency.
        too_few: returns the note where each of more replicas than examples computes one example;
            raises `InputError` where none may.
        reads: fields of a device that the price reads beyond those of a roofline; records hash
            them too (`device_hash`).
        arrays: whether the price takes `Rows` instead of one `Kernel` after the other.
    """

    name: str
    version: str
    lower: Callable[[Graph, str, Settings], Lowered] = lower
    price: Callable[[Any, Device], Interval | float] = roofline
    options: Mapping[str, Option] = field(default_factory=dict)
    settings: Settings = ANALYTIC
    derate: Callable[[Device, str, Settings], Device] = derate_device
    notes: Callable[[Graph, str, Device, Settings], tuple[str, ...]] = lambda *_: ()
    collective: str = "ring"
    collectives: Mapping[str, Collective] = field(default_factory=lambda: COLLECTIVES)
    links: Callable[[Fabric], Fabric] = derate_fabric
    latency: bool = True
    too_few: Callable[[int, int], str] = refuse_few
    reads: tuple[str, ...] = ()
    arrays: bool = False

    def join_devices(
        self, link: Link | Fabric, memory_bytes_per_s: float | None = None, devices: int = 1
    ) -> Fabric:
        """Return the fabric of devices at the rates that this method has for its links.

        Args:
            link: the link or fabric that joins them.
            memory_bytes_per_s: rate of a device's memory, for adding up; None if unknown.
            devices: number of devices that the links join; they may share them.
        """
        efficiency = self.settings.link_efficiency
        fabric = fabric_of(link, efficiency, memory_bytes_per_s)
        return self.links(share_fabric(fabric, devices))

    def join_host(self, link: Link) -> Fabric:
        """Return the fabric of a device and its host; copies reach the rate of the link."""
        return fabric_of(link, self.settings.link_efficiency)

    def prices(self, kernels: Kernels, device: Device) -> Prices:
        """Return the seconds of the distinct kernels on a device; collectives have none (0)."""
        takes_arrays = self.arrays
        if takes_arrays:  # many kernels at once
            return kernels.price(self.price_on(device))
        times = [
            Interval(0.0) if kernel.exchange else as_interval(self.price(kernel, device))
            for kernel in kernels.distinct
        ]
        return Prices.from_intervals(times)

    def price_on(self, device: Device) -> Callable[..., Interval | float]:
        """Return a function that prices `Rows` (or a kernel, without `arrays`) on a device."""
        return lambda kernels, _places=None: self.price(kernels, device)

    def with_options(self, options: Mapping[str, str]) -> Method:
        """Return the method under options as texts; raises `InputError`, naming the option."""
        method = self
        for name, text in options.items():
            check_choice("option", name, self.options, self.name)
            try:
                method = self.options[name].read(method, text)
            except ValueError as error:
                raise InputError(f"{self.name}: option {name} {error}") from None
        return method

    def changed_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options as texts that depart from their defaults."""
        return {name: text for name, text in options.items() if text != self.options[name].default}

    def with_settings(self, **changes: Any) -> Method:
        """Return the method with some of its settings changed."""
        return replace(self, settings=replace(self.settings, **changes))


class PriceError(InputError):
    """A price of the user's that fails, or returns no time."""


Price = Callable[[Kernel, Device], Interval | float]


def method_of_price(name: str, price: Price) -> Method:
    """Return a method with a price of the user's; predicting raises `PriceError` for no time.

    Its price gets the time of a launch (`launch_s`), though the host issues ahead of the device.
    """

    def checked_price(kernel: Kernel, device: Device) -> Interval:
        try:
            time = as_interval(price(kernel, device))
        except Exception as error:  # whatever a user's function raises
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise PriceError(f"{name}: the price of {kernel.kind} fails: {reason}") from error
        if not 0 <= time.value < inf:
            raise PriceError(f"{name}: the price of {kernel.kind} is {time.value:g} s, not a time")
        return time

    # The user's price may use the time of a launch, which `derate_device` may leave out.
    def derate(device: Device, dtype: str, settings: Settings) -> Device:
        return derate_device(device, dtype, settings).with_figures(
            launch_s=device.datasheet.launch_s
        )

    options = {"stack": STACK, "tf32": TF32, "fuse": FUSE}
    return Method(name, "1", price=checked_price, options=options, derate=derate)


def choice_option(meaning: str, setting: str, values: Mapping[str, Any], default: str) -> Option:
    """Return an option whose texts stand for values of one setting."""

    def read(method: Method, text: str) -> Method:
        if text not in values:
            *first, last = values
            raise ValueError(f"is {', '.join(first)} or {last}, not {shorten(text)}")
        return method.with_settings(**{setting: values[text]})

    return Option(meaning, default, read)


def share_option(meaning: str, setting: str) -> Option:
    """Return an option that is a share of a peak: above 0, at most 1."""

    def read(method: Method, text: str) -> Method:
        value = number_of(text)
        if not 0 < value <= 1:
            raise ValueError(f"is a number above 0 and at most 1, not {shorten(text)}")
        return method.with_settings(**{setting: value})

    return Option(meaning, "1", read)


def _set_stack(method: Method, text: str) -> Method:
    """Return a method with the stack of an option's text."""
    name = resolve_stack(text)
    catalog.stack(name)  # raises for a file that is none
    return method.with_settings(stack=name)


def stack_option(name: str) -> dict[str, str]:
    """Return the option that says a stack, nothing for the default one and for "", unknown."""
    return {} if name in {"", catalog.DEFAULT_STACK} else {"stack": name}


def share_fabric(fabric: Fabric, devices: int) -> Fabric:
    """Return the fabric of devices that are all that its links join (`effective_link`)."""
    node_devices, nodes = fabric.node_size_and_count(devices)
    parts = nodes if nodes > 1 else node_devices
    inner = fabric.inside
    inside = effective_link(inner, node_devices, node_devices) if isinstance(inner, Link) else inner
    return replace(fabric, between=effective_link(fabric.between, parts, parts), inside=inside)


def usual_stack(workload: Workload, device: Device) -> str:
    """Return the stack of a step on one device where nobody names one (`defaults_for`)."""
    usual = defaults_for(device, Plan()).stack
    if usual == catalog.DEFAULT_STACK:
        return usual
    return defaults_for(device, Plan(), reads_words=build(workload).tokens is not None).stack


def tf32_option(allowed: bool, device: Device) -> dict[str, str]:
    """Return the option that allows TF32 or does not, nothing for a device that has none."""
    return (
        {"tf32": "on" if allowed else "off"} if "tf32" in device.datasheet.peak_flop_per_s else {}
    )


STACK = Option(
    "the software that runs the step, a name or FILE.toml", catalog.DEFAULT_STACK, _set_stack
)
YES_NO = {"yes": True, "no": False}
EFFICIENCIES = {  # Paleo's names for them
    "ppp_comp": share_option("share of the device's peaks that is reached", "compute_efficiency"),
    "ppp_comm": share_option("share of a link's rate that is reached", "link_efficiency"),
}
TF32 = choice_option(
    "products in float32 as TF32: on, off, or auto as the stack runs them",
    "tf32",
    {"auto": "auto", "on": "on", "off": "off", "yes": "on", "no": "off"},
    "auto",
)
CHANNELS_LAST = choice_option(
    "images lie with their channels last, or auto as the stack lays them",
    "channels_last",
    {"auto": None, **YES_NO},
    "auto",
)
FUSE = choice_option("elementwise ops run in the kernel before them", "fuse", YES_NO, "no")
