"""Write a network as a topology of SCALE-Sim: a CSV with one row per convolution or product.

Samajdar et al. 2018, "SCALE-Sim: Systolic CNN Accelerator Simulator". The columns have no batch, no
padding, no groups and one stride. So an image gets the height and width that its windows cover, and
a convolution of g groups gets one g-th of the filters, which keeps the multiply-adds right. Other
ops (several examples, dilation, attention, recurrence) are written as their matrix products.
"""

from collections.abc import Iterator

from steptime.core.graph import Graph, Op
from steptime.core.windows import reach
from steptime.network.ops import products_of, window_of

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
        if op.part != "forward":
            continue
        rows = list(_op_rows(graph, op, MAX_ROWS - len(lines)))
        lines += [f"{name.replace(',', ';')}, {', '.join(map(str, row))}," for name, row in rows]
        if not rows:
            omitted[op.kind] = omitted.get(op.kind, 0) + 1
    return "\n".join(lines) + "\n", omitted


def _op_rows(graph: Graph, op: Op, max_rows: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    kind, specs, attrs, _ = graph.cases[op.name]
    window = window_of(kind, specs, attrs)
    is_single_image = specs[0].shape[0] == 1
    if kind == "conv2d" and window and is_single_image:
        settings = dict(attrs)
        height, width, row_stride, column_stride, rows, columns = window
        is_dilated = settings.get("dilation", (1, 1)) != (1, 1)
        if row_stride == column_stride and not is_dilated:
            image = reach(rows, height, row_stride), reach(columns, width, column_stride)
            groups = settings.get("groups", 1)
            filters = specs[1].shape[0] // (groups if isinstance(groups, int) else 1)
            yield op.name, (*image, height, width, specs[0].shape[1], filters, row_stride)
            return
    products = products_of(kind, specs, attrs)
    total = sum(count for count, *_ in products)
    if total > max_rows:
        return
    number = 0
    for count, m, n, k in products:
        for _ in range(count):
            number += 1
            name = op.name if total == 1 else f"{op.name}/{number}"
            yield name, (m, 1, 1, 1, k, n, 1)
