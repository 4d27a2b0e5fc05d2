"""A Caffe network in one phase: which layers it has, and what each of them reads and makes.

A layer may write over its input (in place), so every version of a blob has a number of its own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from steptime.core.errors import InputError, shorten, unknown
from steptime.formats.caffe.inputs import SOURCES, net_inputs, source_shapes
from steptime.formats.caffe.schema import enum_name

Phase = Literal["TRAIN", "TEST"]
LOSSES = (
    "SoftmaxWithLoss",
    "SigmoidCrossEntropyLoss",
    "EuclideanLoss",
    "HingeLoss",
    "ContrastiveLoss",
    "InfogainLoss",
    "MultinomialLogisticLoss",
)
MEASURES = ("Accuracy", "HDF5Output")  # what they read is an end of the network all the same
UNUSED = (*MEASURES, "Silence")
_V1_NAMES = {  # the others are the words of the old name in capitals
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "LRN": "LRN",
    "MVN": "MVN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}
_SHOWN_NAMES = 1000  # the nearest name is looked for among as many blobs


@dataclass(frozen=True, eq=False)
class CaffeLayer:
    """A layer of the file: its message, and the numbers of the blobs that it reads and makes.

    `training` is false where the file sets the layer itself to TEST. A layer is `strange` if it is
    of unknown type, `odd` if it has an unknown field.
    """

    name: str
    type: str
    message: Any
    bottoms: tuple[int, ...]
    tops: tuple[int, ...]
    training: bool
    strange: bool
    odd: bool

    @property
    def loss_weight(self) -> float:
        """Weight of the layer's output in the loss; 1 for a loss layer if not given."""
        if len(self.message.loss_weight):
            return float(self.message.loss_weight[0])
        return 1.0 if self.type in LOSSES else 0.0


@dataclass(frozen=True)
class BlobInput:
    """A blob that is fed: its name, and its shape if it was given (labels may have none)."""

    name: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Net:
    """The layers of one phase that lead to its `ends`, in order; `batch` is the file's own."""

    layers: tuple[CaffeLayer, ...]
    ends: frozenset[CaffeLayer]
    sources: Mapping[int, BlobInput]
    batch: int


def net_in_phase(
    net: Any, phase: Phase, known: Collection[str], odd: Collection[int], where: str
) -> Net:
    """Return the network of a message in a phase, of types `known`; layers number `odd` are odd.

    In training its ends are the layers with a loss weight, or all outputs if there is none; in
    inference the outputs, of several losses the one of largest weight (the others are auxiliary).
    A layer that leads to no end is left out, as one that only measures (`UNUSED`).
    Raises `InputError`, naming the layer, for what cannot be read.
    """
    layers, sources = _connected(net, phase, known, odd, where)
    ends = frozenset(_ends(layers, phase))
    if not ends:
        raise InputError(f"{where}: no layers in phase {phase}")
    shapes = [source.shape for source in sources.values() if source.shape]
    if not shapes:
        raise InputError(f"{where}: no input: neither 'input' nor a layer of type Input or Data")
    wanted: set[int] = set()
    kept: list[CaffeLayer] = []
    for layer in reversed(layers):
        if layer in ends or not wanted.isdisjoint(layer.tops):
            kept.append(layer)
            wanted.update(layer.bottoms)
    kept.reverse()
    return Net(tuple(kept), ends, sources, shapes[0][0])


class _Blobs:
    """The blobs made so far, each version with a number."""

    def __init__(self) -> None:
        self.current: dict[str, int] = {}
        self.count = 0

    def make(self, name: str, over: Collection[str], place: str) -> int:
        """Return the number of a new blob, or of a new version of one that its layer reads."""
        if name in self.current and name not in over:
            raise InputError(f"{place}: blob {shorten(name)} is made a second time")
        self.current[name] = self.count
        self.count += 1
        return self.current[name]

    def read(self, name: str, place: str) -> int:
        """Return the number of the newest version of a blob."""
        if name not in self.current:
            latest = list(self.current)[-_SHOWN_NAMES:]
            raise unknown("bottom", name, latest, place)
        return self.current[name]


def _connected(
    net: Any, phase: Phase, known: Collection[str], odd: Collection[int], where: str
) -> tuple[list[CaffeLayer], dict[int, BlobInput]]:
    """Return the layers of a phase with their blobs numbered, and the blobs that are fed."""
    blobs = _Blobs()
    sources: dict[int, BlobInput] = {}
    for name, shape in net_inputs(net, where):
        sources[blobs.make(name, (), f"{where}: input")] = BlobInput(name, shape)
    layers: list[CaffeLayer] = []
    names: set[str] = set()
    for i, message in enumerate(net.layer or net.layers):
        kind = layer_type(message)
        name = message.name or f"{kind}{i}"
        place = f"{where}: layer {shorten(name)}"
        if not _included(message, net.state, phase, place):
            continue
        if kind in SOURCES:
            for top, fed in source_shapes(message, kind, place):
                sources[blobs.make(top, (), place)] = BlobInput(top, fed)
            continue
        if name in names:
            name = f"{name}#{i}"  # Caffe runs two layers of one name, too
        names.add(name)
        bottoms = tuple(blobs.read(bottom, place) for bottom in message.bottom)
        tops = tuple(blobs.make(top, message.bottom, place) for top in message.top)
        strange = kind not in known
        layers.append(
            CaffeLayer(name, kind, message, bottoms, tops, _trains(message), strange, i in odd)
        )
    return layers, sources


def _ends(layers: list[CaffeLayer], phase: Phase) -> list[CaffeLayer]:
    """Return the layers that a network in `phase` is run for."""
    losses = [layer for layer in layers if layer.loss_weight != 0]
    used = {n for layer in layers if layer.type not in MEASURES for n in layer.bottoms}
    outputs = [
        layer for layer in layers if layer.type not in UNUSED and used.isdisjoint(layer.tops)
    ]
    if phase == "TRAIN" and losses:
        return [*losses, *(layer for layer in outputs if layer.strange)]
    main = max((abs(layer.loss_weight) for layer in losses), default=0.0)
    return [
        layer
        for layer in outputs
        if layer.type not in LOSSES or not losses or abs(layer.loss_weight) == main
    ]


def layer_type(message: Any) -> str:
    """Return the type of a layer, in today's spelling for one of `layers` with its old names."""
    kind = message.DESCRIPTOR.fields_by_name["type"]
    if kind.enum_type is None:
        return str(message.type)
    old = enum_name(message, "type")
    return _V1_NAMES.get(old) or "".join(part.capitalize() for part in old.split("_"))


def _trains(message: Any) -> bool:
    own = "phase" in message.DESCRIPTOR.fields_by_name and message.HasField("phase")
    return not own or enum_name(message, "phase") == "TRAIN"


def _included(message: Any, state: Any, phase: Phase, place: str) -> bool:
    """Whether a layer is part of the network, by its rules (Caffe's Net::FilterNet)."""
    if len(message.include) and len(message.exclude):
        raise InputError(f"{place}: has both 'include' and 'exclude'")
    if len(message.include):
        return any(_met(rule, state, phase) for rule in message.include)
    return not any(_met(rule, state, phase) for rule in message.exclude)


def _met(rule: Any, state: Any, phase: Phase) -> bool:
    """Whether a rule holds; the asked phase counts, not that of the file's own state."""
    if rule.HasField("phase") and enum_name(rule, "phase") != phase:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return stages.issuperset(rule.stage) and stages.isdisjoint(rule.not_stage)
