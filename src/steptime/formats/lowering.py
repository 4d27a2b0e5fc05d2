"""Plain functions that formats of networks lower their ops with: tensor names in, a name out.

Each chooses the dedicated op kind where one fits, so that a network counts the same by every way,
and a general kind elsewhere. The op that does the work has the name given, or that and a number
where it is taken; what stands beside it lies under it. What no kind can do raises `ShapeError`.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

from steptime.core.graph import Attr
from steptime.core.windows import reach
from steptime.formats import elements as el
from steptime.formats.heads import find_shared_heads, join_heads, repeat_heads, split_heads
from steptime.formats.tensors import axis_of, free_name, is_weight_or_buffer, with_axes
from steptime.formats.windows import resolve_padding
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import GATES
from steptime.network.ops.table import require


def linear(b: Builder, x: str, w: str, name: str, bias: str = "") -> str:
    """Return `x [..., fan_in], w [width, fan_in] -> [..., width]`, and `bias [width]` added."""
    whole = with_axes(b, x)
    if whole != x:
        y = linear(b, whole, w, name, bias)
        return el.reshape(b, y, (b.shape(x)[0], b.shape(y)[-1]), f"{name}/rows")
    rows = x if len(b.shape(x)) > 1 else el.reshape(b, x, (1, -1), f"{name}/row")
    y = el.op(b, "linear", rows, w, name=name)
    if bias:
        y = el.op(b, "bias", y, bias, name=f"{name}/bias", axis=-1)
    return y if rows == x else el.reshape(b, y, b.shape(y)[1:], f"{name}/reshape")


def matmul(b: Builder, x: str, y: str, name: str) -> str:
    """Return `x [..., m, k] y [..., k, n]`, batches broadcast; with a weight it is `linear`.

    A vector is a row before the product and a column after it, as numpy has it.
    """
    before, after = len(b.shape(x)) == 1, len(b.shape(y)) == 1
    require(min(len(b.shape(x)), len(b.shape(y))) >= 1, f"{name}: a product of scalars")
    if len(b.shape(y)) == 2 and is_weight_or_buffer(b, y):
        return linear(b, x, el.transpose(b, y, (1, 0), f"{name}/transpose"), name)
    if before:
        x = el.reshape(b, x, (1, -1), f"{name}/row")
    if after:
        y = el.reshape(b, y, (-1, 1), f"{name}/column")
    made = el.op(b, "matmul", x, y, name=name)
    shape = b.shape(made)
    kept = (*shape[:-2], *(() if before else shape[-2:-1]), *(() if after else shape[-1:]))
    return el.reshape(b, made, kept, f"{name}/reshape")


def _image(b: Builder, x: str, name: str) -> str:
    """Return `[n, c, l]` seen as an image of height 1, `[n, c, 1, l]`, images and volumes as is."""
    shape = b.shape(x)
    axes = len(shape) - 2
    require(axes in (1, 2, 3), f"{name}: over {axes} axes: there are kinds for 1, 2 and 3")
    return el.reshape(b, x, (*shape[:2], 1, shape[2]), f"{name}/image") if axes == 1 else x


def _as_before(b: Builder, y: str, x: str, name: str) -> str:
    """Return an image of height 1 as the sequence that `x` was."""
    shape = b.shape(y)
    flat = len(b.shape(x)) == 3
    return el.reshape(b, y, (*shape[:2], shape[3]), f"{name}/reshape") if flat else y


def _each(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return a size for each axis, that of a sequence after its height of 1."""
    return (1, sizes[0]) if len(sizes) == 1 else tuple(sizes)


def _sides(sizes: Sequence[int]) -> tuple[int, ...]:
    return (0, 0, *sizes) if len(sizes) == 2 else tuple(sizes)


