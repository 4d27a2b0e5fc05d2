"""From a graph to the kernels of a step. No device and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple, cast

import numpy as np

from steptime.core.dtypes import HALVES, precision
from steptime.core.graph import PASS_INDEX, PASSES, Graph, Op
from steptime.hardware import catalog
from steptime.hardware.stack import UNITS, Stack
from steptime.network.count import fresh_bytes
from steptime.network.ops import OPS, exchanged_of, row_of, window_of
from steptime.network.ops.execution import Launch, launch_single_ops, list_launches
from steptime.network.ops.training import parameters_of
from steptime.prediction.host import Calls, count_calls
from steptime.prediction.kernel import Exchange, Kernel, Settings
from steptime.prediction.kernels import Kernels
from steptime.prediction.price import FLOATS
from steptime.prediction.prices import Ints

NO_CELL = -1  # of collectives, and of kernels of an unknown row
LAYOUT_PASSES, LAYOUT_KERNELS = 4, 2  # of two copies, each of which reads and writes an image
NUMBERS_IN_PIECE = 8  # numbers of 16 bit in 16 bytes
MAX_SMALL_CHANNELS = 64  # in and out, of which the layout does not matter
MAX_GROUPED_SHARE = 0.33  # of FLOP: groups take 1.358 times as long channels last, others 0.823


class Row(NamedTuple):
    """A row of a prediction: a forward op, or a layer of a file.

    Attributes:
        name: its name.
        kind: kind of the op or layer.
        parameters: trained parameters.
        parents: rows whose tensors it reads, "" for inputs of the network.
        output_bytes: bytes of its output.
        is_input: whether a layer of a file is an input itself.
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

    Attributes:
        rows: the rows.
        kernels: the kernels, in the order in which they run; one of no row (`op` "") is the update
            of all weights.
        input_bytes: bytes of the network's inputs.
        gradient_bytes: bytes of the gradients that replicas exchange.
        by_layer: whether rows are layers of a file instead of ops.
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
    def cell_of_kernel(self) -> Ints:
        """For each kernel, the index of its (row, pass) cell: `3 * row + pass`.

        Kernels that belong to no row (the update of all weights) use one extra row, `len(rows)`.
        Collectives and kernels of an unknown row have no cell (`NO_CELL`).
        """
        index_of_row = {row.name: i for i, row in enumerate(self.rows)}
        # The update of all weights has no op: it gets one row behind the others.
        index_of_row.setdefault("", len(self.rows))
        cells = []
        for kernel in self.kernels:
            has_cell = kernel.exchange is None and kernel.op in index_of_row
            cell = 3 * index_of_row[kernel.op] + PASS_INDEX[kernel.pass_] if has_cell else NO_CELL
            cells.append(cell)
        return np.array(cells, dtype=np.intp)

    @cached_property
    def calls(self) -> Mapping[tuple[str, str], Calls]:
        """The calls of the host, by pass and kind of the kernels."""
        return count_calls(self.kernels)

    @cached_property
    def launches(self) -> list[int]:
        """The launches of each pass."""
        launches: Counter[str] = Counter()
        for kernel in self.kernels:
            launches[kernel.pass_] += kernel.launches
        return [launches[pass_] for pass_ in PASSES]

    @cached_property
    def executed_flop(self) -> float:
        """FLOP that the kernels of the step execute."""
        return sum(kernel.flop for kernel in self.kernels)

    @cached_property
    def traffic_bytes(self) -> float:
        """Bytes that the kernels of the step move in memory."""
        return sum(kernel.bytes for kernel in self.kernels if kernel.exchange is None)


def lower(graph: Graph, dtype: str, settings: Settings) -> Lowered:
    """Return the kernels that a software stack executes for the step of a graph."""
    stack = stack_of(settings)
    return _lower_launches(graph, dtype, list_launches(graph, stack), stack, settings)


