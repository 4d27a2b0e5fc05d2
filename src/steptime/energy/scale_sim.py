"""Write a network as a topology of SCALE-Sim: a CSV with one row per convolution or product.

Samajdar et al. 2018, "SCALE-Sim: Systolic CNN Accelerator Simulator". The columns have no batch, no
padding, no groups and one stride. So an image gets the height and width that its windows cover, and
a convolution of g groups gets one g-th of the filters, which keeps the multiply-adds right. Other
ops (several examples, dilation, attention, recurrence) are written as their matrix products.
"""

from collections.abc import Iterator
from typing import NamedTuple

from steptime.core.graph import Attrs, Graph, Op
from steptime.core.windows import covered_size
from steptime.network.ops import products_of, window_of
from steptime.network.ops.table import Specs

HEADER = (
    "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, "
    "Strides,"
)
MAX_ROWS = 100_000  # rows of a file


def topology(graph: Graph) -> tuple[str, dict[str, int]]:
    """Return the file's text, and the number of ops without products by kind (they are left out).

    A product `[m, k] [k, n]` becomes an image m high and 1 wide, with k channels and n filters of
    1x1. If an op has several products, its rows are `name/1`, `name/2`, ... Products beyond
    `MAX_ROWS` rows are left out, too.
    """
    lines = [HEADER]
    omitted: dict[str, int] = {}
    for op in graph.ops:
        if op.part != "forward":  # SCALE-Sim knows inference alone
            continue
        # Empty for an op without products, and for one whose products exceed the rows of a file.
        layers = list(_convert_op(graph, op, MAX_ROWS - len(lines)))
        lines += [_format_line(name, sizes) for name, sizes in layers]
        if not layers:
            omitted[op.kind] = omitted.get(op.kind, 0) + 1
    return "\n".join(lines) + "\n", omitted


class _LayerSizes(NamedTuple):
    """The numbers of a line, in the order of `HEADER`."""

    image_height: int
    image_width: int
    filter_height: int
    filter_width: int
    channels: int
    filters: int
    stride: int


def _format_line(name: str, sizes: _LayerSizes) -> str:
    """Return a line of the file: `conv1, 227, 227, 11, 11, 3, 96, 4,`."""
    name_without_comma = name.replace(",", ";")
    return f"{name_without_comma}, {', '.join(map(str, sizes))},"


def _convert_op(graph: Graph, op: Op, max_rows: int) -> Iterator[tuple[str, _LayerSizes]]:
    """Yield the names and sizes of an op's lines; none if it has no product, or too many."""
    kind, specs, attrs, _output_specs = graph.cases[op.name]  # `specs` are of the inputs
    convolution = _convolution_sizes(kind, specs, attrs)
    if convolution is not None:
        yield op.name, convolution
        return
    # Any other op is written as its matrix products [m, k] x [k, n]: an image of m x 1 with k
    # channels, and n filters of 1 x 1.
    products = products_of(kind, specs, attrs)
    product_count = sum(count for count, *_ in products)
    if product_count > max_rows:
        return  # rather no row of this op than some of its rows
    number = 0
    for count, m, n, k in products:
        sizes = _LayerSizes(
            image_height=m,
            image_width=1,
            filter_height=1,
            filter_width=1,
            channels=k,
            filters=n,
            stride=1,
        )
        for _ in range(count):
            number += 1
            name = op.name if product_count == 1 else f"{op.name}/{number}"
            yield name, sizes


def _convolution_sizes(kind: str, specs: Specs, attrs: Attrs) -> _LayerSizes | None:
    """Return the sizes of a convolution; None if the columns of the file cannot express the op."""
    window = window_of(kind, specs, attrs)
    if kind != "conv2d" or not window:
        return None
    image, weights, *_ = (spec.shape for spec in specs)
    examples, channels, *_ = image
    settings = dict(attrs)
    height, width, row_stride, column_stride, rows, columns = window
    is_dilated = settings.get("dilation", (1, 1)) != (1, 1)
    # A row of the file has one stride, and neither a batch nor a dilation.
    if examples > 1 or is_dilated or row_stride != column_stride:
        return None
    groups = settings.get("groups", 1)
    return _LayerSizes(
        # What all windows cover together: the file has no padding.
        image_height=covered_size(rows, height, row_stride),
        image_width=covered_size(columns, width, column_stride),
        filter_height=height,
        filter_width=width,
        channels=channels,
        # One g-th of the filters keeps the multiply-adds right, as the file has no groups.
        filters=weights[0] // (groups if isinstance(groups, int) else 1),
        stride=row_stride,
    )
