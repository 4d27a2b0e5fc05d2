"""Which batches of a network fit a device, and which one pays: arithmetic on memory and times."""

from collections.abc import Callable, Mapping, Sequence

from steptime.core.graph import Graph
from steptime.core.stack import Stack
from steptime.count import live_bytes

MOST = 1 << 20  # examples a step that are tried
KNEE = 0.9


def largest_batch(memory: Callable[[int], float], has_bytes: float, most: int = MOST) -> int:
    """Return the largest batch whose step needs no more than `has_bytes`, 0 if not even 1 does.

    `memory(batch)` are the bytes of a step, which do not fall as the batch grows. Batches above
    `most` are not tried. 10 bytes and 3 an example fit 100 bytes up to a batch of 30.
    """
    low, high, needs = 0, 1, {}

    def fits(batch: int) -> bool:
        needs[batch] = memory(batch)
        return needs[batch] <= has_bytes

    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        guess = middle
        if low and high in needs and needs[high] > needs[low]:  # memory is nearly a line
            share = (has_bytes - needs[low]) / (needs[high] - needs[low])
            guess = low + int(share * (high - low))
        for batch in (guess, guess + 1, middle):
            if low < batch < high:
                low, high = (batch, high) if fits(batch) else (low, batch)
    return low


def doubling(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`, and `most`."""
    return sorted({1 << i for i in range(most.bit_length())} | {most})


def knee(batches: Sequence[int], step_s: Sequence[float], share: float = KNEE) -> int:
    """Return the least batch that has a `share` of the best speed, in examples a second.

    Batches of 1, 2, 4 and 8 in 1, 1, 2 and 4 s: at 2 examples a second from 2 on, so 2.
    """
    speeds = [
        batch / seconds if seconds else 0.0 for batch, seconds in zip(batches, step_s, strict=True)
    ]
    best = max(speeds)
    return min(batch for batch, speed in zip(batches, speeds, strict=True) if speed >= share * best)


def memory_parts(graph: Graph, stack: Stack, peak_bytes: int) -> Mapping[str, int]:
    """Return what the memory of a step is for at its worst moment, in bytes; they add up to it.

    `weights`, `state` (an optimizer's and that of norms) and `inputs` live always; `gradients` are
    those of weights that are made by then and not used up; `activations` are all other tensors.
    `other` is what a `peak_bytes` holds beside all tensors.
    """
    lives = live_bytes(graph, stack)
    worst = max(range(len(lives)), key=lives.__getitem__)
    size = {name: tensor.size_bytes for name, tensor in graph.tensors.items()}
    made = {name: i for i, op in enumerate(graph.ops, start=1) for name in op.outputs}
    gradients = {op.inputs[-1]: i for i, op in enumerate(graph.ops, start=1) if op.part == "update"}
    parts = {
        "weights": sum(size[name] for name in set(graph.weights)),
        "state": sum(size[name] for name in set(graph.buffers)),
        "inputs": sum(size[name] for name in set(graph.inputs)),
        "gradients": sum(
            size[name]
            for name, used in gradients.items()
            if made.get(name, worst + 1) <= worst <= used
        ),
    }
    return {
        **parts,
        "activations": lives[worst] - sum(parts.values()),
        "other": peak_bytes - lives[worst],
    }
