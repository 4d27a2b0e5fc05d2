"""Which hyperparameters a quantity depends on: regressions, exact pairs, winners, failed cells."""

from collections.abc import Sequence

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.sensitivities.design_matrix import DesignMatrix, make_design
from steptime.analysis.sensitivities.sensitivity_answer import (
    FewNetworks,
    Regression,
    SensitivityAnswer,
    SensitivityRow,
)
from steptime.analysis.sensitivities.sensitivity_fit import fit_networks
from steptime.analysis.sensitivities.sensitivity_networks import (
    DEFAULT_PAIRED_QUANTITIES,
    DEFAULT_QUANTITIES,
    STEP_COLUMNS,
    Numbers,
    choose_platform,
    choose_quantity,
    list_networks,
    read_numbers,
)
from steptime.analysis.sensitivities.sensitivity_words import describe_sensitivities
from steptime.core.errors import InputError, check_choice
from steptime.core.tables.table import Column, Table
from steptime.records.data import Data

SCALES = ("linear", "log")
PLACE = ("family", "platform", "method")


def fit_regressions(
    numbers: Numbers,
    quantity: str,
    *,
    names: Sequence[str] | None = None,
    platform: str | None = None,
    against: str | None = None,
    order: int = 1,
    scale: str = "linear",
) -> SensitivityAnswer:
    """Return the regressions of a quantity by family, platform and method.

    Args:
        numbers: the values of the quantity.
        quantity: its name.
        names: hyperparameters of the regressions; None for all.
        platform: the platform whose networks count; None for all.
        against: the platform that the quantity is the ratio to.
        order: 1, or 2 with squares and products.
        scale: scale of the z-scores, linear or log.
    """
    platform = choose_platform(numbers, platform, against)
    defaults = (*numbers.hyperparameters, "batch")
    fits = []
    too_few = []
    for networks in list_networks(numbers, platform, against):
        design = make_design(networks, names, defaults, is_log=scale == "log")
        fit = fit_networks(design, order, is_paired=against is not None)
        if fit is None:
            too_few.append(_name_few_networks(design))
        else:
            fits.append(fit)
    fits.sort(key=_order_by_networks)
    return SensitivityAnswer(
        quantity=quantity,
        scale=scale,
        order=order,
        against=against,
        rows=[row for rows, _ in fits for row in rows],
        regressions=[regression for _, regression in fits],
        too_few=too_few,
    )


def _name_few_networks(design: DesignMatrix) -> FewNetworks:
    """Return the place of networks that are fewer than the weights, and their number."""
    return FewNetworks(
        family=design.place.family,
        platform=design.place.platform,
        method=design.place.method,
        networks=int((~design.has_failed).sum()),
    )


def _order_by_networks(fit: tuple[object, Regression]) -> int:
    _, fitted_regression = fit
    return -fitted_regression.networks


def sensitivity_table(
    data: Data,
    of: str | None,
    on: str | None,
    platform: str | None,
    against: str | None,
    order: int,
    scale: str,
) -> Table:
    """Return the weights of hyperparameters, by family, platform and method.

    The summary is of the regression of most networks, `others` in it of the rest.

    Raises:
        InputError: for a name that the records do not hold.
    """
    if order not in (1, 2):
        raise InputError(f"--order: must be 1 or 2, not {order}")
    check_choice("scale", scale, SCALES)
    names = None if on is None else [name.strip() for name in on.split(",")]
    for name in names or ():
        check_choice("hyperparameter", name, (*data.hyperparameters, *STEP_COLUMNS), "--on")
    quantities = DEFAULT_PAIRED_QUANTITIES if against else DEFAULT_QUANTITIES
    quantity = of or choose_quantity(data, quantities)
    answer = fit_regressions(
        read_numbers(data, quantity),
        quantity,
        names=names,
        platform=platform,
        against=against,
        order=order,
        scale=scale,
    )
    return Table(
        _list_columns(answer),
        [row.to_dict() for row in answer.rows],
        summary=_summarise(answer),
        structs=answer.rows,
    )


def _list_columns(answer: SensitivityAnswer) -> list[Column]:
    """Return the columns of the table; those of places, odds and notes where they say something."""
    has_several_places = len(answer.regressions) > 1
    has_notes = any(row.note for row in answer.rows)
    return [
        *(map(Column, PLACE[:2]) if has_several_places else ()),
        Column("hyperparameter"),
        Column("weight", form="+.3f"),
        Column("low", "from", form="+.3f"),
        Column("high", "to", form="+.3f"),
        Column("importance", form=".3f"),
        Column("effect_ratio", "effect", form=".3f"),
        Column("effect_of", "effect of"),
        Column("effect_pairs", "pairs", is_spare=True),
        *([Column("win_log_odds", "log-odds to win", form="+.3f")] if answer.against else []),
        *([Column("note")] if has_notes else []),
    ]


def _summarise(answer: SensitivityAnswer) -> dict[str, object]:
    """Return the numbers of the regression of most networks, and of the others."""
    # The regression over the most networks stands in the summary itself, the others in a list.
    regressions = [regression.to_dict() for regression in answer.regressions]
    first: dict[str, object] = {}
    if regressions:
        first, *_ = regressions
    return {
        "quantity": answer.quantity,
        "scale": answer.scale,
        "order": answer.order,
        "against": answer.against,
        **first,
        "others": regressions[1:],
        "too_few": [place.to_dict() for place in answer.too_few],
    }


ANALYSIS = Analysis(
    """Print which hyperparameters matter, and how strongly.

    A weight is of a linear regression of z-scores: by how many standard deviations the quantity
    changes with one of the hyperparameter, with a bootstrapped 95 % interval. The importance is the
    share of variance that is lost where the hyperparameter is shuffled, in networks left out of the
    fit. The effect is the geometric mean ratio of networks that are equal in all else. With
    --against it is all of the ratio of two platforms, above 1 where --platform is better.
    """,
    sensitivity_table,
    describe_sensitivities,
    row_struct=SensitivityRow,
    summary_struct=Regression,
    section="Which hyperparameters matter",
    chart="steptime.reports.charts.sensitivity:chart",
    settings=(
        Setting(
            "of", "The quantity to explain. Default: published or achieved FLOP/s, else the speed."
        ),
        Setting("on", "Only these hyperparameters.", metavar="NAME,..."),
        Setting("platform", "Only networks of this platform."),
        Setting(
            "against",
            "Explain the ratio to this platform, network by network, even of different data types.",
        ),
        Setting(
            "order",
            "Order of the regression: 1, or 2 to add squares and products.",
            default=1,
            kind=int,
            metavar="N",
        ),
        Setting(
            "scale",
            "Scale before standardising: linear, or log (base 2).",
            "linear",
            metavar="SCALE",
        ),
    ),
    folders=16,
)
