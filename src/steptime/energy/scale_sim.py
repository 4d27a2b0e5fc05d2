"""A network as a topology of SCALE-Sim: its convolutions and products, a row each, as CSV.

Samajdar et al. 2018, "SCALE-Sim: Systolic CNN Accelerator Simulator". The columns know no batch, no
padding, no groups and one stride: an image is as high and wide as its windows cover, a convolution
of g groups has a g-th of the filters, so that multiply-adds are right, and what is none of that
(several examples, dilation, attention, recurrence) is written as the products that it consists of.
"""

from collections.abc import Iterator

from steptime.core.graph import Graph, Op
from steptime.core.windows import reach
from steptime.network.ops import products_of, window_of

HEADER = (
    "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, "
    "Strides,"
)
MOST_ROWS = 100_000


def topology(graph: Graph) -> tuple[str, dict[str, int]]:
    """Return the file's text, and how many ops it leaves out, by kind: those without products.

    `[m, k] [k, n]` is an image m high and 1 wide, with k channels and n filters of 1x1. Each of
    several products is a row `name/1`, ...; products beyond `MOST_ROWS` rows are left out, too.
    """
    rows = [HEADER]
    left: dict[str, int] = {}
    for op in graph.ops:
        if op.part != "forward":
            continue
        written = list(_rows(graph, op, MOST_ROWS - len(rows)))
        rows += [f"{name.replace(',', ';')}, {', '.join(map(str, row))}," for name, row in written]
        if not written:
            left[op.kind] = left.get(op.kind, 0) + 1
    return "\n".join(rows) + "\n", left


def _rows(graph: Graph, op: Op, room: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    kind, specs, attrs, _ = graph.cases[op.name]
    window, about = window_of(kind, specs, attrs), dict(attrs)
    if kind == "conv2d" and window and specs[0].shape[0] == 1:
        high, wide, down, across, rows, columns = window
        plain = down == across and about.get("dilation", (1, 1)) == (1, 1)
        if plain:
            size = reach(rows, high, down), reach(columns, wide, across)
            groups = about.get("groups", 1)
            filters = specs[1].shape[0] // (groups if isinstance(groups, int) else 1)
            yield op.name, (*size, high, wide, specs[0].shape[1], filters, down)
            return
    products = products_of(kind, specs, attrs)
    total = sum(count for count, *_ in products)
    if total > room:
        return
    number = 0
    for count, m, n, k in products:
        for _ in range(count):
            number += 1
            name = op.name if total == 1 else f"{op.name}/{number}"
            yield name, (m, 1, 1, 1, k, n, 1)
