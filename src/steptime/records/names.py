"""The shortest names of rows that tell them apart, of whole columns: 10^6 rows are a second."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from steptime.records import flat
from steptime.records.row import (
    HOW,
    Row,
    columns_of,
    exchange_name,
    grouped,
    loaded,
    names_of,
    said,
    telling_of,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

OF_NETWORK = ("within", "family", "settings", "batch", "strategy", "overlap")  # tells its name
OF_WAY = (*HOW, "method_options", "method_version", "host")  # what tells how a row ran
HASHES = {
    "network": f"(hash({', '.join(OF_NETWORK)}) >> 1)::BIGINT",
    "way": f"(hash({', '.join(OF_WAY)}) >> 1)::BIGINT",
}
TOLD = (*OF_NETWORK, *OF_WAY)
UNTOLD = ("runs", "strategy", "overlap", *HOW)  # options that have a place, or tell nothing


def add_names(
    connection: DuckDBPyConnection,
    table: str,
    rows: str,
    wide: Callable[[Sequence[int]], str],
    free: Collection[str] = (),
) -> None:
    """Make a table of the `id` of rows and the shortest `name` that tells each from the others.

    Of the settings of a model only those are named that tell its networks apart, then the batch,
    then of how each ran what tells rows of one network apart: `fc nodes 256, batch 64, p100`; what
    is `free` is not named. `rows` is a statement: `id`, `place` (their order), `HASHES`, and one of
    what stands `beside` the name, and tells rows apart, too. `wide` returns the statement of
    `OF_NETWORK` and `OF_WAY` of some ids; those that are `within` one value are named together.
    """
    kept, bases, ends = (f"{table}_{one}" for one in ("kept", "bases", "ends"))
    connection.execute(f"CREATE OR REPLACE TABLE {kept} AS {rows}")
    heads = _first(connection, "network", f"FROM {kept}")
    base = _bases(connection, wide([*heads.values()]), [*heads.values()], free)
    flat.keep(connection, bases, {"network": [*heads], "base": base})
    based = f"(SELECT *, hash(base, beside) AS key FROM {kept} JOIN {bases} USING (network))"
    alike = f"SELECT key FROM {based} GROUP BY key HAVING count(*) > 1"
    several = f"FROM {based} SEMI JOIN ({alike}) USING (key)"
    ran = flat.listed(connection.execute(f"SELECT id, key, way {several} ORDER BY place"))
    heads = _first(connection, "way", several)
    found = flat.fetched(connection.execute(wide([*heads.values()]))) if heads else []
    told = {row["id"]: _how(row, free) for row in found}
    ending = _endings({way: told[at] for way, at in heads.items()}, ran["way"], ran["key"])
    flat.keep(connection, ends, {"id": ran["id"], "ending": ending})
    connection.execute(
        f"CREATE OR REPLACE TABLE {table} AS SELECT id, base || coalesce(ending, '') AS name "
        f"FROM {based} LEFT JOIN {ends} USING (id)"
    )
    for one in (kept, bases, ends):
        connection.execute(f"DROP TABLE {one}")


def hashed(source: str, besides: Sequence[str]) -> str:
    """Return the `rows` of `add_names` of a statement with `id`, `place`, and what names tell."""
    made = ", ".join(f"{sql} AS {name}" for name, sql in HASHES.items())
    return f"SELECT id, place, {made}, hash({', '.join(besides)}) AS beside FROM ({source})"


def _first(connection: DuckDBPyConnection, key: str, rows: str) -> dict[int, int]:
    """Return the first id of each key of rows, in their order."""
    first = f"SELECT {key}, min_by(id, place) AS id FROM ({rows}) GROUP BY {key}"
    found = flat.listed(connection.execute(f"{first} ORDER BY min(place)"))
    return dict(zip(found[key], found["id"], strict=True))


def _bases(
    connection: DuckDBPyConnection, wide: str, ids: Sequence[int], free: Collection[str]
) -> list[str]:
    """Return the names of networks, in the order of their ids, without how they ran."""
    connection.execute(
        f"CREATE OR REPLACE TABLE networks AS SELECT id, {', '.join(OF_NETWORK)}, "
        f"to_json(json_keys(settings))::VARCHAR AS keys FROM ({wide})"
    )
    told = connection.execute("SELECT DISTINCT keys FROM networks").fetchall()
    names = {keys: [n for n in loaded(keys) if n not in free] for (keys,) in told}
    every = list(dict.fromkeys(name for some in names.values() for name in some))
    settings_ = (
        f", json_extract(settings, {flat.pointer(n)})::VARCHAR AS set_{at}"
        for at, n in enumerate(every)
    )
    of = flat.listed(
        connection.execute(
            f"SELECT id, within, family, keys, {'NULL' if 'batch' in free else 'batch'} AS batch, "
            f"{'NULL' if 'strategy' in free else 'strategy'} AS strategy, "
            f"{'true' if 'overlap' in free else 'coalesce(overlap, true)'} AS overlap"
            f"{''.join(settings_)} FROM networks"
        )
    )
    connection.execute("DROP TABLE networks")
    place = {one: at for at, one in enumerate(of["id"])}
    order = [place[one] for one in ids]
    base: dict[int, str] = {}
    of_one = [*zip(of["within"], of["family"], strict=True)]
    for places in grouped(order, of_one.__getitem__).values():
        known = dict.fromkeys(
            n for keys in {of["keys"][at]: 0 for at in places} for n in names[keys]
        )
        settings = {n: [of[f"set_{every.index(n)}"][at] for at in places] for n in known}
        batch = [of["batch"][at] for at in places]
        found = names_of(of["family"][places[0]], settings, batch)
        for at, name in zip(places, found, strict=True):
            base[at] = name + exchange_name(of["strategy"][at], of["overlap"][at])
    return [base[at] for at in order]


def _how(row: Row, free: Collection[str]) -> Row:
    """Return how and where a step ran, in the order in which it is told."""
    options = loaded(row["method_options"])
    others = {name: value for name, value in options.items() if name not in UNTOLD}
    last = {"version": row["method_version"], "host": row["host"]}
    told = {name: row[name] for name in HOW} | others | last
    return {name: value for name, value in told.items() if name not in free}


def _endings(hows: Mapping[int, Row], of: Sequence[int], keys: Sequence[Hashable]) -> list[str]:
    """Return what is added to the names of rows that have one key: how each of them ran."""
    ends, memo = [""] * len(of), dict[tuple[int, ...], list[str]]()
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
