"""Networks as nested lists of layers and of groups of parallel chains, and their lower bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steptime.core.errors import InputError
from steptime.paleo.layers import Layer

MAX_NESTED_FORKS = 200


@dataclass(frozen=True)
class Fork:
    """Chains that may run at the same time; each is a list like the whole network."""

    chains: tuple[tuple[str | Fork, ...], ...]


Item = str | Fork
Nested = tuple[Item, ...]
Counts = dict[str, int]
Edges = tuple[Counts, dict[str, dict[str, None]]]  # number of parents, and the children


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
    parents = {layer.name: layer_names.intersection(layer.parents) for layer in layers}
    children: dict[str, dict[str, None]] = {layer.name: {} for layer in layers}
    for layer in layers:
        for parent in parents[layer.name]:
            children[parent][layer.name] = None
    count = {name: len(names) for name, names in parents.items()}
    roots = [name for name, names in parents.items() if not names]
    return _chain((count, children), roots, len(roots) > 1)[0]


def _chain(edges: Edges, heads: list[str], forks: bool, depth: int = 0) -> tuple[Nested, Counts]:
    """Return the chain that begins with `heads`, several if it `forks` at once.

    It ends if every remaining layer waits for parents outside of the chain. The second value
    counts, for each of these layers, the parents that the chain contains.
    """
    parents, children = edges
    if depth > MAX_NESTED_FORKS:
        raise InputError(
            f"layer '{heads[0]}': more than {MAX_NESTED_FORKS} forks within each other"
        )
    items: list[Item] = []
    met: Counts = {}
    ready: list[str] = []
    while heads:
        if forks:
            chains = [_chain(edges, [head], False, depth + 1) for head in heads]
            items.append(Fork(tuple(chain for chain, _ in chains)))
            passed = [pair for _, counts in chains for pair in counts.items()]
            alone, below = [], list[str]()
        else:
            (head,) = heads
            items.append(head)
            below = [*children[head]]
            passed = [(name, 1) for name in below if parents[name] > 1]
            alone = [name for name in below if parents[name] == 1]
        for name, number in passed:
            met[name] = met.get(name, 0) + number
            if met[name] == parents[name]:
                del met[name]
                ready.append(name)
        # layers of one parent continue at once; layers that are ready wait until these end
        if alone:
            heads, forks = alone, len(below) > 1
        else:
            heads, forks, ready = ready, len(ready) > 1, []
    return tuple(items), met


def lower_bound(
    items: Nested,
    seconds: Callable[[str], float],
    device: Callable[[str], int] | None = None,
) -> float:
    """Return the seconds of a nested list in which each group takes as long as its slowest chain.

    With `device`, which gives the device of a layer, chains of a group that begin on the
    same device run one after another.
    """
    total = 0.0
    for item in items:
        if isinstance(item, str):
            total += seconds(item)
            continue
        busy: dict[int, float] = {}
        for place, chain in enumerate(item.chains):
            device_number = place if device is None else device(_first(chain))
            busy[device_number] = busy.get(device_number, 0.0) + lower_bound(chain, seconds, device)
        total += max(busy.values())
    return total


def _first(items: Nested) -> str:
    first = items[0]
    return first if isinstance(first, str) else _first(first.chains[0])


def has_nested_forks(items: Nested, inside: bool = False) -> bool:
    """Whether a chain of a group holds a group itself, where Paleo stops."""
    return any(
        inside or any(has_nested_forks(chain, True) for chain in item.chains)
        for item in items
        if isinstance(item, Fork)
    )
