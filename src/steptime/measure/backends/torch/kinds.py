"""How PyTorch runs each op kind: one function a kind, `(inputs..., **attributes) -> tensor`.

Shapes and attributes are those of the op table; gradients are left to autograd.
"""

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from steptime.core.graph import TensorSpec
from steptime.core.windows import covered_size
from steptime.measure.kinds import activate, find_elementwise_functions, kinds
from steptime.measure.synthetic import NORM_EPSILON, RUNNING_SHARE
from steptime.network.ops.experts import GATED
from steptime.network.ops.images import OVER_VOLUMES, pool_outputs
from steptime.network.ops.loss import IGNORED_LABEL

Sizes = tuple[int, ...]  # one an axis
Sides = tuple[int, ...]  # before and after each axis
Pool = Callable[..., Tensor]


def _make_extreme(of_two: Callable[[Tensor, Tensor], Tensor], bound: str) -> Callable[..., Tensor]:
    """Return a function for the larger or smaller of two, one of which may be a number."""

    # `torch.maximum` takes tensors alone: with a number it is a clamp by `min`, and
    # `torch.minimum` one by `max`. This keyword is `bound`.
    def extreme(a: Any, b: Any) -> Tensor:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return of_two(a, b)
        tensor, number = (a, b) if isinstance(a, Tensor) else (b, a)
        return torch.clamp(tensor, **{bound: number})

    return extreme


FUNCTIONS = find_elementwise_functions(
    {
        "clamp": lambda x, low, high: x.clamp(low, high),
        "maximum": _make_extreme(torch.maximum, "min"),
        "minimum": _make_extreme(torch.minimum, "max"),
        "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),  # has a gradient
    },
    *(torch, functional),
)


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keep)
    return x


def _last_first(sides: Sides) -> list[int]:
    """Return the padding before and after each axis with the last axis first, as torch has it."""
    return [n for i in reversed(range(0, len(sides), 2)) for n in sides[i : i + 2]]


def convolution(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> Tensor:
    """Return the convolution; unequal padding is made by an op of its own."""
    run = functional.conv2d if x.dim() == 4 else functional.conv3d
    padding_before = padding[::2]
    padding_after = padding[1::2]
    # Attributes are () where they have torch's default. Torch pads both ends of an axis alike.
    if padding_before == padding_after:
        return run(x, w, b, stride or 1, padding_before or 0, dilation or 1, groups)
    padded = functional.pad(x, _last_first(padding))
    return run(padded, w, b, stride or 1, padding=0, dilation=dilation or 1, groups=groups)


def transposed_convolution(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    output_size: Sizes,
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> Tensor:
    """Return the transposed convolution; unequal padding is cut off its result."""
    axis_count = len(output_size)
    run = functional.conv_transpose2d if axis_count == 2 else functional.conv_transpose3d
    stride = stride or (1,) * axis_count
    dilation = dilation or (1,) * axis_count
    padding = padding or (0, 0) * axis_count
    padding_before = padding[::2]
    padding_after = padding[1::2]
    output_padding = []  # what an output of this size lacks at the end of each axis
    for i in range(axis_count):
        unpadded_size = covered_size(x.shape[2 + i], w.shape[2 + i], stride[i], dilation[i])
        padded_size = output_size[i] + padding_before[i] + padding_after[i]
        output_padding.append(padded_size - unpadded_size)
    if padding_before == padding_after:
        return run(x, w, b, stride, padding_before, output_padding, groups, dilation)
    y = run(x, w, b, stride, 0, output_padding, groups, dilation)
    for i in range(axis_count):
        y = y.narrow(2 + i, padding_before[i], output_size[i])
    return y


def _group_norm(x: Tensor, w: Tensor, b: Tensor, groups: int, instance: bool = False) -> Tensor:
    if instance:  # the same arithmetic, but autocast leaves it in the type of its input
        return functional.instance_norm(x, weight=w, bias=b, eps=NORM_EPSILON)
    return functional.group_norm(x, groups, w, b, NORM_EPSILON)


def _make_pooling(image: Pool, volume: Pool, padding_value: float) -> Pool:
    """Return a pooling whose padding is a number; what lies beyond it is in no window."""

    def pool(
        x: Tensor, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
    ) -> Tensor:
        run = image if x.dim() == 4 else volume
        padding_before = padding[::2]
        is_symmetric = padding_before == padding[1::2]
        # PyTorch pads by half of the window at most.
        is_small = all(2 * side <= size for side, size in zip(padding_before, kernel, strict=False))
        if is_symmetric and is_small:
            return run(x, kernel, stride, padding_before or 0, ceil_mode=ceil)
        padded = functional.pad(x, _last_first(padding), value=padding_value)
        y = run(padded, kernel, stride, 0, ceil_mode=ceil)
        if not ceil:
            return y
        # Leave out the windows that would start in the padding after `x`.
        (output_spec,) = pool_outputs(TensorSpec(tuple(x.shape)), kernel, stride, padding, ceil)
        valid: Any = (..., *map(slice, output_spec.shape[2:]))
        return y[valid]

    return pool


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *extra_scores: Tensor,
    heads: int,
    kv_heads: int,
    causal: bool,
    window: int = 0,
) -> Tensor:
    """Return fused attention, `[n, l, heads*d]`."""
    q, k, v = (
        x.reshape(*x.shape[:2], count, -1).transpose(1, 2)
        for x, count in ((q, heads), (k, kv_heads), (v, kv_heads))
    )
    mask: Any = None
    if extra_scores or window:
        query_places = torch.arange(q.shape[2], device=q.device)[:, None]
        key_places = torch.arange(k.shape[2], device=q.device)
        distance = query_places - key_places
        is_hidden = torch.zeros_like(distance, dtype=torch.bool)
        if causal:
            is_hidden = is_hidden | (distance < 0)
        if window:
            is_hidden = is_hidden | (distance.abs() >= window)
        mask = torch.zeros(is_hidden.shape, dtype=q.dtype, device=q.device)
        mask = mask.masked_fill(is_hidden, -inf)
    biases_first = sorted(extra_scores, key=Tensor.dim, reverse=True)
    for score in biases_first:
        is_bias = score.dim() == 3  # of heads, queries and keys; a sink has a number a head
        if is_bias:
            mask = mask + score
            continue
        # A sink is the score of one more key, whose value is 0.
        k = functional.pad(k, (0, 0, 0, 1))
        v = functional.pad(v, (0, 0, 0, 1))
        sink = score.to(q.dtype)[:, None, None].expand(heads, q.shape[2], 1)
        mask = torch.cat((mask.expand(heads, *mask.shape[-2:]), sink), -1)
    # Torch takes either `is_causal`, which has the faster kernels, or a mask.
    y = functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal and mask is None, enable_gqa=heads != kv_heads
    )
    return y.transpose(1, 2).flatten(2)


