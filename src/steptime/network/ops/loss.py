"""What training alone has: softmax cross-entropy and its gradient."""

from steptime.core.graph import TensorSpec
from steptime.network.ops.table import (
    Backward,
    OpKind,
    Specs,
    example,
    last_axis,
    per_element,
    require,
    same_as_first,
    show,
)

IGNORED_LABEL = -100


def cross_entropy_outputs(logits: TensorSpec, labels: TensorSpec) -> Specs:
    """Return `logits [..., classes], labels [...] -> []`, the mean over labels not ignored."""
    require(labels.shape == logits.shape[:-1], f"cross-entropy of {show(logits, labels)}")
    return (TensorSpec((), logits.dtype),)


def cross_entropy_gradient(b: Backward) -> tuple[str | None, ...]:
    """First the gradient of the chosen log-probabilities, then that of log-softmax."""
    labels, log_p = b.op.inputs[1], b.saved[0]
    picked = b.emit("pick_grad", (log_p, labels, b.grad), "grad_log_p")[0]
    return b.emit("log_softmax_grad", (log_p, picked), "grad_input")[0], None


KINDS = {
    "cross_entropy": OpKind(
        cross_entropy_outputs,
        per_element(5),
        example("3x5 3:int64"),
        "log-softmax (maximum, difference, exp, sum, difference), then the mean of the labels'",
        gradient=cross_entropy_gradient,
        saved=same_as_first,
        autocast="wide",
        row=last_axis,
    ),
    "pick_grad": OpKind(
        same_as_first,
        lambda log_p, labels, grad: int(labels.size),
        example("3x5 3:int64 :float32"),
        "-1/n at each label, 0 elsewhere",
        read=lambda log_p, labels, grad: int(labels.size_bytes + grad.size_bytes),
    ),
    "log_softmax_grad": OpKind(
        same_as_first,
        per_element(4),
        example("3x5 3x5"),
        "dx = dy - softmax(x) sum(dy)",
        row=last_axis,
    ),
}
