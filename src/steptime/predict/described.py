"""Networks of which only sums are known: arithmetic, activations, parameters, as papers list them.

Such a step is one kernel, whose kind says what the constants of `described` need to know: the phase
and what of `KINDS` holds. It counts no launches, so it stands for batches that fill a device. What
its layers are is a fact of the architecture, which its name tells: `data/image_networks.toml` has
the `Mix` of some networks, and others are as those whose names have words in common.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from steptime import catalog
from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError, one_of, shorten, unknown
from steptime.core.toml_files import read_toml
from steptime.predict.kernel import Kernel

NAME = "described"
ATTENTION = ("fused", "plain")
UNNAMED = "unnamed"  # a network whose family is not known
KINDS = tuple(
    "-".join([NAME, phase, *unnamed, *words])
    for phase in ("infer", "train")
    for unnamed in ((), (UNNAMED,))
    for words in ((), ("channels_last",), ("compiled",))
)
_FILE = Path(catalog.__file__).parent / "data" / "image_networks.toml"
_NEAR = 8  # power of a likeness: which of those that share words counts
_FAR = 1e-12  # weight of a network that shares none
_KNOWN = 1 / 4  # likeness from which on a family is known
_TIMES = {"infer": 1, "train": 3}  # of the forward pass: gradients of inputs and of weights
_OF_WEIGHTS = {"infer": 8, "train": 32}  # bytes: read, cast, read; gradient, cast, update
_SCORES = 8  # times that a score moves that is written: product, softmax in float32, cast, product
_MOVED = {  # times that 16 bit are moved for each element of `Mix`, in its order; a compiler fuses
    # as counted op by op for 191 networks under the stacks torch-eager and torch-compile
    ("infer", False): (1.2, 1.0, 1.9, 5.5, 0.5, 3.7),
    ("infer", True): (0.6, 0.6, 1.1, 5.2, 0.5, 2.2),
    ("train", False): (3.5, 3.1, 6.0, 25.0, 2.1, 6.0),
    ("train", True): (2.1, 1.7, 7.0, 18.0, 1.7, 3.2),
}


class Mix(NamedTuple):
    """What the layers of a network are.

    Elements are those read and written for each that convolutions and linear layers write: by
    dense and grouped convolutions (`images`), by depthwise ones, by linear layers; by elementwise
    ops of one tensor and of several, by batch and by layer norms (written alone), by copies and
    pools, by softmax. `grouped_macs` and `depthwise_macs` are shares of the multiply-adds, `padded`
    those of groups that gradients with channels last compute on vector units for each. `scores` are
    those of attention for each element written, and for each multiply-add of a parameter.
    """

    scores: float
    images: float
    depthwise: float
    linear: float
    elementwise: float
    joined: float
    batch_norm: float
    layer_norm: float
    copied: float
    softmax: float
    grouped_macs: float
    depthwise_macs: float
    padded: float


class Parts(NamedTuple):
    """What a described step takes of each kind, as `Kernel.tensors` has it: FLOP and bytes."""

    grouped_flop: float
    depthwise_flop: float
    padded_flop: float
    images: float
    depthwise: float
    moved: float
    scores: float


def described(
    macs: float,
    activations: float,
    parameters: float,
    batch: int,
    dtype: str = "float16-mixed",
    phase: str = "infer",
    *,
    name: str = "",
    attention: str = "",
    channels_last: bool = False,
    compiled: bool = False,
) -> tuple[Kernel, ...]:
    """Return the kernels of a step of a network of which only sums are known.

    `macs` are multiply-adds and `activations` the elements that convolutions, linear layers and
    products of attention write, both for one example. `name` tells the family. `attention` is
    `fused` into one kernel where it is not `plain`, as before PyTorch 2; a network without a name
    has some if it says so. 10^9 multiply-adds at a batch of 8 are 16 GFLOP, 48 in training. Raises
    `InputError` where there is no arithmetic, and for words that are not known.
    """
    one_of("phase", phase, _TIMES)
    if attention and attention not in ATTENTION:
        raise unknown("attention", attention, ATTENTION)
    sums: Any = {"macs": macs, "activations": activations, "parameters": parameters, "batch": batch}
    for word, value in sums.items():
        known = isinstance(value, int | float) and 0 <= value < inf
        if not (known and (value > 0 or word == "parameters")):
            raise InputError(f"{word} of a network must be above 0, not {shorten(value)}")
    mix, is_known = mix_of(name, bool(attention))
    # a compiler lays channels last itself, but not those of groups
    words = ["compiled"] if compiled else ["channels_last"] if channels_last else []
    kind = "-".join([NAME, phase, *([] if is_known else [UNNAMED]), *words])
    compute = precision(dtype).compute
    times, size = _TIMES[phase], SIZE_BYTES[compute]
    flop = 2.0 * times * macs * batch
    of_each = mix.scores * macs / parameters if parameters else 0.0
    written = activations * batch * size / (1 + of_each)
    moved = sum(
        often * each for often, each in zip(_MOVED[phase, compiled], mix[4:10], strict=True)
    )
    parts = Parts(
        flop * mix.grouped_macs,
        flop * mix.depthwise_macs,
        flop * mix.padded * (1 - 1 / times),
        times * written * mix.images,
        times * written * mix.depthwise,
        written * (times * mix.linear + moved),
        times * written * of_each * _SCORES * (attention == "plain"),
    )
    network = Kernel(
        "network", kind, "forward", compute, "matrix", flop, sum(parts[3:]), tensors=parts
    )
    weights = _OF_WEIGHTS[phase] * parameters
    return (network, Kernel("weights", "weights", "forward", compute, "vector", 0, weights))


@lru_cache(maxsize=4096)
def mix_of(name: str, attends: bool = False) -> tuple[Mix, bool]:
    """Return the mix of a network by its name, and whether its family is known.

    It is the mean of the networks of the file, by the words that names have in common. For a name
    that shares few it is the mean of all, of those with attention if it `attends`.
    """
    near = {other: alike(name, other) for other in _mixes()}
    if max(near.values()) < _KNOWN:
        some = [one for one in _mixes().values() if one.scores > 0 or not attends]
        return Mix(*(sum(column) / len(some) for column in zip(*some, strict=True))), False
    weights = [one**_NEAR + _FAR for one in near.values()]
    columns = zip(*_mixes().values(), strict=True)
    means = (
        sum(w * one for w, one in zip(weights, column, strict=True)) / sum(weights)
        for column in columns
    )
    return Mix(*means), True


@lru_cache(maxsize=1)
def _mixes() -> Mapping[str, Mix]:
    return {name: Mix(*numbers) for name, numbers in read_toml(_FILE)["mixes"].items()}


def alike(name: str, other: str) -> float:
    """Return the share of their words that two names of networks have in common, numbers aside.

    `deit_small` and `deit_base` share 1 of 3 words; "" shares none. What follows a point, as in
    `resnet50.a1_in1k`, names weights.
    """
    one, two = _words(name), _words(other)
    return len(one & two) / max(len(one | two), 1)


@lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall("[a-z]+", name.lower().partition(".")[0]))
