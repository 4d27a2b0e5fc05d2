"""The shortest names that tell rows apart, made of whole columns: 10^6 rows take seconds."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.records.row import (
    RUN_OPTIONS,
    Row,
    collect_setting_texts,
    describe_value,
    exchange_name,
    find_distinguishing_settings,
    group_by,
    load_json,
)

if TYPE_CHECKING:
    import polars as pl

NETWORK_COLUMNS = ("within", "family", "settings", "batch", "strategy", "overlap")
RUN_COLUMNS = (*RUN_OPTIONS, "method_options", "method_version", "host")  # how a row ran
NAME_COLUMNS = (*NETWORK_COLUMNS, *RUN_COLUMNS)
SILENT_OPTIONS = ("runs", "strategy", "overlap", *RUN_OPTIONS)  # have a column, or tell nothing
HASH_DIGITS = 8
EXCHANGE = ("strategy", "overlap")  # of a network, where its name tells no more
_SETTINGS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def name_rows(
    rows: pl.DataFrame, label_columns: Sequence[str] = (), ignored_settings: Collection[str] = ()
) -> NDArray[Any]:
    """Return for each row the shortest name that tells it from the others.

    Of the settings of a model only those are in the names that tell its networks apart, then the
    batch, then of how each row ran what tells rows of one network apart:
    `fc nodes 256, batch 64, p100`. Rows of one value of `within` are named together.

    Args:
        rows: a frame with `NAME_COLUMNS`.
        label_columns: columns that stand beside the name and tell rows apart, too.
        ignored_settings: settings that are not in names.
    """
    # Many rows share a network: each is named once.
    first_rows, network_of_row = _number_combinations(rows, NETWORK_COLUMNS)
    network_rows = rows[first_rows].select(NETWORK_COLUMNS).to_dicts()
    network_names = name_networks(network_rows, ignored_settings)
    row_names = np.array(network_names, object)[network_of_row]
    # Rows are ambiguous if they share that name and the columns printed beside it.
    name_key = _number_names(network_names)[network_of_row]
    if label_columns:
        _, label_number = _number_combinations(rows, label_columns)
        label_count = label_number.max(initial=0) + 1
        name_key = name_key * label_count + label_number  # a number for each name and label
    _, name_key, row_counts = np.unique(name_key, return_inverse=True, return_counts=True)
    ambiguous = np.flatnonzero(row_counts[name_key] > 1)
    if len(ambiguous):  # their names end with the options and the host of the run
        row_names[ambiguous] += _describe_runs(
            rows[ambiguous], name_key[ambiguous], ignored_settings
        )
    return row_names


def _number_names(names: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for each name; equal names have one."""
    name_numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([name_numbers[name] for name in names], np.int64)


def _describe_runs(
    rows: pl.DataFrame, name_of_row: NDArray[np.int64], ignored_settings: Collection[str]
) -> NDArray[Any]:
    """Return the endings of the names of rows that share a name with another one.

    Args:
        rows: the rows.
        name_of_row: the number of the name of each row.
        ignored_settings: settings that are not in names.
    """
    first_rows, run_of_row = _number_combinations(rows, RUN_COLUMNS)
    run_rows = rows[first_rows].select(RUN_COLUMNS).to_dicts()
    runs = [_describe_run(row, ignored_settings) for row in run_rows]
    return np.array(_list_endings(runs, run_of_row.tolist(), name_of_row.tolist()), object)


