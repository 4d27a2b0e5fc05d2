"""Networks as nested lists of layers and of groups of parallel chains, and their lower bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.paleo.layers import Layer

MAX_NESTED_FORKS = 200


@dataclass(frozen=True)
class Fork:
    """Chains that may run at the same time; each is a list like the whole network."""

    chains: tuple[tuple[str | Fork, ...], ...]


Item = str | Fork
Nested = tuple[Item, ...]
ParentCounts = dict[str, int]


class _LayerEdges(NamedTuple):
    """The edges of a network: how many parents each layer has, and its children in order."""

    parent_counts: ParentCounts
    children: dict[str, dict[str, None]]


def nest_layers(layers: Sequence[Layer]) -> Nested:
    """Return the nested list of the names of a network's layers.

    At a fork, each branch is a chain up to a layer with several parents; a branch without a layer
    is dropped. If one layer is ready then, it continues the list; several start the chains of the
    next group. Paleo stops at a fork inside a chain; here the chain is a list with groups of its
    own. Layers a -> b, c; b -> d; b, c, d -> e are the list a, {b d | c}, e.

    Raises:
        InputError: if forks are nested more than `MAX_NESTED_FORKS` deep.
    """
    layer_names = {layer.name for layer in layers}
    # Parents that are no layers (the network's input) do not count.
    parents = {layer.name: layer_names.intersection(layer.parents) for layer in layers}
    children: dict[str, dict[str, None]] = {layer.name: {} for layer in layers}
    for layer in layers:
        for parent in parents[layer.name]:
            children[parent][layer.name] = None
    parent_counts = {name: len(names) for name, names in parents.items()}
    roots = [name for name, names in parents.items() if not names]
    chain, _ = _nest_chain(_LayerEdges(parent_counts, children), roots, has_fork=len(roots) > 1)
    return chain


def _nest_chain(
    edges: _LayerEdges, roots: list[str], has_fork: bool, depth: int = 0
) -> tuple[Nested, ParentCounts]:
    """Return the chain that begins with `roots`, several if it has a fork there.

    It ends if every remaining layer waits for parents outside of the chain. The second value
    counts, for each of these layers, the parents that the chain contains.
    """
    if depth > MAX_NESTED_FORKS:
        raise InputError(
            f"layer '{roots[0]}': more than {MAX_NESTED_FORKS} forks within each other"
        )
    # Walk from layer to layer. At a fork each branch is a chain of its own, which ends before the
    # first layer that other branches lead to as well; once all have come there, it goes on here.
    items: list[Item] = []
    joins = _Joins(edges.parent_counts)
    heads = roots  # the layers that come next: one, or the first layers of the branches of a fork
    is_fork = has_fork
    while heads:
        children: list[str] = []
        if is_fork:
            items.append(_nest_fork(edges, heads, depth, joins))
        else:
            (head,) = heads  # without a fork there is exactly one
            items.append(head)
            children = [*edges.children[head]]
            # Of a layer with several parents, which waits for all of them, one was passed.
            joins.pass_parent({name: 1 for name in children if edges.parent_counts[name] > 1})
        # layers of one parent continue at once; layers that are ready wait until these end
        only_children = [name for name in children if edges.parent_counts[name] == 1]
        if only_children:
            heads = only_children
            is_fork = len(children) > 1
        else:
            heads = joins.take_ready()
            is_fork = len(heads) > 1
    return tuple(items), joins.waiting_counts


def _nest_fork(edges: _LayerEdges, heads: Sequence[str], depth: int, joins: _Joins) -> Fork:
    """Return the chains of a fork, and count the parents that they contain in `joins`."""
    chains = []
    for head in heads:
        chain, chain_counts = _nest_chain(edges, [head], has_fork=False, depth=depth + 1)
        chains.append((chain, chain_counts))
    for _, chain_counts in chains:
        joins.pass_parent(chain_counts)
    return Fork(tuple(chain for chain, _ in chains))


class _Joins:
    """The layers of several parents that a chain leads to.

    Attributes:
        waiting_counts: for each layer that waits for a parent, how many were passed.
    """

    def __init__(self, parent_counts: ParentCounts) -> None:
        self.waiting_counts: ParentCounts = {}
        self._parent_counts = parent_counts
        self._ready: list[str] = []

    def pass_parent(self, passed_counts: ParentCounts) -> None:
        """Count the parents that were just passed, by the layers that wait for them."""
        for name, passed_count in passed_counts.items():
            self.waiting_counts[name] = self.waiting_counts.get(name, 0) + passed_count
            if self.waiting_counts[name] == self._parent_counts[name]:
                del self.waiting_counts[name]
                self._ready.append(name)

    def take_ready(self) -> list[str]:
        """Return the layers all of whose parents were passed, each once."""
        ready, self._ready = self._ready, []
        return ready


def lower_bound(
    items: Nested,
    seconds: Callable[[str], float],
    device: Callable[[str], int] | None = None,
) -> float:
    """Return the seconds of a nested list in which each group takes as long as its slowest chain.

    With `device`, which gives the device of a layer, chains of a group that begin on the
    same device run one after another.
    """
    total_s = 0.0
    for item in items:
        if isinstance(item, str):
            total_s += seconds(item)
            continue
        busy_s: dict[int, float] = {}  # of each device; without devices, of each chain
        for chain_index, chain in enumerate(item.chains):
            # Without devices each chain has one of its own. Chains that begin on one device add up.
            device_number = chain_index if device is None else device(_first_layer_name(chain))
            chain_s = lower_bound(chain, seconds, device)
            busy_s[device_number] = busy_s.get(device_number, 0.0) + chain_s
        total_s += max(busy_s.values())
    return total_s


def _first_layer_name(items: Nested) -> str:
    first = items[0]
    return first if isinstance(first, str) else _first_layer_name(first.chains[0])


def has_nested_forks(items: Nested, inside: bool = False) -> bool:
    """Whether a chain of a group holds a group itself, where Paleo stops."""
    return any(
        inside or any(has_nested_forks(chain, inside=True) for chain in item.chains)
        for item in items
        if isinstance(item, Fork)
    )
