"""Expand the layers of a Paleo file, with nested blocks, into one list in topological order.

A `Block` is a namespace: inside, names are short and are resolved from the innermost block
outwards. A `ModelParallel` block repeats each of its layers, once per split, as `block/layer@k`.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any

from steptime.core.errors import InputError, shorten, unknown

BLOCK, MODEL_PARALLEL = "Block", "ModelParallel"
MAX_LAYERS = 1_000_000  # and as many parents
MAX_SPLITS = 4096
MAX_NESTED_BLOCKS = 50
MAX_NAME_LENGTH = 300
_RESERVED = ("grad", "saved", "update")
_COMPARED_NAMES = 2_000

Names = dict[str, str | int]
"""Full name: the name itself for a layer, the name of its endpoint for a block, the number of its
parts for a split layer, and 0 for a block that splits."""


Reference = tuple[str, tuple[str, ...]]
"""A parent as the file writes it, and the namespaces in which it is resolved: prefixes such as
`block/`, the outermost, "", first."""


@dataclass(frozen=True)
class Entry:
    """One layer of the file: its full name, the `keys` of the file, the full names of its parents.

    Until all names are known, parents are `references`, in the `scopes` of the layer or in those
    of the block from which it inherits them. `split` is the part of a model-parallel block, from
    0; `splits` is the number of parts.
    """

    name: str
    type: str
    keys: Mapping[str, Any]
    scopes: tuple[str, ...]
    references: tuple[Reference, ...] = ()
    parents: tuple[str, ...] = ()
    split: int | None = None
    splits: int = 1

    def fault(self, message: str) -> InputError:
        """Return an error that names the layer."""
        return InputError(f"layer {shorten(self.name)}: {message}")

    def key(self, name: str) -> Any:
        """Return a value that the layer must have; raises `InputError` if it is missing."""
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
    def inner(self) -> Mapping[str, Any]:
        """The layers of a block; raises `InputError` if it has none."""
        layers = self.key("layers")
        if not isinstance(layers, dict) or not layers:
            raise self.fault(f"layers must be a table of layers, not {shorten(layers)}")
        return layers


def expand(layers: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Return every layer of a file, parents before children, else in the order of the file."""
    names: Names = {}
    entries: list[Entry] = []
    for entry in _collect_layers(names, layers, ("",), ()):
        if len(entries) >= MAX_LAYERS:
            raise entry.fault(f"the network has more than {MAX_LAYERS} layers")
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
        for reference in entry.references:
            parents += _resolve_parent(names, reference, entry)
            if count + len(parents) > MAX_LAYERS:
                raise entry.fault(f"the network has more than {MAX_LAYERS} parents")
        count += len(parents)
        entries[i] = replace(entry, parents=tuple(parents))
    return _sort_entries(entries)


def _collect_layers(
    names: Names,
    layers: Mapping[str, Any],
    scopes: tuple[str, ...],
    inherited: tuple[Reference, ...],
) -> Iterator[Entry]:
    """Yield the layers of a namespace; a layer without parents gets the `inherited` ones."""
    for short, keys in layers.items():
        entry = _read_head(names, scopes, short, keys, inherited)
        inside = (*scopes, f"{entry.name}/")
        if entry.type == BLOCK:
            if len(scopes) > MAX_NESTED_BLOCKS:
                raise entry.fault(f"more than {MAX_NESTED_BLOCKS} blocks within each other")
            names[entry.name] = f"{entry.name}/{entry.text('endpoint')}"
            yield from _collect_layers(names, entry.inner, inside, entry.references)
        elif entry.type == MODEL_PARALLEL:
            names[entry.name] = 0
            yield from _split_layers(names, entry, inside)
        else:
            yield entry


