"""The networks of a regression: their hyperparameters, and the quantity of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from steptime.analysis.sensitivities.sensitivity_answer import Place
from steptime.core.errors import InputError, check_choice, unknown
from steptime.records.data import Data
from steptime.records.pooled_step import IS_STEP
from steptime.records.record_columns import record_columns
from steptime.records.row import is_higher_better

DEFAULT_QUANTITIES = (
    "published_flop_per_s",
    "flop_per_s",
    "examples_per_s",
    "predicted_flop_per_s",
)
DEFAULT_PAIRED_QUANTITIES = ("examples_per_s", "predicted_s")
NETWORK_COLUMNS = ("batch", "phase", "optimizer", "replicas")
STEP_COLUMNS = (
    *NETWORK_COLUMNS,
    *("dtype", "threads", "strategy", "input", "staging", "loaders", "prefetch"),
)
# Names that no hyperparameter has:
METHOD, VALUE, HAS_VALUE = "method of it", "value of it", "has value"
HAS_FAILED = pl.col("status").fill_null("ok") != "ok"


@dataclass(frozen=True)
class Numbers:
    """The values of a quantity by network.

    Attributes:
        rows: a row for each value and each failure, with the columns of networks.
        columns: names of the columns of networks.
        hyperparameters: those of them that are hyperparameters.
        is_rate: whether more of the quantity is better.
        places: the places with a value, and the number of their dtypes.
    """

    rows: pl.DataFrame
    columns: Sequence[str]
    hyperparameters: Sequence[str]
    is_rate: bool
    places: Mapping[Place, int]


@dataclass(frozen=True)
class Networks:
    """The networks of a place.

    Attributes:
        place: family, platform and method.
        columns: their hyperparameters by name.
        values: the quantity, or the ratio of two; null for a network that failed.
    """

    place: Place
    columns: pl.DataFrame
    values: pl.Series


def choose_quantity(data: Data, names: Sequence[str]) -> str:
    """Return the quantity with the most values, the first of these names if several have."""
    columns = record_columns(data)
    result_names = data.scan_results().collect_schema().names()
    counts: dict[str, int] = {}
    for name in names:
        if name in result_names:
            counts[name] = _count_results(data, name)
        elif name in columns:
            counts[name] = data.scan().select(columns[name].count()).collect().item()
    return max(counts, key=lambda name: counts[name])  # the first of equals


def _count_results(data: Data, quantity: str) -> int:
    """Return the number of results with a value of a quantity."""
    results = data.scan_results()
    if quantity not in results.collect_schema():
        return 0
    return int(results.select(pl.col(quantity).count()).collect().item())


def read_numbers(data: Data, quantity: str) -> Numbers:
    """Return the values of a quantity, of results if they have it, else of records.

    Raises:
        InputError: for an unknown quantity, and if nothing here has a number for it.
    """
    source = _choose_source(data, quantity)
    names = source.rows.collect_schema().names()
    if quantity not in names or quantity in data.hyperparameters:
        quantities = {*data.scan_results().collect_schema(), *record_columns(data)}
        raise unknown("quantity", quantity, sorted(quantities), "--of")
    candidates = (*data.hyperparameters, *STEP_COLUMNS, "family", "platform")
    columns = [name for name in dict.fromkeys(candidates) if name in names]
    number = pl.col(quantity).cast(pl.Float64(), strict=False)
    method = "predicted_by" if quantity.startswith("predicted_") else "method"
    frame = (
        source.rows.select(
            *columns,
            "status",
            pl.col(method).alias(METHOD),
            pl.when(source.counts).then(number).alias(VALUE),
        )
        # Failed networks stay, without a value.
        .filter(pl.col(VALUE).is_not_null() | HAS_FAILED)
        .select(*columns, METHOD, VALUE)
        .collect()
    )
    places = _find_places(frame)
    if not places:
        raise InputError(data.failed or f"nothing here has a number for {quantity}")
    return Numbers(frame, columns, data.hyperparameters, is_higher_better(quantity), places)


class _Source(NamedTuple):
    """Rows with a quantity, and the condition under which a row's number counts."""

    rows: pl.LazyFrame
    counts: pl.Expr


def _choose_source(data: Data, quantity: str) -> _Source:
    """Return the results if they have the quantity, else the records of steps."""
    expressions = record_columns(data)
    results = data.scan_results()
    is_in_records_alone = quantity in expressions and not _count_results(data, quantity)
    has_column = quantity in results.collect_schema()
    if has_column and not is_in_records_alone:
        # A result that is only predicted has a status only if it does not fit: it failed.
        counts = (pl.col("origin") != "predicted") | pl.col("status").is_null()
        return _Source(results, counts)
    records = data.scan().filter(IS_STEP).select(*expressions.values())
    return _Source(records, counts=pl.col("status") == "ok")  # numbers of failed ones do not count


