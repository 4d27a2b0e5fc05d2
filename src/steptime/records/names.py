"""The shortest names of rows that tell them apart, of whole columns: 10^6 rows are seconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from steptime.records.row import (
    HOW,
    Row,
    columns_of,
    exchange_name,
    grouped,
    loaded,
    said,
    telling_of,
)

if TYPE_CHECKING:
    from steptime.records.folders import Folders

OF_NETWORK = ("within", "family", "settings", "batch", "strategy", "overlap")  # tells its name
OF_WAY = (*HOW, "method_options", "method_version", "host")  # what tells how a row ran
HASHES = {
    "network": f"(hash({', '.join(OF_NETWORK)}) >> 1)::BIGINT",
    "way": f"(hash({', '.join(OF_WAY)}) >> 1)::BIGINT",
}
TOLD = (*OF_NETWORK, *OF_WAY)
UNTOLD = ("runs", "strategy", "overlap", *HOW)  # options that have a place, or tell nothing
HASH_DIGITS = 8
STEP = ("strategy", "overlap")  # of a network, where its name tells no more
EXACT = ("id", "network", "way", "beside")
_SETTINGS = msgspec.json.Decoder(dict[str, msgspec.Raw])
Wide = Callable[[Sequence[int]], str]


def named(
    data: Folders, rows: str, wide: Wide, free: Collection[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return the `id` of rows, and of each the shortest name that tells it from the others.

    Of the settings of a model only those are named that tell its networks apart, then the batch,
    then of how each ran what tells rows of one network apart: `fc nodes 256, batch 64, p100`; what
    is `free` is not named. `rows` is a statement: `id`, `place` (their order), `HASHES`, and one of
    what stands `beside` the name, and tells rows apart, too. `wide` returns the statement of
    `OF_NETWORK` and `OF_WAY` of some ids; those that are `within` one value are named together.
    """
    of = data.arrays(f"FROM ({rows}) ORDER BY place", exact=EXACT)
    first, network = _first(of["network"])
    bases = networks(_told(data, wide, of["id"][first]), free)
    places = {base: at for at, base in enumerate(dict.fromkeys(bases))}
    base = np.array([places[one] for one in bases], np.int64)[network]
    _, beside = np.unique(of["beside"], return_inverse=True)
    _, key, often = np.unique(
        base * (len(beside) + 1) + beside, return_inverse=True, return_counts=True
    )
    found = np.array(bases, object)[network]
    alike = np.flatnonzero(often[key] > 1)
    if len(alike):
        first, way = _first(of["way"][alike])
        hows = [_how(row, free) for row in _told(data, wide, of["id"][alike][first])]
        found[alike] += np.array(_endings(hows, way.tolist(), key[alike].tolist()), object)
    return of["id"], found


def hashed(source: str, besides: Sequence[str]) -> str:
    """Return the `rows` of `named` of a statement with `id`, `place`, and what names tell."""
    made = ", ".join(f"{sql} AS {name}" for name, sql in HASHES.items())
    return f"SELECT id, place, {made}, hash({', '.join(besides)}) AS beside FROM ({source})"


def _first(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each value of a column stands first, in that order, and which each cell has."""
    _, first, of = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[of]


def _told(data: Folders, wide: Wide, ids: np.ndarray) -> list[Row]:
    """Return the rows of `wide` in the order of their ids, which differ."""
    found = {row["id"]: row for row in data.rows(wide(ids.tolist()))}
    return [found[one] for one in ids.tolist()]


def networks(told: Sequence[Row], free: Collection[str] = STEP) -> list[str]:
    """Return the shortest name of the network of each row that tells it from the others.

    Of rows of `flat` these are named together that are `within` one value, where they say it.
    """
    base = [""] * len(told)
    of_one = [(row.get("within"), row["family"]) for row in told]
    for (_, family), places in grouped(range(len(told)), of_one.__getitem__).items():
        every = [_SETTINGS.decode(told[at]["settings"]) for at in places]
        known = dict.fromkeys(name for one in every for name in one if name not in free)
        settings = {
            name: [str(one[name], "utf-8") if name in one else None for one in every]
            for name in known
        }
        words = [_words(name, settings[name], family) for name in telling_of(settings)]
        for at, *parts in zip(places, *words, strict=True):
            row = told[at]
            if row["batch"] is not None and "batch" not in free:
                parts.append(f"batch {row['batch']}")
            strategy = None if "strategy" in free else row["strategy"]
            overlap = "overlap" in free or row["overlap"] is not False
            name = f"{family} {', '.join(filter(None, parts))}".strip()
            base[at] = name + exchange_name(strategy, overlap)
    return base


def _words(name: str, settings: Sequence[str | None], family: str) -> list[str | None]:
    words = {value: value and _describe_setting(name, value, family) for value in {*settings}}
    return [words[value] for value in settings]


def _describe_setting(name: str, text: str, family: str) -> str:
    """Return a setting of a network, from its JSON, in few words: "layers 2"."""
    value = loaded(text)
    if name == "sha256":  # of a file
        return f"file {str(value)[:HASH_DIGITS]}"
    return said(name, value, family)


def _how(row: Row, free: Collection[str]) -> Row:
    """Return how and where a step ran, in the order in which it is told.

    An option that a column says is told once; where the column is empty, the option is told.
    """
    options = loaded(row["method_options"])
    others = {
        name: value
        for name, value in options.items()
        if name not in UNTOLD or (name in HOW and row[name] is None)
    }
    last = {"version": row["method_version"], "host": row["host"]}
    told = {name: row[name] for name in HOW} | others | last
    return {name: value for name, value in told.items() if name not in free}


def _endings(hows: Sequence[Row], of: Sequence[int], keys: Sequence[Hashable]) -> list[str]:
    """Return what is added to the names of rows that have one key: how each of them ran."""
    ends = [""] * len(of)
    memo = dict[tuple[int, ...], list[str]]()
    for places in grouped(range(len(of)), keys.__getitem__).values():
        ways = tuple(of[at] for at in places)
        if ways not in memo:
            told = [hows[way] for way in ways]
            telling = telling_of(columns_of(told))
            memo[ways] = [
                "".join(f", {said(n, how[n])}" for n in telling if how.get(n) is not None)
                for how in told
            ]
        for at, end in zip(places, memo[ways], strict=True):
            ends[at] = end
    return ends
