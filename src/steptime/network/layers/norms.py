"""Norms over the last axis."""

from steptime.network.ops.builder import Builder


def norm(b: Builder, x: str, kind: str, name: str) -> str:
    """Return layer norm (`layer`) or root-mean-square norm (`rms`) over the last axis.

    `plain_layer` and `plain_rms` have no weights: they read a buffer of ones, or of ones and zeros.
    `unbiased_layer` has a weight and no bias.
    """
    vector_shape = (b.shape(x)[-1],)
    # the ops read all vectors: buffers of ones or zeros where a norm has no weight or bias
    add_weight = b.buffer if kind.startswith("plain_") else b.weight
    add_bias = b.weight if kind == "layer" else b.buffer
    with b.scope(name):
        w = add_weight("w", vector_shape)
        if kind.endswith("rms"):
            return b.op("rms_norm", x, w, name="rms_norm")
        return b.op("layer_norm", x, w, add_bias("b", vector_shape), name="layer_norm")
