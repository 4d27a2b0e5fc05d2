"""From the layers of a Paleo file, blocks within blocks, to one list in topological order.

A `Block` is a namespace: inside, names are written short, and are looked for from the inside out.
A `ModelParallel` block repeats each of its layers, once a split, as `block/layer@k`.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any

from steptime.core.errors import InputError, shorten, unknown

BLOCK, MODEL_PARALLEL = "Block", "ModelParallel"
MOST_LAYERS = MOST_REFERENCES = 1_000_000
MOST_SPLITS = 4096
MOST_NESTED = 50
LONGEST_NAME = 300
_SHOWN_OF_A_CYCLE = 4
_RESERVED = ("grad", "saved", "update")
_COMPARED_NAMES = 1_000


@dataclass(frozen=True)
class Entry:
    """One layer of the file: its full name, the file's `keys`, the full names of its parents.

    `split` counts the parts of a model-parallel block, `splits` of them, from 0.
    """

    name: str
    type: str
    keys: Mapping[str, Any]
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


@dataclass(frozen=True)
class _Reference:
    """A parent as written, the namespaces it stands in, and the split of the one who names it.

    Namespaces are prefixes such as `block/`, the outermost, "", first.
    """

    text: str
    scopes: tuple[str, ...]
    split: int | None = None

    @property
    def scope(self) -> str:
        """The innermost namespace."""
        return self.scopes[-1]


@dataclass
class _Names:
    """What the names of a file stand for."""

    entries: dict[str, tuple[Entry, tuple[_Reference, ...]]] = field(default_factory=dict)
    endpoints: dict[str, str] = field(default_factory=dict)
    split_layers: dict[str, int] = field(default_factory=dict)
    parallel_blocks: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    references: int = 0


def expand(layers: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Return every layer of a file under its full name, parents before children.

    Of layers that are ready together, the one that stands first in the file comes first. Raises
    `InputError`, naming the layer, for unknown parents, cycles, and blocks that are none.
    """
    names = _Names()
    _collect(names, layers, ("",), ())
    if not names.entries:
        raise InputError("the network has no layers")
    for block in names.endpoints:
        _endpoint(names, block)
    for name in names.entries:
        _check_reserved(names, name)
    return _ordered(list(_resolved(names)))


def _collect(
    names: _Names,
    layers: Mapping[str, Any],
    scopes: tuple[str, ...],
    inherited: tuple[_Reference, ...],
) -> None:
    """Note the layers of one namespace; those without parents have the `inherited` ones."""
    for short, keys in layers.items():
        entry = _head(names, scopes[-1], short, keys)
        references = tuple(_Reference(text, scopes) for text in entry.parents) or inherited
        if entry.type == BLOCK:
            if len(scopes) > MOST_NESTED:
                raise entry.fault(f"more than {MOST_NESTED} blocks within each other")
            names.endpoints[entry.name] = entry.text("endpoint")
            _collect(names, entry.inner, (*scopes, f"{entry.name}/"), references)
        elif entry.type == MODEL_PARALLEL:
            _collect_splits(names, entry, scopes, references)
        else:
            _add(names, entry, references)


def _collect_splits(
    names: _Names, block: Entry, outside: tuple[str, ...], inherited: tuple[_Reference, ...]
) -> None:
    splits = block.key("splits")
    if type(splits) is not int or not 1 <= splits <= MOST_SPLITS:
        raise block.fault(f"splits must be from 1 to {MOST_SPLITS}, not {shorten(splits)}")
    layers = block.inner
    if splits * len(layers) > MOST_LAYERS:
        raise block.fault(f"{shorten(splits)} splits make more than {MOST_LAYERS} layers")
    names.parallel_blocks.add(block.name)
    scopes = (*outside, f"{block.name}/")
    for short, keys in layers.items():
        entry = _head(names, scopes[-1], short, keys)
        if entry.type in (BLOCK, MODEL_PARALLEL):
            raise entry.fault(f"a {MODEL_PARALLEL} block holds layers, not blocks")
        names.split_layers[entry.name] = splits
        for k in range(splits):
            own = tuple(_Reference(text, scopes, k) for text in entry.parents) or inherited
            _add(names, replace(entry, name=f"{entry.name}@{k}", split=k, splits=splits), own)


def _head(names: _Names, scope: str, short: str, keys: Any) -> Entry:
    """Return a layer whose name, type and parents, as they are written, are of the right form."""
    entry = Entry(name := scope + short, "", keys)
    if not short or "@" in short or not short.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(
            f"{shorten(name)} is no name of a layer: it needs 1 to {LONGEST_NAME} printable "
            "characters, none of them @"
        )
    if not isinstance(keys, dict):
        raise entry.fault(f"must be a table, not {shorten(keys)}")
    if name in names.known:
        raise entry.fault("there are two of this name")
    names.known.add(name)
    kind = entry.text("type")
    parents = keys.get("parents", []) if kind == "Input" else entry.key("parents")
    if not isinstance(parents, list) or not all(isinstance(text, str) for text in parents):
        raise entry.fault(f"parents must be a list of names, not {shorten(parents)}")
    if kind == "Input" and parents:
        raise entry.fault(f"an input has no parents, not {shorten(parents)}")
    return replace(entry, type=kind, parents=tuple(parents))


