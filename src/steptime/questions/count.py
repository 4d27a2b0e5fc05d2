"""The cost of one step of a network, on no device: FLOP, bytes, parameters and memory."""

from dataclasses import replace

from steptime.build import build_step, make_workload, read_model
from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_row
from steptime.core.dtypes import describe_low_products, precision
from steptime.core.graph import Graph
from steptime.core.signatures.kinds import text_of
from steptime.core.tables.table import Column, Table, make_facts_table
from steptime.core.tuning import NO_WEIGHTS
from steptime.core.units import format_value
from steptime.core.values import parse_count
from steptime.core.workload import FULL_TRAINING
from steptime.hardware import catalog
from steptime.hardware.catalog import DEFAULT_STACK
from steptime.hardware.defaults import assumed_step
from steptime.hardware.software import resolve_stack
from steptime.network.count import Count, OpCost
from steptime.network.count import count as count_graph
from steptime.network.ops import OPS
from steptime.questions import kinds, options

OP_COLUMNS = (
    Column("name", "op"),
    Column("kind"),
    Column("part"),
    Column("flop", "FLOP"),
    Column("traffic_bytes", "bytes"),
    Column("output", is_spare=True),
)


class CountedOp(AnswerRow, frozen=True, kw_only=True):
    """The cost of an op of a step.

    Attributes:
        name: the op.
        kind: its kind (`steptime list ops`).
        part: forward, backward or update.
        work: matmul, convolution, attention or recurrent; "" for other ops.
        flop: its work; a multiply-add is 2.
        traffic_bytes: bytes of its inputs and outputs.
        output_shape: sizes of its output, none for a scalar.
    """

    name: str
    kind: str
    part: str
    work: str
    flop: int
    traffic_bytes: int
    output_shape: tuple[int, ...]


