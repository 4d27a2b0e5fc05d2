"""What a shell offers as the value of an option or an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from steptime.core.errors import describe_names
from steptime.core.registry import load
from steptime.core.signatures.signature import QuestionParameter

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


def device_names() -> list[str]:
    """Return the names and aliases of all devices, and the name of this machine."""
    names = load("steptime.hardware.catalog:device_names")()
    return [*names, *load("steptime.hardware.device_words:aliases")(), "local"]


_DEVICES = f"{__name__}:device_names"
_LINKS = "steptime.hardware.catalog:link_names"
_MODELS = "steptime.network.families:list_names"
_STACKS = "steptime.hardware.catalog:stack_names"
_NOUN_BY_TARGET = {_DEVICES: "device", _LINKS: "link", _MODELS: "model", _STACKS: "stack"}
NAMES_TARGET_BY_PARAMETER = {
    **dict.fromkeys(("device", "of"), _DEVICES),
    **dict.fromkeys(("model", "models", "draft"), _MODELS),
    **dict.fromkeys(("link", "inside", "host_link"), _LINKS),
    "stack": _STACKS,
    "method": "steptime.prediction:METHODS",
    "dtype": "steptime.core.dtypes:PRECISIONS",
    "phase": "steptime.core.workload:PHASES",
    "optimizer": "steptime.core.workload:OPTIMIZERS",
    "backend": "steptime.measure.registry:BACKENDS",
    "kind": "steptime.analysis.analyses:PLOTS",
}
"""A table or a function with the valid names of a parameter, where its kind names none."""


def make_completer(
    parameter: QuestionParameter,
) -> Callable[[CompletionContext], list[str]] | None:
    """Return the function that completes a parameter's value, None for a parameter of any text."""
    if not parameter.kind.choices and not _names_target(parameter):
        return None

    def complete(context: CompletionContext) -> list[str]:
        return complete_text(context.incomplete, valid_names(parameter))

    return complete


def _names_target(parameter: QuestionParameter) -> str:
    """Return the table or the function with a parameter's names, "" for one of any text."""
    return parameter.kind.completes or NAMES_TARGET_BY_PARAMETER.get(parameter.name, "")


def valid_names(parameter: QuestionParameter) -> list[str]:
    """Return the names that a parameter takes, [] for one of any text."""
    target = _names_target(parameter)
    if parameter.kind.choices or not target:
        return list(parameter.kind.choices)
    names = load(target)
    return list(names() if callable(names) else names)


def describe_value(parameter: QuestionParameter) -> str:
    """Describe the values of an option: `known: sgd, adam`, or `N: Steps of a run`."""
    names = valid_names(parameter)
    if names:
        noun = _NOUN_BY_TARGET.get(_names_target(parameter), "")
        return describe_names(names, noun)
    first_sentence = parameter.help.replace("`", "").partition(". ")[0].rstrip(".")
    return f"{parameter.kind.metavar or 'VALUE'}: {' '.join(first_sentence.split())}"


def complete_text(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that continue a text; in a list with commas they continue its last item.

    The typed text stays as it is, because shells drop candidates that do not begin with it:
    `t4,H100-p` becomes `t4,H100-pcie`.
    """
    prefix = incomplete.rpartition(",")[2].lower()  # of the last item of a list
    matching_names = [name for name in names if name.lower().startswith(prefix)]
    return [incomplete + name[len(prefix) :] for name in matching_names]
