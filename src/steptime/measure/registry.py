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
    """A backend.

    Attributes:
        module: the module of the backend.
        package: the distribution whose version its records carry.
        rewrites: whether it merges equal ops, and drops results that nothing reads.
        is_single_process: whether replicas are devices of one process, rather than processes.
        devices: the kinds of devices that it knows by name; empty if only the backend can tell.
        of_code: whether it runs the code that a person named, not a graph.
    """

    module: str
    package: str
    rewrites: bool = False
    is_single_process: bool = False
    devices: tuple[str, ...] = ()
    runs_user_code: bool = False


_TORCH, _JAX = ("cpu", "cuda", "mps"), ("cpu", "cuda", "tpu")
BACKENDS: Mapping[str, Backend] = {
    "torch": Backend("steptime.measure.backends.torch.backend", "torch", devices=_TORCH),
    "jax": Backend(
        "steptime.measure.backends.jax.backend",
        "jax",
        rewrites=True,
        is_single_process=True,
        devices=_JAX,
    ),
    "native": Backend(
        "steptime.measure.backends.native.backend",
        "torch",
        rewrites=True,
        devices=_TORCH,
        runs_user_code=True,
    ),
    "onnxruntime": Backend(
        "steptime.measure.backends.onnxruntime.backend",
        "onnxruntime",
        rewrites=True,
        devices=("cpu", "cuda"),
    ),
}


def stack(name: str, place: str = "") -> Stack:
    """Return the stack of a name as it is measured; a backend without a data file is one, too.

    Raises `InputError` for an unknown name, and for a stack that nothing here runs.
    """
    stack_by_label = stacks.measured_labels()  # by the label that its records have
    has_data_file = (
        name in stack_by_label or name in catalog.stack_names() or name.endswith(".toml")
    )
    if has_data_file:
        measured_stack = catalog.stack(stack_by_label.get(name, name))
        if not measured_stack.backend:
            prefix = f"{place}: " if place else ""
            raise InputError(f"{prefix}stack {name} is for predictions: no backend runs it")
        return measured_stack
    all_backends = backends()
    if name not in all_backends:
        raise unknown("stack", name, {**stack_by_label, **all_backends}, place)
    return Stack(name, "", backend=name)  # a backend of another package, without a data file


def stack_names() -> list[str]:
    """Return the names of the stacks that something here runs."""
    return list(dict.fromkeys([*stacks.measured_labels(), *backends()]))


def accepts_compile(name: str, compiled: bool) -> bool:
    """Whether a backend can be told so; other packages' know for themselves."""
    if not compiled or name not in BACKENDS:
        return True
    return label_of(name, compiled) in stacks.measured_labels()


def backend(name: str, place: str = "") -> Backend:
    """Return the row of a backend; raises `InputError` for a name that no package has."""
    backend_by_name = BACKENDS if name in BACKENDS else backends()  # packages are read if needed
    return backend_by_name[check_choice("backend", name, backend_by_name, place)]


def check_device(name: str, device: str, place: str) -> None:
    """Raise `InputError` for a device that a backend of ours knows on no machine."""
    kinds = backend(name, place).devices
    if kinds and not re.fullmatch(rf"({'|'.join(kinds)})(:\d+)?", device, re.ASCII):
        choices = f"{name} has {', '.join(kinds)}, or with a number {kinds[1]}:0"
        raise InputError(f"{place}: unknown device {shorten(device)}; {choices}")


def version(name: str) -> str | None:
    """Return the version of a backend's framework without the tag of its build; None: not here."""
    package = backend(name).package
    distributions = metadata.packages_distributions().get(package, ())  # such as onnxruntime-gpu
    for distribution in (package, *distributions):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution).partition("+")[0]
    return None


def backends() -> dict[str, Backend]:
    """Return all backends by name: these, and those of other packages."""
    backends_of_packages = {
        point.name: Backend(point.value, point.dist.name if point.dist else "")
        for point in metadata.entry_points(group=GROUP)
    }
    return {**BACKENDS, **backends_of_packages, **BACKENDS}  # none of ours is replaced
