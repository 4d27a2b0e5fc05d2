"""Layers of Caffe that join, cut and rename blobs, lowered to op kinds; see `layers`."""

import math

from steptime.formats.caffe.inputs import MOST_AXES
from steptime.formats.caffe.lowering import Lowering, Tops, axis_of
from steptime.formats.caffe.net import CaffeLayer
from steptime.formats.caffe.schema import enum_name
from steptime.network.ops.table import require

_ELTWISE = {"SUM": "add", "PROD": "mul", "MAX": "maximum"}


def concat(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return the bottoms joined along `axis`, or the older `concat_dim`."""
    p = layer.message.concat_param
    axis = p.concat_dim if p.HasField("concat_dim") else p.axis
    axis = axis_of(axis, len(n.b.shape(x[0])))
    return x if len(x) == 1 else (n.b.op("concat", *x, name=layer.name, axis=axis),)


def eltwise(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return sum, product or maximum of the bottoms, two at a time; a coefficient is a product."""
    p = layer.message.eltwise_param
    kind = _ELTWISE[enum_name(p, "operation")]
    parts = list(x)
    for part in parts:
        require(
            n.b.shape(part) == n.b.shape(x[0]),
            f"shapes {list(n.b.shape(x[0]))} and {list(n.b.shape(part))} differ",
        )
    if len(p.coeff):
        require(kind == "add", "coeff is for sums alone")
        require(len(p.coeff) == len(x), f"{len(p.coeff)} coeff for {len(x)} bottoms")
        for i, factor in enumerate(p.coeff):
            if factor != 1:
                by = n.scalar(f"{layer.name}/coeff{i}_by")
                parts[i] = n.b.op("mul", parts[i], by, name=f"{layer.name}/coeff{i}")
    y = parts[0]
    for i, part in enumerate(parts[1:], 1):
        name = layer.name if i == len(parts) - 1 else f"{layer.name}/{i}"
        y = n.b.op(kind, y, part, name=name)
    return (y,)


def flatten(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return the axes from `axis` to `end_axis` as one."""
    p = layer.message.flatten_param
    shape = n.b.shape(x[0])
    first, last = axis_of(p.axis, len(shape)), axis_of(p.end_axis, len(shape))
    require(first <= last, f"axes {first} to {last}")
    seen = (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
    return (n.b.op("reshape", x[0], name=layer.name, shape=seen),)


def reshape(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Another shape: 0 keeps a size, -1 is what is left, the file's batch is the asked one."""
    p = layer.message.reshape_param
    shape = n.b.shape(x[0])
    rank = len(shape)
    first = p.axis if p.axis >= 0 else rank + 1 + p.axis
    stop = rank if p.num_axes == -1 else first + p.num_axes
    require(0 <= first <= stop <= rank, f"axes {first} to {stop} of {list(shape)}")
    sizes = list(p.shape.dim)
    require(len(sizes) <= MOST_AXES, f"{len(sizes)} axes")
    if first == 0 and sizes and sizes[0] == n.file_batch and shape[0] == n.batch:
        sizes[0] = n.batch
    for i, size in enumerate(sizes):
        require(size >= -1, f"a size of {size}")
        if size == 0:
            require(first + i < rank, f"size {i} of {list(shape)} is not there to keep")
            sizes[i] = shape[first + i]
    if -1 in sizes:
        require(sizes.count(-1) == 1, "more than one size is -1")
        whole = math.prod(shape[first:stop])
        rest = math.prod(size for size in sizes if size != -1)
        require(whole % rest == 0, f"{whole} elements do not fit {sizes}")
        sizes[sizes.index(-1)] = whole // rest
    new = (*shape[:first], *sizes, *shape[stop:])
    return (n.b.op("reshape", x[0], name=layer.name, shape=new),)


def split(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return the bottom as often as there are tops."""
    return x * max(1, len(layer.tops))


def slices(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return parts along an axis: between the slice points, or all of one size."""
    p = layer.message.slice_param
    shape = n.b.shape(x[0])
    axis = axis_of(p.slice_dim if p.HasField("slice_dim") else p.axis, len(shape))
    tops = len(layer.tops)
    require(tops >= 1, "no top")
    points = list(p.slice_point)
    if not points:
        require(shape[axis] % tops == 0, f"{shape[axis]} in {tops} equal parts")
        points = [shape[axis] // tops * i for i in range(1, tops)]
    require(len(points) == tops - 1, f"{len(points)} slice points for {tops} tops")
    if tops == 1:
        return x
    edges = [0, *points, shape[axis]]
    return tuple(
        n.b.op(
            "slice",
            x[0],
            name=layer.name if i == 0 else f"{layer.name}/{i}",
            axis=axis,
            start=edges[i],
            stop=edges[i + 1],
        )
        for i in range(tops)
    )


def crop(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return the first bottom cut to the size of the second, axis by axis from `axis` on."""
    p = layer.message.crop_param
    shape, wanted = n.b.shape(x[0]), n.b.shape(x[1])
    require(len(shape) == len(wanted), f"{list(shape)} cropped to {list(wanted)}")
    first = axis_of(p.axis, len(shape))
    axes = range(first, len(shape))
    offsets = list(p.offset) or [0]
    require(len(offsets) in (1, len(axes)), f"{len(offsets)} offsets for {len(axes)} axes")
    if len(offsets) == 1:
        offsets = offsets * len(axes)
    cuts = [
        (axis, offset)
        for axis, offset in zip(axes, offsets, strict=True)
        if offset or shape[axis] != wanted[axis]
    ]
    y = x[0]
    for axis, offset in cuts:
        name = layer.name if (axis, offset) == cuts[-1] else f"{layer.name}/{axis}"
        stop = offset + wanted[axis]
        y = n.b.op("slice", y, name=name, axis=axis, start=offset, stop=stop)
    return (y,)
