"""What a shell offers as the value of an option or an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from steptime.core.question import Slot
from steptime.core.registry import load

Names = Callable[[], Iterable[str]]


def _of(target: str) -> Names:
    """Return what gives the names that are at `module:attribute`: a function or a table of them."""

    def names() -> Iterable[str]:
        known = load(target)
        return list(known() if callable(known) else known)

    return names


def _devices() -> list[str]:
    catalog = "steptime.hardware.catalog"
    return [*load(f"{catalog}:device_names")(), *load(f"{catalog}:aliases")(), "local"]


def _topics() -> list[str]:
    return [*load("steptime.questions.list:TOPICS"), *_devices()]


MODELS = _of("steptime.network.families:names")
LINKS = _of("steptime.hardware.catalog:link_names")
OFFERED: dict[str, Names] = {  # parameters: what they take
    **dict.fromkeys(("device", "of", "server"), _devices),
    **dict.fromkeys(("model", "models", "draft"), MODELS),
    **dict.fromkeys(("link", "inside", "host_link"), LINKS),
    "stack": _of("steptime.hardware.catalog:stack_names"),
    "method": _of("steptime.prediction:METHODS"),
    "dtype": _of("steptime.core.dtypes:PRECISIONS"),
    "phase": _of("steptime.core.workload:PHASES"),
    "optimizer": _of("steptime.core.workload:OPTIMIZERS"),
    "backend": _of("steptime.measure.registry:BACKENDS"),
    "kind": _of("steptime.analysis.analyses:PLOTS"),
    "topic": _topics,
}


def completion(slot: Slot) -> Callable[[str], list[str]] | None:
    """Return what completes the value of a parameter as Typer asks for it, None for any text."""
    offered = slot.option.known or OFFERED.get(slot.name)
    if not offered:
        return None
    names = offered if callable(offered) else partial(iter, offered)

    def complete(incomplete: str) -> list[str]:
        return begin(incomplete, names())

    return complete


def begin(incomplete: str, names: Collection[str] | Iterable[str]) -> list[str]:
    """Return the names that begin so, of a list with commas those of its last piece.

    What was typed stays, small or large letters: Typer drops what does not begin with it.
    """
    last = incomplete.rpartition(",")[2].lower()
    return [incomplete + name[len(last) :] for name in names if name.lower().startswith(last)]
