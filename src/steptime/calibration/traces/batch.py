"""The batch of a traced step: which sizes of an op's inputs it decides, and these at another batch.

A trace names no tensors, so that the role of an input follows from the op: of a convolution the
first size of the image is the batch, none of the filters' is. What an optimizer reads, and what has
the shape of a weight, does not change with the batch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptime.records.traces.event_trees import ATEN
from steptime.records.traces.trace_events import TracedInput
from steptime.records.traces.traced_ops import OpKey, TracedOp

Shape = tuple[int, ...]
IMAGE_OPS = ("convolution", "convolution_backward", "batch_norm", "native_batch_norm_backward")
EXAMPLE_INPUTS: Mapping[str, tuple[int, ...]] = {  # inputs that hold examples, by op
    **dict.fromkeys(("convolution", "native_layer_norm", "native_group_norm", "batch_norm"), (0,)),
    **dict.fromkeys(("linear", "rms_norm"), (0,)),
    "native_batch_norm_backward": (0, 1),
    "native_layer_norm_backward": (0, 1, 3, 4),
    **dict.fromkeys(("cudnn_batch_norm_backward", "native_group_norm_backward"), (0, 1)),
    "convolution_backward": (0, 1),
    "embedding": (1,),
    "embedding_dense_backward": (0, 1),
}
BATCH_INPUTS: Mapping[str, int] = {  # where the batch of a network shows first
    "convolution": 0,
    "embedding": 1,
    "linear": 0,
    "addmm": 1,
    "batch_norm": 0,
}
FIRST_MATRIX_INPUTS = {"mm": 0, "addmm": 1}  # index of the first matrix
REDUCTIONS = ("sum", "mean")
INTEGERS = ("long", "int")  # types of labels and indices, as the profiler writes them
SEQUENCE_BATCH_AXIS = -2
SEQUENCE_OPS = ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")  # read [length, batch, width]


class BatchChange(NamedTuple):
    """Another batch: examples of a step in the trace, and those that are requested."""

    traced: int
    requested: int

    @property
    def ratio(self) -> float:
        """By how much there are more examples."""
        return self.requested / self.traced

    def scale(self, size: int) -> int:
        """Return a size that is a multiple of the batch at the other batch; others stay."""
        return size // self.traced * self.requested if size % self.traced == 0 else size


@dataclass(frozen=True)
class WeightShapes:
    """The shapes of the weights of a network, as its optimizer and its gradients show them."""

    shapes: frozenset[Shape]

    @classmethod
    def from_ops(cls, ops: Iterable[TracedOp]) -> "WeightShapes":
        """Return the shapes of the weights of a step; none of an inference."""
        # Only updates and gradients of weights show which shapes are weights.
        keys = [op.key for op in ops if op.key.pass_ == "update" or op.key.is_of_weights]
        return cls(
            frozenset(
                traced_input.shape
                for key in keys
                for traced_input in key.inputs
                if traced_input.shape
            )
        )

    def is_weight(self, shape: Shape) -> bool:
        """Whether a weight, or a matrix of weights transposed, has the shape."""
        return shape in self.shapes or shape[::-1] in self.shapes


NO_WEIGHTS = WeightShapes(frozenset())


def find_batch(ops: Sequence[TracedOp]) -> int | None:
    """Return the batch of a step; None where no op shows one.

    It is the first size of what layers read, as most of them have it.
    """
    # The first kind of layer that occurs decides; its calls vote.
    for name, input_index in BATCH_INPUTS.items():
        calls_by_size: Counter[int] = Counter()
        for op in ops:
            is_forward_layer = op.key.name == ATEN + name and op.key.pass_ == "forward"
            shape = _input_shape(op.key, input_index) if is_forward_layer else ()
            if shape:
                calls_by_size[shape[0]] += round(op.calls)
        if calls_by_size:
            ((batch, _),) = calls_by_size.most_common(1)
            return batch
    return None


def _input_shape(key: OpKey, input_index: int) -> Shape:
    return key.inputs[input_index].shape if input_index < len(key.inputs) else ()


def scale_batch(key: OpKey, change: BatchChange, weights: WeightShapes) -> OpKey:
    """Return an op at another batch."""
    # What belongs to weights does not depend on the batch.
    if key.pass_ == "update" or key.is_of_weights:
        return key
    name = key.name.removeprefix(ATEN)
    if name in FIRST_MATRIX_INPUTS:
        inputs = _scale_product(key, FIRST_MATRIX_INPUTS[name], change, weights)
    elif name in SEQUENCE_OPS:
        is_weight = weights.is_weight
        inputs = tuple(
            traced_input
            if is_weight(traced_input.shape)
            else _scale_axis(traced_input, SEQUENCE_BATCH_AXIS, change)
            for traced_input in key.inputs
        )
    elif name in EXAMPLE_INPUTS:
        example_inputs = EXAMPLE_INPUTS[name]
        inputs = tuple(
            _scale_layer_input(traced_input, name, change)
            if input_index in example_inputs
            else traced_input
            for input_index, traced_input in enumerate(key.inputs)
        )
    else:
        is_reduction = name in REDUCTIONS  # of gradients for biases, never of weights
        inputs = _scale_elements(key.inputs, change, NO_WEIGHTS if is_reduction else weights)
    return key._replace(inputs=inputs)


def _scale_axis(traced_input: TracedInput, axis: int, change: BatchChange) -> TracedInput:
    shape = traced_input.shape
    if not -len(shape) <= axis < len(shape):
        return traced_input
    axis_index = axis % len(shape)
    scaled = (*shape[:axis_index], change.scale(shape[axis_index]), *shape[axis_index + 1 :])
    return traced_input._replace(shape=scaled)


def _scale_layer_input(traced_input: TracedInput, name: str, change: BatchChange) -> TracedInput:
    """Return the input of a layer; of an image the batch is the first axis."""
    axis = 0 if name in IMAGE_OPS else _find_batch_axis(traced_input.shape, change.traced)
    return traced_input if axis is None else _scale_axis(traced_input, axis, change)


def _scale_elements(
    inputs: tuple[TracedInput, ...], change: BatchChange, weights: WeightShapes
) -> tuple[TracedInput, ...]:
    """Return inputs with the axis scaled that is the batch; what is broadcast over it stays."""
    largest_shape = max((traced_input.shape for traced_input in inputs), key=len, default=())
    scaled = []
    for traced_input in inputs:
        is_labels = traced_input.dtype.startswith(INTEGERS)
        lacks_axes = len(traced_input.shape) < len(largest_shape)
        is_broadcast = lacks_axes and _can_broadcast(traced_input.shape, largest_shape)
        # A tensor that is broadcast has no batch, but labels have one though they lack an axis.
        is_fixed = weights.is_weight(traced_input.shape) or (is_broadcast and not is_labels)
        axis = _find_batch_axis(traced_input.shape, change.traced)
        scaled.append(
            traced_input if is_fixed or axis is None else _scale_axis(traced_input, axis, change)
        )
    return tuple(scaled)


def _can_broadcast(shape: Shape, wide: Shape) -> bool:
    """Whether a shape broadcasts to a longer one: from the last axis on, equal or 1."""
    pairs = zip(reversed(shape), reversed(wide), strict=False)
    return all(size in (1, wide_size) for size, wide_size in pairs)


def _find_batch_axis(shape: Shape, batch: int) -> int | None:
    """Return the axis that holds the batch: the first of its size, else the first multiple."""
    equal_axes = (axis for axis, size in enumerate(shape) if size == batch)
    multiple_axes = (axis for axis, size in enumerate(shape) if size and size % batch == 0)
    return next(equal_axes, next(multiple_axes, None))


def _scale_product(
    key: OpKey, input_index: int, change: BatchChange, weights: WeightShapes
) -> tuple[TracedInput, ...]:
    """Return the inputs of `[m, k] x [k, n]` with the axis scaled that holds the examples.

    The gradient of a weight adds up over examples, along k; all others have a row for each of them.
    """
    first_matrix = key.inputs[input_index]
    second_matrix = key.inputs[input_index + 1]
    makes_weight = weights.is_weight((first_matrix.shape[0], second_matrix.shape[1]))
    reads_weight = weights.is_weight(second_matrix.shape)
    summed_size = first_matrix.shape[1]
    # Only a contraction over a multiple of the batch can be one over examples.
    could_sum_examples = key.pass_ != "forward" and summed_size % change.traced == 0
    # Shapes fit both readings: gradients of weights have a transposed first operand.
    is_ambiguous = makes_weight and reads_weight
    sums_examples = could_sum_examples and (
        first_matrix.is_transposed if is_ambiguous else makes_weight
    )
    inputs = list(key.inputs)
    if sums_examples:
        inputs[input_index] = _scale_axis(first_matrix, 1, change)
        inputs[input_index + 1] = _scale_axis(second_matrix, 0, change)
    else:
        inputs[input_index] = _scale_axis(first_matrix, 0, change)
    return tuple(inputs)
