"""The values that a network starts from, drawn by numpy on the host."""

from collections.abc import Callable
from typing import Any

import numpy as np

from steptime.core.graph import Graph
from steptime.measure.synthetic import Fill, fills, rotary_angle


def initial_values(graph: Graph, seed: int, element_type: Callable[[str], Any]) -> dict[str, Any]:
    """Return arrays for all inputs, weights and buffers; `element_type` gives numpy's types."""
    rng = np.random.default_rng(seed)
    return {
        name: _DRAWS[fill.how](graph.tensors[name].shape, fill, rng).astype(
            element_type(graph.tensors[name].dtype), copy=False
        )
        for name, fill in fills(graph).items()
    }


def _normal(shape: tuple[int, ...], fill: Fill, rng: np.random.Generator) -> Any:
    made = rng.standard_normal(shape, np.float32)
    made *= np.float32(fill.amount)
    return made


def angles(shape: tuple[int, ...], *_: object) -> Any:
    """Return the cosines and then the sines of each place's angles (`synthetic.rotary_angle`)."""
    length, width = shape
    turns = [rotary_angle(1, i, width) for i in range(width // 2)]
    turned = np.outer(np.arange(length), turns)
    return np.concatenate((np.cos(turned), np.sin(turned)), -1)


_DRAWS: dict[str, Callable[..., Any]] = {
    "normal": _normal,
    "constant": lambda shape, fill, _: np.full(shape, fill.amount),
    "ids": lambda shape, fill, rng: rng.integers(0, int(fill.amount), shape),
    "angles": angles,
}
