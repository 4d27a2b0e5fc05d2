"""Ops of training alone: softmax cross-entropy and its gradient."""

from steptime.core.graph import TensorSpec
from steptime.network.ops.table import (
    Backward,
    OpKind,
    Specs,
    example,
    format_shapes,
    integers,
    last_axis,
    like_first_input,
    per_element,
    require,
)

IGNORED_LABEL = -100


def cross_entropy_outputs(logits: TensorSpec, labels: TensorSpec) -> Specs:
    """Return `logits [..., classes], labels [...] -> []`, the mean over labels not ignored."""
    require(labels.shape == logits.shape[:-1], f"cross-entropy of {format_shapes(logits, labels)}")
    return (TensorSpec((), logits.dtype),)


def cross_entropy_gradient(b: Backward) -> tuple[str | None, ...]:
    """First the gradient of the chosen log-probabilities, then that of log-softmax."""
    labels, log_p = b.op.inputs[1], b.saved[0]
    (log_p_grad,) = b.emit("pick_grad", (log_p, labels, b.grad), "grad_log_p")
    (logits_grad,) = b.emit("log_softmax_grad", (log_p, log_p_grad), "grad_input")
    return logits_grad, None


KINDS = {
    "cross_entropy": OpKind(
        cross_entropy_outputs,
        per_element(5),
        example((3, 5), integers(3)),
        "log-softmax (maximum, difference, exp, sum, difference), then the mean of the labels'",
        gradient=cross_entropy_gradient,
        saved=like_first_input,
        autocast="wide",
        row=last_axis,
    ),
    "pick_grad": OpKind(
        like_first_input,
        lambda log_p, labels, grad: int(labels.size),
        example((3, 5), integers(3), ()),
        "-1/n at each label, 0 elsewhere",
        read=lambda log_p, labels, grad: int(labels.size_bytes + grad.size_bytes),
    ),
    "log_softmax_grad": OpKind(
        like_first_input,
        per_element(4),
        example((3, 5), (3, 5)),
        "dx = dy - softmax(x) sum(dy)",
        row=last_axis,
    ),
}
