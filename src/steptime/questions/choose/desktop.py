"""`choose` of devices for a language model of one's own: which card runs these weights."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from steptime.core.answer import Answer
from steptime.core.errors import InputError, check_choice
from steptime.core.signatures.signature import option_name
from steptime.core.tables.table import Column, Printout, Table
from steptime.core.units import first_of, format_count
from steptime.hardware.device import Device
from steptime.hardware.prices import HOUR_S, Offer
from steptime.questions.fit.desktop import (
    ALL_WEIGHTS,
    DesktopFitRow,
    find_assumed,
    make_request,
    predict_row,
    resolve_cases_of_types,
)
from steptime.questions.step_options import StepOptions
from steptime.serving.desktop.request import DesktopCase

MAX_TABLE_ROWS = 40  # devices that people see
MAX_NAMES = 5  # devices that a note names
MILLION = 1e6
DEFAULT_SORT = "time"
COLUMNS = (
    Column("device"),
    Column("weights"),
    Column("file_bytes", "file", is_spare=True),
    Column("needed_bytes", "memory"),
    Column("usable_bytes", "of", is_spare=True),
    Column("verdict", "fits"),
    Column("longest_context", "longest context"),
    Column(
        "tokens_per_s_per_user",
        "tokens/s",
        ends=("tokens_per_s_low", "tokens_per_s_high"),
        form=".3g",
        is_answer=True,
    ),
    Column("prefill_tokens_per_s", "prefill/s"),
    Column("cost_per_hour", "cost/h", form=",.2f"),
    Column("cost_per_million_tokens", "cost/Mtoken", form=",.2f"),
)
UNSORTED_KEYS = ("fits", "offer", "price_date", "is_price_verified")


class DesktopChooseRow(DesktopFitRow, frozen=True, kw_only=True):
    """A device that runs a language model on one's own machine, and what it costs.

    Attributes:
        weights: the type of the weights; with `all` the one with the most bits that fits, or the
            one with the fewest bits if none fits or the memory is unknown.
        device: the device.
        usable_bytes: memory that a process may use of the device; null where unknown.
        cost_per_hour: price of the device for an hour; null without an offer.
        cost_per_million_tokens: price of a million tokens of one user; null without an offer.
        offer: the cheapest offer of the device.
        price_date: the date of the offer.
        is_price_verified: whether the price was read in a price list.
    """

    device: str
    usable_bytes: float | None
    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    offer: str | None
    price_date: str | None
    is_price_verified: bool | None


class DesktopChooseAnswer(Answer, frozen=True, kw_only=True):
    """Devices for a language model of one's own, the best first.

    Attributes:
        model: the network.
        stack: the software.
        kv: type of the cached keys and values.
        weights: the type of the weights, or `all`.
        context_tokens: tokens that the cache has room for.
        currency: currency of costs; null without prices.
        sort: the order of the rows: time, cost, energy or another column; `-` for largest first.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        rows: the devices; last those on which the model does not fit.
        headline: facts that a reader needs first.
        notes: remarks that change how the answer is read.
    """

    model: str
    stack: str
    kv: str
    weights: str
    context_tokens: int
    currency: str | None
    sort: str
    assumed: dict[str, str]
    rows: tuple[DesktopChooseRow, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the devices that it fits as a table; without any, all of them."""
        # Devices of unknown memory (None) stay in.
        printed_rows = [row for row in self.rows if row.fits is not False]
        if not printed_rows:  # where none fits, all are printed, with what each needs
            printed_rows = list(self.rows)
        cells = [row.to_dict() for row in printed_rows]
        filled_columns = [
            column for column in COLUMNS if any(row[column.key] is not None for row in cells)
        ]
        title = f"{self.model}, {self.weights} weights, a context of {self.context_tokens:,}"
        lines = [*self.headline, f"{title} ({self.stack}), by {self.sort}"]
        assumed = ", ".join(f"{option_name(name)} {text}" for name, text in self.assumed.items())
        footnotes = [f"assumed: {assumed}"] if assumed else []
        if any(row.cost_per_hour is not None for row in printed_rows):
            footnotes.append(f"cost in {self.currency}; a million tokens of one user")
        return [
            Table(
                tuple(filled_columns),
                cells,
                "\n".join(lines),
                footnotes,
                max_rows=MAX_TABLE_ROWS,
                csv_columns=COLUMNS,
            )
        ]

    def printout(self) -> Printout:
        """Return the answer as the command line prints it: the headline stands in the title."""
        return replace(super().printout(), text="")


