"""A Caffe network in one phase: its layers, and the blobs that each of them reads and makes.

A layer may write over its input (in place), so each version of a blob has a number of its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from steptime.core.errors import InputError, shorten, unknown
from steptime.formats.caffe.inputs import SOURCES, read_inputs, read_source_shapes
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
MEASURES = ("Accuracy", "HDF5Output")  # a blob that only they read is an output of the network
TYPES_WITHOUT_OUTPUT = (*MEASURES, "Silence")
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
MAX_SUGGESTIONS = 1000  # blobs among which the nearest name is searched: the search is slow


@dataclass(frozen=True, eq=False)
class CaffeLayer:
    """A layer of the file.

    Attributes:
        name: its name, unique in the network.
        type: its type in the present spelling.
        message: its settings.
        bottoms: the numbers of the blobs that it reads.
        tops: the numbers of the blobs that it makes.
        training: false if the file sets the layer itself to the phase TEST.
        has_caffe_type: whether its type is one of Caffe's.
        has_unknown_field: whether it has a field that Caffe does not have.
    """

    name: str
    type: str
    message: Any
    bottoms: tuple[int, ...]
    tops: tuple[int, ...]
    training: bool
    has_caffe_type: bool
    has_unknown_field: bool

    @property
    def loss_weight(self) -> float:
        """Weight of the layer's output in the loss; of a loss layer 1 by default."""
        if len(self.message.loss_weight):
            return float(self.message.loss_weight[0])
        return 1.0 if self.type in LOSSES else 0.0


@dataclass(frozen=True)
class BlobInput:
    """A blob that is fed.

    Attributes:
        name: its name.
        shape: its shape, None if the file does not state it (labels).
    """

    name: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Net:
    """A network in one phase.

    Attributes:
        layers: the layers that lead to its ends, in order.
        end_layers: the layers that the network is run for: losses or outputs.
        source_by_blob: the blobs that are fed, by their numbers.
        file_batch: the batch of the file.
    """

    layers: tuple[CaffeLayer, ...]
    end_layers: frozenset[CaffeLayer]
    source_by_blob: Mapping[int, BlobInput]
    file_batch: int


class LayerCatalog(NamedTuple):
    """What is known of the layers of a file before its blobs are connected.

    Attributes:
        types: the types of layers that Caffe has.
        layers_with_unknown_fields: the numbers of the layers with an unknown field.
    """

    types: Collection[str]
    layers_with_unknown_fields: Collection[int]


def select_phase(net: Any, phase: Phase, catalog: LayerCatalog, file: str) -> Net:
    """Return the network of a message in one phase.

    In training its ends are the layers with a loss weight, or all outputs if there is none. In
    inference they are the outputs; of several losses only that of the largest weight, because the
    others are auxiliary. Layers that lead to no end are left out.

    Args:
        net: the message of the file.
        phase: the phase.
        catalog: the types that Caffe has, and the layers with unknown fields.
        file: the file, for messages.

    Raises:
        InputError: for a layer that cannot be read, and a phase without layers or inputs.
    """
    layers, sources = _connect_layers(net, phase, catalog, file)
    ends = frozenset(_find_ends(layers, phase))
    if not ends:
        raise InputError(f"{file}: no layers in phase {phase}")
    stated_shapes = [source.shape for source in sources.values() if source.shape]
    if not stated_shapes:
        raise InputError(f"{file}: no input: neither 'input' nor a layer of type Input or Data")
    # Walk backwards from the ends, and keep the layers that they depend on.
    needed_blobs: set[int] = set()
    needed_layers: list[CaffeLayer] = []  # the last one first
    for layer in reversed(layers):
        makes_needed_blob = not needed_blobs.isdisjoint(layer.tops)
        if layer in ends or makes_needed_blob:
            needed_layers.append(layer)
            needed_blobs.update(layer.bottoms)
    file_batch = stated_shapes[0][0]
    return Net(tuple(reversed(needed_layers)), ends, sources, file_batch)


class _Blobs:
    """The blobs of a network so far; each version has a number."""

    def __init__(self) -> None:
        self.number_by_name: dict[str, int] = {}
        self.count = 0

    def add_version(self, name: str, bottoms: Collection[str], place: str) -> int:
        """Return the number of a new blob, or of a new version of one that its layer reads."""
        if name in self.number_by_name and name not in bottoms:
            raise InputError(f"{place}: blob {shorten(name)} is made a second time")
        self.number_by_name[name] = self.count
        self.count += 1
        return self.number_by_name[name]

    def find_number(self, name: str, place: str) -> int:
        """Return the number of the newest version of a blob."""
        if name not in self.number_by_name:
            latest = list(self.number_by_name)[-MAX_SUGGESTIONS:]
            raise unknown("bottom", name, latest, place)
        return self.number_by_name[name]


