"""The weights of a language model as a file of quantised weights keeps them, tensor by tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.spelling import to_snake_case
from steptime.core.toml_files import read_packaged_toml
from steptime.formats import open_source
from steptime.formats.gguf.header import Header, read_header
from steptime.formats.gguf.model import split_tensor_name
from steptime.formats.gguf.types import (
    PLAIN_TYPE,
    TensorPlacement,
    TensorType,
    file_types,
    tensor_types,
    type_of_tensor,
)
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.planning.ranks.shape import Shape
from steptime.prediction.training import FIRST, LAST, piece_of

EMBEDDING, HEAD = "token_embd", "output"
FINAL_PIECES = (LAST, "final_norm")
ENDING = ".gguf"
TABLE_AXES = 2  # rows, columns


class WeightTensor(NamedTuple):
    """A tensor of the weights.

    Args:
        role: its name in files, such as `attn_q`.
        layer: the number of its layer from 0, None outside of layers.
        shape: its axes, that of a row last.
        type: how its numbers are kept.
    """

    role: str
    layer: int | None
    shape: tuple[int, ...]
    type: TensorType

    @property
    def size_bytes(self) -> int:
        """The bytes of its numbers."""
        return self.type.tensor_bytes(self.shape)

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether products read it."""
        return len(self.shape) >= TABLE_AXES

    @property
    def is_routed(self) -> bool:
        """Whether it holds experts, of which a token reads some."""
        return self.role.endswith("_exps") and len(self.shape) > TABLE_AXES


