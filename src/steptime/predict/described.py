"""Networks of which only sums are known: arithmetic, activations, parameters, as papers list them.

Such a step is one kernel, whose kind says what the constants of `described` need to know: the phase
and what of `KNOWN` holds. It counts no launches, so it stands for batches that fill a device.
"""

from typing import Literal

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError
from steptime.predict.kernel import Kernel

NAME = "described"
KNOWN = ("attention", "channels_last", "compiled")  # what changes how often activations move
KINDS = tuple(
    "-".join([NAME, phase, *[name for i, name in enumerate(KNOWN) if flags >> i & 1]])
    for phase in ("infer", "train")
    for flags in range(1 << len(KNOWN))
)
_TIMES = {"infer": 1, "train": 3}  # of the forward pass: gradients of inputs and of weights
_OF_WEIGHTS = {"infer": 8, "train": 32}  # bytes: read, cast, read; gradient, cast, update


def described(
    macs: float,
    activations: float,
    parameters: float,
    batch: int,
    dtype: str = "float16-mixed",
    phase: Literal["infer", "train"] = "infer",
    *,
    attention: bool = False,
    channels_last: bool = False,
    compiled: bool = False,
) -> tuple[Kernel, ...]:
    """Return the kernels of a step of a network of which only sums are known.

    `macs` are multiply-adds and `activations` the elements that convolutions and linear layers
    write, both for one example; `attention` says that it is made of attention and linear layers
    alone. 10^9 multiply-adds at a batch of 8 are 16 GFLOP, 48 in training. Raises `InputError`
    where there is no arithmetic, and for an unknown phase.
    """
    if phase not in _TIMES:
        raise InputError(f"phase is infer or train, not {phase!r}")
    if not (macs > 0 and activations > 0 and parameters >= 0 and batch > 0):
        raise InputError("a described network has macs, activations and a batch above 0")
    flags = (attention, channels_last, compiled)
    words = [name for name, flag in zip(KNOWN, flags, strict=True) if flag]
    kind = "-".join([NAME, phase, *words])
    compute = precision(dtype).compute
    flop = 2.0 * _TIMES[phase] * macs * batch
    moved = activations * batch * SIZE_BYTES[compute]
    return (
        Kernel("network", kind, "forward", compute, "matrix", flop, moved),
        Kernel(
            "weights", "weights", "forward", compute, "vector", 0, _OF_WEIGHTS[phase] * parameters
        ),
    )