def _number_combinations(
    rows: pl.DataFrame, columns: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each combination of values, and the combination of each row."""
    from steptime.records.groups.group_members import hash_of, number_by_first

    combination_of_row = number_by_first(rows.select(hash_of(columns)).to_series().to_numpy())
    _, first_rows = np.unique(combination_of_row, return_index=True)
    return first_rows, combination_of_row


def name_networks(rows: Sequence[Row], ignored_settings: Collection[str] = EXCHANGE) -> list[str]:
    """Return the shortest name of the network of each row that tells it from the others.

    Rows of one value of `within` are named together, where they have it.
    """
    names = [""] * len(rows)
    # Names need to be unique only among rows of one family with the same `within` (their folder).
    families = [(row.get("within"), row["family"]) for row in rows]
    row_numbers_by_family = group_by(range(len(rows)), families.__getitem__)
    for row_numbers in row_numbers_by_family.values():
        family_rows = [rows[number] for number in row_numbers]
        family_names = _name_family(family_rows, ignored_settings)
        for number, name in zip(row_numbers, family_names, strict=True):
            names[number] = name
    return names


def _name_family(rows: Sequence[Row], ignored_settings: Collection[str]) -> list[str]:
    """Return the names of networks of one family, with the settings in which they differ."""
    family = rows[0]["family"]
    texts_by_setting = _collect_texts(rows, ignored_settings)
    columns = [
        _describe_column(name, texts_by_setting[name], family)
        for name in find_distinguishing_settings(texts_by_setting)
    ]
    return [
        _network_name(row, family, setting_texts, ignored_settings)
        for row, *setting_texts in zip(rows, *columns, strict=True)
    ]


def _collect_texts(
    rows: Sequence[Row], ignored_settings: Collection[str]
) -> dict[str, list[str | None]]:
    """Return the JSON texts of each setting of networks, in the order of their first networks."""
    settings_of_rows = [_SETTINGS.decode(row["settings"]) for row in rows]
    names = dict.fromkeys(name for settings in settings_of_rows for name in settings)
    return {
        name: [_raw_text(settings.get(name)) for settings in settings_of_rows]
        for name in names
        if name not in ignored_settings
    }


def _raw_text(value: msgspec.Raw | None) -> str | None:
    """Return the JSON text of a setting, None for a network without it."""
    return None if value is None else str(value, "utf-8")


def _network_name(
    row: Row, family: str, setting_texts: Sequence[str | None], ignored_settings: Collection[str]
) -> str:
    """Return the name of a network: "fc layers 2, batch 64, sharded, no overlap"."""
    batch = row["batch"]
    names_batch = batch is not None and "batch" not in ignored_settings
    words = [*setting_texts, f"batch {batch}" if names_batch else None]
    strategy = None if "strategy" in ignored_settings else row["strategy"]
    # Only a step without overlap of communication says so: ", no overlap".
    omits_overlap = "overlap" in ignored_settings or row["overlap"] is not False
    name = f"{family} {', '.join(filter(None, words))}".strip()
    return name + exchange_name(strategy, overlap=omits_overlap)


def _describe_column(key: str, texts: Sequence[str | None], family: str) -> list[str | None]:
    # Texts repeat: each is described once. None stays None.
    description_of = {text: text and _describe_setting(key, text, family) for text in {*texts}}
    return [description_of[text] for text in texts]


def _describe_setting(key: str, text: str, family: str) -> str:
    """Return a setting of a network, from its JSON, in few words: "layers 2"."""
    value = load_json(text)
    if key == "sha256":  # of a file
        return f"file {str(value)[:HASH_DIGITS]}"
    return describe_value(key, value, family)


def _describe_run(row: Row, ignored_settings: Collection[str]) -> Row:
    """Return the way and the place of a run, in the order in which names have them.

    An option that has a column is told once; where the column is empty, the option is told.
    """
    options = {}
    for name, value in load_json(row["method_options"]).items():
        # An option that also has a column (`threads`) is taken from there, unless it is empty.
        has_empty_column = name in RUN_OPTIONS and row[name] is None
        if name not in SILENT_OPTIONS or has_empty_column:
            options[name] = value
    columns = {name: row[name] for name in RUN_OPTIONS}
    setup = {"version": row["method_version"], "host": row["host"]}
    facts = columns | options | setup
    return {name: value for name, value in facts.items() if name not in ignored_settings}


def _list_endings(
    runs: Sequence[Mapping[str, Any]], run_of_row: Sequence[int], name_of_row: Sequence[Hashable]
) -> list[str]:
    """Return the endings of names of rows that share a name: how each row ran."""
    endings = [""] * len(run_of_row)
    endings_by_runs = dict[tuple[int, ...], list[str]]()  # groups of equal runs occur often
    for row_numbers in group_by(range(len(run_of_row)), name_of_row.__getitem__).values():
        group_runs = tuple(run_of_row[row_number] for row_number in row_numbers)
        if group_runs not in endings_by_runs:
            endings_by_runs[group_runs] = _describe_distinguishing_settings(
                [runs[run] for run in group_runs]
            )
        for row_number, ending in zip(row_numbers, endings_by_runs[group_runs], strict=True):
            endings[row_number] = ending
    return endings


def _describe_distinguishing_settings(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the endings that tell runs apart: ", threads 2, host n1"."""
    names = find_distinguishing_settings(collect_setting_texts(runs))
    return [
        "".join(
            f", {describe_value(name, run[name])}" for name in names if run.get(name) is not None
        )
        for run in runs
    ]
