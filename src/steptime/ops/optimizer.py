"""Optimizer updates: each overwrites the weight and its state."""

from functools import partial

from steptime.core.graph import TensorSpec
from steptime.ops.table import Example, OpKind, Specs, per_element, vector

STATES = {"sgd": 0, "momentum": 1, "rmsprop": 1, "adam": 2}  # tensors kept for each weight
SCRATCH = {"sgd": 0, "momentum": 0, "rmsprop": 1, "adam": 2}  # tensors made while updating one
_FLOP = {
    "sgd": (2, "w -= lr g"),
    "momentum": (4, "Polyak 1964: v = m v + g; w -= lr v"),
    "rmsprop": (9, "Hinton 2012: s = a s + (1-a) g^2; w -= lr g / (sqrt s + eps)"),
    "adam": (13, "Kingma, Ba 2015, algorithm 1, the bias correction of m folded into lr"),
}


def update_outputs(weight: TensorSpec, *states_and_grad: TensorSpec) -> Specs:
    """Return `weight, states..., grad -> weight, states...`, each overwritten."""
    return (weight, *states_and_grad[:-1])


def _scratch(tensors: int, weight: TensorSpec, *_: TensorSpec) -> int:
    return tensors * weight.size_bytes


_W = vector(3, 4)

KINDS = {
    name: OpKind(
        update_outputs,
        per_element(flop),
        Example((_W, *(_W for _ in range(STATES[name])), _W)),
        source,
        storage="in_place",
        scratch=partial(_scratch, SCRATCH[name]),
    )
    for name, (flop, source) in _FLOP.items()
}
