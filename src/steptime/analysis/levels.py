"""The levels of a column side by side: platforms, hosts, threads, types, any hyperparameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from statistics import median

from steptime.analysis import pairs
from steptime.analysis.errors import errors
from steptime.analysis.pairs import Pairing
from steptime.analysis.row import Row, facts, grouped
from steptime.core.errors import InputError, unknown
from steptime.core.progress import watched
from steptime.core.record import Record


def two_platforms(
    records: Sequence[Record],
    a: str,
    b: str,
    quantity: str = "step_s",
    *,
    any_dtype: bool = False,
) -> Pairing:
    """Return platform `b` beside platform `a`, as `by_column` does.

    Raises `InputError` for a platform or a quantity that no record has.
    """
    known = dict.fromkeys(record.platform for record in records)
    for platform in (a, b):
        if platform not in known:
            raise unknown("platform", platform, known)
    if a == b:
        raise InputError(f"a platform is compared with another, not '{a}' with itself")
    pairs.check_quantity(records, quantity)
    held = [record for record in records if record.platform in (a, b)]
    return by_column([("", held)], "platform", quantity, against=a, any_dtype=any_dtype)


def by_column(
    folders: Sequence[tuple[str, Sequence[Record]]],
    column: str,
    quantity: str = "step_s",
    *,
    against: str | None = None,
    any_dtype: bool = False,
) -> Pairing:
    """Return every level of a column beside the first one (the least number), or `against`.

    A column is `folder`, one of `facts`, an option, a hyperparameter, or what a record says of its
    environment. Measured stands beside measured, predicted beside predicted; all else is equal, but
    where a side has a single candidate. With `any_dtype` a network in one type is paired with
    itself in another. Raises `InputError` for a column, a level or a quantity that no record has,
    and for a single level.
    """
    every = [record for _, records in folders for record in records]
    pairs.check_quantity(every, quantity)
    levels: dict[str, pairs.Group] = {}
    for folder, records in folders:
        for record in watched(records, "records"):
            value = folder if column == "folder" else level(record, column)
            if value is not None:
                levels.setdefault(value, []).append(record)
    if not levels:
        raise no_level(column, every)
    if len(levels) > 1 and against not in (None, *levels):
        raise unknown(column, against, levels, "--against")
    with suppress(ValueError):  # numbers stand in order, words as recorded
        levels = {name: levels[name] for name in sorted(levels, key=float)}
    first = next(iter(levels)) if against is None else against
    if len(levels) == 1:
        raise InputError(f"--by {column}: all records have one {column}, '{first}'")
    matched: pairs.Matched = []
    lonely: pairs.Lonely = []
    apart = pairs.APART.get(column, (column,))
    others = [name for name in levels if name != first]
    for name in others:
        sides = _sides(column, first, name)
        same = pairs.alike(levels[first], levels[name], pairs.like(column, any_dtype), sides, apart)
        matched += same[0]
        lonely += same[1]
    found = pairs.pairing(matched, lonely, quantity, column, any_dtype=any_dtype)
    of = grouped(found.pairs, itemgetter("level"))
    about = [_level(name, of.get(name, [])) for name in others]
    return replace(found, against=first, levels=about)


def level(record: Record, column: str) -> str | None:
    """Return what a column says of a record, as text; None where it says nothing of it."""
    predicted = record.origin == "predicted"
    if column == "predicted_by":
        return record.method.name if predicted else None
    if column == "host" and predicted:  # where it was computed changes nothing
        return None
    told = facts(record)
    for known in (told, told["options"], told["settings"], record.env):
        if known.get(column) is not None:
            value = known[column]
            return ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return None


def no_level(column: str, records: Iterable[Record]) -> InputError:
    """Return the error for a column of which no record says anything, or that is unknown."""
    known = level_columns(records)
    if column in known:
        return InputError(f"--by {column}: no step here says its {column}")
    return unknown("column", column, known, "--by")


def level_columns(records: Iterable[Record]) -> list[str]:
    """Return the columns of which `level` knows something in some record."""
    found = dict.fromkeys(("folder", "predicted_by"))
    for record in records:
        told = facts(record)
        plain = {name: None for name in told if name not in ("options", "settings")}
        found |= plain | dict.fromkeys((*told["options"], *told["settings"], *record.env))
    return list(found)


def _sides(column: str, a: str, b: str) -> dict[str, str]:
    prefix = "on" if column in pairs.PLACES else f"with {column}"
    return {"a": f"{prefix} {a}", "b": f"{prefix} {b}", "level": b, "against": a}


def _level(name: str, pairs: Sequence[Row]) -> Row:
    """Return what the pairs of a level amount to."""
    ratios = [row["ratio"] for row in pairs]
    said = [row["verdict"] for row in pairs]
    return {
        "level": name,
        "pairs": len(pairs),
        "geometric_mean_ratio": errors(pairs)["geometric_mean_ratio"],
        "median_ratio": median(ratios) if ratios else None,
        "min_ratio": min(ratios, default=None),
        "max_ratio": max(ratios, default=None),
        **{word: said.count(word) for word in ("faster", "slower", "same", "unsure")},
    }
