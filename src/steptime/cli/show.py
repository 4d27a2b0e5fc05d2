"""What `list NAME` answers: one device, link or network, each number with its source."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from steptime.core.errors import unknown
from steptime.core.spelling import meant_by
from steptime.core.table import Answer, Table, columns, facts, picked
from steptime.core.units import shown
from steptime.hardware import catalog
from steptime.hardware.device import DETAILS, Device, Link
from steptime.network.families import family, names


def show(name: str, topics: Iterable[str]) -> Answer:
    """Return a device, link or network: each number and its source; raises `InputError`.

    A name that is none of these was meant to be one, or one of the `topics`.
    """
    devices, links = [*catalog.device_names(), *catalog.aliases()], catalog.link_names()
    for find, known in ((_find_device, [*devices, "local"]), (catalog.link, links)):
        if name.lower().endswith(".toml") or name.lower() in map(str.lower, known):
            return _hardware(find(name))
    if name in names():
        return _network(family(name))
    if catalog.meant(name):
        return _hardware(_find_device(name))
    every = (*topics, *devices, *links, *names())
    raise unknown("name", name, every if meant_by(name, every) else topics)


def _find_device(name: str) -> Device:
    """Return a device; a name that only Paleo's table has means its figures."""
    return catalog.device(name, "" if catalog.meant(name) else catalog.PAPER_METHOD)


def _hardware(found: Device | Link) -> Answer:
    document = asdict(found)
    rows: list[tuple[str, Any]] = []
    for key, value in document.items():
        if isinstance(value, dict):
            own = {*DETAILS} if key == "details" else ()  # figures elsewhere
            items = ((name, item) for name, item in value.items() if name not in own)
            rows += [(f"{key}.{name}", shown(key, item)) for name, item in items]
        elif value is not False and value not in ("", (), None) and key not in ("name", "note"):
            rows.append((key, shown(key, value)))
    doubted = f"not verified: {', '.join(found.unverified)}" if found.unverified else ""
    notes = [" ".join(text.split()) for text in (found.note, doubted) if text]
    return Answer(document, [facts(found.name, "", rows)], notes)


def _network(found: Any) -> Answer:
    rows = []
    for name, one in found.parameters.items():
        default = "..." if callable(one.default) else one.default
        more = {"meaning": one.meaning, "choices": list(one.choices)}
        rows.append({"name": name, "default": default, **more})
    notes = [f"source: {found.source}", f"default batch: {found.batch}"]
    if any(row["default"] == "..." for row in rows):
        notes.append("...: follows from the other hyperparameters")
    table = Table(columns("name", "default", "meaning", "choices"), rows, found.name)
    tables = [table if rows else facts(found.name, "", [("hyperparameters", "none")])]
    return Answer(picked(found, "name source batch") | {"parameters": rows}, tables, notes)