def _find_places(rows: pl.DataFrame) -> dict[Place, int]:
    """Return the places with a value in their order, and the number of their dtypes."""
    places = (
        rows.group_by("family", "platform", METHOD)
        .agg(pl.col("dtype").drop_nulls().n_unique(), pl.col(VALUE).count())
        .filter(pl.col(VALUE) > 0)
        .sort("family", "platform", METHOD, nulls_last=True)
    )
    return {
        Place(family=family, platform=platform, method=method): dtypes
        for family, platform, method, dtypes, _ in places.iter_rows()
    }


def choose_platform(numbers: Numbers, platform: str | None, against: str | None) -> str | None:
    """Return the platform whose networks count, None for all.

    Raises:
        InputError: for an unknown platform, and if `against` leaves several to choose from.
    """
    platforms = sorted({place.platform for place in numbers.places})
    for name in filter(None, (platform, against)):
        check_choice("platform", name, platforms)
    if not against:
        return platform
    remaining = [name for name in platforms if name != against]
    # With several platforms the user must say which is compared.
    if platform == against or (platform is None and len(remaining) != 1):
        choices = ", ".join(remaining) or "there is no other"
        raise InputError(f"--against {against}: name another with --platform ({choices})")
    return platform or remaining[0]


def list_networks(
    numbers: Numbers, platform: str | None, against: str | None
) -> Iterator[Networks]:
    """Yield the networks of each place, sorted by their hyperparameters.

    With `against` the values are ratios to that platform, turned round where less is better.
    """
    for place in numbers.places:
        if platform not in (None, place.platform):
            continue
        # The places on the other platform, in which networks of this place are looked up.
        partners = [
            partner
            for partner in numbers.places
            if partner.family == place.family and partner.platform == against
        ]
        names = _list_identity(numbers, [place, *partners], is_paired=bool(against))
        value = _gain_over(numbers, place, against, partners) if against else _median_value(place)
        yield _collect_networks(numbers, place, names, value)


def _list_identity(numbers: Numbers, places: Sequence[Place], *, is_paired: bool) -> list[str]:
    """Return the columns that tell the networks of some places apart."""
    # Two platforms run a network with other threads and loaders: these tell no networks apart.
    step_columns = NETWORK_COLUMNS if is_paired else STEP_COLUMNS
    identity = [*numbers.hyperparameters, *step_columns]
    has_several_dtypes = any(numbers.places[place] > 1 for place in places)
    if has_several_dtypes:
        identity.append("dtype")
    return [name for name in dict.fromkeys(identity) if name in numbers.columns]


class _NetworkValue(NamedTuple):
    """The value of a network from its rows.

    Attributes:
        is_selected: which rows of a family count.
        value: the value, over the rows of a network.
        has_value: whether a network has the rows that the value needs.
    """

    is_selected: pl.Expr
    value: pl.Expr
    has_value: pl.Expr


def _is_place(place: Place) -> pl.Expr:
    """Whether a row is of the platform and the method of a place."""
    return (pl.col("platform") == place.platform) & (pl.col(METHOD) == place.method)


def _median_value(place: Place) -> _NetworkValue:
    """Return the median of a network's rows in a place."""
    return _NetworkValue(_is_place(place), pl.col(VALUE).median(), has_value=pl.lit(value=True))


def _gain_over(
    numbers: Numbers, place: Place, against: str, partners: Sequence[Place]
) -> _NetworkValue:
    """Return the ratio of a network's medians in a place and on another platform."""
    is_place = _is_place(place)
    is_partner = pl.col("platform") == against
    # If the other platform has no numbers by this method, those by any method count.
    if any(partner.method == place.method for partner in partners):
        is_partner &= pl.col(METHOD) == place.method
    first_value = pl.col(VALUE).filter(is_place).median()
    second_value = pl.col(VALUE).filter(~is_place).median()
    # A gain above 1 always means that the first platform is better: more of a rate, less time.
    gain = first_value / second_value if numbers.is_rate else second_value / first_value
    has_both = is_place.any() & ~is_place.all()
    return _NetworkValue(is_place | is_partner, gain, has_value=has_both)


def _collect_networks(
    numbers: Numbers, place: Place, names: Sequence[str], network_value: _NetworkValue
) -> Networks:
    """Return the networks of a place, told apart by columns of these names."""
    is_family = pl.col("family") == place.family
    networks = (
        numbers.rows.filter(is_family & network_value.is_selected)
        # Without columns that tell networks apart, all rows of a method are one network.
        .group_by(names or [METHOD], maintain_order=True)
        .agg(network_value.value.alias(VALUE), network_value.has_value.alias(HAS_VALUE))
        .filter(HAS_VALUE)
        .sort(*names, VALUE, nulls_last=True)
    )
    return Networks(place, networks.select(names), networks[VALUE])