def _split_layers(names: Names, block: Entry, scopes: tuple[str, ...]) -> Iterator[Entry]:
    splits = block.key("splits")
    if type(splits) is not int or not 1 <= splits <= MAX_SPLITS:
        raise block.fault(f"splits must be from 1 to {MAX_SPLITS}, not {shorten(splits)}")
    for short, keys in block.inner.items():
        entry = _read_head(names, scopes, short, keys, block.references)
        if entry.type in (BLOCK, MODEL_PARALLEL):
            raise entry.fault(f"a {MODEL_PARALLEL} block holds layers, not blocks")
        names[entry.name] = splits
        for k in range(splits):
            part = f"{entry.name}@{k}"
            names[part] = part
            yield replace(entry, name=part, split=k, splits=splits)


def _read_head(
    names: Names, scopes: tuple[str, ...], short: str, keys: Any, inherited: tuple[Reference, ...]
) -> Entry:
    """Return a layer with checked name, type and references to its parents."""
    name = scopes[-1] + short
    entry = Entry(name, "", keys, scopes)
    if not short or "@" in short or not short.isprintable() or len(name) > MAX_NAME_LENGTH:
        raise InputError(
            f"{shorten(name)} is no name of a layer: it needs 1 to {MAX_NAME_LENGTH} printable "
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
    references = tuple((text, scopes) for text in parents) or inherited
    return replace(entry, type=keys["type"], references=() if is_input else references)


def _resolve_parent(names: Names, reference: Reference, entry: Entry) -> tuple[str, ...]:
    """Return the layers of a reference, resolved from its own namespace outwards."""
    text, scopes = reference
    base, mark, part = text.partition("@")
    parent = f"parent {shorten(text)}"
    if mark and not base:
        raise entry.fault(f"{parent} names no layer")
    name = _resolve_name(names, base, reference, entry)
    splits = names[name]
    is_sibling = entry.split is not None and scopes == entry.scopes
    if not mark:
        if isinstance(splits, str):
            return (_endpoint(names, name),)
        self_hint = " or @self" if is_sibling else ""
        raise entry.fault(f"{parent} is split: name a layer of the block, with @all{self_hint}")
    if isinstance(splits, str) or not splits:
        raise entry.fault(f"{parent}: '{name}' is not split")
    if part == "all":
        return tuple(f"{name}@{k}" for k in range(splits))
    if part == "self":
        if not is_sibling or not name.startswith(entry.scopes[-1]):
            raise entry.fault(f"{parent}: @self has a meaning only inside its own block")
        return (f"{name}@{entry.split}",)
    if f"{name}@{part}" not in names:
        raise entry.fault(f"{parent}: write @self or @all")
    return (f"{name}@{part}",)


def _resolve_name(names: Names, base: str, reference: Reference, entry: Entry) -> str:
    """Return the full name of a reference; raises `InputError` if no namespace has it."""
    text, scopes = reference
    for scope in reversed(scopes):
        if scope + base in names:
            return scope + base
    full_names = (name for name, meaning in names.items() if "@" not in name and meaning != 0)
    short_names = (name.removeprefix(scopes[-1]) for name in full_names)
    candidates = islice(short_names, _COMPARED_NAMES)
    raise unknown("parent", text, candidates, f"layer {shorten(entry.name)}")


def _endpoint(names: Names, name: str) -> str:
    """Return the layer of a name: itself, or the endpoint of a block, at any depth."""
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


def _sort_entries(entries: list[Entry]) -> tuple[Entry, ...]:
    place = {entry.name: i for i, entry in enumerate(entries)}
    sorter = TopologicalSorter(
        {i: [place[name] for name in entry.parents] for i, entry in enumerate(entries)}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        parent, child = (entries[i] for i in error.args[1][-2:])  # the end of a cycle's path
        raise child.fault(f"is its own ancestor, by way of {shorten(parent.name)}") from None
    ready: list[int] = []
    ordered: list[Entry] = []
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, i)
        earliest = heapq.heappop(ready)  # layers that depend on nothing open keep the file's order
        ordered.append(entries[earliest])
        sorter.done(earliest)
    return tuple(ordered)
