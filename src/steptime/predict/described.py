"""Networks of which only sums are known: arithmetic, activations, parameters, as papers list them.

Such a step is one kernel, whose kind says what the constants of `described` need to know: the phase
and what of `KNOWN` holds. It counts no launches, so it stands for batches that fill a device.
"""

import re
from functools import lru_cache
from math import inf
from typing import Any

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError, one_of, shorten, unknown
from steptime.predict.kernel import Kernel

NAME = "described"
ATTENTION = {"": (), "fused": ("fused_attention",), "plain": ("plain_attention",)}
KINDS = tuple(  # the words after the phase change how often activations move
    "-".join([NAME, phase, *attention, *words])
    for phase in ("infer", "train")
    for attention in ATTENTION.values()
    for words in ((), ("channels_last",), ("compiled",))
)
_TIMES = {"infer": 1, "train": 3}  # of the forward pass: gradients of inputs and of weights
_OF_WEIGHTS = {"infer": 8, "train": 32}  # bytes: read, cast, read; gradient, cast, update


def described(
    macs: float,
    activations: float,
    parameters: float,
    batch: int,
    dtype: str = "float16-mixed",
    phase: str = "infer",
    *,
    attention: str = "",
    channels_last: bool = False,
    compiled: bool = False,
) -> tuple[Kernel, ...]:
    """Return the kernels of a step of a network of which only sums are known.

    `macs` are multiply-adds and `activations` the elements that convolutions and linear layers
    write, both for one example. `attention` is for networks of attention and linear layers alone:
    `fused` into one kernel, or `plain`, as before PyTorch 2. 10^9 multiply-adds at a batch of 8 are
    16 GFLOP, 48 in training. Raises `InputError` where there is no arithmetic, and for words that
    are not known.
    """
    one_of("phase", phase, _TIMES)
    if attention not in ATTENTION:
        raise unknown("attention", attention, filter(None, ATTENTION))
    sums: Any = {"macs": macs, "activations": activations, "parameters": parameters, "batch": batch}
    for name, value in sums.items():
        known = isinstance(value, int | float) and 0 <= value < inf
        if not (known and (value > 0 or name == "parameters")):
            raise InputError(f"{name} of a network must be above 0, not {shorten(value)}")
    # a compiler lays channels last itself, which its constant holds
    words = ["compiled"] if compiled else ["channels_last"] if channels_last else []
    kind = "-".join([NAME, phase, *ATTENTION[attention], *words])
    compute = precision(dtype).compute
    flop = 2.0 * _TIMES[phase] * macs * batch
    moved = activations * batch * SIZE_BYTES[compute]
    return (
        Kernel("network", kind, "forward", compute, "matrix", flop, moved),
        Kernel(
            "weights", "weights", "forward", compute, "vector", 0, _OF_WEIGHTS[phase] * parameters
        ),
    )


def alike(name: str, other: str) -> float:
    """Return the share of their words that two names of networks have in common, numbers aside.

    `deit_small` and `deit_base` share 1 of 3 words; "" shares none.
    """
    one, two = _words(name), _words(other)
    return len(one & two) / max(len(one | two), 1)


@lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall("[a-z]+", name.lower()))
