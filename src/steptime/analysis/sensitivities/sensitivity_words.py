"""The sensitivities of a quantity in sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.tables.table import Table
from steptime.core.units import first_of, format_count, format_percent

MAX_REGRESSIONS = 4  # that are described
MAX_WEIGHTS = 3  # that are described for failed networks
OVERFIT_SHARE = 0.2  # of the variance, that is lost in networks left out of the fit
PLACE = ("family", "platform", "method")
Row = Mapping[str, Any]


def describe_sensitivities(table: Table) -> list[str]:
    """Return sentences on the largest regressions, and on places without one."""
    summary = table.summary
    # The summary itself has the regression of most networks.
    regressions = [summary, *summary["others"]] if table.rows else []
    lines = []
    for regression in regressions[:MAX_REGRESSIONS]:
        lines += _describe_regression({**summary, **regression}, table.rows)
    places = [
        f"{_name_place(place)} ({format_count(place['networks'], 'network')})"
        for place in summary["too_few"]
    ]
    if places:
        names = first_of(places, MAX_REGRESSIONS)
        lines.append(f"Fewer networks than weights, so no regression: {names}.")
    return lines


def _describe_regression(regression: Row, rows: Sequence[Row]) -> list[str]:
    """Return the sentences on one regression; `rows` are those of all."""
    lines = [_describe_fit(regression)]
    if regression["never_varies"]:
        names = ", ".join(regression["never_varies"])
        lines.append(f"Never varies, so nothing is known of it: {names}.")
    if regression["wins"]:
        lines.append(_describe_wins(regression))
    if regression["failed"]:
        weights = [row for row in rows if _is_of(row, regression) and row["weight"] is not None]
        lines += _describe_failures(regression, weights)
    return lines


def _is_of(row: Row, regression: Row) -> bool:
    """Whether a row is of a regression: of its family, platform and method."""
    return all(row[name] == regression[name] for name in PLACE)


def _describe_fit(regression: Row) -> str:
    """Return the sentence on the share of the variance that hyperparameters explain."""
    quantity = regression["quantity"]
    if regression["against"]:
        quantity = f"the gain in {quantity} over {regression['against']}"
    r2_cross_validated = max(0.0, regression["r2_cross_validated"])
    line = (
        f"{_name_place(regression)}: hyperparameters explain {format_percent(regression['r2'])} of "
        f"the variance of {quantity} over {format_count(regression['networks'], 'network')} "
        f"(order {regression['order']}, {regression['scale']} scale; "
        f"{format_percent(r2_cross_validated)} in networks that the fit has not seen)"
    )
    if regression["r2"] - r2_cross_validated > OVERFIT_SHARE:
        line += ": too few networks for so many weights"
    return f"{line}."


def _describe_wins(regression: Row) -> str:
    """Return the sentence on how often a platform wins, and whether hyperparameters tell it."""
    wins = regression["wins"]
    line = f"{regression['platform']} wins {format_percent(wins['share'])} of the networks"
    if wins["accuracy_share"] is None:
        return f"{line}: nothing decides it."
    line += (
        f"; the log-odds tell {format_percent(wins['accuracy_share'])} right, "
        f"the majority {format_percent(wins['majority_share'])}"
    )
    if wins["separable"]:
        line += (
            f". A plane tells the winners apart: a ridge of {wins['ridge']:g} keeps weights finite"
        )
    return f"{line}."


def _describe_failures(regression: Row, weights: Sequence[Row]) -> list[str]:
    """Return the share of failed networks, its causes, and their weight on the regression."""
    cell_count = regression["failed"] + regression["networks"]
    line = f"{regression['failed']:,} of {cell_count:,} cells failed"
    causes = [row for row in regression["failures"] if row["depends"]]
    if not causes:
        return [f"{line}; whether at random, they do not tell."]
    cause_texts = ", ".join(_describe_cause(cause) for cause in causes)
    names = ", ".join(cause["hyperparameter"] for cause in causes)
    line += f", not at random but by {cause_texts}: medians by {names} are over survivors."
    return [line, _describe_failed_cells(regression, weights)]


def _describe_cause(cause: Row) -> str:
    """Return a hyperparameter with its levels of fewest and most failures.

    Such as `layers (0 % at 4, 80 % at 64)`.
    """
    by_share = sorted(cause["failed_share"].items(), key=lambda item: item[1])
    extremes = (by_share[0], by_share[-1])
    shares = ", ".join(f"{format_percent(share)} at {level}" for level, share in extremes)
    return f"{cause['hyperparameter']} ({shares})"


def _describe_failed_cells(regression: Row, weights: Sequence[Row]) -> str:
    """Return the sentence on the weights if failed networks had had a value.

    `weights` are rows in the order of their weights.
    """
    largest_row = weights[0]
    assumption_keys = [
        key for key, value in largest_row.items() if "_if_failed_" in key and value is not None
    ]
    spans = ", ".join(_describe_span(row, assumption_keys) for row in weights[:MAX_WEIGHTS])
    largest_names = {_name_largest(weights, key) for key in assumption_keys}
    possible_largest_names = sorted(largest_names - {largest_row["hyperparameter"]})
    verdict = "the first would stay the first"
    if possible_largest_names:
        verdict = f"{' or '.join(possible_largest_names)} might weigh most"
    has_zero = regression["scale"] == "linear"  # a logarithm has none
    zero = "0, or " if has_zero else ""
    return (
        f"Were failed cells {zero}the least or greatest of their neighbours, weights would be "
        f"{spans}: {verdict}."
    )


def _describe_span(row: Row, assumption_keys: Sequence[str]) -> str:
    """Return the range of a weight under some assumptions, such as `layers +0.100 to +0.300`."""
    weights = [row[key] for key in assumption_keys]
    return f"{row['hyperparameter']} {min(weights):+.3f} to {max(weights):+.3f}"


def _name_largest(weights: Sequence[Row], key: str) -> str:
    """Return the hyperparameter of the largest weight."""
    row = max(weights, key=lambda row: abs(row[key]))
    return str(row["hyperparameter"])


def _name_place(place: Row) -> str:
    """Return the place of a regression, such as `bert on v100`."""
    return f"{place['family']} on {place['platform']}"
