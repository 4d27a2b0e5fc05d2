"""Optimizer updates: each overwrites the weight and its state."""

from collections.abc import Callable

from steptime.ops.table import OpKind, example, per_element

STATES = {"sgd": 0, "momentum": 1, "rmsprop": 1, "adam": 2}  # tensors kept for each weight
SCRATCH = {"sgd": 0, "momentum": 0, "rmsprop": 1, "adam": 2}  # tensors made while updating one
_FLOP = {
    "sgd": (2, "w -= lr g"),
    "momentum": (4, "Polyak 1964: v = m v + g; w -= lr v"),
    "rmsprop": (9, "Hinton 2012: s = a s + (1-a) g^2; w -= lr g / (sqrt s + eps)"),
    "adam": (13, "Kingma, Ba 2015, algorithm 1, the bias correction of m folded into lr"),
}


def _scratch(tensors: int) -> Callable[..., int]:
    return lambda weight, *_: tensors * weight.size_bytes


KINDS = {
    name: OpKind(
        lambda *weight_states_grad: weight_states_grad[:-1],
        per_element(flop),
        example(" ".join(["3x4"] * (STATES[name] + 2))),
        source,
        storage="in_place",
        scratch=_scratch(SCRATCH[name]),
    )
    for name, (flop, source) in _FLOP.items()
}