def lower_minimal(graph: Graph, dtype: str, settings: Settings) -> Lowered:
    """Return a kernel for each op, views among them, which moves every tensor once: a bound."""
    return _lower_launches(graph, dtype, launch_single_ops(graph), None, settings)


def _lower_launches(
    graph: Graph,
    dtype: str,
    launches: Iterable[Launch],
    stack: Stack | None,
    settings: Settings,
) -> Lowered:
    """Return the kernels of launches, with a row for each forward op."""
    lowering = _Lowering.prepare(graph, dtype, stack, settings)
    kernels = tuple(lowering.lower_all(launches))
    return Lowered(tuple(_list_rows(graph)), kernels, input_bytes(graph), gradient_bytes(graph))


def _list_rows(graph: Graph) -> Iterator[Row]:
    """Yield a row for each forward op."""
    parameters = parameters_of(graph)
    row_of_tensor = dict.fromkeys(graph.inputs, "")
    for op in graph.ops:
        if op.part != "forward":
            continue
        # Weights are no parents: only inputs of the network ("") and results of rows.
        parents = tuple([row_of_tensor[name] for name in op.inputs if name in row_of_tensor])
        output_bytes = graph.tensors[op.outputs[0]].size_bytes
        yield Row(op.name, op.kind, parameters.get(op.name, 0), parents, output_bytes)
        for name in op.outputs:
            row_of_tensor[name] = op.name


