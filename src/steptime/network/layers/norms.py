"""Norms over the last axis."""

from steptime.network.ops.builder import Builder


def norm(b: Builder, x: str, kind: str, name: str) -> str:
    """Return layer norm (`layer`) or root-mean-square norm (`rms`) over the last axis.

    `plain_layer` and `plain_rms` have no weights: they read a buffer of ones, or of ones and zeros.
    `unbiased_layer` has a weight and no bias.
    """
    vector_shape = (b.shape(x)[-1],)
    has_weight = not kind.startswith("plain_")
    has_bias = kind == "layer"
    # the ops always read these vectors: without a weight or bias, buffers of ones or zeros
    with b.scope(name):
        w = b.weight("w", vector_shape) if has_weight else b.buffer("w", vector_shape)
        if kind.endswith("rms"):
            return b.op("rms_norm", x, w, name="rms_norm")
        bias = b.weight("b", vector_shape) if has_bias else b.buffer("b", vector_shape)
        return b.op("layer_norm", x, w, bias, name="layer_norm")
