"""The loss that a network from a file is trained on, and the removal of ops that lead nowhere."""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace

from steptime.core.graph import Op
from steptime.core.units import first_of
from steptime.formats.elements import append_op, transpose
from steptime.formats.tensors import find_unflattened, index_readers, is_float
from steptime.network.layers.dense import classify, mean_loss
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.reads import select_leading_ops
from steptime.network.ops.table import require
from steptime.network.ops.training import find_differentiated

CHANNELS_LAST = (0, 2, 3, 1)  # order of axes: [n, c, h, w] -> [n, h, w, c]
VIEW_KINDS = ("transpose", "reshape")


def add_loss(b: Builder, outputs: Sequence[str], unread: Sequence[str] = ()) -> str:
    """Append the loss of a network in training, and remove ops whose results nobody reads.

    A single output that a product, a bias or a softmax makes is classified along its last axis, an
    image along its channels; a softmax at the end is part of that loss. Any other output is
    averaged, and several averages are added up. A remark says which loss was guessed.

    Args:
        b: the builder of the network.
        outputs: the outputs of the file.
        unread: tensors that a step computes though nobody reads them.

    Returns:
        The loss in training, the first output in inference.

    Raises:
        ShapeError: for a network without an output, or in training without one of floats.
    """
    require(bool(outputs), "a network without an output")
    if not b.training:
        _remove_unread(b, (*outputs, *unread))
        return outputs[0]
    float_outputs = [x for x in dict.fromkeys(outputs) if is_float(b, x)]
    require(bool(float_outputs), "a network without an output of numbers that could be trained")
    # where the file has tensors of these names, those of the loss get a prefix
    needs_scope = any(b.full_path(name) in b.tensors for name in ("labels", "loss"))
    with b.scope("training") if needs_scope else nullcontext():
        loss, guess = _add_guessed_loss(b, float_outputs)
    is_guessed = loss not in outputs
    if is_guessed:
        b.remarks.append(f"loss: {guess}, guessed from {_describe_outputs(b, float_outputs)}")
    _remove_unread(b, (loss, *unread))
    return loss


def _add_guessed_loss(b: Builder, outputs: Sequence[str]) -> tuple[str, str]:
    """Append the loss of a classifier, or else means, and return it with its name in words."""
    if len(outputs) > 1:
        return _add_mean_losses(b, outputs), "the sum of its outputs' means"
    cross_entropy = _add_cross_entropy(b, outputs[0])
    if cross_entropy:
        return cross_entropy, "cross entropy"
    return _add_mean_losses(b, outputs), "the mean of its output"


def _add_mean_losses(b: Builder, outputs: Sequence[str]) -> str:
    """Append the sum of the means of outputs; a scalar is its own mean."""
    means: list[str] = []
    for number, output in enumerate(outputs):
        is_scalar = b.shape(output) == ()
        if is_scalar:
            means.append(output)
        elif number == 0:
            means.append(mean_loss(b, output))
        else:
            means.append(append_op(b, "mean", output, name=f"loss{number}"))
    loss = means[0]
    for number, mean in enumerate(means[1:], start=1):
        loss = append_op(b, "add", loss, mean, name=f"loss_sum/{number}")
    return loss


def _describe_outputs(b: Builder, outputs: Sequence[str]) -> str:
    """Describe outputs by their number or, of a single one, by its shape.

    Example: `the last layer's shape [batch, 1000]`.
    """
    if len(outputs) > 1:
        return f"{len(outputs)} outputs"
    sizes = ", ".join(map(str, ("batch", *b.shape(outputs[0])[1:])))
    return f"the last layer's shape [{sizes}]"


def _add_cross_entropy(b: Builder, x: str) -> str:
    """Append the cross entropy of a classifier's output; return "" if the output is none."""
    last_op = _find_last_op(b, x)
    if last_op is None:
        return ""
    logits = x
    if last_op.kind == "softmax":
        logits = last_op.inputs[0]  # the cross entropy has a softmax of its own
    elif not OPS[last_op.kind].logits:
        return ""
    elif len(b.shape(x)) == 4 and _has_channels_first(last_op):
        logits = transpose(b, x, CHANNELS_LAST, "logits")
    shape = b.shape(logits)
    has_classes = len(shape) > 1 and shape[-1] > 1
    return classify(b, logits) if has_classes else ""


def _find_last_op(b: Builder, x: str) -> Op | None:
    """Return the op that makes an output, behind a view that moves or merges its axes."""
    last_op = b.made_by.get(x)
    if last_op is None or last_op.kind not in VIEW_KINDS:
        return last_op
    merges_axes = last_op.kind == "reshape" and find_unflattened(b, x) == last_op.inputs[0]
    hides_op = last_op.kind == "transpose" or merges_axes
    return b.made_by.get(last_op.inputs[0]) if hides_op else last_op


def _has_channels_first(image_op: Op) -> bool:
    """Whether an op makes images whose channels are the second axis."""
    return bool(OPS[image_op.kind].window) or image_op.attrs.get("axis") == 1


def find_trained_outputs(b: Builder, outputs: Sequence[str]) -> list[str]:
    """Return the outputs that a step trains on: the losses among them, else all.

    Scalars are losses if they are computed from another output, as the cross entropy of logits is,
    and if every weight that any output would train has a gradient from scalars alone.
    """
    scalars = [name for name in outputs if b.shape(name) == ()]
    tensor_outputs = {*outputs} - {*scalars}
    scalars_read_outputs = not tensor_outputs.isdisjoint(_find_sources(b, scalars))
    if not scalars_read_outputs:
        return [*outputs]
    # losses train every weight that any output would train
    scalars_train_all = _find_trained_weights(b, scalars) == _find_trained_weights(b, outputs)
    return scalars if scalars_train_all else [*outputs]


