"""Functions of single elements, of a kind of their own or `pointwise` by name; softmax, casts.

A FLOP is one addition, multiplication, comparison, division, root or transcendental function;
`pointwise` ones that are several are counted as they are written out: x sigmoid(x) is four and one.
They take tensors that broadcast as numpy's do. What has a kind of its own is counted there.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from steptime.core.errors import check_choice
from steptime.core.graph import TensorSpec
from steptime.network.ops.gradient_op import emit_single_op
from steptime.network.ops.table import (
    Backward,
    GradientOp,
    Operand,
    OpKind,
    Specs,
    broadcast_shape,
    emit_per_input,
    example,
    format_shapes,
    last_axis,
    like_first_input,
    no_flop,
    per_element,
    require,
    sum_to_shape,
    widest,
)


class Activation(NamedTuple):
    """An activation function of one element.

    Attributes:
        flop: FLOP an element.
        gradient_flop: FLOP an element of its gradient.
        saved: the tensor that its gradient reads beside dy: the input or the output.
        source: its definition.
    """

    flop: int
    gradient_flop: int
    saved: Operand
    source: str


_ACTIVATIONS = {
    "relu": Activation(1, 1, Operand.OUTPUT, "max(x, 0)"),
    "sigmoid": Activation(4, 3, Operand.OUTPUT, "1 / (1 + exp(-x)); dx = dy y (1 - y)"),
    "tanh": Activation(1, 3, Operand.OUTPUT, "tanh(x), one function; dx = dy (1 - y^2)"),
    "gelu": Activation(
        5,
        11,
        Operand.INPUT,
        "Hendrycks, Gimpel 2016: x/2 (1 + erf(x / sqrt 2)), or with `tanh`",
    ),
    "silu": Activation(
        5, 9, Operand.INPUT, "Elfwing, Uchibe, Doya 2017: x sigmoid(x), or of `beta` times x"
    ),
}


def broadcast_outputs(a: TensorSpec, b: TensorSpec) -> Specs:
    """Return `a [...], b -> [...]`: `b` has the shape of `a`, or of its last dimensions."""
    fits = b.shape == a.shape[len(a.shape) - len(b.shape) :]
    require(fits, f"shapes {format_shapes(a, b)} do not fit elementwise")
    return (TensorSpec(a.shape, widest(a, b)),)


def _sum_to_second(b: Backward, grad: str, suffix: str) -> str:
    """Return a gradient summed to the shape of the second input, which may have been broadcast."""
    return sum_to_shape(b, grad, b.out.shape, b.specs[1].shape, suffix)


def _negate_gradient(b: Backward) -> str:
    """Return the gradient of the second input of a difference."""
    (negated,) = b.emit("expand", (b.grad,), "grad_b", shape=b.out.shape, scale=-1.0)
    return _sum_to_second(b, negated, "grad_b_sum")


def _multiply_gradient(b: Backward) -> str:
    """Return the gradient of the second input of a product."""
    (product,) = b.emit("mul", (b.grad, b.op.inputs[0]), "grad_b")
    return _sum_to_second(b, product, "grad_b_sum")


_GRADIENTS = {  # of the first input, and of the second
    "add": emit_per_input(lambda b: b.grad, lambda b: _sum_to_second(b, b.grad, "grad_b")),
    "sub": emit_per_input(lambda b: b.grad, _negate_gradient),
    "mul": emit_per_input(
        lambda b: b.emit("mul", (b.grad, b.op.inputs[1]), "grad_a")[0], _multiply_gradient
    ),
}


def maximum_outputs(a: TensorSpec, b: TensorSpec) -> Specs:
    """Return the larger elements of two tensors of one shape."""
    require(a.shape == b.shape, f"shapes {format_shapes(a, b)} differ")
    return (TensorSpec(a.shape, widest(a, b)),)


def prelu_outputs(x: TensorSpec, slope: TensorSpec) -> Specs:
    """Return `x [n, c, ...], slope [c] or [1] -> [n, c, ...]`."""
    fits = slope.shape == (1,) or slope.shape == x.shape[1:2]
    require(
        fits and len(x.shape) >= 2,
        f"PReLU of {format_shapes(x)} with slopes {format_shapes(slope)}",
    )
    return (x,)


_pointwise = partial(OpKind, pointwise=True)  # runs in the kernel of another one, too

KINDS = {
    **{
        name: _pointwise(
            like_first_input,
            per_element(activation.flop),
            example((3, 4)),
            activation.source,
            gradient_op=GradientOp(
                (activation.saved, Operand.GRADIENT),
                per_element(activation.gradient_flop),
                f"derivative of {name}",
            ),
        )
        for name, activation in _ACTIVATIONS.items()
    },
    "softmax": OpKind(
        like_first_input,
        per_element(5),
        example((3, 4)),
        "over the last axis: maximum, difference, exp, sum, quotient",
        autocast="wide",
        row=last_axis,
        gradient_op=GradientOp(
            (Operand.OUTPUT, Operand.GRADIENT), per_element(4), "dx = y (dy - sum(y dy))"
        ),
    ),
    **{
        name: _pointwise(
            broadcast_outputs, per_element(1), example((2, 3, 4), (3, 4)), "definition", gradient
        )
        for name, gradient in _GRADIENTS.items()
    },
    "maximum": _pointwise(
        maximum_outputs,
        per_element(1),
        example((3, 4), (3, 4)),
        "definition",
        gradient_op=GradientOp(
            (Operand.INPUTS, Operand.GRADIENT),
            per_element(3),
            "derivative of maximum: one comparison, dy to each input or 0",
        ),
    ),
    "prelu": _pointwise(
        prelu_outputs,
        per_element(2),
        example((2, 3, 4), (3,)),
        "He et al. 2015 (PReLU), eq. 1: max(x, 0) + a min(x, 0), a comparison and a product",
        autocast="low",
        gradient_op=GradientOp(
            (Operand.INPUTS, Operand.GRADIENT),
            per_element(4),
            "derivative of prelu, eq. 3: dx a comparison and a product, da a product and a sum",
            columns={"pointwise": False},
        ),
    ),
    "dropout": _pointwise(
        like_first_input,
        per_element(2),
        example((3, 4), p=0.5),
        "Srivastava et al. 2014: mask and scale; drawing the mask is not counted",
        saved=lambda x, **_: (TensorSpec(x.shape, "bool"),),
        gradient_op=GradientOp((Operand.GRADIENT, Operand.SAVED), per_element(2), "mask and scale"),
    ),
    "cast": _pointwise(
        lambda x, dtype: (TensorSpec(x.shape, dtype),),
        no_flop,
        example((3, 4), dtype="bfloat16"),
        "definition: copies into another element type",
        emit_single_op("cast", (Operand.GRADIENT,), attrs=lambda b: {"dtype": b.specs[0].dtype}),
    ),
}


class Derivative(NamedTuple):
    """The derivative of a function by one of its operands, times the gradient of its output.

    Attributes:
        reads: what it reads beside that gradient: the first or second operand, or the output.
        flop: its FLOP an element.
    """

    reads: tuple[Operand, ...]
    flop: int


OUTPUT_GRADIENT = Derivative((), 0)  # the gradient of the output itself, which no op makes


class Function(NamedTuple):
    """A function of single elements.

    Attributes:
        flop: FLOP an element.
        gradients: the derivative by each operand; None for an operand without one.
        is_bool: whether it makes truth values.
    """

    flop: int
    gradients: tuple[Derivative | None, ...]
    is_bool: bool = False


def _unary(flop: int, read: Operand, gradient_flop: int) -> Function:
    """Return a function of one operand, whose derivative reads this operand or the output."""
    return Function(flop, (Derivative((read,), gradient_flop),))


_INPUT, _SECOND, _OUTPUT = Operand.INPUT, Operand.SECOND_INPUT, Operand.OUTPUT
_SELECTED = Derivative((_INPUT, _SECOND), 2)  # of the larger or the smaller operand
_BY_CONDITION = Derivative((_INPUT,), 1)
_NONE, _TRUTH = Function(1, (None,)), Function(1, (None,) * 2, True)
FUNCTIONS: dict[str, Function] = {
    "neg": Function(1, (Derivative((), 1),)),
    "abs": _unary(1, _INPUT, 2),
    "exp": _unary(1, _OUTPUT, 1),
    "log": _unary(1, _INPUT, 1),
    "sqrt": _unary(1, _OUTPUT, 2),
    "rsqrt": _unary(1, _OUTPUT, 4),
    "reciprocal": _unary(1, _OUTPUT, 3),
    "sin": _unary(1, _INPUT, 2),
    "cos": _unary(1, _INPUT, 3),
    "erf": _unary(1, _INPUT, 4),
    "log1p": _unary(1, _INPUT, 2),
    "expm1": _unary(1, _OUTPUT, 1),
    **dict.fromkeys(("floor", "ceil", "round", "sign"), _NONE),
    **dict.fromkeys(("logical_not", "isnan"), Function(1, (None,), True)),
    "clamp": _unary(1, _INPUT, 2),  # between the attributes `low` and `high`
    "leaky_relu": _unary(2, _INPUT, 2),  # below 0 times `scalar`
    "elu": _unary(3, _INPUT, 4),  # below 0 `scalar` (exp(x) - 1)
    "selu": _unary(4, _INPUT, 5),
    "hard_sigmoid": _unary(3, _INPUT, 3),  # a sum, a clamp, a quotient
    "hard_swish": _unary(4, _INPUT, 4),
    "softsign": _unary(3, _INPUT, 4),
    "softplus": _unary(3, _INPUT, 5),  # log(1 + exp(x))
    "log_sigmoid": _unary(5, _INPUT, 6),
    "mish": _unary(5, _INPUT, 13),  # x tanh(softplus(x))
    "add": Function(1, (OUTPUT_GRADIENT, OUTPUT_GRADIENT)),
    "sub": Function(1, (OUTPUT_GRADIENT, Derivative((), 1))),
    "mul": Function(1, (Derivative((_SECOND,), 1), Derivative((_INPUT,), 1))),
    "div": Function(1, (Derivative((_SECOND,), 1), Derivative((_SECOND, _OUTPUT), 3))),
    "pow": Function(1, (Derivative((_INPUT, _SECOND), 4), Derivative((_INPUT, _OUTPUT), 3))),
    "maximum": Function(1, (_SELECTED, _SELECTED)),
    "minimum": Function(1, (_SELECTED, _SELECTED)),
    "mod": Function(1, (OUTPUT_GRADIENT, Derivative((_INPUT, _SECOND), 3))),
    "floor_divide": Function(1, (None,) * 2),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"), _TRUTH),
    "where": Function(1, (None, _BY_CONDITION, _BY_CONDITION)),
}


OPERAND_LETTERS = "abc"  # of the operands, as gradients name them
_WIDE = ("exp", "expm1", "log", "log1p", "pow", "reciprocal", "rsqrt", "softplus")


def _autocast(function: str, scalar_place: int = -1, **_: object) -> Literal["", "wide"]:
    """Return the type of a function under mixed precision; a number over a tensor is wide too."""
    return "wide" if function in _WIDE or (function == "div" and scalar_place == 0) else ""


def function_of(name: str) -> Function:
    """Return a row of `FUNCTIONS`; raises `InputError` for a name that is not there."""
    check_choice("pointwise function", name, FUNCTIONS)
    return FUNCTIONS[name]


def promote_types(*specs: TensorSpec) -> str:
    """Return the type of a result of several inputs: the widest of their floats, if any."""
    complexes = [spec for spec in specs if "complex" in spec.dtype]
    floats = [spec for spec in specs if spec.is_floating]
    return widest(*(complexes or floats or specs))


def pointwise_outputs(
    *specs: TensorSpec,
    function: str,
    scalar: float | None = None,
    scalar_place: int = -1,
    **limits: float,
) -> Specs:
    """Return the shape that the inputs broadcast to.

    A function of several operands takes `scalar` as the operand at `scalar_place`, one of one
    operand as its parameter; `clamp` has `low` and `high`.
    """
    row = function_of(function)
    arity = len(row.gradients)
    scalar_is_operand = scalar is not None and arity > 1
    operand_count = len(specs) + (1 if scalar_is_operand else 0)
    has_operands = bool(specs) and operand_count == arity
    require(has_operands, f"{function} takes {arity} operands, not {operand_count}")
    # a place below 0 counts from the last operand
    has_place = scalar is None or (type(scalar) is float and -arity <= scalar_place < arity)
    require(has_place, f"{function} has no operand {scalar_place} that could be {scalar!r}")
    _check_limits(function, limits)
    shape = broadcast_shape(*(spec.shape for spec in specs))
    require(
        shape is not None, f"{function} of shapes {format_shapes(*specs)}, which do not broadcast"
    )
    has_condition = function == "where" and len(specs) > 1
    values = specs[1:] if has_condition else specs
    dtype = "bool" if row.is_bool else promote_types(*values)
    return (TensorSpec(shape or (), dtype),)


def _check_limits(function: str, limits: Mapping[str, float]) -> None:
    """Check that a clamp has both its limits, as floats, and another function none."""
    limit_names = {"low", "high"} if function == "clamp" else set()
    has_floats = all(type(limit) is float for limit in limits.values())
    has_limits = limits.keys() == limit_names and has_floats
    require(has_limits, f"{function} with {', '.join(limits) or 'no limits'}")


def _operands(b: Backward) -> list[str | None]:
    """Return the tensors that are operands of a function, None for the scalar."""
    names: list[str | None] = list(b.op.inputs)
    arity = len(function_of(b.attrs["function"]).gradients)
    if len(names) < arity:
        names.insert(b.attrs.get("scalar_place", -1) % arity, None)
    return names


def pointwise_gradient(b: Backward) -> tuple[str | None, ...]:
    """Emit an op for each operand, and the sum over what it was broadcast along."""
    operands = _operands(b)
    rules = function_of(b.attrs["function"]).gradients
    # inputs are the operands that are tensors, not a number
    operand_indices = [i for i, operand in enumerate(operands) if operand is not None]
    grads: list[str | None] = []
    for input_index, operand_index in enumerate(operand_indices):
        rule = rules[operand_index]
        if rule is None or not b.needs[input_index]:
            grads.append(None)
            continue
        grad = _append_derivative(b, rule, operands, operand_index)
        suffix = f"grad_{OPERAND_LETTERS[operand_index]}_sum"
        input_shape = b.specs[input_index].shape
        grads.append(sum_to_shape(b, grad, b.out.shape, input_shape, suffix))
    return tuple(grads)


def _append_derivative(
    b: Backward, rule: Derivative, operands: Sequence[str | None], operand_index: int
) -> str:
    """Append the derivative by an operand times dY, as large as dY; that of a sum is dY itself."""
    if rule == OUTPUT_GRADIENT:
        return b.grad
    tensor_by_operand = {**dict(zip((_INPUT, _SECOND), operands, strict=False)), _OUTPUT: b.output}
    # the derivative reads some of the operands and the output; a number is among the attributes
    tensors = [tensor_by_operand[operand] for operand in rule.reads]
    names = [name for name in tensors if name]
    attrs = {**b.attrs, "operand": operand_index}
    suffix = f"grad_{OPERAND_LETTERS[operand_index]}"
    (grad,) = b.emit("pointwise_grad", (*names, b.grad), suffix, **attrs)
    return grad


def _grad_flop(*specs: TensorSpec, function: str, operand: int, **_: Any) -> int:
    rule = function_of(function).gradients[operand]
    require(rule is not None, f"operand {operand} of {function} has no gradient")
    return rule.flop * specs[-1].size if rule else 0


KINDS |= {
    "pointwise": OpKind(
        pointwise_outputs,
        lambda *specs, **attrs: (
            function_of(attrs["function"]).flop * pointwise_outputs(*specs, **attrs)[0].size
        ),
        example((2, 3, 1), (3, 4), function="div"),
        "definition: one FLOP an element made, several where a function is written so",
        gradient=pointwise_gradient,
        autocast=_autocast,
        pointwise=True,
    ),
    "pointwise_grad": OpKind(
        lambda *specs, **_: (specs[-1],),
        _grad_flop,
        example((3, 4), (2, 3, 4), function="div", operand=0),
        "derivative of a pointwise function by an operand, times dy",
        pointwise=True,
    ),
}
