"""Expand the layers of a Paleo file, with nested blocks, into one list in topological order.

A `Block` is a namespace: inside, names are short and are resolved from the innermost block
outwards. A `ModelParallel` block repeats each of its layers, once per split, as `block/layer@k`.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
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

MeaningByName = dict[str, str | int]
"""Full name: the name itself for a layer, the name of its endpoint for a block, the number of its
parts for a split layer, and `SPLIT_BLOCK` for a block that splits."""
SPLIT_BLOCK = 0

Reference = tuple[str, tuple[str, ...]]
"""A parent as the file writes it, and the namespaces in which it is resolved: prefixes such as
`block/`, the outermost, "", first."""


@dataclass(frozen=True)
class FileLayer:
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
    def inner_layers(self) -> Mapping[str, Any]:
        """The layers of a block; raises `InputError` if it has none."""
        layers = self.key("layers")
        if not isinstance(layers, dict) or not layers:
            raise self.fault(f"layers must be a table of layers, not {shorten(layers)}")
        return layers


def expand_blocks(layers: Mapping[str, Any]) -> tuple[FileLayer, ...]:
    """Return every layer of a file, parents before children, else in the order of the file."""
    meaning_by_name: MeaningByName = {}
    file_layers: list[FileLayer] = []
    for file_layer in _collect_layers(meaning_by_name, layers, scopes=("",), inherited=()):
        if len(file_layers) >= MAX_LAYERS:
            raise file_layer.fault(f"the network has more than {MAX_LAYERS} layers")
        file_layers.append(file_layer)
    if not file_layers:
        raise InputError("the network has no layers")
    for name, meaning in meaning_by_name.items():
        is_layer_or_block = isinstance(meaning, str)  # of what is split it is a number
        if is_layer_or_block:
            _resolve_endpoint(meaning_by_name, name)  # raises for a block without its endpoint
    return _sort_entries(_resolve_parents(meaning_by_name, file_layers))


def _resolve_parents(
    meaning_by_name: MeaningByName, file_layers: Sequence[FileLayer]
) -> list[FileLayer]:
    """Return layers with the full names of their parents, at most `MAX_LAYERS` in all."""
    total_parents = 0
    layers_with_parents: list[FileLayer] = []
    for file_layer in file_layers:
        _check_reserved(meaning_by_name, file_layer)
        parents: list[str] = []
        for reference in file_layer.references:
            parents += _resolve_parent(meaning_by_name, reference, file_layer)
            if total_parents + len(parents) > MAX_LAYERS:
                raise file_layer.fault(f"the network has more than {MAX_LAYERS} parents")
        total_parents += len(parents)
        layers_with_parents.append(replace(file_layer, parents=tuple(parents)))
    return layers_with_parents


def _collect_layers(
    meaning_by_name: MeaningByName,
    layers: Mapping[str, Any],
    scopes: tuple[str, ...],
    inherited: tuple[Reference, ...],
) -> Iterator[FileLayer]:
    """Yield the layers of a namespace; a layer without parents gets the `inherited` ones."""
    for short_name, keys in layers.items():
        file_layer = _read_head(meaning_by_name, scopes, short_name, keys, inherited)
        inner_scopes = (*scopes, f"{file_layer.name}/")
        if file_layer.type == BLOCK:
            if len(scopes) > MAX_NESTED_BLOCKS:
                raise file_layer.fault(f"more than {MAX_NESTED_BLOCKS} blocks within each other")
            # As a parent, a block stands for the layer that it calls its endpoint.
            meaning_by_name[file_layer.name] = f"{file_layer.name}/{file_layer.text('endpoint')}"
            yield from _collect_layers(
                meaning_by_name, file_layer.inner_layers, inner_scopes, file_layer.references
            )
        elif file_layer.type == MODEL_PARALLEL:
            # Such a block is nobody's parent: others name its layers, as `block/layer@all`.
            meaning_by_name[file_layer.name] = SPLIT_BLOCK
            yield from _split_layers(meaning_by_name, file_layer, inner_scopes)
        else:
            yield file_layer


def _split_layers(
    meaning_by_name: MeaningByName, block: FileLayer, scopes: tuple[str, ...]
) -> Iterator[FileLayer]:
    """Yield the parts of each layer of a split block, `name@0` and so on."""
    splits = block.key("splits")
    if type(splits) is not int or not 1 <= splits <= MAX_SPLITS:
        raise block.fault(f"splits must be from 1 to {MAX_SPLITS}, not {shorten(splits)}")
    for short_name, keys in block.inner_layers.items():
        file_layer = _read_head(meaning_by_name, scopes, short_name, keys, block.references)
        if file_layer.type in (BLOCK, MODEL_PARALLEL):
            raise file_layer.fault(f"a {MODEL_PARALLEL} block holds layers, not blocks")
        # The layer's own name means the number of its parts, `name@0` and so on.
        meaning_by_name[file_layer.name] = splits
        for k in range(splits):
            part = f"{file_layer.name}@{k}"
            meaning_by_name[part] = part
            yield replace(file_layer, name=part, split=k, splits=splits)


def _read_head(
    meaning_by_name: MeaningByName,
    scopes: tuple[str, ...],
    short_name: str,
    keys: Any,
    inherited: tuple[Reference, ...],
) -> FileLayer:
    """Return a layer with checked name, type and references to its parents."""
    name = scopes[-1] + short_name
    file_layer = FileLayer(name, type="", keys=keys, scopes=scopes)
    _check_name(name, short_name)
    if not isinstance(keys, dict):
        raise file_layer.fault(f"must be a table, not {shorten(keys)}")
    if name in meaning_by_name:
        raise file_layer.fault("there are two of this name")
    meaning_by_name[name] = name
    parents = _read_parents(file_layer)
    if keys["type"] == "Input":
        return replace(file_layer, type="Input")
    # A layer without parents of its own has those of the block around it.
    references = tuple((text, scopes) for text in parents) or inherited
    return replace(file_layer, type=keys["type"], references=references)


def _check_name(name: str, short_name: str) -> None:
    """Raise `InputError` for a name that is empty, too long, or holds @ or unprintable letters."""
    has_valid_characters = short_name.isprintable() and "@" not in short_name
    if not short_name or not has_valid_characters or len(name) > MAX_NAME_LENGTH:
        raise InputError(
            f"{shorten(name)} is no name of a layer: it needs 1 to {MAX_NAME_LENGTH} printable "
            "characters, none of them @"
        )


def _read_parents(file_layer: FileLayer) -> list[str]:
    """Return the parents of a layer as its file writes them; an input has none."""
    is_input = file_layer.text("type") == "Input"
    # All other types must state their parents, though the list may be empty.
    parents = file_layer.keys.get("parents", []) if is_input else file_layer.key("parents")
    if not isinstance(parents, list) or not all(isinstance(text, str) for text in parents):
        raise file_layer.fault(f"parents must be a list of names, not {shorten(parents)}")
    if is_input and parents:
        raise file_layer.fault(f"an input has no parents, not {shorten(parents)}")
    return parents


def _resolve_parent(
    meaning_by_name: MeaningByName, reference: Reference, file_layer: FileLayer
) -> tuple[str, ...]:
    """Return the layers of a reference, resolved from its own namespace outwards."""
    text, scopes = reference
    base, mark, part = text.partition("@")
    parent = f"parent {shorten(text)}"
    if mark and not base:
        raise file_layer.fault(f"{parent} names no layer")
    name = _resolve_name(meaning_by_name, base, reference, file_layer)
    endpoint_or_parts = meaning_by_name[name]  # a number of parts if it is split
    # `@self`, part k of a layer for part k of another, has a meaning within one split block
    is_in_split_block = file_layer.split is not None and scopes == file_layer.scopes
    if not mark:
        if isinstance(endpoint_or_parts, str):
            return (_resolve_endpoint(meaning_by_name, name),)
        self_hint = " or @self" if is_in_split_block else ""
        raise file_layer.fault(
            f"{parent} is split: name a layer of the block, with @all{self_hint}"
        )
    if isinstance(endpoint_or_parts, str) or endpoint_or_parts == SPLIT_BLOCK:
        raise file_layer.fault(f"{parent}: '{name}' is not split")
    if part == "all":
        return tuple(f"{name}@{k}" for k in range(endpoint_or_parts))
    if part == "self":
        is_of_block = is_in_split_block and name.startswith(file_layer.scopes[-1])
        if not is_of_block:
            raise file_layer.fault(f"{parent}: @self has a meaning only inside its own block")
        return (f"{name}@{file_layer.split}",)
    if f"{name}@{part}" not in meaning_by_name:
        raise file_layer.fault(f"{parent}: write @self or @all")
    return (f"{name}@{part}",)


def _resolve_name(
    meaning_by_name: MeaningByName, base: str, reference: Reference, file_layer: FileLayer
) -> str:
    """Return the full name of a reference; raises `InputError` if no namespace has it."""
    text, scopes = reference
    innermost_scope = scopes[-1]
    for scope in reversed(scopes):
        if scope + base in meaning_by_name:
            return scope + base
    possible_parents = (
        name
        for name, meaning in meaning_by_name.items()
        if "@" not in name and meaning != SPLIT_BLOCK
    )
    short_names = (name.removeprefix(innermost_scope) for name in possible_parents)
    candidates = islice(short_names, _COMPARED_NAMES)
    raise unknown("parent", text, candidates, f"layer {shorten(file_layer.name)}")


def _resolve_endpoint(meaning_by_name: MeaningByName, name: str) -> str:
    """Return the layer of a name: itself, or the endpoint of a block, at any depth."""
    while True:
        endpoint = meaning_by_name[name]
        is_layer = endpoint == name
        if is_layer:
            return name
        if not isinstance(endpoint, str) or not isinstance(meaning_by_name.get(endpoint), str):
            raise _unknown_endpoint(meaning_by_name, name, str(endpoint))
        name = endpoint  # which may be a block itself


def _unknown_endpoint(meaning_by_name: MeaningByName, block: str, endpoint: str) -> InputError:
    prefix = f"{block}/"
    layers = (
        name
        for name, meaning in meaning_by_name.items()
        if name == meaning and name.startswith(prefix)
    )
    candidates = (name.removeprefix(prefix) for name in islice(layers, _COMPARED_NAMES))
    return unknown("endpoint", endpoint.removeprefix(prefix), candidates, f"block {shorten(block)}")


def _check_reserved(meaning_by_name: MeaningByName, file_layer: FileLayer) -> None:
    """Refuse the name of a layer that a gradient or update of another layer will have."""
    *outer_names, short_name = file_layer.name.split("/")
    if not short_name.startswith(_RESERVED):
        return
    for depth in range(1, len(outer_names) + 1):
        outer_path = "/".join(outer_names[:depth])
        is_layer = meaning_by_name.get(outer_path) == outer_path
        if is_layer:  # whose gradient would get this name
            raise file_layer.fault(f"'{short_name}' inside '{outer_path}' is a name of gradients")


def _sort_entries(file_layers: list[FileLayer]) -> tuple[FileLayer, ...]:
    """Return layers with parents before children, else in the order of the file."""
    sorter = _prepare_sorter(file_layers)
    ready: list[int] = []
    ordered: list[FileLayer] = []
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, i)
        earliest = heapq.heappop(ready)  # layers that depend on nothing open keep the file's order
        ordered.append(file_layers[earliest])
        sorter.done(earliest)
    return tuple(ordered)


def _prepare_sorter(file_layers: Sequence[FileLayer]) -> TopologicalSorter[int]:
    """Return a sorter of the places of layers; raises `InputError` for a cycle of parents."""
    index_by_name = {file_layer.name: i for i, file_layer in enumerate(file_layers)}
    sorter = TopologicalSorter(
        {
            i: [index_by_name[name] for name in file_layer.parents]
            for i, file_layer in enumerate(file_layers)
        }
    )
    try:
        sorter.prepare()
    except CycleError as error:
        parent, child = (file_layers[i] for i in error.args[1][-2:])  # the end of a cycle's path
        raise child.fault(f"is its own ancestor, by way of {shorten(parent.name)}") from None
    return sorter
