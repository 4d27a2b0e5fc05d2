"""Networks of which only sums are known: arithmetic, activations, parameters, as papers list them.

Such a step is one kernel, whose kind says what the constants of `described` need to know: the phase
and what of `KINDS` holds. What its layers are is a fact of the architecture, which its name tells:
`data/image_networks.csv` has the `Mix` of some networks, and others are as those whose names have
words in common, or those that write as much for each multiply-add where no name does.
"""

import csv
import re
from collections.abc import Mapping
from functools import lru_cache
from math import exp, log
from operator import mul
from typing import Any, NamedTuple

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError, one_of, shorten, unknown
from steptime.core.ranges import truth
from steptime.core.toml_files import DATA
from steptime.prediction.kernel import Kernel

NAME = "described"
ATTENTION = ("fused", "plain")
UNNAMED = "unnamed"  # a network whose family is not known
KINDS = tuple(
    "-".join([NAME, phase, *unnamed, *words])
    for phase in ("infer", "train")
    for unnamed in ((), (UNNAMED,))
    for words in ((), ("channels_last",), ("compiled",))
)
_FILE = DATA / "image_networks.csv"
_NEAR = 8  # power of a likeness: which of those that share words counts
_FAR = 1e-12  # weight of a network that shares none
_KNOWN = 1 / 4  # likeness from which on a family is known
_TELLS = 3  # letters of a word that tells a family: not `b`, `s`, `in`, `bn`
_MOST = 2.0**63  # of a sum
_SIZES = re.compile("atto|femto|pico|nano|micro|mini|tiny|small|medium|base|large|huge|giant")
_WIDE = 0.5  # in ln(activations for each multiply-add): networks that tell of an unknown family
_TIMES = {"infer": 1, "train": 3}  # of the forward pass: gradients of inputs and of weights
_OF_WEIGHTS = {"infer": 8, "train": 32}  # bytes: read, cast, read; gradient, cast, update
_FUSED = 0.5  # share of ops that a compiler makes no kernel of: median of 637 networks
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
    pools, by softmax. Multiply-adds are shares of all: `dense_macs` fill tiles of 64 filters,
    `grouped_macs` of 32; gradients of `lane_macs`, of groups, are computed on vector units with
    channels last. `scores` are those of attention for each element written, and for each
    multiply-add of a parameter. `ops` are those of a forward pass; `activations` what a network is
    told by, for each 1,000 multiply-adds.
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
    dense_macs: float
    grouped_macs: float
    depthwise_macs: float
    lane_macs: float
    ops: float
    activations: float


class Parts(NamedTuple):
    """What a described step takes of each kind, as `Kernel.tensors` has it: FLOP, ops, bytes."""

    dense_flop: float
    grouped_flop: float
    depthwise_flop: float
    lane_flop: float
    ops: float
    images: float
    depthwise: float
    moved: float
    copied: float
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
        known = isinstance(value, int | float) and (1 <= value < _MOST or value == 0)
        if not (known and (value or word == "parameters")):
            asked = f"{'0, or ' * (word == 'parameters')}at least 1 and below 2^63"
            raise InputError(f"{word} of a network must be {asked}, not {shorten(value)}")
    if batch != int(batch):
        raise InputError(f"batch of a network must be a whole number, not {shorten(batch)}")
    channels_last = truth(channels_last, "channels_last of a network")
    compiled = truth(compiled, "compiled of a network")
    mix, is_known = mix_of(name, bool(attention), activations / macs)
    # a compiler lays channels last itself, but not those of groups
    words = ["compiled"] if compiled else ["channels_last"] if channels_last else []
    kind = "-".join([NAME, phase, *([] if is_known else [UNNAMED]), *words])
    compute = precision(dtype).compute
    times, size = _TIMES[phase], SIZE_BYTES[compute]
    flop = 2.0 * times * macs * batch
    of_each = mix.scores * macs / parameters if parameters else 0.0
    written = activations * batch * size / (1 + of_each)
    often = dict(zip(Mix._fields[4:10], _MOVED[phase, compiled], strict=True))
    copied = often.pop("copied") * mix.copied
    moved = sum(times * getattr(mix, field) for field, times in often.items())
    parts = Parts(
        flop * mix.dense_macs,
        flop * mix.grouped_macs,
        flop * mix.depthwise_macs,
        flop * mix.lane_macs * (1 - 1 / times),
        times * mix.ops * (_FUSED if compiled else 1),
        times * written * mix.images,
        times * written * mix.depthwise,
        written * (times * mix.linear + moved),
        written * copied,
        times * written * of_each * _SCORES * (attention == "plain"),
    )
    network = Kernel(
        "network", kind, "forward", compute, "matrix", flop, sum(parts[5:]), tensors=parts
    )
    weights = _OF_WEIGHTS[phase] * parameters
    return (network, Kernel("weights", "weights", "forward", compute, "vector", 0, weights))


@lru_cache(maxsize=4096)
def mix_of(name: str, attends: bool = False, activations: float = 0.0) -> tuple[Mix, bool]:
    """Return the mix of a network by its name, and whether its family is known.

    For a name that the file does not have it is the mean of others, by the words that names have in
    common. For one that shares few it is the mean of those, with attention if it `attends`, that
    write nearly as many `activations` for each multiply-add, and gradients are those of most.
    """
    own = _mixes().get(_bare(name).replace("-", "_"))
    if own:
        return own, True
    near = {other: alike(name, other) for other in _mixes()}
    words = {word for word in _words(name) if len(word) >= _TELLS}
    if any(one >= _KNOWN and words & _words(other) for other, one in near.items()):
        return _mean({other: one**_NEAR + _FAR for other, one in near.items()}), True
    near = {
        other: exp(-((log(1e3 * activations / mix.activations) / _WIDE) ** 2) / 2) + _FAR
        for other, mix in _mixes().items()
        if mix.scores > 0 or not attends
    }
    return _mean(near)._replace(lane_macs=0.0), False


def _mean(near: Mapping[str, float]) -> Mix:
    """Return the mean of networks of the file, each with its weight."""
    whole = sum(near.values())
    columns = zip(*(_mixes()[name] for name in near), strict=True)
    return Mix(*(sum(map(mul, near.values(), column)) / whole for column in columns))


@lru_cache(maxsize=1)
def _mixes() -> Mapping[str, Mix]:
    lines = _FILE.read_text("utf-8").splitlines()
    rows = csv.DictReader(one for one in lines if not one.startswith("#"))
    return {
        row.pop("network"): Mix(**{key: float(one) for key, one in row.items()}) for row in rows
    }


def alike(name: str, other: str) -> float:
    """Return the share of their words that two names of networks have in common.

    Numbers and sizes aside: `deit_small` and `deit_base` share 1 of 1, `deit_tiny` and `vit_tiny`
    none, as does "". What follows a point, as in `resnet50.a1_in1k`, names weights, and what comes
    before a slash, as in `timm/resnet50`, where they are kept.
    """
    one, two = _words(name), _words(other)
    return len(one & two) / max(len(one | two), 1)


@lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    words = re.findall("[a-z]+", _bare(name))
    return frozenset(word for word in words if not _SIZES.fullmatch(word))


def _bare(name: str) -> str:
    """Return the name of an architecture: `resnet50` of `timm/ResNet50.a1_in1k`."""
    return name.lower().rpartition("/")[2].partition(".")[0]