@dataclass(frozen=True)
class Weights:
    """The weights of a network.

    Args:
        tensors: all tensors of the file.
        layers: number of layers.
        is_tied: whether the head reads the table of embeddings.
        label: the type of the file, such as `q4_k_m`.
    """

    tensors: tuple[WeightTensor, ...]
    layers: int
    is_tied: bool
    label: str

    @cached_property
    def file_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @cached_property
    def parameter_count(self) -> int:
        """How many numbers there are."""
        return sum(tensor.numbers for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Bits of a number in the mean."""
        return 8 * self.file_bytes / self.parameter_count

    @cached_property
    def embedding_bytes(self) -> int:
        """The bytes of the table of embeddings, of which a token reads one row."""
        return sum(tensor.size_bytes for tensor in self.tensors if tensor.role == EMBEDDING)

    @cached_property
    def head(self) -> tuple[WeightTensor, ...]:
        """The tensors behind the layers; of a shared table that table."""
        outside = [tensor for tensor in self.tensors if tensor.layer is None]
        if self.is_tied:
            return tuple(outside)
        return tuple(tensor for tensor in outside if tensor.role != EMBEDDING)

    @cached_property
    def by_layer(self) -> tuple[tuple[WeightTensor, ...], ...]:
        """The tensors of each layer."""
        layers: list[list[WeightTensor]] = [[] for _ in range(self.layers)]
        for tensor in self.tensors:
            if tensor.layer is not None and tensor.layer < self.layers:
                layers[tensor.layer].append(tensor)
        return tuple(tuple(layer) for layer in layers)


def weights_of(shape: Shape, file_type: str) -> Weights:
    """Return the weights of a network in a type of file, or of a GGUF file as it says.

    Args:
        shape: the network.
        file_type: the type of the file, such as `q4_k_m`; "" for that of the GGUF file.

    Raises:
        InputError: for a network that no graph can be made of.
    """
    # a label is the model as the user named it: `PATH.gguf` or `PATH.gguf:length=4096`
    path = shape.label.partition(":")[0]
    if path.lower().endswith(ENDING) and not file_type:
        return _from_header(read_header(open_source(path)), shape)
    return _from_graph(ShapeKey(shape), file_type)


def is_gguf(model: str) -> bool:
    """Whether a model text names a GGUF file."""
    return model.strip().lower().partition(":")[0].endswith(ENDING)


class ShapeKey(NamedTuple):
    """A network as the key of a cache: by its family and its hyperparameters."""

    shape: Shape

    def __hash__(self) -> int:
        return hash((self.shape.family.name, self.shape.label))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeKey):
            return NotImplemented
        has_label = self.shape.label == other.shape.label
        return has_label and self.shape.settings == other.shape.settings

    def __ne__(self, other: object) -> bool:
        return not self == other


def _from_header(header: Header, shape: Shape) -> Weights:
    """Return the weights that the header of a file lists."""
    tensors = []
    for tensor in header.tensors:
        layer, role = split_tensor_name(tensor.name)
        tensors.append(WeightTensor(role, layer, tensor.shape, tensor.type))
    names = {tensor.name for tensor in header.tensors}
    # A file without a head uses the embedding in its place.
    is_tied = f"{HEAD}.weight" not in names
    layers = len(shape.kinds)
    return Weights(tuple(tensors), layers, is_tied=is_tied, label=shape.family.weights)


@lru_cache(maxsize=64)
def _from_graph(key: ShapeKey, file_type: str) -> Weights:
    """Return the weights of a network as llama-quantize keeps them."""
    shape = key.shape
    tensors = []
    for piece, name, axes in _graph_weights(shape):
        role = _role_of(name, axes)
        if piece in (FIRST, *FINAL_PIECES):
            tensors.append(_make_weight(shape, role, None, axes, file_type))
            continue
        for layer, kind in enumerate(shape.kinds):
            if kind == piece:
                tensors.append(_make_weight(shape, role, layer, axes, file_type))
    layers = len(shape.kinds)
    return Weights(tuple(tensors), layers, is_tied=shape.tied, label=file_type)


def _graph_weights(shape: Shape) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the piece, the name and the axes of each weight of one layer of each kind."""
    builder = Builder(shape.family.name, precision("bfloat16"), training=False)
    try:
        # The weights are the same at any length and batch.
        batch = 1
        params = {**shape.kind_settings, "length": 1}
        graph = builder.graph(shape.family.build(builder, params, batch))
    except ShapeError as error:
        raise InputError(f"{shape.label}: {error}") from None
    pieces = {FIRST, *FINAL_PIECES, *shape.kinds}
    for name in graph.weights:
        piece = piece_of(name)
        if piece == "position":
            piece = FIRST  # learned positions lie beside the embedding
        if piece in pieces:  # files of the format hold no others, such as an image tower's
            yield piece, name, tuple(graph.tensors[name].shape)


def _role_of(name: str, axes: tuple[int, ...]) -> str:
    """Return the name in files of a weight of a graph, "" for one that is kept in 32 bits."""
    path, _, end = name.rpartition("/")
    is_matrix = end == "w" and len(axes) >= TABLE_AXES
    if not is_matrix:  # norms and biases are kept in 32 bits
        return ""
    roles = read_packaged_toml("gguf.toml")["roles"]
    # Roles are keyed by the path in a layer (`attention/q`), those of the ends by the whole path.
    inner = path.partition("/")[2]  # without the layer: `block1/attention/q`
    return str(roles.get(path, roles.get(inner, "")))


def _make_weight(
    shape: Shape, role: str, layer: int | None, axes: tuple[int, ...], file_type: str
) -> WeightTensor:
    """Return a weight with the type that it has in a type of file."""
    # A tensor without a role in such files stays in the plain type.
    if not role:
        return WeightTensor(role, layer, axes, tensor_types()[PLAIN_TYPE])
    heads = int(shape.kind_settings["heads"])
    kv_heads = int(shape.kind_settings["kv_heads"]) or heads  # 0: as many as heads
    queries_per_key = heads / kv_heads
    layers = len(shape.kinds)
    counted_layer = 0 if layer is None else layer  # None: outside of the layers
    placement = TensorPlacement(counted_layer, layers, queries_per_key, shape.experts)
    # A tied embedding is the head as well, and has the head's type.
    type_role = HEAD if role == EMBEDDING and shape.tied else role
    return WeightTensor(
        role, layer, axes, type_of_tensor(file_type, type_role, axes[-1], placement)
    )


def names_file_type(word: str | None) -> bool:
    """Whether a word names a type of GGUF files, such as `q4_k_m`."""
    return word is not None and to_snake_case(word) in file_types()
