"""The columns of the op table, and the rules by which the gradient of an op is made of ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal, NamedTuple

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.graph import Attr, Op, TensorSpec

Specs = tuple[TensorSpec, ...]
Products = tuple[tuple[int, int, int, int], ...]
Window = tuple[int, int, int, int, int, int]
Autocast = Literal["", "low", "wide", "first"]
Emit = Callable[..., tuple[str, ...]]


class ShapeError(ValueError):
    """Shapes or attributes that an op cannot take; the message says which."""


@dataclass(frozen=True)
class Example:
    """One small case of an op, for tests: the specs of its inputs and its attributes."""

    specs: Specs
    attrs: Mapping[str, Attr] = field(default_factory=dict)


@dataclass(frozen=True)
class Backward:
    """What a gradient rule is given: the op, its inputs' and outputs' specs, and `emit`.

    `grads` are the gradients of the op's outputs, "" where there is none, and `grad` that of its
    first; `needs` says which inputs want a gradient;
    `saved` are the names of the tensors that the forward op kept (`OpKind.saved`).
    `emit(kind, inputs, suffix, **attrs)` appends an op named `<op>/<suffix>` and gives the names
    of its outputs.
    """

    op: Op
    specs: Specs
    out: TensorSpec
    grads: tuple[str, ...]
    needs: tuple[bool, ...]
    saved: tuple[str, ...]
    emit: Emit

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes of the op, each of the type that its kind gives it."""
        return self.op.attrs

    def attrs_without(self, *names: str) -> Mapping[str, Any]:
        """Return the attributes without those of some names."""
        return {name: value for name, value in self.attrs.items() if name not in names}

    @property
    def grad(self) -> str:
        """Gradient of the op's first output."""
        return self.grads[0]

    @property
    def output(self) -> str:
        """Name of the op's first output."""
        return self.op.outputs[0]


Gradient = Callable[[Backward], tuple[str | None, ...]]


class Operand(Enum):
    """A tensor of a forward op that its gradient op reads; `INPUTS` and `SAVED` are several."""

    INPUT = auto()  # the first input
    SECOND_INPUT = auto()
    INPUTS = auto()
    OUTPUT = auto()  # the first output
    SECOND_OUTPUT = auto()
    SAVED = auto()  # tensors of `OpKind.saved`
    GRADIENT = auto()  # of the first output


class GradientOp(NamedTuple):
    """The one op, `<kind>_grad`, that makes the gradients of a kind; its table row follows from it.

    Attributes:
        reads: its inputs, in order.
        cost: its FLOP; for a kind that consists of matrix products, its products
            (`gradient_products`: both gradients of each).
        source: where the cost is from.
        attrs: its attributes, from those of the forward op.
        outputs: specs of its outputs. By default the gradients of all inputs if it reads all,
            else the gradient of what it reads first.
        columns: further columns of its row. The others are those of the forward kind.
    """

    reads: tuple[Operand, ...]
    cost: Callable[..., Any]
    source: str
    attrs: Callable[[Backward], Mapping[str, Any]] = lambda b: b.attrs
    outputs: Callable[..., Specs] | None = None
    columns: Mapping[str, Any] = {}


@dataclass(frozen=True)
class OpKind:
    """One row of the op table.

    All rules take the specs of the inputs and the attributes of the op, `rule(*specs, **attrs)`.

    Attributes:
        outputs: specs of the outputs.
        flop: FLOP, a multiply-add being 2.
        example: a small case, for tests.
        source: where the cost is from.
        gradient: emits the ops of each input's gradient, and returns their names (None for an input
            without one). A kind with neither this nor `gradient_op` cannot be differentiated.
        gradient_op: the one op that makes the gradients.
        saved: tensors that the forward pass saves for the backward pass, besides inputs and
            outputs; written only if the op is differentiated.
        always_saves: kernels make these tensors in inference, too, and drop them.
        work: the group of kinds whose FLOP other counters count too.
        storage: outputs are new tensors, views of the first input, or overwrite inputs (each
            output the input of its place).
        read: bytes read, if not each input once.
        scratch: bytes of full tensors that are made and dropped inside the op, without the
            workspace of kernels.
        pointwise: each element follows from the same element of the inputs, so the op can run in
            the kernel that makes one of them.
        products: matrix products `(batch, m, n, k)` of a kind that consists of them: `batch` times
            `[m, k] [k, n] -> [m, n]`; their FLOP follow (`matrix_kind`).
        autocast: type of a forward op under mixed precision, as in torch's lists for CUDA: the
            `low` one, the `wide` one of the weights, that of its `first` input, or the widest ("").
            It may be a function of the attributes.
        serial: steps that wait for each other; 1 by default.
        exchanged: bytes that a kind exchanges with other ranks.
        window: height and width of the window that moves over an image, its strides, and the height
            and width of its output (of a gradient: of its input).
        row: elements that are reduced along the last axis, which the batch does not change.
        logits: the output may be the scores of classes at the end of a network.
        stops_gradient: no gradient goes back through the op.
    """

    outputs: Callable[..., Specs]
    flop: Callable[..., int]
    example: Example
    source: str
    gradient: Gradient | None = None
    gradient_op: GradientOp | None = None
    saved: Callable[..., Specs] | None = None
    always_saves: bool = False
    work: Literal["", "matmul", "convolution", "attention", "recurrent"] = ""
    storage: Literal["new", "view", "in_place"] = "new"
    read: Callable[..., int] | None = None
    scratch: Callable[..., int] | None = None
    pointwise: bool = False
    products: Callable[..., Products] | None = None
    autocast: Autocast | Callable[..., Autocast] = ""
    serial: Callable[..., int] | None = None
    exchanged: Callable[..., int] | None = None
    window: Callable[..., Window] | None = None
    row: Callable[..., int] | None = None
    logits: bool = False
    stops_gradient: bool = False


