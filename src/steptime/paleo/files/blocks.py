"""From the layers of a Paleo file, blocks within blocks, to one list in topological order.

A `Block` is a namespace: inside, names are written short, and are looked for from the inside out.
A `ModelParallel` block repeats each of its layers, once a split, as `block/layer@k`.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any

from steptime.core.errors import InputError, shorten, unknown

BLOCK, MODEL_PARALLEL = "Block", "ModelParallel"
MOST_LAYERS = 1_000_000  # and as many parents
MOST_SPLITS = 4096
MOST_NESTED = 50
LONGEST_NAME = 300
_RESERVED = ("grad", "saved", "update")
_COMPARED_NAMES = 2_000

Names = dict[str, str | int]
"""What full names stand for: a layer for itself, a block for the name of its endpoint, a layer that
is split for the number of its parts, and the block that splits it for 0."""


Reference = tuple[str, tuple[str, ...]]
"""A parent as it is written, and the namespaces that it is looked for in: prefixes such as
`block/`, the outermost, "", first."""


@dataclass(frozen=True)
class Entry:
    """One layer of the file: its full name, the file's `keys`, the full names of its parents.

    These are `written` as references until all names are known, in the layer's own `scopes` or in
    those of the block that it has them from. `split` counts the parts of a model-parallel block,
    `splits` of them, from 0.
    """

    name: str
    type: str
    keys: Mapping[str, Any]
    scopes: tuple[str, ...]
    written: tuple[Reference, ...] = ()
    parents: tuple[str, ...] = ()
    split: int | None = None
    splits: int = 1

    def fault(self, message: str) -> InputError:
        """Return an error that names the layer."""
        return InputError(f"layer {shorten(self.name)}: {message}")

    def key(self, name: str) -> Any:
        """Return a value that the layer must have; raises `InputError` where it is missing."""
        if name not in self.keys:
            raise self.fault(f"the key '{name}' is missing")
        return self.keys[name]

    def text(self, name: str) -> str:
        """Return a text that the layer must have; raises `InputError` for anything else."""
        value = self.key(name)
        if not isinstance(value, str) or not value:
            raise self.fault(f"{name} must be a text, not {shorten(value)}")
        return value

    @property
    def inner(self) -> dict[str, Any]:
        """The layers of a block; raises `InputError` where it has none."""
        layers = self.key("layers")
        if not isinstance(layers, dict) or not layers:
            raise self.fault(f"layers must be a table of layers, not {shorten(layers)}")
        return layers


def expand(layers: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Return every layer of a file, parents before children, else in the order of the file."""
    names: Names = {}
    entries: list[Entry] = []
    for entry in _collected(names, layers, ("",), ()):
        if len(entries) >= MOST_LAYERS:
            raise entry.fault(f"the network has more than {MOST_LAYERS} layers")
        entries.append(entry)
    if not entries:
        raise InputError("the network has no layers")
    for name, meaning in names.items():
        if isinstance(meaning, str):
            _endpoint(names, name)
    count = 0
    for i, entry in enumerate(entries):
        _check_reserved(names, entry)
        parents: list[str] = []
        for reference in entry.written:
            parents += _found(names, reference, entry)
            if count + len(parents) > MOST_LAYERS:
                raise entry.fault(f"the network has more than {MOST_LAYERS} parents")
        count += len(parents)
        entries[i] = replace(entry, parents=tuple(parents))
    return _ordered(entries)


def _collected(
    names: Names,
    layers: Mapping[str, Any],
    scopes: tuple[str, ...],
    inherited: tuple[Reference, ...],
) -> Iterator[Entry]:
    """Return the layers of one namespace; those without parents have the `inherited` ones."""
    for short, keys in layers.items():
        entry = _head(names, scopes, short, keys, inherited)
        inside = (*scopes, f"{entry.name}/")
        if entry.type == BLOCK:
            if len(scopes) > MOST_NESTED:
                raise entry.fault(f"more than {MOST_NESTED} blocks within each other")
            names[entry.name] = f"{entry.name}/{entry.text('endpoint')}"
            yield from _collected(names, entry.inner, inside, entry.written)
        elif entry.type == MODEL_PARALLEL:
            names[entry.name] = 0
            yield from _split(names, entry, inside)
        else:
            yield entry


def _split(names: Names, block: Entry, scopes: tuple[str, ...]) -> Iterator[Entry]:
    splits = block.key("splits")
    if type(splits) is not int or not 1 <= splits <= MOST_SPLITS:
        raise block.fault(f"splits must be from 1 to {MOST_SPLITS}, not {shorten(splits)}")
    for short, keys in block.inner.items():
        entry = _head(names, scopes, short, keys, block.written)
        if entry.type in (BLOCK, MODEL_PARALLEL):
            raise entry.fault(f"a {MODEL_PARALLEL} block holds layers, not blocks")
        names[entry.name] = splits
        for k in range(splits):
            part = f"{entry.name}@{k}"
            names[part] = part
            yield replace(entry, name=part, split=k, splits=splits)


