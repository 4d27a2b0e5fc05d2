"""What pairs of records are made by, as SQL: the level of a column, and what else is alike.

A level is a value of the column that is compared; a cell is what records have in common that differ
in nothing but that column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from steptime.core.errors import InputError, unknown
from steptime.records import flat
from steptime.records.row import AMOUNTS

if TYPE_CHECKING:
    from steptime.records.folders import Folders

OF_PLATFORM = ("gpu", "allocation")  # options that say by what word a platform was asked for
OF_STACK = ("compile", "stack")  # options that say a stack
PLACES = ("platform", "gpu", "threads", "host")  # that may give a platform another name
APART = {  # options in which the levels of a column may differ
    **dict.fromkeys(("platform", "gpu"), OF_PLATFORM),
    **dict.fromkeys(("stack", "method"), OF_STACK),
}
OF_SAMPLES = (
    *("params", "settings", "plan", "samples", "run", "runs", "others", "sampled", *AMOUNTS),
    *("estimate", "env", "method_options", "seq", "place", "folder_rank"),
)


def value_of(data: Folders, quantity: str) -> str:
    """Return the SQL of a quantity; raises `InputError` where no record has it."""
    value = sql_of(quantity)
    if data.rows(f"SELECT 1 FROM flat WHERE {value} IS NOT NULL LIMIT 1"):
        return value
    if data.failed:
        raise InputError(data.failed)
    held = data.rows("SELECT DISTINCT unnest(map_keys(others)) AS name FROM flat")
    (known,) = data.rows(
        f"SELECT {', '.join(f'count({one}) AS {one}' for one in AMOUNTS)} FROM flat"
    )
    names = [name for name, number in known.items() if number]
    raise unknown("quantity", quantity, sorted([*names, *(row["name"] for row in held)]))


def sql_of(quantity: str) -> str:
    """Return the SQL of a quantity, NULL where a record has none."""
    value = f"TRY_CAST(others[{flat.text(quantity)}] AS DOUBLE)"
    return f"coalesce({quantity}, {value})" if quantity in (*AMOUNTS, "speed_per_s") else value


def cell_of(data: Folders, column: str, free: Collection[str]) -> str:
    """Return the SQL of what records have in common that may be paired, whatever `free` says."""
    model = "if(starts_with(model, family), family, model)"
    network = {  # of a network with a hash that says it, whatever it was called
        "model": model if "sha256" in free else f"if(contains(params, 'sha256'), '', {model})",
        "batch": "examples / replicas",
        **{name: name for name in ("dtype", "phase", "optimizer", "params", "plan")},
    }
    if "replicas" in free:
        network["plan"] = "json_merge_patch(plan, '{\"data\":null}')"
    settings = {*network, "replicas", *data.settings} & {*free}
    for name in settings & set(data.settings):
        gone = flat.text(json.dumps({name: None}))
        network["params"] = f"json_merge_patch({network['params']}, {gone})"
    kept = [made for name, made in network.items() if name not in free]
    cell = [*kept, "scope", "origin"] if settings else ["workload_key", "scope", "origin"]
    if column not in PLACES:
        cell.append("platform")
    if column == "stack":  # a prediction of a stack has one method
        cell.append(f"if(origin = 'predicted', {flat.NAME}, '')")
    elif column not in ("method", "predicted_by"):
        cell.append(flat.NAME)
    return f"hash({', '.join(cell)})"


def level_of(data: Folders, column: str) -> str:
    """Return the SQL of what a column says of a record, as text; None where it says nothing of it.

    A column is one of the tables, a hyperparameter, an option, or one of the environment. Raises
    `InputError` for a column of which no record says anything.
    """
    path = flat.text(f'$."{column.replace(chr(34), "")}"')
    known = [name for name in data.columns("flat") if name not in OF_SAMPLES]
    told = [flat.TEXT.format(v=flat.param(column))] if column in data.settings else []
    told += [f"json_extract_string({one}, {path})" for one in ("method_options", "env")]
    way = flat.text(f"$.{column.removesuffix('-parallel')}")
    told += [f"json_extract_string(plan, {way})"] if column.endswith("-parallel") else []
    if column in known:
        told = [f"CAST({flat.name(column)} AS VARCHAR)"]
    value = f"coalesce({', '.join(told)})"
    text = f"CASE {value} WHEN 'true' THEN 'yes' WHEN 'false' THEN 'no' ELSE {value} END"
    if column == "predicted_by":
        text = f"CASE WHEN origin = 'predicted' THEN {flat.NAME} END"
    if column == "host":  # where a prediction was computed changes nothing
        text = f"CASE WHEN origin <> 'predicted' THEN {text} END"
    if data.rows(f"SELECT 1 FROM flat WHERE ({text}) IS NOT NULL LIMIT 1"):
        return text
    keys = data.rows(
        "SELECT DISTINCT unnest(json_keys(method_options) || json_keys(env)) AS name FROM flat"
    )
    every = [*known, *data.settings, *(row["name"] for row in keys), "predicted_by"]
    if column in every:
        raise InputError(f"--by {column}: no step here says its {column}")
    raise unknown("column", column, every, "--by")


def in_order(levels: Iterable[str]) -> list[str]:
    """Return levels in order: numbers by size, then words as they come."""

    def place(level: str) -> float:
        try:
            number = float(level)
        except ValueError:
            return math.inf
        return number if math.isfinite(number) else math.inf

    return sorted(levels, key=place)