def answer_desktop_choose(
    model: Any,
    devices: Iterable[Device],
    options: StepOptions,
    offers: Mapping[str, Offer],
    sort: str,
    row_count: int,
) -> DesktopChooseAnswer:
    """Answer `choose` for weights of one's own machine.

    Args:
        model: the network, a text.
        devices: the devices.
        options: the options of the step; `weights` is a type, or `all`.
        offers: prices by device.
        sort: the order of the rows.
        row_count: devices that are shown.

    Raises:
        InputError: for unknown names, options of a training, and if the software runs on none of
            the devices.
    """
    weights = options.weights or ""
    check_choice("--sort", sort.removeprefix("-"), _map_sort_names_to_keys())
    cases_by_device, unsupported = resolve_devices(model, devices, options)
    if not cases_by_device:
        raise InputError(next(iter(unsupported.values())))
    cases = [choose_case(device_cases) for device_cases in cases_by_device]
    # The model, the software and the type of the cache are the same on every device.
    first_case = cases[0]
    all_rows = [make_choose_row(case, offers) for case in cases]
    notes = _list_notes(all_rows, list(unsupported), first_case)
    sorted_rows = _sort_rows(all_rows, sort, has_all_weights=weights == ALL_WEIGHTS)
    rows = sorted_rows[:row_count]
    currencies = {offers[row.device].currency for row in rows if row.device in offers}
    return DesktopChooseAnswer(
        model=str(model),
        stack=first_case.machine.stack.name,
        kv=first_case.demand.cache_type,
        weights=weights or first_case.weights.label,
        context_tokens=first_case.demand.context,
        currency=currencies.pop() if len(currencies) == 1 else None,
        sort=sort,
        assumed=find_assumed(first_case, options),
        rows=tuple(rows),
        headline=(_describe_best_device(rows),),
        notes=tuple(notes),
    )


def resolve_devices(
    model: Any, devices: Iterable[Device], options: StepOptions
) -> tuple[list[list[DesktopCase]], dict[str, str]]:
    """Return the cases of each device, and why the software does not run on each other one.

    The cases of a device are the types of weights that are asked for, that of most bits first.
    """
    cases_by_device = []
    reason_by_device = {}
    for device in devices:
        request = make_request("choose", model, device, options)
        try:
            cases_by_device.append(resolve_cases_of_types(request, options.weights))
        except InputError as error:
            reason_by_device[device.name] = str(error)
    return cases_by_device, reason_by_device


def choose_case(cases: Sequence[DesktopCase]) -> DesktopCase:
    """Return the case of most bits that fits a device; where none is known to fit, the smallest.

    Args:
        cases: the types of weights on the device, that of most bits first.
    """
    # Cases begin with the most bits and end with the fewest.
    smallest_case = cases[-1]
    if smallest_case.machine.device.datasheet.usable_bytes is None:
        return smallest_case
    fitting_cases = (case for case in cases if not case.predict_memory().over_bytes)
    return next(fitting_cases, smallest_case)


def make_choose_row(case: DesktopCase, offers: Mapping[str, Offer]) -> DesktopChooseRow:
    """Predict a device, as `fit` does, and add its price."""
    device = case.machine.device
    row = predict_row(case)
    offer = offers.get(device.name)
    cost_per_million = None
    if offer is not None:
        cost_per_s = offer.price / HOUR_S
        cost_per_million = cost_per_s * MILLION / row.tokens_per_s_per_user
    return DesktopChooseRow(
        device=device.name,
        usable_bytes=device.datasheet.usable_bytes,
        cost_per_hour=None if offer is None else offer.price,
        cost_per_million_tokens=cost_per_million,
        offer=None if offer is None else offer.name,
        price_date=None if offer is None else offer.date,
        is_price_verified=None if offer is None else offer.verified,
        **row.to_dict(),
    )