class _Lowering(NamedTuple):
    """The lowering of a graph's launches to kernels.

    Attributes:
        graph: the graph.
        compute_dtype: the type that most kernels compute in.
        stack: the software stack; None for a lower bound.
        is_channels_last: whether images lie channels last.
        fresh_bytes: bytes of new pages that ops write, by name.
        collective_of_tensor: the collective that makes a tensor, by the tensor's name.
    """

    graph: Graph
    compute_dtype: str
    stack: Stack | None
    is_channels_last: bool
    fresh_bytes: Mapping[str, float]
    collective_of_tensor: Mapping[str, str]

    @classmethod
    def prepare(
        cls, graph: Graph, dtype: str, stack: Stack | None, settings: Settings
    ) -> _Lowering:
        """Return the lowering of a graph under a stack."""
        is_channels_last = settings.channels_last
        if is_channels_last is None:
            is_channels_last = stack is not None and _lays_channels_last(graph, stack)
        return cls(
            graph=graph,
            compute_dtype=precision(dtype).compute,
            stack=stack,
            is_channels_last=is_channels_last,
            fresh_bytes=fresh_bytes(graph) if settings.pages else {},
            collective_of_tensor=_find_collectives(graph),
        )

    def lower_all(self, launches: Iterable[Launch]) -> Iterator[Kernel]:
        """Yield the kernels of launches in the order in which they run.

        Launches of nothing that move nothing are views, which the next kernel counts.
        """
        views = 0
        for launch in launches:
            # A view costs only its call, which is counted with the next kernel.
            is_view = not launch.kernels and not launch.traffic_bytes
            if is_view:
                views += 1
                continue
            kernel = self._lower_launch(launch, views)
            views = 0
            if self.stack is not None:
                kernel = self._add_calls(launch.ops[0], self.stack, kernel)
                kernel = self._add_layout(launch, self.stack, kernel)
            if self.collective_of_tensor:
                kernel = _add_exchange(kernel, self.graph, launch.ops, self.collective_of_tensor)
            yield kernel

    def _lower_launch(self, launch: Launch, views: int) -> Kernel:
        """Return the kernel of a launch without what its stack adds."""
        first_op = launch.ops[0]
        first_case = self.graph.cases[first_op.name][:3]  # kind, tensors, attributes
        output_dtype = self.graph.tensors[first_op.outputs[0]].dtype  # mixed steps have several
        dtype = output_dtype if output_dtype in FLOATS else self.compute_dtype
        # `runs_as` names the kind of kernel where an op runs as several unlike ones. The first
        # fields go by their order: with names a kernel takes twice as long to make.
        return Kernel(
            first_op.forward_op or first_op.name,
            launch.runs_as or first_op.kind,
            first_op.part,
            dtype,
            "matrix" if launch.products else "vector",
            launch.flop,
            launch.traffic_bytes,
            launch.products,
            launch.serial,
            launch.kernels * launch.serial,
            window=window_of(*first_case),
            row=launch.row if launch.runs_as else row_of(*first_case),
            views=views,
            fresh=sum([self.fresh_bytes.get(op.name, 0.0) for op in launch.ops]),
        )

    def _add_calls(self, op: Op, stack: Stack, kernel: Kernel) -> Kernel:
        """Return the kernel of an op with the calls of the host, and with copies of its images.

        PyTorch's group norm on CUDA makes its input contiguous, where images lie channels last, and
        leaves a contiguous output (aten/src/ATen/native/group_norm.cpp, native_group_norm); the
        next convolution copies it back. A compiler writes norms itself.
        """
        is_eager_group_norm = op.kind == "group_norm" and not stack.compile  # it copies images
        if self.is_channels_last and is_eager_group_norm:
            image_bytes = self.graph.tensors[op.outputs[0]].size_bytes
            moved_bytes = kernel.bytes + LAYOUT_PASSES * image_bytes
            kernel = kernel._replace(bytes=moved_bytes, launches=kernel.launches + LAYOUT_KERNELS)
        execution = stack.kinds.get(op.kind)
        if execution is None:
            return kernel
        has_extra_calls = execution.calls > 1 or execution.views > 0
        if not has_extra_calls:
            return kernel
        return kernel._replace(calls=execution.calls, views=kernel.views + execution.views)

    def _add_layout(self, launch: Launch, stack: Stack, kernel: Kernel) -> Kernel:
        """Return the kernel of a convolution or product with its layout under the stack."""
        first_op = launch.ops[0]
        if OPS[first_op.kind].work == "convolution":
            dilation = max(cast("tuple[int, ...]", first_op.attrs.get("dilation", ())), default=1)
            return kernel._replace(
                channels_last=self.is_channels_last,
                tf32=stack.conv_tf32,
                # `figures` are further sizes that the form of a kind reads: here the dilation,
                # below the widths up to which weights stay in registers.
                figures=(float(dilation),) if dilation > 1 else (),
            )
        if not launch.products:
            return kernel
        is_transposed = bool(first_op.attrs.get("transpose_a"))
        kernel = kernel._replace(tf32=stack.matmul_tf32, transposed=is_transposed)
        if stack.pads and kernel.dtype in HALVES:
            products = tuple([_pad_product(shape) for shape in launch.products])
            kernel = kernel._replace(products=products)
        execution = stack.kinds.get(first_op.kind)
        if execution is not None and execution.register_width is not None:
            widths = (float(execution.register_width), float(execution.register_width_half))
            kernel = kernel._replace(figures=widths)
        return kernel