def _find_sources(b: Builder, names: Sequence[str]) -> set[str]:
    """Return the tensors that some tensors are computed from, and these themselves."""
    sources = set(names)
    for node in reversed(b.ops):
        if not sources.isdisjoint(node.outputs):
            sources.update(node.inputs)
    return sources


def _find_trained_weights(b: Builder, outputs: Sequence[str]) -> set[str]:
    """Return the weights that have a gradient from the sum of outputs."""
    weights = {*b.weights}
    trained: set[str] = set()
    for output in outputs:
        trained |= weights & find_differentiated(b.ops, b.tensors, weights, output)
    return trained


def describe_weights(b: Builder, loss: str) -> list[str]:
    """Describe the parameters that a finished graph does not read, or does not train.

    Example: `2,561 of 2,589 parameters are read by no op: g.0.weight, g.0.bias, ...`.
    """
    weights = [*b.weights, *b.frozen]
    total_count = _count_parameters(b, weights)
    remarks: list[str] = []
    for reason, names in _list_idle_weights(b, loss).items():
        if names:
            count = f"{_count_parameters(b, names):,} of {total_count:,} parameters"
            remarks.append(f"{count} {reason}: {first_of(names, 2)}")
    return remarks


def _list_idle_weights(b: Builder, loss: str) -> dict[str, list[str]]:
    """Return the weights that are not read or not trained, by the words that say why."""
    tensors_read = {name for node in b.ops for name in node.inputs}
    unread = [name for name in (*b.weights, *b.frozen) if name not in tensors_read]
    weights_by_reason = {"are read by no op": unread}
    if b.training:
        trained = find_differentiated(b.ops, b.tensors, {*b.weights}, loss)
        weights_by_reason["are frozen: no gradient, no optimizer state"] = [
            name for name in b.frozen if name in tensors_read
        ]
        weights_by_reason["have no gradient"] = [
            name for name in b.weights if name in tensors_read and name not in trained
        ]
    return weights_by_reason


def describe_idle_gradients(b: Builder, loss: str) -> list[str]:
    """Describe attention that computes gradients of keys or values which nothing reads.

    Example: `1 attention whose keys or values need no gradient (decoder/attention): fused kernels
    compute all gradients, and all are counted`.
    """
    attentions = [op for op in b.ops if op.kind == "attention"] if b.training else []
    if not attentions:
        return []
    differentiated = find_differentiated(b.ops, b.tensors, {*b.weights}, loss)
    idle_names: list[str] = []
    for op in attentions:
        _, keys, values, *_ = op.inputs
        has_gradient = not differentiated.isdisjoint(op.outputs)
        if has_gradient and not {keys, values} <= differentiated:
            idle_names.append(op.name)
    if not idle_names:
        return []
    fact = f"{len(idle_names)} attention whose keys or values need no gradient"
    reason = "fused kernels compute all gradients, and all are counted"
    return [f"{fact} ({first_of(idle_names, 2)}): {reason}"]


def _count_parameters(b: Builder, weights: Sequence[str]) -> int:
    """Return the number of elements of weights."""
    return sum(b.tensors[name].size for name in weights)


def _remove_unread(b: Builder, outputs: Sequence[str]) -> None:
    """Remove the ops and buffers of a network that lead to none of its outputs."""
    needed_ops = select_leading_ops(b.ops, outputs)
    op_outputs = {name for op in b.ops for name in op.outputs}
    for name in op_outputs.difference(*[op.outputs for op in needed_ops]):
        del b.tensors[name]
    b.ops[:] = needed_ops
    needed_tensors = set(outputs).union(*[op.inputs for op in needed_ops])
    _merge_weight_views(b, outputs)
    # frozen weights are among the buffers, and take memory though nothing reads them
    buffers_to_keep = needed_tensors | {*b.frozen}
    unread_buffers = [name for name in b.buffers if name not in buffers_to_keep]
    for name in unread_buffers:
        b.buffers.remove(name)
        del b.tensors[name]


def _merge_weight_views(b: Builder, outputs: Collection[str]) -> None:
    """Store a weight in the shape in which ops read it, if all read it through the same view.

    The views are removed: a file may store weights transposed, but a step does not transpose them.
    """
    weight_by_view = _find_weight_views(b, outputs)
    for view, weight in weight_by_view.items():
        b.tensors[weight] = b.tensors[view]
    for view in weight_by_view:
        del b.tensors[view]
    remaining_ops: list[Op] = []
    for node in b.ops:
        is_removed_view = node.outputs[0] in weight_by_view
        if not is_removed_view:
            inputs = tuple(weight_by_view.get(name, name) for name in node.inputs)
            remaining_ops.append(replace(node, inputs=inputs))
    b.ops[:] = remaining_ops


def _find_weight_views(b: Builder, outputs: Collection[str]) -> dict[str, str]:
    """Return the views of weights and buffers that all ops read through the same view."""
    readers_by_tensor = index_readers(b)
    weight_by_view: dict[str, str] = {}
    for name in (*b.weights, *b.buffers):
        readers = readers_by_tensor.get(name, [])
        views = {reader.outputs[0] for reader in readers}
        has_output_view = not views.isdisjoint(outputs)
        if _are_equal_views(readers) and not has_output_view:
            weight_by_view |= dict.fromkeys(views, name)
    return weight_by_view


def _are_equal_views(readers: Sequence[Op]) -> bool:
    """Whether ops are all the same transpose, or reshape to the same shape."""
    distinct = {(reader.kind, *reader.attrs.items()) for reader in readers}
    return len(distinct) == 1 and readers[0].kind in VIEW_KINDS