def _map_sort_names_to_keys() -> dict[str, str]:
    """Return the key of each name that rows are sorted by."""
    keys = [name for name in DesktopChooseRow.__struct_fields__ if name not in UNSORTED_KEYS]
    # `--sort` takes a heading of the table, the key of a field, or one of these words.
    key_by_name = {column.label.lower(): column.key for column in COLUMNS if column.label}
    key_by_name |= {key: key for key in keys}
    key_by_name |= {DEFAULT_SORT: "tokens_per_s_per_user", "cost": "cost_per_million_tokens"}
    return {name: key for name, key in key_by_name.items() if key in keys}


def _sort_rows(
    rows: Sequence[DesktopChooseRow], sort: str, *, has_all_weights: bool
) -> list[DesktopChooseRow]:
    """Return the devices that it fits, in order, then those of unknown memory and the others.

    By time the fastest come first; of all types of weights those of most bits before them.
    """

    def by_bits_and_speed(row: DesktopChooseRow) -> tuple[float, float]:
        # More bits keep more of the model's quality. With one type for all, only the speed counts.
        bits = row.bits_per_weight if has_all_weights else 0.0
        return -bits, -row.tokens_per_s_per_user

    column_key = _map_sort_names_to_keys()[sort.removeprefix("-")]

    def by_column(row: DesktopChooseRow) -> Any:
        return getattr(row, column_key)

    if sort == DEFAULT_SORT:
        ordered_rows = sorted(rows, key=by_bits_and_speed)
    else:
        valued_rows = [row for row in rows if by_column(row) is not None]
        unvalued_rows = [row for row in rows if by_column(row) is None]
        valued_rows.sort(key=by_column, reverse=sort.startswith("-"))
        ordered_rows = [*valued_rows, *unvalued_rows]
    # The sort is stable: within a verdict, the order of the column stays.
    verdict_ranks = {"yes": 0, "unknown": 1, "no": 2}
    return sorted(ordered_rows, key=lambda row: verdict_ranks[row.verdict])


def _describe_best_device(rows: Sequence[DesktopChooseRow]) -> str:
    """Describe the first device that it fits."""
    best = rows[0] if rows else None
    if best is None or best.verdict == "no":
        return "it fits none of the devices"
    if best.fits is None:
        return "the memory of the devices is unknown"
    speed = f"{best.tokens_per_s_per_user:,.0f} tokens/s"
    return f"{best.device}: {best.weights} fits, {speed}"


def _list_notes(
    rows: Sequence[DesktopChooseRow], unsupported: Sequence[str], case: DesktopCase
) -> list[str]:
    """Return the devices that are left out or too small, and the dates of prices."""
    notes = []
    too_small_devices = [row.device for row in rows if row.fits is False]
    if too_small_devices:
        names = first_of(too_small_devices, MAX_NAMES)
        notes.append(f"{format_count(len(too_small_devices), 'device')} too small: {names}")
    if unsupported:
        names = first_of(unsupported, MAX_NAMES)
        stack = case.machine.stack.name
        notes.append(f"{format_count(len(unsupported), 'device')} that {stack} is not for: {names}")
    notes += describe_price_dates({row.price_date for row in rows if row.price_date})
    if any(row.longest_context == case.trained_length for row in rows):
        notes.append(f"a context of {case.trained_length:,} tokens is the longest of the model")
    return notes


def describe_price_dates(dates: Collection[str]) -> list[str]:
    """Return the remark that prices are of these dates; none without a date."""
    return [f"prices are of a date and change: {'; '.join(sorted(dates))}"] if dates else []
