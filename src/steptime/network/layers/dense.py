"""Linear layers and what stands at the end of a network."""

from steptime.network.ops.builder import Builder


def linear(b: Builder, x: str, width: int, name: str, bias: bool = True) -> str:
    """Return `x [..., fan_in] -> [..., width]`: a product, and a bias of its own row."""
    with b.scope(name):
        w = b.weight("w", (width, b.shape(x)[-1]))
        y = b.op("linear", x, w, name="linear")
        if not bias:
            return y
        return b.op("bias", y, b.weight("b", (width,)), name="bias", axis=-1)


def dropout(b: Builder, x: str, p: float, name: str) -> str:
    """Return `x` with a share `p` of its elements dropped in training, `x` itself in inference."""
    return b.op("dropout", x, name=name, p=p) if b.training and p > 0 else x


def classify(b: Builder, logits: str) -> str:
    """Return the mean cross-entropy of `logits [..., classes]`, in inference the logits."""
    if not b.training:
        return logits
    labels = b.input("labels", b.shape(logits)[:-1], "int64")
    return b.op("cross_entropy", logits, labels, name="loss")


def mean_loss(b: Builder, x: str) -> str:
    """Return the mean of `x` in training (a network without a head), `x` in inference."""
    return b.op("mean", x, name="loss") if b.training else x