def _pad_product(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Return a product whose rows of 16 bit numbers are multiples of 16 bytes.

    All sides of a single product are padded, and those along a row of a batch.
    """
    batch, m, n, k = shape
    padded_m = m if batch > 1 else _pad_side(m)  # of a batch, sides along a row alone
    return batch, padded_m, _pad_side(n), _pad_side(k)


def _pad_side(size: int) -> int:
    """Return a size as a multiple of 8 numbers; small sizes stay."""
    if size < NUMBERS_IN_PIECE:
        return size
    return -(-size // NUMBERS_IN_PIECE) * NUMBERS_IN_PIECE


def _lays_channels_last(graph: Graph, stack: Stack) -> bool:
    """Return whether a stack lays the images of a network channels last.

    Inductor decides by all convolutions (PyTorch 2.13, torch/_inductor/graph.py,
    `decide_layout_opt`): in inference by the share of FLOP in groups, in training by the channels.
    """
    is_decided_by_compiler = stack.channels_last and stack.compile
    if not is_decided_by_compiler:
        return stack.channels_last
    # The rules of torch.compile (Inductor's `decide_layout_opt`), which looks at all convolutions.
    total_flop = 0.0
    grouped_flop = 0.0
    has_narrowing_layer = False
    has_wide_layer = False
    for op in graph.ops:
        is_convolution = op.part == "forward" and OPS[op.kind].work == "convolution"
        if not is_convolution:
            continue
        filters, channels, *taps = graph.tensors[op.inputs[1]].shape
        flop = graph.tensors[op.outputs[0]].size * channels * prod(taps)
        total_flop += flop
        # Depthwise convolutions (one channel a group) do not count as grouped.
        is_grouped = op.attrs.get("groups", 1) != 1 and channels > 1
        if is_grouped:
            grouped_flop += flop
        halves_channels = 2 * filters <= channels
        spans_rows = taps[0] > 1
        if halves_channels and spans_rows:
            has_narrowing_layer = True
        if max(filters, channels) > MAX_SMALL_CHANNELS:
            has_wide_layer = True
    is_inference = graph.ops[-1].part == "forward"
    if is_inference:
        return grouped_flop <= MAX_GROUPED_SHARE * total_flop
    return has_wide_layer and grouped_flop == 0 and not has_narrowing_layer


def _add_exchange(
    kernel: Kernel, graph: Graph, ops: Sequence[Op], collective_of_tensor: Mapping[str, str]
) -> Kernel:
    """Return a kernel with the collectives that it awaits, and its group if it is one itself."""
    input_names = [name for op in ops for name in op.inputs]
    collectives = [
        collective_of_tensor[name] for name in input_names if name in collective_of_tensor
    ]
    after = tuple(dict.fromkeys(collectives))
    first_op = ops[0]
    specs = tuple([graph.tensors[name] for name in first_op.inputs])
    link_bytes = exchanged_of(first_op.kind, specs, first_op.settings)
    # No collective itself: it only waits for those that make its inputs.
    if link_bytes is None:
        return kernel._replace(after=after)
    ranks = cast("int", first_op.attrs.get("ranks", 2))
    stride = cast("int", first_op.attrs.get("stride", 1))
    group = Exchange(first_op.name, ranks, stride)
    # A collective runs on the link: it has no launches and no FLOP of the device.
    return kernel._replace(flop=0, bytes=link_bytes, launches=0, exchange=group, after=after)


def stack_of(settings: Settings) -> Stack:
    """Return the software stack of a prediction; raises `InputError` for an unknown one."""
    stack = catalog.stack(settings.stack)
    # The user's settings win over the stack's.
    if settings.fuse:
        # Fuse pointwise ops into the kernels before them, of vector and of matrix units alike.
        stack = replace(stack, fuses=UNITS)
    if settings.tf32 != "auto":
        as_tf32 = settings.tf32 == "on"
        stack = replace(stack, conv_tf32=as_tf32, matmul_tf32=as_tf32)
    return stack


def _find_collectives(graph: Graph) -> dict[str, str]:
    """Return the collective that makes a tensor, or the source of a view, by the tensor's name."""
    collective_of: dict[str, str] = {}
    for op in graph.ops:
        op_kind = OPS[op.kind]
        if op_kind.exchanged:
            collective_of.update(dict.fromkeys(op.outputs, op.name))
        elif op_kind.storage == "view" and op.inputs and op.inputs[0] in collective_of:
            collective_of[op.outputs[0]] = collective_of[op.inputs[0]]  # the same bytes
    return collective_of


def input_bytes(graph: Graph) -> int:
    """Return the bytes of a network's inputs."""
    return sum(graph.tensors[name].size_bytes for name in graph.inputs)


def gradient_bytes(graph: Graph) -> int:
    """Return the bytes of the gradients of every weight that is trained."""
    return sum(graph.tensors[op.inputs[-1]].size_bytes for op in graph.ops if op.part == "update")