def convolution(
    b: Builder,
    x: str,
    w: str,
    name: str,
    bias: str = "",
    *,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int = 1,
    transposed: bool = False,
    output_padding: Sequence[int] = (),
    size: Sequence[int] = (),
) -> str:
    """Return a convolution of `x [n, c, h, w]`, `[n, c, l]` or `[n, c, d, h, w]`, or its transpose.

    Sizes are one an axis, `padding` is before and after each axis or a word (`resolve_padding`).
    `w` is `[c_out, c_in/groups, ...]`, transposed `[c_in, c_out/groups, ...]`; `output_padding`
    adds to the end of a transpose, whose `size`, where it is given, says the padding.
    """
    padding = resolve_padding(padding, b.shape(x)[2:], b.shape(w)[2:], stride, dilation)
    image, filters = _image(b, x, name), _image(b, w, f"{name}/filters")
    sides, steps, apart = _sides(padding), _each(stride), _each(dilation)
    how: dict[str, Attr] = {"stride": steps, "dilation": apart, "groups": groups}
    if transposed:
        more = [0, *output_padding][-len(steps) :] if output_padding else [0] * len(steps)
        axes = zip(b.shape(image)[2:], b.shape(filters)[2:], steps, apart, more, strict=True)
        whole = [reach(*axis) + beyond for *axis, beyond in axes]
        if size:
            cuts = [max(n - wanted, 0) for n, wanted in zip(whole, _each(size), strict=True)]
            sides = tuple(side for cut in cuts for side in (cut // 2, cut - cut // 2))
        made = zip(whole, sides[::2], sides[1::2], strict=True)
        how["output_size"] = _each(size) or tuple(n - before - after for n, before, after in made)
    kind = f"conv{'_transpose' * transposed}{len(steps)}d"
    y = el.op(b, kind, image, filters, name=name, padding=sides, **how)
    if bias:
        y = el.op(b, "bias", y, bias, name=f"{name}/bias", axis=1)
    return _as_before(b, y, x, name)


def pool(
    b: Builder,
    x: str,
    kind: Literal["max", "avg"],
    name: str,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | str,
    ceil: bool = False,
) -> str:
    """Return maxima or means of windows; means count the padding, whose cost is the same.

    `padding` is before and after each axis, or a word (`resolve_padding`).
    """
    padding = resolve_padding(padding, b.shape(x)[2:], kernel, stride, (1,) * len(kernel))
    window = _each(kernel)
    how: dict[str, Attr] = {"ceil": True} if ceil else {}
    how |= {"kernel": window, "stride": _each(stride), "padding": _sides(padding)}
    y = el.op(b, f"{kind}_pool{len(window)}d", _image(b, x, name), name=name, **how)
    return _as_before(b, y, x, name)


def adaptive_pool(
    b: Builder, x: str, kind: Literal["max", "avg"], size: Sequence[int], name: str
) -> str:
    """Return pooling to a size, which must divide that of `x`, or be a multiple of it."""
    image = _image(b, x, name)
    inner, wanted = b.shape(image)[2:], _each(size)
    axes = len(inner)
    if wanted == inner:
        return x
    if set(wanted) == {1}:
        function, over = "mean" if kind == "avg" else kind, tuple(range(2, 2 + axes))
        return _as_before(b, el.reduce(b, function, image, over, name, keep=True), x, name)
    if all(m % n == 0 for m, n in zip(wanted, inner, strict=True)):
        return resize(b, x, size, "nearest", name)
    # where it does not divide, windows differ by one element; these are all as long as the longest
    stride = tuple(max(1, n // m) for n, m in zip(inner, wanted, strict=True))
    kernel = tuple(n - (m - 1) * s for n, m, s in zip(inner, wanted, stride, strict=True))
    require(min(kernel) >= 1, f"{name}: pooling of {list(inner)} to {list(wanted)}")
    how: dict[str, Attr] = {"kernel": kernel, "stride": stride, "padding": (0, 0) * axes}
    return _as_before(b, el.op(b, f"{kind}_pool{axes}d", image, name=name, **how), x, name)


def resize(
    b: Builder, x: str, size: Sequence[int], mode: str, name: str, align_corners: bool = False
) -> str:
    """Return an image or a sequence of another size: `nearest`, `bilinear` or `bicubic`."""
    image = _image(b, x, name)
    inner, wanted = b.shape(image)[2:], _each(size)
    if wanted == inner:
        return x
    how: dict[str, Attr] = {"align_corners": True} if align_corners else {}
    y = el.op(b, "resize2d", image, name=name, size=wanted, mode=mode, **how)
    return _as_before(b, y, x, name)


def _kept(b: Builder, tensor: str, width: int, name: str) -> str:
    """Return a weight of a norm, a buffer where it has none."""
    return tensor or b.buffer(free_name(b, name), (width,))


def batch_norm(
    b: Builder,
    x: str,
    name: str,
    weight: str = "",
    bias: str = "",
    mean: str = "",
    variance: str = "",
    training: bool | None = None,
) -> str:
    """Return batch norm of `x [n, c, ...]`: by the batch's statistics if `training` (as built)."""
    width = b.shape(x)[1]
    given = (("w", weight), ("b", bias), ("running_mean", mean), ("running_variance", variance))
    inputs = [_kept(b, tensor, width, f"{name}/{suffix}") for suffix, tensor in given]
    by_batch = b.training if training is None else training
    return el.op(b, "batch_norm", x, *inputs, name=name, training=by_batch)


def layer_norm(
    b: Builder, x: str, name: str, weight: str = "", bias: str | None = "", axes: int = 1
) -> str:
    """Return layer norm over the last `axes`, or without a bias root-mean-square norm."""
    shape = b.shape(x)
    kind = "rms_norm" if bias is None else "layer_norm"
    require(1 <= axes <= len(shape), f"{name}: a norm over {axes} axes of {list(shape)}")
    width = math.prod(shape[-axes:])
    seen = el.reshape(b, x, (*shape[:-axes], width), f"{name}/flatten")
    weights = [("w", weight)] + ([] if bias is None else [("b", bias)])
    kept = [_kept(b, tensor, width, f"{name}/{suffix}") for suffix, tensor in weights]
    flat = [el.reshape(b, tensor, (width,), f"{name}/vector") for tensor in kept]
    return el.reshape(b, el.op(b, kind, seen, *flat, name=name), shape, f"{name}/reshape")


rms_norm = partial(layer_norm, bias=None)


def group_norm(
    b: Builder, x: str, groups: int | None, name: str, weight: str = "", bias: str = ""
) -> str:
    """Return group norm of `x [n, c, ...]`; without `groups` instance norm, one a channel."""
    channels = b.shape(x)[1]
    kept = [_kept(b, t, channels, f"{name}/{s}") for s, t in (("w", weight), ("b", bias))]
    if groups is None:
        return el.op(b, "group_norm", x, *kept, name=name, groups=channels, instance=True)
    return el.op(b, "group_norm", x, *kept, name=name, groups=groups)


def attention(
    b: Builder,
    q: str,
    k: str,
    v: str,
    name: str,
    *,
    causal: bool = False,
    window: int = 0,
    mask: str = "",
    scale: float | None = None,
) -> str:
    """Return attention of `q [n, h, l, d], k [n, g, m, d], v [n, g, m, e] -> [n, h, l, e]`.

    It is one op, of which a scale is part, and a `mask` that is added to the scores where it is the
    same for every example (`[h, l, m]`, perhaps after ones); with another it is products around a
    softmax. A mask of constants alone should be left out: it costs nothing there. g divides h; in a
    `window` a place sees those less than so many away.
    """
    _, heads, length, _ = b.shape(q)
    once = [find_shared_heads(b, x, name) for x in (k, v)]
    if b.shape(once[0])[1] == b.shape(once[1])[1]:
        k, v = once
    groups, keys = b.shape(k)[1:3]
    require(heads % max(1, groups) == 0, f"{name}: {heads} heads do not share {groups}")
    scores = (heads, length, keys)
    if not mask or (b.shape(mask)[-3:] == scores and b.tensors[mask].size == math.prod(scores)):
        joined = [join_heads(b, x, f"{name}/{s}") for s, x in (("q", q), ("k", k), ("v", v))]
        joined += [el.reshape(b, mask, scores, f"{name}/mask")] if mask else []
        how: dict[str, Attr] = {"heads": heads, "kv_heads": groups, "causal": causal}
        how |= {"window": window} if window else {}
        return split_heads(b, el.op(b, "attention", *joined, name=name, **how), heads, name)
    if groups != heads:
        k, v = (repeat_heads(b, x, heads // groups, f"{name}/{s}") for s, x in (("k", k), ("v", v)))
    turned = el.transpose(b, k, (0, 1, 3, 2), f"{name}/transpose_k")
    y = matmul(b, q, turned, f"{name}/scores")
    y = el.pointwise(b, "mul", y, scale or b.shape(q)[3] ** -0.5, name=f"{name}/scale")
    if causal or window:
        own = b.buffer(free_name(b, f"{name}/causal"), (length, keys))
        y = el.pointwise(b, "add", y, own, name=f"{name}/mask")
    y = el.pointwise(b, "add", y, mask, name=f"{name}/mask")
    return matmul(b, el.softmax(b, y, -1, f"{name}/softmax"), v, name)


def recurrent(
    b: Builder,
    x: str,
    cell: str,
    weights: Sequence[Sequence[str]],
    name: str,
    *,
    bidirectional: bool = False,
    batch_first: bool = True,
    p: float = 0.0,
    states: Sequence[str] = (),
) -> tuple[str, str]:
    """Return the outputs of recurrent layers, and the last state of each, `[layers, n, hidden]`.

    `weights` are `w_ih, w_hh` and, where there are biases, `b_ih, b_hh` of each layer (and of its
    way back, if `bidirectional`), gates in torch's order; after them, what projects the output of
    an LSTM. `p` is dropped between layers. `states [layers, n, hidden]` are computed first states,
    which get a gradient; without them layers begin at zero.
    """
    require(cell in GATES, f"{name}: a cell '{cell}', not {', '.join(GATES)}")
    ways = 2 if bidirectional else 1
    require(bool(weights) and len(weights) % ways == 0, f"{name}: weights of {len(weights)} layers")
    if not batch_first:
        x = el.transpose(b, x, (1, 0, 2), f"{name}/batch_first")
    last: list[str] = []
    for layer in range(len(weights) // ways):
        place = f"{name}/layer{layer + 1}" if len(weights) > ways else name
        made = []
        for way in range(ways):
            own = list(weights[layer * ways + way])
            rows = b.shape(own[0])[0]
            projection = [own.pop()] if len(own) > 2 and len(b.shape(own[-1])) == 2 else []
            while len(own) < 4:
                own.append(b.buffer(free_name(b, f"{place}/no_bias"), (rows,)))
            at = f"{place}/back" if way else place
            seen = el.op(b, "flip", x, name=f"{at}/flip", axes=(1,)) if way else x
            y = el.op(b, cell, seen, *own, *projection, name=at)
            if states:
                place_of = layer * ways + way
                own_states = [
                    el.slice_(b, one, 0, place_of, place_of + 1, f"{at}/first_state")
                    for one in states
                ]
                y = el.op(b, "attach", y, *own_states, name=f"{at}/attach")
            last.append(el.slice_(b, y, 1, -1, b.shape(y)[1], f"{at}/last"))
            made.append(el.op(b, "flip", y, name=f"{at}/flip_back", axes=(1,)) if way else y)
        x = el.concat(b, made, 2, f"{place}/join")
        if layer < len(weights) // ways - 1:
            x = el.dropout(b, x, p, f"{place}/dropout")
    state = el.transpose(
        b, el.concat(b, last, 1, f"{name}/state"), (1, 0, 2), f"{name}/layers_first"
    )
    return x if batch_first else el.transpose(b, x, (1, 0, 2), f"{name}/time_first"), state


def topk(b: Builder, x: str, k: int, axis: int, name: str, largest: bool = True) -> tuple[str, str]:
    """Return the `k` largest or smallest along an axis, in order, and their places."""
    how: dict[str, Attr] = {"k": k, "axis": axis_of(b, x, axis), "largest": largest}
    values, places = b.append(b.full_path(free_name(b, name)), "topk", (x,), **how)
    return values, places