def _head(
    names: Names, scopes: tuple[str, ...], short: str, keys: Any, inherited: tuple[Reference, ...]
) -> Entry:
    """Return a layer whose name, type and parents, as they are written, are of the right form."""
    entry = Entry(name := scopes[-1] + short, "", keys, scopes)
    if not short or "@" in short or not short.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(
            f"{shorten(name)} is no name of a layer: it needs 1 to {LONGEST_NAME} printable "
            "characters, none of them @"
        )
    if not isinstance(keys, dict):
        raise entry.fault(f"must be a table, not {shorten(keys)}")
    if name in names:
        raise entry.fault("there are two of this name")
    names[name] = name
    is_input = entry.text("type") == "Input"
    parents = keys.get("parents", []) if is_input else entry.key("parents")
    if not isinstance(parents, list) or not all(isinstance(text, str) for text in parents):
        raise entry.fault(f"parents must be a list of names, not {shorten(parents)}")
    if is_input and parents:
        raise entry.fault(f"an input has no parents, not {shorten(parents)}")
    written = tuple((text, scopes) for text in parents) or inherited
    return replace(entry, type=keys["type"], written=() if is_input else written)


def _found(names: Names, reference: Reference, entry: Entry) -> tuple[str, ...]:
    """Return the layers that a reference means, looked for from its own namespace outwards."""
    text, scopes = reference
    base, mark, which = text.partition("@")
    parent = f"parent {shorten(text)}"
    if mark and not base:
        raise entry.fault(f"{parent} names no layer")
    name = next((scope + base for scope in reversed(scopes) if scope + base in names), "")
    if not name:
        full = (name for name, meaning in names.items() if "@" not in name and meaning != 0)
        short = (name.removeprefix(scopes[-1]) for name in full)
        known = islice(short, _COMPARED_NAMES)
        raise unknown("parent", text, known, f"layer {shorten(entry.name)}")
    splits = names[name]
    is_beside = entry.split is not None and scopes == entry.scopes
    if isinstance(splits, str) and not mark:
        return (_endpoint(names, name),)
    if not mark:
        also = " or @self" * is_beside
        raise entry.fault(f"{parent} is split: name a layer of the block, with @all{also}")
    if isinstance(splits, str) or not splits:
        raise entry.fault(f"{parent}: '{name}' is not split")
    if which == "all":
        return tuple(f"{name}@{k}" for k in range(splits))
    if which == "self":
        if not is_beside or not name.startswith(entry.scopes[-1]):
            raise entry.fault(f"{parent}: @self has a meaning only inside its own block")
        return (f"{name}@{entry.split}",)
    if f"{name}@{which}" not in names:
        raise entry.fault(f"{parent}: write @self or @all")
    return (f"{name}@{which}",)


def _endpoint(names: Names, name: str) -> str:
    """Return the layer that a name means: itself, or the endpoint of a block, at any depth."""
    while (inner := names[name]) != name:
        if not isinstance(inner, str) or not isinstance(names.get(inner), str):
            within = f"{name}/"
            layers = (n for n, meaning in names.items() if n == meaning and n.startswith(within))
            inside = (n.removeprefix(within) for n in islice(layers, _COMPARED_NAMES))
            end = str(inner).removeprefix(within)
            raise unknown("endpoint", end, inside, f"block {shorten(name)}")
        name = inner
    return name


def _check_reserved(names: Names, entry: Entry) -> None:
    """Refuse the name of a layer that a gradient or update of another layer will have."""
    *_, last = parts = entry.name.split("/")
    if last.startswith(_RESERVED):
        for i in range(1, len(parts)):
            above = "/".join(parts[:i])
            if names.get(above) == above:
                raise entry.fault(f"'{last}' inside '{above}' is a name of gradients")


def _ordered(entries: list[Entry]) -> tuple[Entry, ...]:
    place = {entry.name: i for i, entry in enumerate(entries)}
    sorter = TopologicalSorter(
        {i: [place[name] for name in entry.parents] for i, entry in enumerate(entries)}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        last, first = (entries[i] for i in error.args[1][-2:])
        way = f"is its own ancestor, by way of {shorten(last.name)}"
        raise first.fault(way) from None
    ready: list[int] = []
    ordered: list[Entry] = []
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, i)
        first = heapq.heappop(ready)
        ordered.append(entries[first])
        sorter.done(first)
    return tuple(ordered)
