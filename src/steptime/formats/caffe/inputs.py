"""The shapes of the blobs that a Caffe network is fed: its `input` fields and data layers."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from steptime.core.errors import InputError, shorten
from steptime.core.values import MAX_COUNT

Shape = tuple[int, ...]
Shapes = list[Shape | None]
MAX_AXES = 32  # of a blob in Caffe
AXES_PER_INPUT_DIM = 4  # the older `input_dim` lists batch, channels, height and width
COLOUR_CHANNELS = 3


class NetworkInput(NamedTuple):
    """A blob of a network's `input` field."""

    name: str
    shape: Shape


def read_inputs(net: Any, file: str) -> list[NetworkInput]:
    """Return the inputs of a network's message, with shapes of `input_shape` or `input_dim`."""
    names = list(net.input)
    flat_sizes = list(net.input_dim)  # the sizes of all inputs in one list, four an input
    if len(net.input_shape):
        shapes = [list(shape.dim) for shape in net.input_shape]
    else:
        starts = range(0, len(flat_sizes), AXES_PER_INPUT_DIM)
        shapes = [flat_sizes[start : start + AXES_PER_INPUT_DIM] for start in starts]
    has_cut_shape = len(flat_sizes) % AXES_PER_INPUT_DIM != 0
    if len(shapes) != len(names) or has_cut_shape:
        raise InputError(
            f"{file}: {len(names)} 'input' with {len(net.input_shape)} 'input_shape' and"
            f" {len(flat_sizes)} 'input_dim' (four an input)"
        )
    return [
        NetworkInput(name, _check_shape(sizes, f"{file}: input {shorten(name)}"))
        for name, sizes in zip(names, shapes, strict=True)
    ]


def read_source_shapes(message: Any, kind: str, place: str) -> list[tuple[str, Shape | None]]:
    """Return each top of a data layer with its shape, None for labels.

    Args:
        message: the layer.
        kind: its type, one of `SOURCES`.
        place: the layer, for messages.

    Raises:
        InputError: if the file does not state the size.
    """
    tops = list(message.top)
    if not tops:
        raise InputError(f"{place}: makes no 'top'")
    shapes = SOURCES[kind](message, len(tops), place)
    return list(zip(tops, shapes, strict=True))


def _check_shape(dims: Iterable[int], place: str) -> Shape:
    shape = tuple(dims)
    if not 1 <= len(shape) <= MAX_AXES:
        raise InputError(f"{place}: {len(shape)} sizes, not 1 to {MAX_AXES}")
    for size in shape:
        if not 1 <= size <= MAX_COUNT:
            raise InputError(f"{place}: size {size} is not from 1 to 2^53")
    return shape


def _read_input(message: Any, top_count: int, place: str) -> Shapes:
    shapes = [list(shape.dim) for shape in message.input_param.shape]
    return _repeat_shape(shapes, top_count, place)


def _read_dummy_data(message: Any, top_count: int, place: str) -> Shapes:
    settings = message.dummy_data_param
    if len(settings.shape):
        return _repeat_shape([list(shape.dim) for shape in settings.shape], top_count, place)
    sizes_by_axis: list[list[int]] = []  # for each axis the size of each top
    for stated_sizes in (settings.num, settings.channels, settings.height, settings.width):
        sizes = list(stated_sizes)
        if len(sizes) not in (1, top_count):
            raise InputError(f"{place}: give one shape, or one for each of {top_count} tops")
        sizes_by_axis.append(sizes * top_count if len(sizes) == 1 else sizes)
    return [_check_shape(sizes, place) for sizes in zip(*sizes_by_axis, strict=True)]


def _repeat_shape(shapes: list[list[int]], top_count: int, place: str) -> Shapes:
    """Return a shape for each top; a single shape is that of all."""
    if len(shapes) not in (1, top_count):
        raise InputError(f"{place}: {len(shapes)} shapes for {top_count} tops")
    if len(shapes) == 1:
        shapes = shapes * top_count
    return [_check_shape(dims, place) for dims in shapes]


def _read_memory_data(message: Any, top_count: int, place: str) -> Shapes:
    settings = message.memory_data_param
    dims = (settings.batch_size, settings.channels, settings.height, settings.width)
    return _add_labels(_check_shape(dims, place), top_count)


def _add_labels(image: Shape, top_count: int) -> Shapes:
    """Return the shapes of a layer whose first top is an image; all others are labels."""
    return [image, *([None] * (top_count - 1))]


def _image_reader(parameter: str) -> Callable[[Any, int, str], Shapes]:
    """Return the reader of a layer that reads images from files, which are cropped.

    The images count as colour unless the layer makes them gray.

    Args:
        parameter: the field with the layer's settings.
    """

    def read_images(message: Any, top_count: int, place: str) -> Shapes:
        settings = getattr(message, parameter)
        transform = message.transform_param
        # images are cropped to a square or, without a crop, resized
        crop_size = transform.crop_size or getattr(settings, "crop_size", 0)
        height = crop_size or getattr(settings, "new_height", 0)
        width = crop_size or getattr(settings, "new_width", 0)
        if not (height and width):
            raise InputError(
                f"{place}: the file does not say how large its images are (no crop_size);"
                " give an Input layer with the shape"
            )
        is_gray = transform.force_gray or not getattr(settings, "is_color", True)
        channels = 1 if is_gray else COLOUR_CHANNELS
        image = _check_shape((settings.batch_size, channels, height, width), place)
        return _add_labels(image, top_count)

    return read_images


SOURCES: dict[str, Callable[[Any, int, str], Shapes]] = {  # type of layer: shapes of its tops
    "Input": _read_input,
    "DummyData": _read_dummy_data,
    "MemoryData": _read_memory_data,
    "Data": _image_reader("data_param"),
    "ImageData": _image_reader("image_data_param"),
    "HDF5Data": _image_reader("hdf5_data_param"),
    "WindowData": _image_reader("window_data_param"),
}
