"""Normalisation: batch, layer, root-mean-square, local response."""

from functools import partial
from typing import Any

from steptime.core.graph import Attr, TensorSpec
from steptime.network.ops.table import (
    GradientOp,
    Operand,
    OpKind,
    Specs,
    example,
    format_shapes,
    last_axis,
    like_first_input,
    per_element,
    require,
)

STATISTICS_DTYPE = "float32"
EPSILON = 1e-5  # of every norm, as torch's layer norm


def _statistics(x: TensorSpec, *shape: int) -> TensorSpec:
    """Return the spec of means, or of inverse deviations, that are kept for the gradient."""
    return TensorSpec(shape, "float64" if x.dtype == "float64" else STATISTICS_DTYPE)


def batch_norm_outputs(x: TensorSpec, *params: TensorSpec, **_: Any) -> Specs:
    """Return `x [n, c, ...], weight, bias, running mean, running variance [c] -> [n, c, ...]`."""
    require(len(x.shape) >= 2, f"batch norm needs [batch, channels, ...], not {format_shapes(x)}")
    require(len(params) == 4, "batch norm needs weight, bias, running mean, running variance")
    for spec in params:
        require(
            spec.shape == (x.shape[1],),
            f"batch norm of {format_shapes(x)} with {format_shapes(spec)}",
        )
    return (x,)


def group_norm_outputs(
    x: TensorSpec, weight: TensorSpec, bias: TensorSpec, groups: int, instance: bool = False
) -> Specs:
    """Return `x [n, c, ...], weight, bias [c] -> [n, c, ...]`.

    An `instance` norm has a group for each channel, and keeps its type under autocast.
    """
    require(
        len(x.shape) >= 2, f"group norm of {format_shapes(x)} with {format_shapes(weight, bias)}"
    )
    _batch, channels, *_sizes = x.shape
    # instance norm is group norm with a group for each channel
    require(not instance or groups == channels, f"instance norm of {groups} groups")
    fits = weight.shape == bias.shape == (channels,)
    require(fits, f"group norm of {format_shapes(x)} with {format_shapes(weight, bias)}")
    divides_channels = groups >= 1 and channels % groups == 0
    require(divides_channels, f"{channels} channels in {groups} groups")
    return (x,)


def layer_norm_outputs(x: TensorSpec, weight: TensorSpec, bias: TensorSpec) -> Specs:
    """Return `x [..., width], weight, bias [width] -> [..., width]`."""
    fits = weight.shape == bias.shape == x.shape[-1:] and len(x.shape) >= 1
    require(fits, f"layer norm of {format_shapes(x)} with {format_shapes(weight, bias)}")
    return (x,)


def rms_norm_outputs(x: TensorSpec, weight: TensorSpec) -> Specs:
    """Return `x [..., width], weight [width] -> [..., width]`."""
    fits = weight.shape == x.shape[-1:] and len(x.shape) >= 1
    require(fits, f"RMS norm of {format_shapes(x)} with {format_shapes(weight)}")
    return (x,)


def _by_three(x: TensorSpec, _: TensorSpec, weight: TensorSpec, *__: Any, **___: Any) -> Specs:
    """Return the specs of the gradients of the input, of the weight and of the bias."""
    return (x, weight, weight)


def _centred_norm_gradient(kind: str, **columns: Any) -> GradientOp:
    """Return the gradient of a norm by its input, its weight and its bias."""
    source = f"derivative of {kind}: xhat 2, dw 2, db 1, g 1, sums 3, dx 4"
    reads = (Operand.INPUT, Operand.GRADIENT, Operand.SECOND_INPUT, Operand.SAVED)
    return GradientOp(reads, per_element(13), source, outputs=_by_three, **columns)


_norm = partial(OpKind, always_saves=True, autocast="wide")
_LRN: dict[str, Attr] = {"size": 3, "alpha": 0.1, "beta": 0.75, "k": 2.0}

KINDS = {
    "batch_norm": OpKind(
        batch_norm_outputs,
        # in training mean 1, variance 3, normalise 2, scale, shift
        lambda x, *_, training=True: (8 if training else 4) * x.size,
        example((4, 3, 5, 5), (3,), (3,), (3,), (3,), training=True),
        "Ioffe, Szegedy 2015, algorithm 1; 8 FLOP an element in training, 4 in inference",
        saved=lambda x, *_, **__: (_statistics(x, x.shape[1]),) * 2,
        gradient_op=_centred_norm_gradient("batch_norm", attrs=lambda b: {}),
    ),
    "layer_norm": _norm(
        layer_norm_outputs,
        per_element(8),
        example((2, 4, 6), (6,), (6,)),
        "Ba, Kiros, Hinton 2016, eq. 3; mean 1, variance 3, normalise 2, scale and shift 2",
        saved=lambda x, *_, **__: (_statistics(x, *x.shape[:-1]),) * 2,
        row=last_axis,
        gradient_op=_centred_norm_gradient("layer_norm"),
    ),
    "group_norm": _norm(
        group_norm_outputs,
        per_element(8),
        example((4, 3, 5, 5), (3,), (3,), groups=3),
        "Wu, He 2018, eq. 1; mean 1, variance 3, normalise 2, scale and shift 2",
        saved=lambda x, *_, groups, **__: (_statistics(x, x.shape[0], groups),) * 2,
        gradient_op=_centred_norm_gradient("group_norm"),
        # torch's list of ops in float32 has group_norm, and not instance_norm
        autocast=lambda instance=False, **_: "" if instance else "wide",
    ),
    "rms_norm": _norm(
        rms_norm_outputs,
        per_element(4),
        example((2, 4, 6), (6,)),
        "Zhang, Sennrich 2019, eq. 4; square and sum 2, normalise 1, scale 1",
        saved=lambda x, *_, **__: (_statistics(x, *x.shape[:-1]),),
        row=last_axis,
        gradient_op=GradientOp(
            (Operand.INPUT, Operand.GRADIENT, Operand.SECOND_INPUT, Operand.SAVED),
            per_element(9),
            "derivative of rms_norm: xhat 1, dw 2, g 1, sum 2, dx 3",
            outputs=lambda x, grad, weight, *_: (x, weight),
        ),
    ),
    "local_response_norm": OpKind(
        like_first_input,
        # square, window sum, scale and shift, power, product
        lambda x, size, **_: int((size + 5) * x.size),
        example((4, 3, 5, 5), **_LRN),
        "Krizhevsky, Sutskever, Hinton 2012, section 3.3, alpha divided by the size as in Caffe",
        autocast="wide",
        saved=like_first_input,
        gradient_op=GradientOp(
            (Operand.INPUT, Operand.GRADIENT, Operand.OUTPUT, Operand.SAVED),
            lambda x, *_, size, **__: int((size + 6) * x.size),
            "derivative of local_response_norm: two products, ratio 2, window sum, last 2",
        ),
    ),
}
