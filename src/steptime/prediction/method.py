"""A method of prediction: how a graph becomes kernels, what a kernel costs, and the options."""

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
from steptime.prediction.collectives import COLLECTIVES, Collective, Fabric, as_reached, fabric_of
from steptime.prediction.kernel import Interval, Kernel, Settings, interval_of
from steptime.prediction.kernels import Kernels, Prices
from steptime.prediction.lower import Lowered, lower
from steptime.prediction.price import roofline, seen

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
    """A method of prediction: two verbs, and which settings of them a user may change.

    `lower(graph, dtype, settings)` returns the kernels of a step, `price(kernel, device)` the
    seconds of one; `sees(device, dtype, settings)` returns the device as its kernels find it,
    `notes(graph, dtype, device, settings)` what a reader must know. `collective` is how replicas
    exchange gradients if nothing else is asked for, by a name of `collectives`, over links
    as `links(fabric)` finds them; `latency` says whether messages over these have one.
    `too_few(replicas, examples)` returns the note where each of more replicas than examples
    computes one, and raises `InputError` where none may. `reads` names the fields of a device that
    the price reads beyond those of a roofline; records hash them too (`device_hash`).
    A price that takes `arrays` is asked for `Rows`, others for one `Kernel` after the other.
    """

    name: str
    version: str
    lower: Callable[[Graph, str, Settings], Lowered] = lower
    price: Callable[[Any, Device], Interval | float] = roofline
    options: Mapping[str, Option] = field(default_factory=dict)
    settings: Settings = ANALYTIC
    sees: Callable[[Device, str, Settings], Device] = seen
    notes: Callable[[Graph, str, Device, Settings], tuple[str, ...]] = lambda *_: ()
    collective: str = "ring"
    collectives: Mapping[str, Collective] = field(default_factory=lambda: COLLECTIVES)
    links: Callable[[Fabric], Fabric] = as_reached
    latency: bool = True
    too_few: Callable[[int, int], str] = refuse_few
    reads: tuple[str, ...] = ()
    arrays: bool = False

    def joins(
        self, link: Link | Fabric, memory_bytes_per_s: float | None = None, devices: int = 1
    ) -> Fabric:
        """Return what joins devices as the method finds it: the one rate of a link.

        Of several `devices`, all that the links join, it is what these have of it together.
        """
        share = self.settings.link_efficiency
        return self.links(among(fabric_of(link, share, memory_bytes_per_s), devices))

    def copies(self, link: Link) -> Fabric:
        """Return what joins a device to its host: copies reach the rate of the link."""
        return fabric_of(link, self.settings.link_efficiency)

    def prices(self, kernels: Kernels, device: Device) -> Prices:
        """Return the seconds of kernels that differ on a device, as the method sees it.

        Exchanges, which know no device, have none.
        """
        ask = self.ask(device)
        if self.arrays:
            return kernels.priced(ask)
        every = (Interval(0.0) if one.exchange else ask(one) for one in kernels.distinct)
        return Prices.of([interval_of(one) for one in every])

    def ask(self, device: Device) -> Callable[..., Interval | float]:
        """Return what says the seconds of rows where the price takes `arrays`, else of a kernel."""
        return lambda one, _places=None: self.price(one, device)

    def under(self, given: Mapping[str, str]) -> Method:
        """Return the method under options as texts; raises `InputError`, naming the option."""
        found = self
        for name, text in given.items():
            check_choice("option", name, self.options, self.name)
            try:
                found = self.options[name].read(found, text)
            except ValueError as error:
                raise InputError(f"{self.name}: option {name} {error}") from None
        return found

    def changed(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options as texts that depart from their defaults."""
        return {name: text for name, text in given.items() if text != self.options[name].default}

    def tuned(self, **changes: Any) -> Method:
        """Return the method with some of its settings changed."""
        return replace(self, settings=replace(self.settings, **changes))


class PriceError(InputError):
    """A price of one's own that fails, or says no time."""


Price = Callable[[Kernel, Device], Interval | float]


def priced_by(name: str, price: Price) -> Method:
    """Return the method of a price of one's own; predicting raises `PriceError` for no time.

    It sees what launching takes, though the host issues ahead of the device.
    """

    def checked(kernel: Kernel, device: Device) -> Interval:
        try:
            found = interval_of(price(kernel, device))
        except Exception as error:  # whatever a user's function raises
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise PriceError(f"{name}: the price of {kernel.kind} fails: {reason}") from error
        if not 0 <= found.value < inf:
            raise PriceError(f"{name}: the price of {kernel.kind} is {found.value:g} s, not a time")
        return found

    def sees(device: Device, dtype: str, settings: Settings) -> Device:
        return replace(seen(device, dtype, settings), launch_s=device.launch_s)

    options = {"stack": STACK, "tf32": TF32, "fuse": FUSE}
    return Method(name, "1", price=checked, options=options, sees=sees)


def choice(meaning: str, setting: str, values: Mapping[str, Any], default: str) -> Option:
    """Return an option whose texts stand for values of one setting."""

    def read(method: Method, text: str) -> Method:
        if text not in values:
            *others, last = values
            raise ValueError(f"is {', '.join(others)} or {last}, not {shorten(text)}")
        return method.tuned(**{setting: values[text]})

    return Option(meaning, default, read)


def share(meaning: str, setting: str) -> Option:
    """Return an option that is a share of a peak: above 0, at most 1."""

    def read(method: Method, text: str) -> Method:
        value = number_of(text)
        if not 0 < value <= 1:
            raise ValueError(f"is a number above 0 and at most 1, not {shorten(text)}")
        return method.tuned(**{setting: value})

    return Option(meaning, "1", read)


def _stack(method: Method, text: str) -> Method:
    name = resolve_stack(text)
    catalog.stack(name)  # raises for a file that is none
    return method.tuned(stack=name)


def stack_option(name: str) -> dict[str, str]:
    """Return the option that says a stack, nothing for the default one and for "", unknown."""
    return {} if name in {"", catalog.DEFAULT_STACK} else {"stack": name}


def among(fabric: Fabric, devices: int) -> Fabric:
    """Return what joins so many devices, which are all that its links join (`effective_link`)."""
    near, nodes = fabric.near_and_nodes(devices)
    parts = nodes if nodes > 1 else near
    inner = fabric.inside
    inside = effective_link(inner, near, near) if isinstance(inner, Link) else inner
    return replace(fabric, between=effective_link(fabric.between, parts, parts), inside=inside)


def usual_stack(workload: Workload, device: Device) -> str:
    """Return the stack of a step on one device where nobody names one (`defaults_for`)."""
    usual = defaults_for(device, Plan()).stack
    if usual == catalog.DEFAULT_STACK:
        return usual
    return defaults_for(device, Plan(), reads_words=build(workload).tokens is not None).stack


def tf32_option(allowed: bool, device: Device) -> dict[str, str]:
    """Return the option that allows TF32 or does not, nothing for a device that has none."""
    return {"tf32": "on" if allowed else "off"} if "tf32" in device.peak_flop_per_s else {}


STACK = Option(
    "the software that runs the step, a name or FILE.toml", catalog.DEFAULT_STACK, _stack
)
YES_NO = {"yes": True, "no": False}
EFFICIENCIES = {  # Paleo's names for them
    "ppp_comp": share("share of the device's peaks that is reached", "compute_efficiency"),
    "ppp_comm": share("share of a link's rate that is reached", "link_efficiency"),
}
TF32 = choice(
    "products in float32 as TF32: on, off, or auto as the stack runs them",
    "tf32",
    {"auto": "auto", "on": "on", "off": "off", "yes": "on", "no": "off"},
    "auto",
)
CHANNELS_LAST = choice(
    "images lie with their channels last, or auto as the stack lays them",
    "channels_last",
    {"auto": None, **YES_NO},
    "auto",
)
FUSE = choice("elementwise ops run in the kernel before them", "fuse", YES_NO, "no")
