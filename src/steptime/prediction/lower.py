"""From a graph to kernels: what a step runs. No device and no clock."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple, cast

import numpy as np

from steptime.core.dtypes import HALVES, precision
from steptime.core.graph import PASSES, PLACE, Graph, Op
from steptime.hardware import catalog
from steptime.hardware.stack import UNITS, Stack
from steptime.network.count import fresh_bytes
from steptime.network.ops import OPS, exchanged_of, row_of, window_of
from steptime.network.ops.execution import Launch, executed, launch_single_ops
from steptime.network.ops.training import parameters_of
from steptime.prediction.host import Calls, calls_of
from steptime.prediction.kernel import Exchange, Kernel, Settings
from steptime.prediction.kernels import Ints, Kernels
from steptime.prediction.price import FLOATS


class Row(NamedTuple):
    """A forward op, or a layer of a file: what a prediction shows.

    `parents` are the rows whose tensors it reads, "" the inputs of the network; `output_bytes` are
    those of what it makes. `is_input` marks a layer of a file that is an input itself.
    """

    name: str
    kind: str
    parameters: int = 0
    parents: tuple[str, ...] = ()
    output_bytes: int = 0
    is_input: bool = False


@dataclass(frozen=True)
class Lowered:
    """The kernels of a step, and the rows that they belong to.

    A kernel of no row (`op` "") is the update of all. `input_bytes` are those of the network's
    inputs, `gradient_bytes` those of what replicas exchange. `by_layer` says that rows are layers
    of a file and not ops.
    """

    rows: tuple[Row, ...]
    kernels: tuple[Kernel, ...]
    input_bytes: int = 0
    gradient_bytes: int = 0
    by_layer: bool = False

    @cached_property
    def parameters(self) -> int:
        """Parameters as the method counts them."""
        return sum(row.parameters for row in self.rows)

    @cached_property
    def columns(self) -> Kernels:
        """The kernels as columns, which prices are asked for."""
        return Kernels(self.kernels)

    @cached_property
    def cells(self) -> Ints:
        """Of each kernel three times the place of its row, and its pass; behind them those of none.

        Exchanges, and kernels whose row is not known, are in no cell.
        """
        place = {row.name: i for i, row in enumerate(self.rows)}
        none = len(self.rows)
        known = [
            -1 if one.exchange else 3 * place.get(one.op, -1 if one.op else none) + PLACE[one.pass_]
            for one in self.kernels
        ]
        return np.array(known, dtype=np.intp)

    @cached_property
    def calls(self) -> Mapping[tuple[str, str], Calls]:
        """What the host calls, by pass and kind of the kernels."""
        return calls_of(self.kernels)

    @cached_property
    def launches(self) -> list[int]:
        """The launches of each pass."""
        return [sum(one.launches for one in self.kernels if one.pass_ == it) for it in PASSES]

    @cached_property
    def executed_flop(self) -> float:
        """FLOP that the kernels of the step execute."""
        return sum(kernel.flop for kernel in self.kernels)

    @cached_property
    def traffic_bytes(self) -> float:
        """Bytes that the kernels of the step move in memory."""
        return sum(kernel.bytes for kernel in self.kernels if kernel.exchange is None)


def lower(graph: Graph, dtype: str, settings: Settings) -> Lowered:
    """Return the kernels that a software stack executes of the step that `graph` is."""
    stack = stack_of(settings)
    return _lowered(graph, dtype, executed(graph, stack), stack, settings)


def lower_minimal(graph: Graph, dtype: str, settings: Settings) -> Lowered:
    """Return a kernel for each op, views among them, which moves every tensor once: a bound."""
    return _lowered(graph, dtype, launch_single_ops(graph), None, settings)


def _lowered(
    graph: Graph,
    dtype: str,
    launches: Iterable[Launch],
    stack: Stack | None,
    settings: Settings,
) -> Lowered:
    """Return the kernels of launches, with a row for each forward op."""
    parameters = parameters_of(graph)
    maker = dict.fromkeys(graph.inputs, "")
    rows = []
    for op in graph.ops:
        if op.part != "forward":
            continue
        parents = tuple([maker[name] for name in op.inputs if name in maker])
        size = graph.tensors[op.outputs[0]].size_bytes
        rows.append(Row(op.name, op.kind, parameters.get(op.name, 0), parents, size))
        for name in op.outputs:
            maker[name] = op.name
    found = tuple(_kernels(graph, dtype, launches, stack, settings))
    return Lowered(tuple(rows), found, input_bytes(graph), gradient_bytes(graph))


def _kernels(
    graph: Graph, dtype: str, launches: Iterable[Launch], stack: Stack | None, settings: Settings
) -> Iterator[Kernel]:
    """Yield the kernels of a graph in the order in which they run; what does nothing is none."""
    compute, awaited, views = precision(dtype).compute, _awaited(graph), 0
    last = settings.channels_last
    if last is None:
        last = stack is not None and _lays_last(graph, stack)
    fresh = fresh_bytes(graph) if settings.pages else {}
    for ops, flop, moved, launched, products, serial, runs_as, row in launches:
        if not launched and not moved:
            views += 1
            continue
        head = ops[0]
        case = graph.cases[head.name][:3]
        own = graph.tensors[head.outputs[0]].dtype  # in a mixed step not the same for all
        one = _add_calls(
            head,
            graph.tensors[head.outputs[0]].size_bytes,
            stack,
            last,
            Kernel(
                head.of or head.name,
                runs_as or head.kind,
                head.part,
                own if own in FLOATS else compute,
                "matrix" if products else "vector",
                flop,
                moved,
                products,
                serial,
                launched * serial,
                window=window_of(*case),
                row=row if runs_as else row_of(*case),
                views=views,
                fresh=sum([fresh.get(op.name, 0.0) for op in ops]),
            ),
        )
        views = 0
        if stack and OPS[head.kind].work == "convolution":
            spread = max(cast("tuple[int, ...]", head.attrs.get("dilation", ())), default=1)
            figures = (float(spread),) if spread > 1 else ()
            one = one._replace(channels_last=last, tf32=stack.conv_tf32, figures=figures)
        elif stack and products:
            one = one._replace(
                tf32=stack.matmul_tf32, transposed=bool(head.attrs.get("transpose_a"))
            )
            if stack.pads and one.dtype in HALVES:
                one = one._replace(products=tuple([_padded(shape) for shape in products]))
            if (how := stack.kinds.get(head.kind)) and how.register_width is not None:
                one = one._replace(
                    figures=(float(how.register_width), float(how.register_width_half))
                )
        yield _with_exchanges(one, graph, ops, awaited) if awaited else one


def _add_calls(
    op: Op, image_bytes: float, stack: Stack | None, is_last: bool, kernel: Kernel
) -> Kernel:
    """Return the kernel of an op with what the host calls for it, and with copies of its images.

    PyTorch's group norm on CUDA makes its input contiguous, where images lie channels last, and
    leaves a contiguous output (aten/src/ATen/native/group_norm.cpp, native_group_norm); the next
    convolution copies it back. A compiler writes norms itself.
    """
    if stack is None:
        return kernel
    if is_last and op.kind == "group_norm" and not stack.compile:
        moved_bytes = kernel.bytes + LAYOUT_PASSES * image_bytes
        kernel = kernel._replace(bytes=moved_bytes, launches=kernel.launches + LAYOUT_KERNELS)
    execution = stack.kinds.get(op.kind)
    if execution is not None and (execution.calls > 1 or execution.views):
        views = kernel.views + execution.views
        return kernel._replace(calls=execution.calls, views=views)
    return kernel


def _padded(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Return a product whose rows of 16 bit numbers are whole pieces of 16 bytes.

    Of one on its own all sides are padded, of a batch those that lie along a row.
    """
    batch, m, n, k = shape
    m = m if batch > 1 or m < NUMBERS_IN_PIECE else _whole_pieces(m)
    return batch, m, _whole_pieces(n), _whole_pieces(k)