def _connect_layers(
    net: Any, phase: Phase, catalog: LayerCatalog, file: str
) -> tuple[list[CaffeLayer], dict[int, BlobInput]]:
    """Return the layers of a phase with their blobs numbered, and the blobs that are fed."""
    blobs = _Blobs()
    sources: dict[int, BlobInput] = {}
    for network_input in read_inputs(net, file):
        blob = blobs.add_version(network_input.name, (), f"{file}: input")
        sources[blob] = BlobInput(network_input.name, network_input.shape)
    layers: list[CaffeLayer] = []
    names: set[str] = set()
    for layer_number, message in enumerate(net.layer or net.layers):
        kind = layer_type(message)
        name = message.name or f"{kind}{layer_number}"
        place = f"{file}: layer {shorten(name)}"
        if not _is_included(message, net.state, phase, place):
            continue
        if kind in SOURCES:
            for top, shape in read_source_shapes(message, kind, place):
                blob = blobs.add_version(top, (), place)
                sources[blob] = BlobInput(top, shape)
            continue
        # Caffe allows two layers of one name, but the names of ops must differ
        unique_name = f"{name}#{layer_number}" if name in names else name
        names.add(unique_name)
        has_unknown_field = layer_number in catalog.layers_with_unknown_fields
        layers.append(
            CaffeLayer(
                name=unique_name,
                type=kind,
                message=message,
                **_connect_blobs(message, blobs, place),
                training=_is_training(message),
                has_caffe_type=kind in catalog.types,
                has_unknown_field=has_unknown_field,
            )
        )
    return layers, sources


def _connect_blobs(message: Any, blobs: _Blobs, place: str) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the blobs that a layer reads, and of the new ones that it makes."""
    bottoms = tuple(blobs.find_number(bottom, place) for bottom in message.bottom)
    # a top with the name of a bottom is made in place: from here on a blob of its own
    tops = tuple(blobs.add_version(top, message.bottom, place) for top in message.top)
    return {"bottoms": bottoms, "tops": tops}


def _find_ends(layers: Sequence[CaffeLayer], phase: Phase) -> list[CaffeLayer]:
    """Return the layers that a network is run for in a phase."""
    losses = [layer for layer in layers if layer.loss_weight != 0]
    outputs = _find_outputs(layers)
    if not losses:
        return outputs
    if phase == "TRAIN":
        # an output of a type that Caffe does not have may be a loss, too
        outputs_of_foreign_types = [layer for layer in outputs if not layer.has_caffe_type]
        return [*losses, *outputs_of_foreign_types]
    # in inference auxiliary losses, of smaller weight, have no output
    main_weight = max(abs(layer.loss_weight) for layer in losses)
    return [
        layer
        for layer in outputs
        if layer.type not in LOSSES or abs(layer.loss_weight) == main_weight
    ]


def _find_outputs(layers: Sequence[CaffeLayer]) -> list[CaffeLayer]:
    """Return the layers with blobs that no other layer reads; measures of a blob do not count."""
    computing_layers = [layer for layer in layers if layer.type not in MEASURES]
    read_blobs = {blob for layer in computing_layers for blob in layer.bottoms}
    return [
        layer
        for layer in layers
        if layer.type not in TYPES_WITHOUT_OUTPUT and read_blobs.isdisjoint(layer.tops)
    ]


def layer_type(message: Any) -> str:
    """Return the type of a layer, in the present spelling also for one of the older `layers`."""
    field = message.DESCRIPTOR.fields_by_name["type"]
    if field.enum_type is None:
        return str(message.type)
    v1_name = enum_name(message, "type")
    return _V1_NAMES.get(v1_name) or "".join(word.capitalize() for word in v1_name.split("_"))


def _is_training(message: Any) -> bool:
    """Whether a layer computes as in training: it does not set itself to the phase TEST."""
    has_phase = "phase" in message.DESCRIPTOR.fields_by_name and message.HasField("phase")
    return not has_phase or enum_name(message, "phase") == "TRAIN"


def _is_included(message: Any, state: Any, phase: Phase, place: str) -> bool:
    """Whether a layer is part of the network, by its rules (Caffe's Net::FilterNet)."""
    if len(message.include) and len(message.exclude):
        raise InputError(f"{place}: has both 'include' and 'exclude'")
    if len(message.include):
        return any(_is_rule_met(rule, state, phase) for rule in message.include)
    return not any(_is_rule_met(rule, state, phase) for rule in message.exclude)


def _is_rule_met(rule: Any, state: Any, phase: Phase) -> bool:
    """Whether a rule holds in a phase; the phase of the file's own state does not count."""
    if rule.HasField("phase") and enum_name(rule, "phase") != phase:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return stages.issuperset(rule.stage) and stages.isdisjoint(rule.not_stage)
