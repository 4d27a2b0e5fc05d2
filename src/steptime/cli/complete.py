"""What a shell offers as the value of an option or an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from steptime.core.registry import load
from steptime.core.signatures.signature import QuestionParameter

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


def device_names() -> list[str]:
    """Return the names and aliases of all devices, and the name of this machine."""
    names = load("steptime.hardware.catalog:device_names")()
    return [*names, *load("steptime.hardware.device_words:aliases")(), "local"]


def complete_topics() -> list[str]:
    """Return the topics of `list` and the names of all devices."""
    return [*load("steptime.questions.list.question:TOPICS"), *device_names()]


_DEVICES = f"{__name__}:device_names"
_LINKS = "steptime.hardware.catalog:link_names"
_MODELS = "steptime.network.families:list_names"
NAMES_TARGET_BY_PARAMETER = {
    **dict.fromkeys(("device", "of", "server"), _DEVICES),
    **dict.fromkeys(("model", "models", "draft"), _MODELS),
    **dict.fromkeys(("link", "inside", "host_link"), _LINKS),
    "stack": "steptime.hardware.catalog:stack_names",
    "method": "steptime.prediction:METHODS",
    "dtype": "steptime.core.dtypes:PRECISIONS",
    "phase": "steptime.core.workload:PHASES",
    "optimizer": "steptime.core.workload:OPTIMIZERS",
    "backend": "steptime.measure.registry:BACKENDS",
    "kind": "steptime.analysis.analyses:PLOTS",
    "topic": f"{__name__}:topics",
}
"""A table or a function with the valid names of a parameter, where its kind names none."""


def make_completer(
    parameter: QuestionParameter,
) -> Callable[[CompletionContext], list[str]] | None:
    """Return the function that completes a parameter's value, None for a parameter of any text."""
    choices = parameter.kind.choices
    target = parameter.kind.completes or NAMES_TARGET_BY_PARAMETER.get(parameter.name, "")
    if not choices and not target:
        return None

    def complete(context: CompletionContext) -> list[str]:
        return complete_text(context.incomplete, choices or _load_names(target))

    return complete


def _load_names(target: str) -> list[str]:
    """Return the names at `module:attribute`, which is a table or a function."""
    names = load(target)
    return list(names() if callable(names) else names)


def complete_text(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that continue a text; in a list with commas they continue its last item.

    The typed text stays as it is, because shells drop candidates that do not begin with it:
    `t4,H100-p` becomes `t4,H100-pcie`.
    """
    prefix = incomplete.rpartition(",")[2].lower()  # of the last item of a list
    matching_names = [name for name in names if name.lower().startswith(prefix)]
    return [incomplete + name[len(prefix) :] for name in matching_names]