def _whole_pieces(size: int) -> int:
    return size if size < NUMBERS_IN_PIECE else -(-size // NUMBERS_IN_PIECE) * NUMBERS_IN_PIECE


def _lays_last(graph: Graph, stack: Stack) -> bool:
    """Return whether a stack lays the images of a network channels last.

    Inductor decides by all convolutions (PyTorch 2.13, torch/_inductor/graph.py,
    `decide_layout_opt`): in inference by the share of FLOP in groups, in training by the channels.
    """
    if not (stack.channels_last and stack.compile):
        return stack.channels_last
    flop, grouped, fewer, wide = 0.0, 0.0, False, False
    for op in graph.ops:
        if op.part == "forward" and OPS[op.kind].work == "convolution":
            filters, channels, *taps = graph.tensors[op.inputs[1]].shape
            own = graph.tensors[op.outputs[0]].size * channels * prod(taps)
            flop += own
            grouped += own * (op.attrs.get("groups", 1) != 1 and channels > 1)
            fewer |= 2 * filters <= channels and taps[0] > 1
            wide |= max(filters, channels) > _SMALL
    if graph.ops[-1].part == "forward":
        return grouped <= _GROUPED * flop
    return wide and not grouped and not fewer


LAYOUT_PASSES, LAYOUT_KERNELS = 4, 2  # of two copies, each of which reads and writes an image
NUMBERS_IN_PIECE = 8  # numbers of 16 bit in 16 bytes
_SMALL = 64  # channels in and out, of which the layout does not matter
_GROUPED = 0.33  # of FLOP: groups take 1.358 times as long channels last, most others 0.823


def _with_exchanges(
    kernel: Kernel, graph: Graph, ops: Sequence[Op], awaited: Mapping[str, str]
) -> Kernel:
    """Return a kernel with the exchanges that it awaits, and with its group if it is one."""
    after = tuple({awaited[name]: 0 for op in ops for name in op.inputs if name in awaited})
    head = ops[0]
    specs = tuple([graph.tensors[name] for name in head.inputs])
    exchanged = exchanged_of(head.kind, specs, head.settings)
    if exchanged is None:
        return kernel._replace(after=after)
    ranks, stride = (
        cast("int", head.attrs.get(name, i)) for name, i in (("ranks", 2), ("stride", 1))
    )
    group = Exchange(head.name, ranks, stride)
    return kernel._replace(flop=0, bytes=exchanged, launches=0, exchange=group, after=after)


def stack_of(settings: Settings) -> Stack:
    """Return the software stack of a prediction; raises `InputError` for an unknown one."""
    found = catalog.stack(settings.stack)
    if settings.fuse:
        found = replace(found, fuses=UNITS)
    if settings.tf32 != "auto":
        as_tf32 = settings.tf32 == "on"
        found = replace(found, conv_tf32=as_tf32, matmul_tf32=as_tf32)
    return found


def _awaited(graph: Graph) -> dict[str, str]:
    """Return the exchange that makes a tensor, or makes what it is a view of; {} without any."""
    makers: dict[str, str] = {}
    for op in graph.ops:
        row = OPS[op.kind]
        if row.exchanged:
            makers.update(dict.fromkeys(op.outputs, op.name))
        elif makers and row.storage == "view" and op.inputs[0] in makers:
            makers[op.outputs[0]] = makers[op.inputs[0]]
    return makers


def input_bytes(graph: Graph) -> int:
    """Return the bytes of a network's inputs."""
    return sum(graph.tensors[name].size_bytes for name in graph.inputs)


def gradient_bytes(graph: Graph) -> int:
    """Return the bytes of the gradients of every weight that is trained."""
    return sum(graph.tensors[op.inputs[-1]].size_bytes for op in graph.ops if op.part == "update")
