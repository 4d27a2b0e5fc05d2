"""Normalization and rescaling of Keras, as functions `(layer, tensor) -> tensor`."""

from __future__ import annotations

from typing import NamedTuple

from steptime.formats import elements, lowering
from steptime.formats.keras.layer import AddLayer, KerasLayer, KerasTensor


class _NormInput(NamedTuple):
    """A tensor with the axis of its norm behind the batch, and whether it was Keras' last."""

    tensor: str
    is_channels_first: bool


def _move_norm_axis(layer: KerasLayer, x: KerasTensor) -> _NormInput:
    """Return a tensor with the axis of its norm behind the batch.

    Raises:
        InputError: for a norm along another axis than the first or the last behind the batch.
    """
    setting = layer.config.get("axis", -1)
    rank = len(layer.shape(x))
    is_single_axis_list = isinstance(setting, list) and len(setting) == 1
    axis = setting[0] if is_single_axis_list else setting
    if type(axis) is not int or abs(axis) > rank or axis % rank not in (1, rank - 1):
        raise layer.error(f"a norm along axis {setting}")
    is_last_axis = axis % rank == rank - 1
    if is_last_axis:
        # of two axes the channels are the second in either layout
        return _NormInput(layer.to_channels_first(x), is_channels_first=rank > 2)
    return _NormInput(layer.to_channels_last(x), is_channels_first=False)


def add_batch_norm(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append batch norm; a layer that is not trained uses its running statistics in training."""
    y, channels_first = _move_norm_axis(layer, x)
    width = layer.b.shape(y)[1]
    gamma = layer.add_optional_weight("scale", "gamma", width)
    beta = layer.add_optional_weight("center", "beta", width)
    mean = layer.add_weight("moving_mean", width, is_trained=False)
    variance = layer.add_weight("moving_variance", width, is_trained=False)
    uses_batch_statistics = None if layer.is_trained else False  # None: as the graph is built
    y = lowering.batch_norm(
        layer.b, y, layer.name, gamma, beta, mean, variance, uses_batch_statistics
    )
    return KerasTensor(y, channels_first)


def add_layer_norm(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append layer norm, or with `rms_scaling` RMS norm, over the last axes."""
    y = layer.to_channels_last(x)
    setting = layer.config.get("axis", -1)
    rank = len(layer.b.shape(y))
    stated_axes = setting if isinstance(setting, list) else [setting]
    axes = sorted(axis % rank for axis in stated_axes)
    first_axis = rank - len(axes)
    are_last_axes = axes == list(range(first_axis, rank))
    if not are_last_axes:
        raise layer.error(f"a norm along axes {setting}")
    shape = layer.b.shape(y)[first_axis:]
    gamma = layer.add_optional_weight("scale", "gamma", *shape)
    if layer.read_flag("rms_scaling"):
        return layer.apply(lowering.rms_norm, y, weight=gamma, axes=len(axes))
    beta = layer.add_optional_weight("center", "beta", *shape)
    return layer.apply(lowering.layer_norm, y, weight=gamma, bias=beta, axes=len(axes))


def add_rms_norm(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append RMS norm over the last axis."""
    scale = layer.add_weight("scale", layer.shape(x)[-1])
    return layer.apply(lowering.rms_norm, x, weight=scale)


def add_unit_norm(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append `x` divided by its length along the axes of `axis`."""
    y = layer.to_channels_last(x)
    rank = len(layer.b.shape(y))
    stated_axes = layer.config.get("axis", -1)
    axis_list = stated_axes if isinstance(stated_axes, list) else [stated_axes]
    axes = tuple(axis % rank for axis in axis_list)
    length = elements.reduce(layer.b, "l2", y, axes, f"{layer.name}/length", keep=True)
    return KerasTensor(elements.pointwise(layer.b, "div", y, length, name=layer.name))


def add_group_norm(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append group norm; with `groups` of -1 each channel is a group."""
    y, channels_first = _move_norm_axis(layer, x)
    width = layer.b.shape(y)[1]
    groups = width if layer.config.get("groups") == -1 else layer.read_int("groups", default=32)
    gamma = layer.add_optional_weight("scale", "gamma", width)
    beta = layer.add_optional_weight("center", "beta", width)
    y = lowering.group_norm(layer.b, y, groups, layer.name, gamma, beta)
    return KerasTensor(y, channels_first)


def add_rescaling(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append `x * scale + offset`, each a number, or a list with a number for each channel."""
    has_list = any(isinstance(layer.config.get(key), list) for key in ("scale", "offset"))
    y = KerasTensor(layer.to_channels_last(x)) if has_list else x
    for function, key, neutral in (("mul", "scale", 1.0), ("add", "offset", 0.0)):
        setting = layer.config.get(key, neutral)
        if isinstance(setting, list):
            buffer = layer.b.buffer(f"{layer.name}/{key}", (len(setting),))
            y = layer.apply_elementwise(function, y, buffer, suffix=f"/{key}")
            continue
        number = layer.read_number(key, neutral)
        if number != neutral:
            y = layer.apply_elementwise(function, y, number, suffix=f"/{key}")
    return y


def add_normalization(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append `(x - mean) / deviation` with statistics of the data set, along the last axis.

    The root of the variance is computed once, before all steps.
    """
    y = KerasTensor(layer.to_channels_last(x))
    is_per_channel = layer.config.get("axis", -1) not in (None, [])
    shape = layer.b.shape(y.name)[-1:] if is_per_channel else ()
    has_constants = layer.config.get("mean") is not None  # settings, which are no weights
    mean_name, variance_name = ("offset", "scale") if has_constants else ("mean", "variance")
    mean = layer.add_weight(mean_name, *shape, is_trained=False)
    variance = layer.add_weight(variance_name, *shape, is_trained=False)
    if not has_constants:
        # Keras keeps beside them of how many values they were computed
        layer.add_weight("count", is_trained=False, dtype="int64")
    centred = layer.apply_elementwise("sub", y, mean, suffix="/centre")
    # the root of the variance is computed once before all steps: only the division counts
    return layer.apply_elementwise("div", centred, variance)


def add_layer_scale(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a product with a trained factor for each channel."""
    gamma = layer.add_weight("gamma", layer.read_int("projection_dim"))
    return layer.apply_elementwise("mul", KerasTensor(layer.to_channels_last(x)), gamma)


LAYERS: dict[str, AddLayer] = {
    "BatchNormalization": add_batch_norm,
    "LayerNormalization": add_layer_norm,
    "RMSNormalization": add_rms_norm,
    "UnitNormalization": add_unit_norm,
    "GroupNormalization": add_group_norm,
    "Rescaling": add_rescaling,
    "Normalization": add_normalization,
    "LayerScale": add_layer_scale,
}
