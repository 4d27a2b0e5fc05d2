"""The backends by name: the modules that run graphs, and the packages that they need.

Other packages add their own as entry points of the group `steptime.backends`: a name, and the
module that has what `measure/contract.py` describes.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.hardware import catalog
from steptime.hardware.stack import Stack, label_of
from steptime.records import stacks

GROUP = "steptime.backends"


@dataclass(frozen=True)
class Backend:
    """The module of a backend, and the distribution whose version its records carry.

    One that `rewrites` graphs runs of many ops that are alike, or that nobody reads, one or none.
    Replicas are as many processes, or the devices of `one_process`. `devices` are the kinds that it
    knows by name, empty where only it itself can tell. One `of_code` runs the code that a person
    named, not a graph.
    """

    module: str
    package: str
    rewrites: bool = False
    one_process: bool = False
    devices: tuple[str, ...] = ()
    of_code: bool = False


_TORCH, _JAX = ("cpu", "cuda", "mps"), ("cpu", "cuda", "tpu")
BACKENDS: Mapping[str, Backend] = {
    "torch": Backend("steptime.measure.backends.torch.backend", "torch", devices=_TORCH),
    "jax": Backend("steptime.measure.backends.jax.backend", "jax", True, True, _JAX),
    "native": Backend(
        "steptime.measure.backends.native.backend", "torch", True, devices=_TORCH, of_code=True
    ),
    "onnxruntime": Backend(
        "steptime.measure.backends.onnxruntime.backend", "onnxruntime", True, False, ("cpu", "cuda")
    ),
}


def stack(name: str, where: str = "") -> Stack:
    """Return the stack of a name as it is measured; a backend without a data file is one, too.

    Raises `InputError` for an unknown name, and for a stack that nothing here runs.
    """
    labels = stacks.measured_labels()
    if name in labels or name in catalog.stack_names() or name.endswith(".toml"):
        found = catalog.stack(labels.get(name, name))
        if not found.backend:
            raise InputError(
                f"{where}{': ' if where else ''}stack {name} is for predictions: no backend runs it"
            )
        return found
    known = backends()
    if name not in known:
        raise unknown("stack", name, {**labels, **known}, where)
    return Stack(name, "", backend=name)


def stack_names() -> list[str]:
    """Return the names of the stacks that something here runs."""
    return list(dict.fromkeys([*stacks.measured_labels(), *backends()]))


def compiles(name: str, compiled: bool) -> bool:
    """Whether a backend can be told so; other packages' know for themselves."""
    unasked = not compiled or name not in BACKENDS
    return unasked or label_of(name, compiled) in stacks.measured_labels()


def backend(name: str, where: str = "") -> Backend:
    """Return the row of a backend; raises `InputError` for a name that no package has."""
    known = BACKENDS if name in BACKENDS else backends()
    return known[check_choice("backend", name, known, where)]


def check_device(name: str, device: str, where: str) -> None:
    """Raise `InputError` for a device that a backend of ours knows on no machine."""
    kinds = backend(name, where).devices
    if kinds and not re.fullmatch(rf"({'|'.join(kinds)})(:\d+)?", device, re.ASCII):
        known = f"{name} has {', '.join(kinds)}, or with a number {kinds[1]}:0"
        raise InputError(f"{where}: unknown device {shorten(device)}; {known}")


def version(name: str) -> str | None:
    """Return the version of a backend's framework without the tag of its build; None: not here."""
    package = backend(name).package
    of_module = metadata.packages_distributions().get(package, ())  # such as onnxruntime-gpu
    for one in (package, *of_module):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(one).partition("+")[0]
    return None


def backends() -> dict[str, Backend]:
    """Return all backends by name: these, and those of other packages."""
    added = {
        point.name: Backend(point.value, point.dist.name if point.dist else "")
        for point in metadata.entry_points(group=GROUP)
    }
    return {**BACKENDS, **added, **BACKENDS}  # none of ours is replaced
