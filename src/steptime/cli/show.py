"""The command `show`: one device, link or network, each number with its source."""

from dataclasses import asdict
from typing import Annotated, Any

from steptime.cli.command import command
from steptime.cli.options import argument
from steptime.core.errors import unknown
from steptime.core.hardware import DETAILS, DETAILS_IN_WORDS, Device, Link
from steptime.core.table import Answer, Table, columns, facts
from steptime.core.units import shown


@command()
def show(
    name: Annotated[str, argument("NAME", "A device, link, model, or a device's FILE.toml.")],
) -> Answer:
    """Show a device, link or network: each number and its source."""
    from steptime import catalog
    from steptime.build import model_names
    from steptime.models import family

    for find, names in (
        (catalog.device, [*catalog.device_names(), *catalog.aliases(), "local"]),
        (catalog.link, catalog.link_names()),
    ):
        if name.lower().endswith(".toml") or name.lower() in map(str.lower, names):
            return _hardware(find(name))
    if name not in model_names():
        if catalog.meant(name):
            return _hardware(catalog.device(name))
        known = (*catalog.device_names(), *catalog.aliases(), *catalog.link_names(), *model_names())
        raise unknown("name", name, known)
    return _network(family(name))


def _hardware(found: Device | Link) -> Answer:
    document = asdict(found)
    rows: list[tuple[str, Any]] = []
    for key, value in document.items():
        if isinstance(value, dict):
            rows += [
                (f"{key}.{name}", shown(key, item))
                for name, item in value.items()
                if not (
                    key == "details" and name in {*DETAILS, *DETAILS_IN_WORDS}
                )  # those are figures of their own
            ]
        elif value is not False and value not in ("", (), None) and key not in ("name", "note"):
            rows.append((key, shown(key, value)))
    notes = [found.note] if found.note else []
    if found.unverified:
        notes.append(f"not verified: {', '.join(found.unverified)}")
    return Answer(document, [facts(found.name, "", rows)], [" ".join(n.split()) for n in notes])


def _network(found: Any) -> Answer:
    rows = [
        {
            "name": name,
            "default": "..." if callable(one.default) else one.default,
            "meaning": one.meaning,
            "choices": list(one.choices),
        }
        for name, one in found.parameters.items()
    ]
    notes = [f"source: {found.source}", f"default batch: {found.batch}"]
    if any(row["default"] == "..." for row in rows):
        notes.append("...: follows from the other hyperparameters")
    table = Table(columns("name", "default", "meaning", "choices"), rows, found.name)
    return Answer(
        {"name": found.name, "source": found.source, "batch": found.batch, "parameters": rows},
        [table if rows else facts(found.name, "", [("hyperparameters", "none")])],
        notes,
    )