class CountAnswer(Answer, frozen=True, kw_only=True):
    """The cost of one step of a network.

    Attributes:
        model: the network.
        batch: examples of a step.
        phase: train or infer.
        dtype: data type of weights and activations.
        optimizer: the optimizer.
        assumed: settings that were not given and decide the executed numbers, by the option that
            changes them.
        parameters: number of parameters.
        flop: work of a step; a multiply-add is 2.
        traffic_bytes: bytes of the inputs and outputs of all ops.
        executed_flop: work of the kernels that the stack runs.
        executed_traffic_bytes: bytes that these kernels read and write.
        kernels: number of kernels that the stack launches.
        activation_bytes: size of the outputs of all ops of the forward pass.
        peak_bytes: size of all tensors at the worst moment.
        unmodelled: names of layers of unknown type, which count as no work.
        headline: the work and the memory of the step in a line.
        notes: remarks that change how the answer is read.
        ops: every op, in the order of execution.
    """

    model: str
    batch: int
    phase: str
    dtype: str
    optimizer: str
    assumed: dict[str, str]
    parameters: int
    flop: int
    traffic_bytes: int
    executed_flop: int
    executed_traffic_bytes: int
    kernels: int
    activation_bytes: int
    peak_bytes: int
    unmodelled: tuple[str, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    ops: tuple[CountedOp, ...]
    _by_op: bool = False

    def printed_headline(self) -> list[str]:
        """Return no line: the table says what the headline says."""
        return []

    def tables(self) -> list[Table]:
        """Return the step, and every op where that is wanted."""
        if not self._by_op:
            return [self._make_totals_table()]
        rows = []
        for op in self.ops:
            shape = "x".join(map(str, op.output_shape)) or "scalar"
            rows.append(op.to_dict() | {"output": shape})
        return [self._make_totals_table(), Table(OP_COLUMNS, rows)]

    def _make_totals_table(self) -> Table:
        purpose = "" if self.phase == "infer" else f" (optimizer {self.optimizer})"
        intensity = self.flop / self.traffic_bytes if self.traffic_bytes else None
        work = format_value("flop", self.flop)
        traffic = format_value("traffic_bytes", self.traffic_bytes)
        executed = format_value("traffic_bytes", self.executed_traffic_bytes)
        rows = [
            *assumed_row(self.assumed),
            ("parameters", format_value("parameters", self.parameters)),
            ("work", f"{work} (a multiply-add is 2)"),
            ("traffic", f"{traffic} (every op's inputs and outputs)"),
            ("executed", f"{executed} in {self.kernels:,} kernels"),
            ("intensity", format_value("flop_per_byte", intensity)),
            ("activations", format_value("activation_bytes", self.activation_bytes)),
            ("peak memory", f"{format_value('peak_bytes', self.peak_bytes)}{purpose}"),
        ]
        title = f"{self.model}, batch {self.batch}, {self.phase}, {self.dtype}"
        return make_facts_table(title, "one step", rows)


def count(
    model: kinds.Model,
    batch: kinds.Batch | None = None,
    phase: kinds.Phase = "train",
    dtype: kinds.Dtype | None = None,
    optimizer: kinds.Optimizer | None = None,
    allow_unknown: bool = False,
    strict: bool = False,
    batch_axis: kinds.Axis | None = None,
    length: kinds.Length | None = None,
    by_op: bool = False,
    stack: kinds.StackName = DEFAULT_STACK,
) -> CountAnswer:
    """Count FLOP, bytes, parameters and peak memory of one step.

    A multiply-add is 2 FLOP.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME).
        batch: Examples in a step. Default: 64; for transformers 1; for a file what it states.
        phase: `train` or `infer`.
        dtype: `float32`, `float64`, `bfloat16` or `float16`; `bfloat16-mixed` or `float16-mixed`
            with weights in `float32`; `float8` or `float4` (also `-mixed`) for the operands of
            linear layers and experts only. Default: `bfloat16-mixed` for sequence models, `float32`
            for others.
        optimizer: `sgd`, `momentum`, `rmsprop`, `adam`, `adamw`, `lion`, `lamb`, `adafactor` or
            `muon`. `adam`, `adamw` and `lion` also with a state in 8 bits (`adam8bit`), or moved to
            the host if the device is full (`paged_adam`, `paged_adam8bit`). Default: `adam` for
            sequence models, `sgd` for others.
        allow_unknown: Accept layers of unknown type in a network's file: they pass their input on
            and count as no work.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.
        length: Tokens of a sequence. Default: the model's.
        by_op: Show every op.
        stack: The software that runs the step (steptime list stacks), or FILE.toml.

    Raises:
        InputError: for unknown names, and for a network that cannot be built.
    """
    sequence_tokens = None if length is None else parse_count(text_of(length), "--length")
    # Inference reads the weights as a file stores them, maybe in few bits; a training is counted
    # with the weights as they were before the file quantised them.
    tuning = FULL_TRAINING
    if phase != "infer":
        tuning = replace(FULL_TRAINING, stored=NO_WEIGHTS)
    workload = options.workload_of(
        options.set_reading(model, strict, batch_axis),
        text_of(batch),
        dtype,
        phase,
        optimizer,
        allow_unknown,
        tuning=tuning,
        length=sequence_tokens,
    )
    graph = build_step(workload)
    stack_name = options.full_stack_name(stack)
    totals = count_graph(graph, catalog.stack(resolve_stack(stack)))
    # `products`: a type of 8 or 4 bit that only operands of matrix products have, or "".
    if precision(workload.dtype).products:
        totals = _add_low_product_kernels(totals, graph, workload.dtype, stack)
    unmodelled = tuple(graph.unmodelled)
    headline = (
        f"one step of {workload.label} at batch {workload.batch_per_replica}: "
        f"{format_value('flop', totals.flop)}, "
        f"{format_value('peak_bytes', totals.peak_bytes)} at its peak"
    )
    return CountAnswer(
        model=workload.label,
        batch=workload.batch_per_replica,
        phase=workload.phase,
        dtype=workload.dtype,
        optimizer=workload.optimizer,
        assumed={"stack": stack_name} | assumed_step(workload),
        parameters=totals.parameters,
        flop=totals.flop,
        traffic_bytes=totals.traffic_bytes,
        executed_flop=round(totals.executed_flop),
        executed_traffic_bytes=round(totals.executed_traffic_bytes),
        kernels=totals.kernels,
        activation_bytes=totals.activation_bytes,
        peak_bytes=totals.peak_bytes,
        unmodelled=unmodelled,
        headline=(headline,),
        notes=(
            *options.describe_unmodelled(unmodelled),
            *describe_low_products(workload.dtype),
            *graph.remarks,
        ),
        ops=tuple(map(_make_op_row, totals.ops)),
        _by_op=by_op,
    )


def _add_low_product_kernels(totals: Count, graph: Graph, dtype: str, stack: str) -> Count:
    """Return the cost of a step with the casts and the operands of products in 8 or 4 bit."""
    from steptime.prediction.kernel import Settings
    from steptime.prediction.low_products import lower_products
    from steptime.prediction.lower import lower

    operand_type = precision(dtype).products
    plain_kernels = lower(graph, dtype, Settings(stack=resolve_stack(stack)))
    low_product_kernels = lower_products(plain_kernels, graph, operand_type)
    added_bytes = low_product_kernels.traffic_bytes - plain_kernels.traffic_bytes
    return replace(
        totals,
        executed_traffic_bytes=totals.executed_traffic_bytes + added_bytes,
        kernels=totals.kernels + len(low_product_kernels.kernels) - len(plain_kernels.kernels),
    )


def _make_op_row(op: OpCost) -> CountedOp:
    """Return the cost of an op as a row of the answer."""
    return CountedOp(
        name=op.name,
        kind=op.kind,
        part=op.part,
        work=OPS[op.kind].work,
        flop=op.flop,
        traffic_bytes=op.traffic_bytes,
        output_shape=op.output_shape,
    )


def count_step(
    model: str,
    batch: int | None = None,
    dtype: str | None = None,
    phase: str = "train",
    optimizer: str | None = None,
) -> Count:
    """Count one step, on no device: FLOP, bytes, parameters, peak memory, op by op.

    Args:
        model: a model text of the command line.
        batch: the batch; None is the model's own.
        dtype: data type of weights and activations.
        phase: `train` or `infer`.
        optimizer: the optimizer.
    """
    # Trusted: the caller's text may name the caller's own code.
    workload = make_workload(read_model(model, trusted=True), batch, dtype, phase, optimizer)
    return count_graph(build_step(workload))
