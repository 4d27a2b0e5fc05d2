"""What a network of a file is trained on, and how ops that lead nowhere are left out."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from steptime.core.graph import Op
from steptime.core.units import first_of
from steptime.formats.elements import is_float, op, transpose, with_axes
from steptime.network.layers.dense import classify, mean_loss
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require
from steptime.network.ops.training import find_differentiated


def add_loss(b: Builder, outputs: Sequence[str]) -> str:
    """Return what a network of a file ends with: its loss in training, its first output else.

    A single output of numbers that a product, a bias or a softmax makes is classified along its
    last axis, an image along its channels; a softmax at the end is part of that loss. Any other is
    averaged, and several are added up; a remark says which was guessed. Ops whose results nobody
    reads are left out.
    """
    require(bool(outputs), "a network without an output")
    if not b.training:
        _leave_out_unread(b, outputs)
        return outputs[0]
    floats = [x for x in dict.fromkeys(outputs) if is_float(b, x)]
    require(bool(floats), "a network without an output of numbers that could be trained")
    taken = any(b.named(name) in b.tensors for name in ("labels", "loss"))
    with b.scope("training") if taken else nullcontext():
        loss = _classified(b, floats[0]) if len(floats) == 1 else ""
        guess = "cross entropy" if loss else "the mean of its output"
        if not loss:
            guess = "the sum of its outputs' means" if len(floats) > 1 else guess
            first, *others = (_mean(b, x, i) for i, x in enumerate(floats))
            loss = first
            for i, other in enumerate(others, start=1):
                loss = op(b, "add", loss, other, name=f"loss_sum/{i}")
    if loss not in outputs:
        b.remarks.append(f"loss: {guess}, guessed from {_shown(b, floats)}")
    _leave_out_unread(b, (loss,))
    return loss


def find_trained_outputs(b: Builder, outputs: Sequence[str]) -> list[str]:
    """Return the outputs that a step trains on: the losses among them, else all.

    A scalar is a loss where it is computed from another output, as the cross entropy of logits,
    and all weights that any output would train have a gradient from scalars alone.
    """
    scalars = [name for name in outputs if b.shape(name) == ()]
    others = {*outputs} - {*scalars}
    if others.isdisjoint(_leading_to(b, scalars)):
        return [*outputs]
    weights = {*b.weights}
    reached = [weights & _differentiated(b, weights, names) for names in (scalars, outputs)]
    return scalars if reached[0] == reached[1] else [*outputs]


def _leading_to(b: Builder, names: Sequence[str]) -> set[str]:
    """Return the tensors that some tensors are computed from."""
    leading = set(names)
    for one in reversed(b.ops):
        if not leading.isdisjoint(one.outputs):
            leading.update(one.inputs)
    return leading


def _differentiated(b: Builder, weights: set[str], outputs: Sequence[str]) -> set[str]:
    """Return the tensors whose gradient the sum of outputs needs."""
    results = [find_differentiated(b.ops, b.tensors, weights, name) for name in outputs]
    return set().union(*results)


def describe_weights(b: Builder, loss: str) -> list[str]:
    """Return notes on parameters that a finished graph does not read, or does not train.

    Example: `2,561 of 2,589 parameters are read by no op: g.0.weight, g.0.bias, ...`.
    """
    read = {name for op in b.ops for name in op.inputs}
    parameters = [*b.weights, *b.frozen]
    count = sum(b.tensors[name].size for name in parameters)
    groups = {"are read by no op": [name for name in parameters if name not in read]}
    if b.training:
        groups["are frozen: no gradient, no optimizer state"] = [
            name for name in b.frozen if name in read
        ]
        trained = find_differentiated(b.ops, b.tensors, {*b.weights}, loss)
        groups["have no gradient"] = [
            name for name in b.weights if name in read and name not in trained
        ]
    return [
        f"{sum(b.tensors[name].size for name in names):,} of {count:,} parameters {fate}: "
        f"{first_of(names, 2)}"
        for fate, names in groups.items()
        if names
    ]


def _shown(b: Builder, floats: Sequence[str]) -> str:
    if len(floats) > 1:
        return f"{len(floats)} outputs"
    sizes = ", ".join(map(str, ("batch", *b.shape(floats[0])[1:])))
    return f"the last layer's shape [{sizes}]"


def _mean(b: Builder, x: str, number: int) -> str:
    if b.shape(x) == ():
        return x
    return mean_loss(b, x) if number == 0 else op(b, "mean", x, name=f"loss{number}")


def _classified(b: Builder, x: str) -> str:
    """Return the loss of a classifier's output, "" for what is none."""
    made = b.made_by.get(x)
    view = made and made.kind in ("transpose", "reshape")
    if made and view and (made.kind == "transpose" or with_axes(b, x) == made.inputs[0]):
        made = b.made_by.get(made.inputs[0])
    if made and made.kind == "softmax":
        x = made.inputs[0]
    elif made is None or not OPS[made.kind].logits:
        return ""
    elif len(b.shape(x)) == 4 and (OPS[made.kind].window or made.attrs.get("axis") == 1):
        x = transpose(b, x, (0, 2, 3, 1), "logits")
    shape = b.shape(x)
    return classify(b, x) if len(shape) > 1 and shape[-1] > 1 else ""


def _leave_out_unread(b: Builder, outputs: Sequence[str]) -> None:
    """Take the ops out of a network that lead to none of its outputs."""
    wanted = set(outputs)
    kept = []
    for one in reversed(b.ops):
        if wanted.isdisjoint(one.outputs):
            for name in one.outputs:
                del b.tensors[name]
        else:
            wanted.update(one.inputs)
            kept.append(one)
    b.ops[:] = reversed(kept)
    _keep_as_read(b, outputs)
    frozen = {*b.frozen}
    for name in [one for one in b.buffers if one not in wanted and one not in frozen]:
        b.buffers.remove(name)
        del b.tensors[name]


def _keep_as_read(b: Builder, outputs: Sequence[str]) -> None:
    """Keep a weight that every op reads through the same view as they read it, without a view."""
    readers: dict[str, list[Op]] = {}
    for one in b.ops:
        for name in one.inputs:
            readers.setdefault(name, []).append(one)
    seen: dict[str, str] = {}
    for name in (*b.weights, *b.buffers):
        turned = readers.get(name, [])
        kinds = {(one.kind, *one.attrs.items()) for one in turned}
        views = {one.outputs[0] for one in turned}
        alike = len(kinds) == 1 and turned[0].kind in ("transpose", "reshape")
        if alike and views.isdisjoint(outputs):
            b.tensors[name] = b.tensors[turned[0].outputs[0]]
            seen |= dict.fromkeys(views, name)
    for view in seen:
        del b.tensors[view]
    b.ops[:] = [
        replace(one, inputs=tuple(seen.get(name, name) for name in one.inputs))
        for one in b.ops
        if one.outputs[0] not in seen
    ]
