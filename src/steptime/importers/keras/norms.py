"""Norms and scales of Keras, as functions `(layer, value) -> value`."""

from __future__ import annotations

from typing import Any

from steptime.importers import elements, lowering
from steptime.importers.keras.layer import Layer, Lower, Value


def _channels_first(at: Layer, x: Value) -> tuple[str, bool]:
    """Return a tensor whose axis of a norm is behind the batch, and whether it was turned."""
    said, rank = at.config.get("axis", -1), len(at.shape(x))
    axis = said[0] if isinstance(said, list) and len(said) == 1 else said
    if type(axis) is not int or axis % rank not in (1, rank - 1) or abs(axis) > rank:
        raise at.refuse(f"a norm along axis {said}")
    of_last = axis % rank == rank - 1
    return (at.first(x), rank > 2) if of_last else (at.last(x), False)


def batch_norm(at: Layer, x: Value) -> Value:
    """Return batch norm; that of a layer which is not trained is by its running statistics."""
    y, turned = _channels_first(at, x)
    width = at.b.shape(y)[1]
    weights: list[Any] = [at.chosen("scale", "gamma", width), at.chosen("center", "beta", width)]
    weights += [at.weight(f"moving_{name}", width, trained=False) for name in ("mean", "variance")]
    weights.append(None if at.trained else False)
    return Value(lowering.batch_norm(at.b, y, at.name, *weights), turned)


def layer_norm(at: Layer, x: Value) -> Value:
    """Return layer norm, or RMS norm, over the last axis or axes."""
    y = at.last(x)
    said, rank = at.config.get("axis", -1), len(at.b.shape(y))
    axes = sorted(n % rank for n in (said if isinstance(said, list) else [said]))
    if axes != list(range(rank - len(axes), rank)):
        raise at.refuse(f"a norm along axes {said}")
    shape = at.b.shape(y)[rank - len(axes) :]
    gamma = at.chosen("scale", "gamma", *shape)
    if at.flag("rms_scaling"):
        return at.do(lowering.rms_norm, y, weight=gamma, axes=len(axes))
    beta = at.chosen("center", "beta", *shape)
    return at.do(lowering.layer_norm, y, weight=gamma, bias=beta, axes=len(axes))


def group_norm(at: Layer, x: Value) -> Value:
    """Return group norm; -1 groups are as many as channels."""
    y, turned = _channels_first(at, x)
    width = at.b.shape(y)[1]
    groups = width if at.config.get("groups") == -1 else at.whole("groups", 32)
    weights = at.chosen("scale", "gamma", width), at.chosen("center", "beta", width)
    return Value(lowering.group_norm(at.b, y, groups, at.name, *weights), turned)


def rescaling(at: Layer, x: Value) -> Value:
    """Return `x scale + offset`; one scale a channel costs as much as one for all."""
    y = x.name
    for function, key, none in (("mul", "scale", 1.0), ("add", "offset", 0.0)):
        said = at.config.get(key, none)
        operand: str | float = at.number(key, none) if not isinstance(said, list) else ""
        if isinstance(said, list):
            y = at.last(x) if y == x.name else y
            operand = at.b.buffer(f"{at.name}/{key}", (len(said),))
        if operand != none:
            y = elements.pointwise(at.b, function, y, operand, name=f"{at.name}/{key}")
    return Value(y, x.first and not isinstance(at.config.get("scale"), list))


def normalization(at: Layer, x: Value) -> Value:
    """Return `(x - mean) / deviation` by what the layer has seen, along the last axis."""
    y = at.last(x)
    shape = at.b.shape(y)[-1:] if at.config.get("axis", -1) not in (None, []) else ()
    given = at.config.get("mean") is not None  # then they are no weights
    mean, variance = (
        at.weight(name, *shape, trained=False)
        for name in (("offset", "scale") if given else ("mean", "variance"))
    )
    if not given:
        at.weight("count", trained=False, dtype="int64")
    # the root of the variance is made once
    return at.each("div", at.each("sub", Value(y), mean, at="/centre"), variance)


LAYERS: dict[str, Lower] = {
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": lambda at, x: at.do(
        lowering.rms_norm, x, weight=at.weight("scale", at.shape(x)[-1])
    ),
    "GroupNormalization": group_norm,
    "Rescaling": rescaling,
    "Normalization": normalization,
    "LayerScale": lambda at, x: at.each(
        "mul", Value(at.last(x)), at.weight("gamma", at.whole("projection_dim"))
    ),
}
