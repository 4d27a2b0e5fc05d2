"""What one row of the op table says, and how the gradient of an op is written down as ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.graph import Attr, Op, TensorSpec

Specs = tuple[TensorSpec, ...]
Products = tuple[tuple[int, int, int, int], ...]
Window = tuple[int, int, int, int, int, int]
Autocast = Literal["", "low", "wide", "first"]
Emit = Callable[..., tuple[str, ...]]
Part = TypeVar("Part")  # of an op: the name of a tensor, or its spec


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

    def without(self, *names: str) -> dict[str, Any]:
        """Return the attributes but for some."""
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


class Back(NamedTuple):
    """The one op that makes the gradients of a kind: `<kind>_grad`, whose row follows from this.

    It `reads` what `fused` says; `cost` is the rule of its FLOP, of a kind that consists of matrix
    products that of its own (`twice`: both gradients of each). It makes the gradients of all inputs
    where it reads all, else that of what it reads first, or what `outputs` say. Where `columns` are
    silent it is as the row of the kind; of products, so are the bytes that it reads.
    """

    reads: str
    cost: Callable[..., Any]
    source: str
    attrs: Callable[[Backward], Mapping[str, Any]] = lambda b: b.attrs
    outputs: Callable[..., Specs] | None = None
    columns: Mapping[str, Any] = {}


@dataclass(frozen=True)
class OpKind:
    """One row of the op table.

    `outputs(*specs, **attrs)` returns the specs of the outputs; `flop(*specs, **attrs)` an int, a
    multiply-add being 2. `gradient` emits the ops that make each input's gradient and returns their
    names (None for an input without one), or `back` is that one op; a kind with neither cannot be
    differentiated.
    `products(*specs, **attrs)` returns the matrix products of a kind that consists of them, each
    `(batch, m, n, k)`: `batch` times `[m, k] [k, n] -> [m, n]`; their FLOP follow (`matrix_kind`).
    `serial(*specs, **attrs)` returns the number of steps that wait for each other, 1 if left out.
    `saved(*specs, **attrs)` returns what the forward pass keeps for the backward pass besides
    inputs and outputs; it is written only when the op is differentiated, and `always_saves` says
    that kernels make it, and drop it, in inference too. `work` groups the kinds whose FLOP other
    counters count too. `storage` says whether outputs are new tensors, views of the first
    input, or overwrite it (every output overwrites the input of its place).
    `read(*specs, **attrs)` returns the bytes read where those are not of every input, whole.
    `scratch(*specs, **attrs)` returns the bytes of whole tensors that are made and dropped inside
    the op (not the workspace of kernels). A `pointwise` kind makes each element from the same
    element of its inputs, so that it can run in the kernel that makes one of them. `autocast` says
    which type a forward op runs in under mixed precision, as torch's lists for CUDA devices do: the
    `low` one, the `wide` one of the weights, that of its `first` input, or any ("", the widest); it
    may be a function of the attributes.
    `exchanged(*specs, **attrs)` returns the bytes that a kind exchanges with other ranks.
    `window(*specs, **attrs)` returns the height and width of the window that moves over an image,
    its strides, and the height and width of the map that it makes (a gradient's: that it reads).
    `row(*specs, **attrs)` returns the number of elements that a kind reduces along the last axis,
    which the batch does not change. What a kind with `logits` makes at the end of a network may be
    the scores of classes. No gradient goes back through a kind that `stops_gradient`.
    """

    outputs: Callable[..., Specs]
    flop: Callable[..., int]
    example: Example
    source: str
    gradient: Gradient | None = None
    back: Back | None = None
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


def twice(products: Callable[..., Products]) -> Callable[..., Products]:
    """Return the rule of the products that make both gradients of each product of a kind."""
    return lambda *specs, **attrs: tuple(
        back for b, m, n, k in products(*specs, **attrs) for back in ((b, m, k, n), (b, n, k, m))
    )


def fused(
    kind: str,
    reads: str,
    suffix: str = "grad_input",
    attrs: Callable[[Backward], Mapping[str, Any]] = lambda b: b.attrs,
) -> Gradient:
    """Return the rule of one op `kind` that makes the gradients of the first inputs, not of others.

    `reads` says what that op reads, in order: `x` and `w`, the first and second input, or all
    `inputs`; `y`, the output, `dy`, its gradient, `places`, the second output, and what is `saved`.
    Its `attrs` are those of the op, or others that are made of these.
    """

    def rule(b: Backward) -> tuple[str | None, ...]:
        inputs = _parts(reads, b.op.inputs, b.op.outputs, b.grad, b.saved)
        new = b.emit(kind, inputs, suffix, **attrs(b))
        return (*new, *[None] * (len(b.op.inputs) - len(new)))

    return rule


def _parts(
    reads: str,
    inputs: tuple[Part, ...],
    outputs: tuple[Part, ...],
    grad: Part,
    saved: tuple[Part, ...],
) -> tuple[Part, ...]:
    """Return what a gradient reads of an op, in the words of `fused`."""
    parts = {"x": inputs[:1], "w": inputs[1:2], "inputs": inputs, "y": outputs[:1], "dy": (grad,)}
    parts |= {"places": outputs[1:2], "saved": saved}
    return tuple(one for part in reads.split() for one in parts[part])


def rows_of(kind: str, row: OpKind) -> dict[str, OpKind]:
    """Return the row of a kind and, where it says how that goes `back`, the row of its gradient.

    The example of that follows from the example of the kind.
    """
    if row.back is None:
        return {kind: row}
    reads, cost, source, attrs, outputs, said = row.back
    specs, given = row.example.specs, row.example.attrs
    made = row.outputs(*specs, **given)
    kept = row.saved(*specs, **given) if row.saved else ()
    op = Backward(Op("", kind, (), (), given), specs, made[0], (), (), (), lambda *_: ())
    case = Example(_parts(reads, specs, made, made[0], kept), attrs(op))
    behind = 1 - len(reads.split())
    if outputs is None:
        outputs = (lambda *specs, **_: specs[:behind]) if "inputs" in reads else same_as_first
    alike = ("work", "read") if row.products else ("pointwise", "row", "window")
    columns = {name: getattr(row, name) for name in alike} | dict(said)
    grad = (matrix_kind if row.products else OpKind)(outputs, cost, case, source, **columns)
    suffix = "grad" if len(outputs(*case.specs, **case.attrs)) > 1 else "grad_input"
    rule = fused(f"{kind}_grad", reads, suffix, attrs)
    return {kind: replace(row, gradient=rule), f"{kind}_grad": grad}


def turned(name: str) -> Callable[[Backward], Mapping[str, Any]]:
    """Return the attributes of an op with one the other way round, off where it is not said."""
    return lambda b: {**b.attrs, name: not b.attrs.get(name, False)}


def of_each(*rules: Callable[[Backward], str | None]) -> Gradient:
    """Return the rule that makes each input's gradient by itself, where one is needed."""
    return lambda b: tuple(
        rule(b) if needed else None for rule, needed in zip(rules, b.needs, strict=True)
    )


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape that shapes broadcast to by numpy's rule, None where they do not."""
    rank = max(map(len, shapes))
    result = []
    for along in zip(*[(1,) * (rank - len(shape)) + shape for shape in shapes], strict=True):
        sizes = {n for n in along if n != 1} or {1}
        if len(sizes) > 1:
            return None
        result.append(sizes.pop())
    return tuple(result)


def summed(
    b: Backward, grad: str, wide: tuple[int, ...], shape: tuple[int, ...], suffix: str
) -> str:
    """Return `grad [*wide]` summed to the `shape` of an operand that was broadcast to it."""
    if shape == wide:
        return grad
    lead = len(wide) - len(shape)
    axes = tuple(i for i, n in enumerate(wide) if i < lead or (shape[i - lead] == 1 and n != 1))
    return b.emit("reduce_sum", (grad,), suffix, axes=axes, shape=shape)[0]


def require(condition: bool, message: str) -> None:
    """Raise `ShapeError(message)` unless `condition` holds."""
    if not condition:
        raise ShapeError(message)


def show(*specs: TensorSpec) -> str:
    """Return shapes for a message: `[2, 3] and [3, 4]`."""
    return " and ".join(str(list(spec.shape)) for spec in specs)


def along(x: TensorSpec, axis: int, what: str = "") -> int:
    """Return an axis of `x` counted from its first; raises `ShapeError` for one that it has not."""
    require(-len(x.shape) <= axis < len(x.shape), f"{what}axis {axis} of {show(x)}")
    return axis % len(x.shape)


def resized(x: TensorSpec, axis: int, *sizes: int) -> TensorSpec:
    """Return the spec of `x` with other sizes, or none, in place of one axis."""
    return TensorSpec((*x.shape[:axis], *sizes, *x.shape[axis + 1 :]), x.dtype)


def same_as_first(*specs: TensorSpec, **_: Any) -> Specs:
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


def copies(
    outputs: Callable[..., Specs], case: Example, gradient: Gradient | None = None, into: str = ""
) -> OpKind:
    """Return the row of a kind that copies what it reads `into` what it makes."""
    return OpKind(outputs, no_flop, case, f"definition: copies{into}", gradient)


def last_axis(*specs: TensorSpec, **_: Any) -> int:
    """Return the length of the first input's last axis."""
    return specs[0].shape[-1]


def example(shapes: str, /, **attrs: Any) -> Example:
    """Return an example: inputs such as `2x3 4:int64`, a type if not float32, and attributes."""
    parts = (text.partition(":") for text in shapes.split())
    specs = [
        TensorSpec(tuple(map(int, filter(None, sizes.split("x")))), dtype or "float32")
        for sizes, _, dtype in parts
    ]
    return Example(tuple(specs), attrs)