def rotary(x: Tensor, table: Tensor, head_width: int, inverse: bool = False) -> Tensor:
    """Return `x [n, l, heads*d]`, of r features of a head i and i + r/2 turned as a pair."""
    cos, sin = table.to(x.dtype).unsqueeze(1).chunk(2, -1)
    if inverse:
        sin = -sin
    heads = x.reshape(*x.shape[:2], -1, head_width)
    # Feature i of the first half and of the second half make the pair that is rotated.
    rotary_width = table.shape[1]
    passed_through: tuple[Tensor, ...] = ()  # further features of a head
    if rotary_width < head_width:
        heads, further = heads.split((rotary_width, head_width - rotary_width), -1)
        passed_through = (further,)
    first, second = heads.chunk(2, -1)
    rotated_first = first * cos - second * sin
    rotated_second = first * sin + second * cos
    return torch.cat((rotated_first, rotated_second, *passed_through), -1).flatten(2)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    share: Tensor,
    *rates: Tensor,
    heads: int,
    key_heads: int,
    rule: str = "delta",
) -> Tensor:
    """Return the outputs of a linear-attention state, updated by each token in turn.

    By the rule `delta` queries and keys have length 1. By the rule `scan` the decay of a head is
    multiplied by `rates [heads, d]`.
    """
    # `share`: of the change that is written; `rates`: none, or [heads, features] times `decay`.
    is_delta = rule == "delta"
    state_dtype = torch.promote_types(v.dtype, torch.float32)

    def by_value_head(x: Tensor) -> Tensor:
        x = x.to(state_dtype).unflatten(2, (key_heads, -1))
        if is_delta:
            x = functional.normalize(x, dim=-1, eps=0.0)
        return x.repeat_interleave(heads // key_heads, 2)

    queries = by_value_head(q)
    keys = by_value_head(k)
    values = v.to(state_dtype).unflatten(2, (heads, -1))
    decay_by_head = decay.to(state_dtype).unflatten(2, (heads, -1))
    forget_rate = decay_by_head * rates[0].to(state_dtype) if rates else decay_by_head
    retained = (-forget_rate).exp()
    write_share = share.to(state_dtype)
    state = queries.new_zeros(len(queries), heads, queries.shape[-1], values.shape[-1])
    outputs = []
    # n: sequence, h: head, d: feature of a key, e: feature of a value.
    for t in range(queries.shape[1]):
        state = state * retained[:, t, :, :, None]
        change = values[:, t]
        if is_delta:  # what the state holds for this key is replaced
            change = change - torch.einsum("nhde,nhd->nhe", state, keys[:, t])
        state = state + torch.einsum("nhd,nhe,nh->nhde", keys[:, t], change, write_share[:, t])
        outputs.append(torch.einsum("nhde,nhd->nhe", state, queries[:, t]))
    return torch.stack(outputs, 1).flatten(2).to(v.dtype)


def experts(
    x: Tensor,
    logits: Tensor,
    up: Tensor,
    down: Tensor,
    *bias: Tensor,
    per_token: int,
    activation: str,
) -> Tensor:
    """Return the weighted outputs of the experts of each token, one expert after the other."""
    tokens = x.flatten(0, -2)
    best_logits, expert_ids = logits.flatten(0, -2).topk(per_token, -1)
    weights = best_logits.softmax(-1)
    no_bias = (None,) * len(up)
    up_bias, down_bias = bias or (no_bias, no_bias)
    gate_activation = GATED.get(activation)
    y = torch.zeros_like(tokens)
    for i in range(len(up)):
        token, choice = torch.where(expert_ids == i)  # the tokens that chose it, and as which one
        h = functional.linear(tokens[token], up[i], up_bias[i])
        if gate_activation:  # a half of the features is the gate of the other half
            gate, gated = h.chunk(2, -1)
            h = activate(RUNS, gate_activation, gate) * gated
        else:
            h = activate(RUNS, activation, h)
        expert_output = functional.linear(h, down[i], down_bias[i])
        weighted_output = expert_output * weights[token, choice, None]
        y = y.index_add(0, token, weighted_output.to(y.dtype))
    return y.view(x.shape)


def _make_recurrent(run: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a recurrent layer, `[n, l, width] -> [n, l, hidden]`."""

    def layer(
        x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, *w_hr: Tensor
    ) -> Tensor:
        initial_h = x.new_zeros(1, x.shape[0], w_hh.shape[1])
        # A projection (`w_hr`) makes the output of an LSTM narrower than its cells.
        initial_c = x.new_zeros(1, x.shape[0], w_hr[0].shape[1]) if w_hr else initial_h
        outputs: Tensor
        outputs, *_ = run(
            x,
            (initial_h, initial_c) if run is torch.lstm else initial_h,
            (w_ih, w_hh, b_ih, b_hh, *w_hr),
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=torch.is_grad_enabled(),
            bidirectional=False,
            batch_first=True,
        )
        return outputs

    return layer


def slice_(x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Return a part of `x` along `axis`, a view."""
    if step == 1:
        return x.narrow(axis, start, stop - start)
    places = [slice(None)] * x.dim()
    places[axis] = slice(start, stop, step)
    return x[tuple(places)]


def pad(x: Tensor, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Tensor:
    """Return `x` padded."""
    if mode == "constant":
        return functional.pad(x, _last_first(pads), value=value)
    # These modes pad no batch and channels, whose two axes have the first four numbers.
    return functional.pad(x, _last_first(pads[4:]), "replicate" if mode == "edge" else mode)


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return the parts of `x` at `indices` along `axis`."""
    parts = x.index_select(axis, indices.flatten())
    return parts.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


RUNS: dict[str, Callable[..., Any]] = {
    **kinds(torch, functional, FUNCTIONS, _prod),
    "linear": functional.linear,
    "conv2d": convolution,
    "conv_transpose2d": transposed_convolution,
    "max_pool2d": _make_pooling(functional.max_pool2d, functional.max_pool3d, -inf),
    "avg_pool2d": _make_pooling(functional.avg_pool2d, functional.avg_pool3d, 0.0),
    "batch_norm": lambda x, w, b, mean, variance, training=True: functional.batch_norm(
        x, mean, variance, w, b, training, RUNNING_SHARE, NORM_EPSILON
    ),
    "layer_norm": lambda x, w, b: functional.layer_norm(x, w.shape, w, b, NORM_EPSILON),
    "group_norm": _group_norm,
    # a weight of a wider type is cast first
    "rms_norm": lambda x, w: functional.rms_norm(x, w.shape, w.to(x.dtype), NORM_EPSILON),
    "local_response_norm": functional.local_response_norm,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": lambda x, tanh=False: functional.gelu(x, approximate="tanh" if tanh else "none"),
    "prelu": functional.prelu,
    "dropout": lambda x, p: functional.dropout(x, p, training=True),
    "cast": lambda x, dtype: x.to(getattr(torch, dtype)),
    "detach": lambda x: x.detach(),
    "transpose": lambda x, order: x.permute(order),
    "slice": slice_,
    "split": lambda x, axis, sizes: x.split(sizes, axis),
    "embedding": functional.embedding,
    "attention": attention,
    "delta_rule": delta_rule,
    "rotary": rotary,
    "experts": experts,
    "rnn": _make_recurrent(torch.rnn_tanh),
    "lstm": _make_recurrent(torch.lstm),
    "gru": _make_recurrent(torch.gru),
    "pad": pad,
    "gather": gather,
    "gather_elements": lambda x, indices, axis: x.gather(axis, indices),
    "topk": lambda x, k, axis, largest=True: tuple(x.topk(k, axis, largest)),
    "cumsum": lambda x, axis, reverse=False: (
        x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)
    ),
    "resize2d": lambda x, size, mode, align_corners=False: functional.interpolate(
        x, size, mode=mode, align_corners=None if mode == "nearest" else align_corners
    ),
    "cross_entropy": lambda logits, labels: functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED_LABEL
    ),
}
for _kind, _run in RUNS.items():
    if "<" in _run.__qualname__:  # torch.fx writes a module's code with names
        _run.__name__ = _run.__qualname__ = _kind
RUNS |= {kind: RUNS[flat] for kind, flat in OVER_VOLUMES.items() if flat in RUNS}
RECURRENT = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
# the last of them projects an LSTM's output
RECURRENT_WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_hr_l0")
