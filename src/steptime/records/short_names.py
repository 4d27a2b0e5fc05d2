"""The shortest names that tell rows apart, made of whole columns: 10^6 rows take seconds."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

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
    import polars as pl

NETWORK_COLUMNS = ("within", "family", "settings", "batch", "strategy", "overlap")
RUN_COLUMNS = (*HOW, "method_options", "method_version", "host")  # how a row ran
NAME_COLUMNS = (*NETWORK_COLUMNS, *RUN_COLUMNS)
SILENT_OPTIONS = ("runs", "strategy", "overlap", *HOW)  # have a column, or tell nothing
HASH_DIGITS = 8
EXCHANGE = ("strategy", "overlap")  # of a network, where its name tells no more
_SETTINGS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def name_rows(
    rows: pl.DataFrame, telling: Sequence[str] = (), free: Collection[str] = ()
) -> NDArray[Any]:
    """Return for each row the shortest name that tells it from the others.

    Of the settings of a model only those are in the names that tell its networks apart, then the
    batch, then of how each row ran what tells rows of one network apart:
    `fc nodes 256, batch 64, p100`. Rows of one value of `within` are named together.

    Args:
        rows: a frame with `NAME_COLUMNS`.
        telling: columns that stand beside the name and tell rows apart, too.
        free: settings that are not in names.
    """
    first, network = _number_combinations(rows, NETWORK_COLUMNS)
    names = name_networks(rows[first].select(NETWORK_COLUMNS).to_dicts(), free)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    name_of_network = np.array([numbers[name] for name in names], np.int64)
    _, neighbour = (
        _number_combinations(rows, telling) if telling else (first, np.zeros_like(network))
    )
    key = name_of_network[network] * (neighbour.max(initial=0) + 1) + neighbour
    _, key, count = np.unique(key, return_inverse=True, return_counts=True)
    row_names = np.array(names, object)[network]
    ambiguous = np.flatnonzero(count[key] > 1)
    if len(ambiguous):
        ambiguous_rows = rows[ambiguous]
        first, way = _number_combinations(ambiguous_rows, RUN_COLUMNS)
        runs = [
            _describe_run(row, free) for row in ambiguous_rows[first].select(RUN_COLUMNS).to_dicts()
        ]
        endings = _endings(runs, way.tolist(), key[ambiguous].tolist())
        row_names[ambiguous] += np.array(endings, object)
    return row_names


def _number_combinations(
    rows: pl.DataFrame, columns: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each combination of values, and the combination of each row."""
    from steptime.records.group_members import hash_of, number_by_first

    number = number_by_first(rows.select(hash_of(columns)).to_series().to_numpy())
    return np.unique(number, return_index=True)[1], number


def name_networks(rows: Sequence[Row], free: Collection[str] = EXCHANGE) -> list[str]:
    """Return the shortest name of the network of each row that tells it from the others.

    Rows of one value of `within` are named together, where they have it.
    """
    names = [""] * len(rows)
    families = [(row.get("within"), row["family"]) for row in rows]
    for (_, family), places in grouped(range(len(rows)), families.__getitem__).items():
        decoded = [_SETTINGS.decode(rows[place]["settings"]) for place in places]
        keys = dict.fromkeys(key for settings in decoded for key in settings if key not in free)
        texts = {
            key: [str(settings[key], "utf-8") if key in settings else None for settings in decoded]
            for key in keys
        }
        columns = [_describe_column(key, texts[key], family) for key in telling_of(texts)]
        for place, *parts in zip(places, *columns, strict=True):
            names[place] = _network_name(rows[place], family, parts, free)
    return names


def _network_name(row: Row, family: str, parts: Sequence[str | None], free: Collection[str]) -> str:
    """Return the name of a network: "fc layers 2, batch 64, sharded, no overlap"."""
    batch = row["batch"]
    has_batch = batch is not None and "batch" not in free
    words = [*parts, f"batch {batch}" if has_batch else None]
    strategy = None if "strategy" in free else row["strategy"]
    has_overlap = "overlap" in free or row["overlap"] is not False
    name = f"{family} {', '.join(filter(None, words))}".strip()
    return name + exchange_name(strategy, has_overlap)


def _describe_column(key: str, texts: Sequence[str | None], family: str) -> list[str | None]:
    words = {text: text and _describe_setting(key, text, family) for text in {*texts}}
    return [words[text] for text in texts]


def _describe_setting(key: str, text: str, family: str) -> str:
    """Return a setting of a network, from its JSON, in few words: "layers 2"."""
    value = loaded(text)
    if key == "sha256":  # of a file
        return f"file {str(value)[:HASH_DIGITS]}"
    return said(key, value, family)


def _describe_run(row: Row, free: Collection[str]) -> Row:
    """Return the way and the place of a run, in the order in which names have them.

    An option that has a column is told once; where the column is empty, the option is told.
    """
    options = {
        key: value
        for key, value in loaded(row["method_options"]).items()
        if key not in SILENT_OPTIONS or (key in HOW and row[key] is None)
    }
    columns = {name: row[name] for name in HOW}
    place = {"version": row["method_version"], "host": row["host"]}
    facts = columns | options | place
    return {name: value for name, value in facts.items() if name not in free}


def _endings(
    runs: Sequence[Mapping[str, Any]], ways: Sequence[int], keys: Sequence[Hashable]
) -> list[str]:
    """Return the endings of names of rows that share a key: how each row ran."""
    endings = [""] * len(ways)
    memo = dict[tuple[int, ...], list[str]]()
    for places in grouped(range(len(ways)), keys.__getitem__).values():
        group = tuple(ways[place] for place in places)
        if group not in memo:
            memo[group] = _distinguish([runs[way] for way in group])
        for place, ending in zip(places, memo[group], strict=True):
            endings[place] = ending
    return endings


def _distinguish(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the endings that tell runs apart: ", threads 2, host n1"."""
    names = telling_of(columns_of(runs))
    return [
        "".join(f", {said(name, run[name])}" for name in names if run.get(name) is not None)
        for run in runs
    ]