def matrix_kind(
    outputs: Callable[..., Specs],
    products: Callable[..., Products],
    example: Example,
    source: str,
    **columns: Any,
) -> OpKind:
    """Return the row of a kind that consists of matrix products: their FLOP, 2 b m n k, are its."""

    def flop(*specs: TensorSpec, **attrs: Any) -> int:
        return 2 * sum(b * m * n * k for b, m, n, k in products(*specs, **attrs))

    columns = {"autocast": "low", **columns}
    return OpKind(outputs, flop, example, source, products=products, **columns)


def gradient_products(products: Callable[..., Products]) -> Callable[..., Products]:
    """Return the rule of the products of both gradients, given the rule of the forward products."""

    def both_gradients(*specs: TensorSpec, **attrs: Any) -> Products:
        gradients: list[tuple[int, int, int, int]] = []
        for batch, m, n, k in products(*specs, **attrs):
            left_gradient = (batch, m, k, n)
            right_gradient = (batch, n, k, m)
            gradients += [left_gradient, right_gradient]
        return tuple(gradients)

    return both_gradients


def flip_attribute(name: str) -> Callable[[Backward], Mapping[str, Any]]:
    """Return the attributes of an op with one truth value flipped, which is false by default."""
    return lambda b: {**b.attrs, name: not b.attrs.get(name, False)}


def emit_per_input(*rules: Callable[[Backward], str | None]) -> Gradient:
    """Return the gradient rule that makes the gradient of each input by itself, if it is needed."""

    def emit_gradients(b: Backward) -> tuple[str | None, ...]:
        rule_and_need = zip(rules, b.needs, strict=True)
        return tuple(rule(b) if is_needed else None for rule, is_needed in rule_and_need)

    return emit_gradients


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape that shapes broadcast to by numpy's rule, None if they do not."""
    rank = max(map(len, shapes))
    padded_shapes = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    broadcast_sizes = []
    for axis_sizes in zip(*padded_shapes, strict=True):
        distinct_sizes = {size for size in axis_sizes if size != 1} or {1}
        if len(distinct_sizes) > 1:
            return None
        broadcast_sizes.append(distinct_sizes.pop())
    return tuple(broadcast_sizes)


def sum_to_shape(
    b: Backward, grad: str, grad_shape: tuple[int, ...], shape: tuple[int, ...], suffix: str
) -> str:
    """Return a gradient summed to the `shape` of an operand that was broadcast to `grad_shape`."""
    if shape == grad_shape:
        return grad
    new_axes = len(grad_shape) - len(shape)  # which broadcasting put in front

    def is_broadcast(axis: int) -> bool:
        is_new = axis < new_axes
        return is_new or (shape[axis - new_axes] == 1 and grad_shape[axis] != 1)

    summed_axes = tuple(axis for axis in range(len(grad_shape)) if is_broadcast(axis))
    (total,) = b.emit("reduce_sum", (grad,), suffix, axes=summed_axes, shape=shape)
    return total


def require(condition: bool, message: str) -> None:
    """Raise `ShapeError(message)` unless `condition` holds."""
    if not condition:
        raise ShapeError(message)


def format_shapes(*specs: TensorSpec) -> str:
    """Return shapes for a message: `[2, 3] and [3, 4]`."""
    return " and ".join(str(list(spec.shape)) for spec in specs)


def normalize_axis(x: TensorSpec, axis: int, prefix: str = "") -> int:
    """Return a non-negative axis of `x`; raises `ShapeError` for an axis that it does not have."""
    require(-len(x.shape) <= axis < len(x.shape), f"{prefix}axis {axis} of {format_shapes(x)}")
    return axis % len(x.shape)


def resize_axis(x: TensorSpec, axis: int, *sizes: int) -> TensorSpec:
    """Return the spec of `x` with other sizes, or none, in place of one axis."""
    return TensorSpec((*x.shape[:axis], *sizes, *x.shape[axis + 1 :]), x.dtype)


def like_first_input(*specs: TensorSpec, **_: Any) -> Specs:
    """Return the spec of the first input: the output of an elementwise op."""
    return (specs[0],)


def widest(*specs: TensorSpec) -> str:
    """Return the type that an op on several types has: the widest of them."""
    return max((spec.dtype for spec in specs), key=SIZE_BYTES.__getitem__)


def per_element(count: int) -> Callable[..., int]:
    """Return a FLOP rule: `count` for every element of the first input."""
    return lambda *specs, **_: count * specs[0].size


def no_flop(*_: TensorSpec, **__: Any) -> int:
    """Return 0: the op only moves bytes."""
    return 0


def copy_kind(
    outputs: Callable[..., Specs], case: Example, gradient: Gradient | None = None, target: str = ""
) -> OpKind:
    """Return the row of a kind that copies its input; `target` ends its definition."""
    return OpKind(outputs, no_flop, case, f"definition: copies{target}", gradient)


def last_axis(*specs: TensorSpec, **_: Any) -> int:
    """Return the length of the first input's last axis."""
    return specs[0].shape[-1]


def integers(*shape: int) -> TensorSpec:
    """Return the spec of a tensor of int64."""
    return TensorSpec(shape, "int64")


def example(*inputs: TensorSpec | tuple[int, ...], **attrs: Attr) -> Example:
    """Return an example of an op: its inputs, in float32 if only a shape is given, and attributes.

    `example((2, 3), integers(4), axis=1)` has a float32 matrix and four integers.
    """
    specs = [
        value if isinstance(value, TensorSpec) else TensorSpec(value, "float32") for value in inputs
    ]
    return Example(tuple(specs), attrs)
