"""The shapes of what a Caffe network is fed: of its `input` fields and of its data layers."""

from collections.abc import Callable, Iterable
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.values import MAX_COUNT

Shape = tuple[int, ...]
Shapes = list[Shape | None]
MOST_AXES = 32  # of a blob in Caffe


def net_inputs(net: Any, where: str) -> list[tuple[str, Shape]]:
    """Return the name and shape of every `input` of a network, by `input_shape` or `input_dim`."""
    names = list(net.input)
    dims = list(net.input_dim)
    if len(net.input_shape):
        shapes = [list(shape.dim) for shape in net.input_shape]
    else:
        shapes = [dims[i : i + 4] for i in range(0, len(dims), 4)]
    if len(shapes) != len(names) or (dims and len(dims) % 4):
        raise InputError(
            f"{where}: {len(names)} 'input' with {len(net.input_shape)} 'input_shape' and"
            f" {len(dims)} 'input_dim' (four an input)"
        )
    pairs = zip(names, shapes, strict=True)
    return [(name, _shape(dim, f"{where}: input {shorten(name)}")) for name, dim in pairs]


def source_shapes(message: Any, kind: str, place: str) -> list[tuple[str, Shape | None]]:
    """Return each top of a data layer with its shape, None for labels.

    Raises `InputError`, naming the layer, where the file does not say the size.
    """
    tops = list(message.top)
    if not tops:
        raise InputError(f"{place}: makes no 'top'")
    shapes = SOURCES[kind](message, len(tops), place)
    return list(zip(tops, shapes, strict=True))


def _shape(dims: Iterable[int], place: str) -> Shape:
    shape = tuple(dims)
    if not 1 <= len(shape) <= MOST_AXES:
        raise InputError(f"{place}: {len(shape)} sizes, not 1 to {MOST_AXES}")
    for size in shape:
        if not 1 <= size <= MAX_COUNT:
            raise InputError(f"{place}: size {size} is not from 1 to 2^53")
    return shape


def _input(message: Any, tops: int, place: str) -> Shapes:
    return _shared([list(shape.dim) for shape in message.input_param.shape], tops, place)


def _dummy(message: Any, tops: int, place: str) -> Shapes:
    p = message.dummy_data_param
    if len(p.shape):
        return _shared([list(shape.dim) for shape in p.shape], tops, place)
    columns = [list(p.num), list(p.channels), list(p.height), list(p.width)]
    for column in columns:
        if len(column) not in (1, tops):
            raise InputError(f"{place}: give one shape, or one for each of {tops} tops")
    filled = [column * tops if len(column) == 1 else column for column in columns]
    return [_shape(sizes, place) for sizes in zip(*filled, strict=True)]


def _shared(shapes: list[list[int]], tops: int, place: str) -> Shapes:
    if len(shapes) not in (1, tops):
        raise InputError(f"{place}: {len(shapes)} shapes for {tops} tops")
    if len(shapes) == 1:
        shapes = shapes * tops
    return [_shape(dims, place) for dims in shapes]


def _memory(message: Any, tops: int, place: str) -> Shapes:
    p = message.memory_data_param
    image = _shape((p.batch_size, p.channels, p.height, p.width), place)
    return [image, *([None] * (tops - 1))]


def _images(parameter: str) -> Callable[[Any, int, str], Shapes]:
    """Return the rule of the layers that read images: their size is that of the crop.

    The images lie outside the file: they count as colour, 3 channels, unless it says gray.
    """

    def shapes(message: Any, tops: int, place: str) -> Shapes:
        p = getattr(message, parameter)
        how = message.transform_param
        side = how.crop_size or getattr(p, "crop_size", 0)
        height = side or getattr(p, "new_height", 0)
        width = side or getattr(p, "new_width", 0)
        if not (height and width):
            raise InputError(
                f"{place}: the file does not say how large its images are (no crop_size);"
                " give an Input layer with the shape"
            )
        gray = how.force_gray or not getattr(p, "is_color", True)
        image = _shape((p.batch_size, 1 if gray else 3, height, width), place)
        return [image, *([None] * (tops - 1))]

    return shapes


SOURCES: dict[str, Callable[[Any, int, str], Shapes]] = {  # type of layer: shapes of its tops
    "Input": _input,
    "DummyData": _dummy,
    "MemoryData": _memory,
    "Data": _images("data_param"),
    "ImageData": _images("image_data_param"),
    "HDF5Data": _images("hdf5_data_param"),
    "WindowData": _images("window_data_param"),
}
