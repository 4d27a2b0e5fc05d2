"""The page of `choose --weights`: which device runs which weights, to choose in."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from steptime.core.answer import Answer
from steptime.core.errors import InputError
from steptime.core.files import check_ending
from steptime.core.json_types import JsonObject
from steptime.core.progress import track_progress
from steptime.core.signatures.kinds import text_of
from steptime.core.units import first_of, format_count
from steptime.core.values import parse_counts, parse_models, parse_names
from steptime.hardware.device import Device
from steptime.hardware.prices import Offer
from steptime.questions.choose.desktop import (
    MAX_NAMES,
    choose_case,
    describe_price_dates,
    make_choose_row,
    resolve_devices,
)
from steptime.questions.fit.desktop import (
    ALL_WEIGHTS,
    DEFAULT_CONTEXT,
    is_desktop_fit,
)
from steptime.questions.options import words_of
from steptime.questions.step_options import StepOptions
from steptime.serving.desktop.request import DesktopCase


class WeightsPage(Answer, frozen=True, kw_only=True):
    """A page to choose in which device runs which weights.

    Attributes:
        path: the page.
        row_count: number of its rows.
        model: the networks to choose from.
        weights: the types of weights; `all` is that of most bits that fits each device.
        context_tokens: the contexts.
        device: the devices.
        headline: the number of rows and the page.
        notes: devices that the software does not run on, and the dates of prices.
    """

    path: str
    row_count: int
    model: tuple[str, ...]
    weights: tuple[str, ...]
    context_tokens: tuple[int, ...]
    device: tuple[str, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]


class _PageCase(NamedTuple):
    """A device under a choice of the page.

    Attributes:
        model: the network, a text.
        weights: the choice: a type, or `all`.
        option: the type as `--weights` has it; None for that of the file or the software.
        case: the case of that device.
    """

    model: str
    weights: str
    option: str | None
    case: DesktopCase


def is_weights_page(model: Any, options: StepOptions) -> bool:
    """Whether a page is of weights for one's own machine: its lists have one of these."""
    weight_names = _list_weights(options)
    return any(
        is_desktop_fit(name, replace(options, weights=weights))
        for name in parse_models(text_of(model))
        for weights in weight_names
    )


def write_weights_page(
    path: Path,
    model: Any,
    devices: Sequence[Device],
    options: StepOptions,
    offers: Mapping[str, Offer],
) -> WeightsPage:
    """Write the page of networks, types of weights, contexts and devices.

    Args:
        path: the file of the page.
        model: networks, with commas.
        devices: the devices.
        options: the options of the step; `weights` and `length` may be lists with commas.
        offers: prices by device.

    Raises:
        InputError: for unknown names, options of a training, and if the software runs on none of
            the devices.
    """
    from steptime.reports.weights import WeightsChoices, write_weights

    check_ending(path, (".html",), "ending of a page")
    cases = _list_cases(parse_models(text_of(model)), devices, options)
    row_by_choice = {}  # `int4` and `q4_k_m` are one type: its rows come once
    for page_case in track_progress(cases, "rows"):
        row = _make_page_row(page_case, offers)
        choice = row["model"], row["weights"], row["context"], row["device"]
        row_by_choice[choice] = row
    rows = list(row_by_choice.values())
    notes = _list_notes(rows, devices, offers)
    choices = WeightsChoices(
        rows=rows,
        offers=offers,
        usable_bytes={device.name: device.datasheet.usable_bytes for device in devices},
        words=words_of({"dtype": options.dtype}),
        notes=notes,
    )
    axes = write_weights(choices, path)
    return WeightsPage(
        path=str(path),
        row_count=len(rows),
        model=tuple(axes["model"]),
        weights=tuple(axes["weights"]),
        context_tokens=tuple(map(int, axes["context"])),
        device=tuple(axes["device"]),
        headline=(f"{format_count(len(rows), 'row')}: {path}",),
        notes=tuple(notes),
    )


def _list_weights(options: StepOptions) -> list[str | None]:
    """Return the types of weights that are asked for, None for that of the file or the stack."""
    return [None] if options.weights is None else parse_names(options.weights, "--weights")


def _list_cases(
    models: Sequence[Any], devices: Sequence[Device], options: StepOptions
) -> list[_PageCase]:
    """Return every device under every choice; raises `InputError` for a choice without a device."""
    contexts = parse_counts(options.length or DEFAULT_CONTEXT, "--length")
    choices = [
        (model, replace(options, weights=weights, length=str(context)))
        for model in models
        for context in contexts
        for weights in _list_weights(options)
    ]
    page_cases = []
    for model, choice in choices:
        cases_by_device, unsupported = resolve_devices(model, devices, choice)
        if not cases_by_device:
            raise InputError(next(iter(unsupported.values())))
        for cases in cases_by_device:
            if choice.weights == ALL_WEIGHTS:
                best_case = choose_case(cases)
                label = best_case.weights.label
                page_cases.append(_PageCase(str(model), ALL_WEIGHTS, label, best_case))
            for case in cases:
                label = case.weights.label
                # Without --weights the command of a row leaves the option out.
                option = None if choice.weights is None else label
                page_cases.append(_PageCase(str(model), label, option, case))
    return page_cases


def _make_page_row(page_case: _PageCase, offers: Mapping[str, Offer]) -> JsonObject:
    """Predict a device under a choice, as `choose --weights` does."""
    row = make_choose_row(page_case.case, offers).to_dict()
    return {
        **row,
        "type": row["weights"],
        "option": page_case.option,
        "stack": page_case.case.machine.stack.name,
        "model": page_case.model,
        "weights": page_case.weights,
        "context": page_case.case.demand.context,
    }


def _list_notes(
    rows: Sequence[JsonObject], devices: Sequence[Device], offers: Mapping[str, Offer]
) -> list[str]:
    """Return the devices that the software does not run on, and the dates of prices."""
    page_devices = {row["device"] for row in rows}
    stacks = ", ".join(dict.fromkeys(row["stack"] for row in rows))
    unsupported = [device.name for device in devices if device.name not in page_devices]
    notes = []
    if unsupported:
        names = first_of(unsupported, MAX_NAMES)
        notes.append(
            f"{format_count(len(unsupported), 'device')} that {stacks} is not for: {names}"
        )
    dates = {offers[name].date for name in page_devices if name in offers}
    return [*notes, *describe_price_dates(dates)]
