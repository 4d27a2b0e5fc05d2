"""Records side by side: measured and predicted, two folders, the levels of any column."""

from __future__ import annotations

from steptime.analysis.pairing import Pairing
from steptime.core.errors import InputError, check_choice, unknown
from steptime.records import flat, results_sql
from steptime.records.data import Data
from steptime.records.levels import APART, PLACES, cell_of, level_of, value_of
from steptime.records.results_sql import CELL, MEASURED, PREDICTED
from steptime.records.sides import Sides


def predicted_and_measured(data: Data, quantity: str = "step_s") -> Pairing:
    """Return every measurement (B) beside every prediction (A) of workload, platform and strategy.

    What others published stands for a measurement where there is none. A row of a whole step also
    has `flop_per_s`, `peak_fraction` and `roof_fraction` as `results` has them. Raises `InputError`
    for a quantity that no record holds.
    """
    value_of(data, quantity)
    where = "true"
    if "published" in data.origins:
        predicted = f"SELECT {CELL} FROM flat WHERE origin = 'predicted'"
        where = f"(origin <> 'published' OR {CELL} IN ({predicted}))"
    sides = results_sql.predicted_and_measured(data, quantity, where)
    words = {PREDICTED: "predicted", MEASURED: "measured"}
    return Pairing(sides, PREDICTED, words, but="not {} for this stack")


def two_folders(data: Data, quantity: str = "step_s", margin: float | None = None) -> Pairing:
    """Return the records of the second folder beside those of the first, on the same platforms.

    What differs by less than `margin`, a share, is the same.
    """
    value_of(data, quantity)
    sides = Sides(data, quantity, "folder_rank::VARCHAR", cell_of(data, "folder", ()))
    words = {"0": "in the first folder", "1": "in the second folder"}
    return Pairing(sides, "0", words, margin=margin)


def by_column(
    data: Data,
    column: str,
    quantity: str = "step_s",
    *,
    against: str | None = None,
    any_dtype: bool = False,
    where: str = "true",
) -> Pairing:
    """Return every level of a column beside the first one (the least number), or `against`.

    A column is `folder`, one of the tables, an option, a hyperparameter, or what a record says of
    its environment. Measured stands beside measured, predicted beside predicted; all else is equal,
    but where a side has a single candidate. With `any_dtype` a network in one type is paired with
    itself in another. `where` says in SQL which records take part. Raises `InputError` for a
    column, a level or a quantity that no record has, and for a single level.
    """
    value_of(data, quantity)
    free = (column, "dtype") if any_dtype else (column,)
    apart = APART.get(column, (column,))
    cell = cell_of(data, column, free)
    sides = Sides(data, quantity, level_of(data, column), cell, where, apart)
    if len(sides.levels) == 1:
        raise InputError(f"--by {column}: all records have one {column}, '{sides.levels[0]}'")
    if against not in (None, *sides.levels):
        raise unknown(column, str(against), sides.levels, "--against")
    prefix = "on" if column in PLACES else f"with {column}"
    words = {level: f"{prefix} {level}" for level in sides.levels}
    return Pairing(sides, against or sides.levels[0], words, column, free)


def two_platforms(
    data: Data, a: str, b: str, quantity: str = "step_s", *, any_dtype: bool = False
) -> Pairing:
    """Return platform `b` beside platform `a`, as `by_column` does.

    Raises `InputError` for a platform or a quantity that no record has.
    """
    known = [row["platform"] for row in data.rows("SELECT DISTINCT platform FROM flat ORDER BY 1")]
    for platform in (a, b):
        check_choice("platform", platform, known)
    if a == b:
        raise InputError(f"a platform is compared with another, not '{a}' with itself")
    where = f"platform IN ({flat.text(a)}, {flat.text(b)})"
    return by_column(data, "platform", quantity, against=a, any_dtype=any_dtype, where=where)