def _add(names: _Names, entry: Entry, references: tuple[_Reference, ...]) -> None:
    names.references += len(references)
    if len(names.entries) >= MOST_LAYERS or names.references > MOST_REFERENCES:
        raise entry.fault(f"the network has more than {MOST_LAYERS} layers or parents")
    given = () if entry.type == "Input" else references
    names.entries[entry.name] = (entry, given)


def _resolved(names: _Names) -> Iterator[Entry]:
    """Return each layer with the full names of its parents."""
    count = 0
    for entry, references in names.entries.values():
        parents: list[str] = []
        for reference in references:
            result = _find(names, reference, entry)
            count += len(result)
            if count > MOST_REFERENCES:
                raise entry.fault(f"the network has more than {MOST_REFERENCES} parents")
            parents.extend(result)
        yield replace(entry, parents=tuple(parents))


def _find(names: _Names, reference: _Reference, entry: Entry) -> tuple[str, ...]:
    """Return the layers that a reference means, looked for from its own namespace outwards."""
    base, mark, which = reference.text.partition("@")
    if mark and not base:
        raise entry.fault(f"parent {shorten(reference.text)} names no layer")
    for scope in reversed(reference.scopes):
        if scope + base in names.known:
            return _meant(names, reference, scope + base, which if mark else None, entry)
    short = (name.removeprefix(reference.scope) for name in (*names.split_layers, *names.endpoints))
    full = (name.removeprefix(reference.scope) for name in names.entries if "@" not in name)
    known = [*islice(full, _COMPARED_NAMES), *islice(short, _COMPARED_NAMES)]
    raise unknown("parent", reference.text, known, f"layer {shorten(entry.name)}")


def _meant(
    names: _Names, reference: _Reference, name: str, which: str | None, entry: Entry
) -> tuple[str, ...]:
    splits = names.split_layers.get(name)
    if which is not None and splits is None:
        raise entry.fault(f"parent {shorten(reference.text)}: '{name}' is not split")
    if which == "all" and splits is not None:
        return tuple(f"{name}@{k}" for k in range(splits))
    if which == "self":
        if reference.split is None or not name.startswith(reference.scope):
            raise entry.fault(
                f"parent {shorten(reference.text)}: @self has a meaning only inside its own block"
            )
        return (f"{name}@{reference.split}",)
    if which is not None:
        if f"{name}@{which}" not in names.entries:
            raise entry.fault(f"parent {shorten(reference.text)}: write @self or @all")
        return (f"{name}@{which}",)
    if splits is not None or name in names.parallel_blocks:
        raise entry.fault(
            f"parent {shorten(reference.text)} is split: name a layer of the block, with @all"
            + (" or @self" if reference.split is not None else "")
        )
    return (_endpoint(names, name),)


def _endpoint(names: _Names, name: str) -> str:
    """Return the layer that a name means: itself, or the endpoint of a block, at any depth."""
    while name in names.endpoints:
        block, inner = name, f"{name}/{names.endpoints[name]}"
        if inner not in names.entries and inner not in names.endpoints:
            inside = islice(
                (n.removeprefix(f"{block}/") for n in names.entries if n.startswith(f"{block}/")),
                _COMPARED_NAMES,
            )
            raise unknown("endpoint", names.endpoints[block], inside, f"block {shorten(block)}")
        name = inner
    return name


def _check_reserved(names: _Names, name: str) -> None:
    """Refuse the name of a layer that a gradient or update of another layer will have."""
    *_, last = parts = name.split("/")
    if last.startswith(_RESERVED):
        for i in range(1, len(parts)):
            if "/".join(parts[:i]) in names.entries:
                inside = f"'{last}' inside '{'/'.join(parts[:i])}'"
                raise names.entries[name][0].fault(f"{inside} is a name of gradients")


def _ordered(entries: list[Entry]) -> tuple[Entry, ...]:
    place = {entry.name: i for i, entry in enumerate(entries)}
    sorter = TopologicalSorter(
        {i: [place[name] for name in entry.parents] for i, entry in enumerate(entries)}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        raise _cycle([entries[i] for i in error.args[1]]) from None
    ready: list[int] = []
    ordered: list[Entry] = []
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, i)
        first = heapq.heappop(ready)
        ordered.append(entries[first])
        sorter.done(first)
    return tuple(ordered)


def _cycle(circle: list[Entry]) -> InputError:
    """Return the error of a circle of layers, each a parent of the next, the first also last."""
    first, *shown = (shorten(entry.name) for entry in (circle[0], *reversed(circle[1:])))
    if len(shown) > _SHOWN_OF_A_CYCLE:
        shown = [*shown[:_SHOWN_OF_A_CYCLE], "..."]
    return circle[0].fault(f"is its own ancestor: {' <- '.join([*shown, first])}")
