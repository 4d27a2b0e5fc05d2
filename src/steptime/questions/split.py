"""Where to cut a network between two devices: the first part here, the rest there.

After Kang et al. 2017 (Neurosurgeon): each cut costs the ops before it on the first device, the
tensors that cross it over the link, and the ops after it on the second device. The answer's way
back is left out, and so is any overlap of one example's transfer with another's work.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_line, assumed_text
from steptime.core.signatures.kinds import setting_texts, text_of
from steptime.core.tables.table import Column, Table
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.defaults import assumed_step, common_dtype, settle_dtype
from steptime.hardware.device import Device, Link
from steptime.prediction import DEFAULT
from steptime.prediction.lower import Row as LoweredRow
from steptime.prediction.steps.step_model import StepModel
from steptime.questions import kinds
from steptime.questions import options as shared

BEST_CUTS = 5  # shown beside the two ends
ON_SERVER, ON_DEVICE = "the input (all on the server)", "{} (all on the device)"
COLUMNS = (
    Column("cut", "cut after"),
    Column("flop", "FLOP on the device", is_spare=True),
    Column("crossing_bytes", "sent"),
    Column("first_s", "device"),
    Column("transfer_s", "link"),
    Column("second_s", "server"),
    Column("total_s", "in all"),
    Column("best", ""),
)


class Cut(AnswerRow, frozen=True, kw_only=True):
    """A cut of a network between two devices.

    Attributes:
        after: the op or layer before the cut; "" where the server runs everything.
        flop: work of the ops before the cut.
        output_bytes: size of the output of the op before the cut.
        crossing_bytes: size of all tensors that are made before the cut and read after it.
        first_s: seconds of the ops before the cut, on the device.
        transfer_s: seconds of the crossing tensors on the link.
        second_s: seconds of the ops after the cut, on the server.
        total_s: seconds of the whole inference.
    """

    after: str
    flop: float
    output_bytes: int
    crossing_bytes: int
    first_s: float
    transfer_s: float
    second_s: float
    total_s: float


class SplitAnswer(Answer, frozen=True, kw_only=True):
    """Where to cut a network between a device and a server.

    Attributes:
        model: the network.
        device: the device that runs the ops before a cut.
        server: the device that runs the ops after a cut.
        link: the link between the two.
        method: the cost model.
        batch: examples of the inference.
        dtype: data type of weights and activations.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        best: the cut with the least seconds in all.
        rows: every cut in the order of execution, the first all on the server, the last all on the
            device.
        unmodelled: names of layers of unknown type, which count as no work.
        notes: remarks that change how the answer is read.
    """

    model: str
    device: str
    server: str
    link: str
    method: str
    batch: int
    dtype: str
    assumed: dict[str, str]
    best: Cut
    rows: tuple[Cut, ...]
    unmodelled: tuple[str, ...]
    notes: tuple[str, ...]
    _by_op: bool = False

    def tables(self) -> list[Table]:
        """Return the best cuts and the two ends, or every cut."""
        cut_count = len(self.rows)
        indices = range(cut_count) if self._by_op else _list_fastest_and_ends(self.rows)
        rows = [
            {
                **self.rows[index].to_dict(),
                "cut": _label_cut(self.rows[index], index, cut_count),
                "best": "best" if self.rows[index] is self.best else "",
            }
            for index in indices
        ]
        title = (
            f"{self.model}, batch {self.batch}, {self.dtype}: {self.device}, then {self.server} "
            f"over {self.link} ({self.method})"
        )
        footnotes = assumed_line([(self.device, assumed_text(self.assumed))])
        return [Table(COLUMNS, rows, title, footnotes)]


def _list_fastest_and_ends(cuts: Sequence[Cut]) -> list[int]:
    """Return the indices of the fastest cuts and of the two ends, in the order of execution."""
    first_index, last_index = 0, len(cuts) - 1
    fastest_indices = sorted(range(len(cuts)), key=lambda index: cuts[index].total_s)
    return sorted({first_index, last_index, *fastest_indices[:BEST_CUTS]})


def _label_cut(cut: Cut, index: int, cut_count: int) -> str:
    """Return the op before a cut; the first and the last cut say that one machine runs all."""
    if index == cut_count - 1:
        return ON_DEVICE.format(cut.after)
    if index == 0:
        return ON_SERVER
    return cut.after


def split(
    model: kinds.Model,
    device: kinds.Device,
    server: kinds.Device,
    link: kinds.Link,
    batch: kinds.Batch = 1,
    dtype: kinds.Dtype | None = None,
    method: kinds.MethodName = DEFAULT,
    options: kinds.MethodSettings | None = None,
    allow_unknown: bool = False,
    strict: bool = False,
    batch_axis: kinds.Axis | None = None,
    by_op: bool = False,
) -> SplitAnswer:
    """Find the best cut of a network between a device and a server.

    One inference: the ops before the cut, the tensors over the link, the ops after it.

    Args:
        model: A network: a family with its hyperparameters (fc:layers=4,nodes=1024), a name
            (resnet50), a file, or code (model.py:NAME).
        device: The device that runs the first part, such as a phone.
        server: The device that runs the second part.
        link: The link between the two (steptime list links).
        batch: Examples of the inference.
        dtype: `float32`, `float64`, `bfloat16` or `float16`; `bfloat16-mixed` or `float16-mixed`
            with weights in `float32`. Default: `bfloat16-mixed` for sequence models
            (`float16-mixed` on devices without `bfloat16`), `float32` for others and on a CPU.
        method: The cost model: how kernels are priced (steptime list methods).
        options: A setting of the cost model; may be repeated.
        allow_unknown: Accept layers of unknown type in a network's file: they pass their input on
            and count as no work.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.
        by_op: Show every cut.

    Raises:
        InputError: for unknown names, and for a network that does not fit the question.
    """
    first = shared.find_device(device, "--device", method)
    second = shared.find_device(server, "--server", method)
    workload = shared.workload_of(
        shared.set_reading(model, strict, batch_axis),
        text_of(batch),
        dtype,
        "infer",
        None,
        allow_unknown,
    )
    workload = _choose_common_dtype(workload, first, second)
    joining_link = catalog.link(link, "--link")
    method_settings = shared.pairs(setting_texts(options), "--option")
    # `with_dtype` marks the type as chosen: a default type each device would replace by its own.
    fixed_dtype_workload = workload.with_dtype(workload.dtype)
    first_model = StepModel(fixed_dtype_workload, first, method=method, options=method_settings)
    rows = tuple(find_cuts(first_model, first_model.with_device(second), joining_link))
    unmodelled = tuple(first_model.graph().unmodelled)
    return SplitAnswer(
        model=workload.label,
        device=first.name,
        server=second.name,
        link=joining_link.name,
        method=method,
        batch=workload.batch_per_replica,
        dtype=workload.dtype,
        assumed=assumed_step(workload),
        best=min(rows, key=lambda cut: cut.total_s),
        rows=rows,
        unmodelled=unmodelled,
        notes=(*_describe_latency(joining_link), *shared.describe_unmodelled(unmodelled)),
        _by_op=by_op,
    )


def _describe_latency(link: Link) -> list[str]:
    """Return a note where the catalogue does not know the latency of the link."""
    if link.latency_s is None:
        return [f"{link.name}: its latency is unknown, left out"]
    return []


def _choose_common_dtype(workload: Workload, first: Device, second: Device) -> Workload:
    """Return the workload in the type that both devices take, float32 where their types differ."""
    workloads = [settle_dtype(workload, device) for device in (first, second)]
    return replace(workloads[0], dtype=common_dtype(workloads) or "float32")


@dataclass(frozen=True)
class _Tensors:
    """The tensors of a network in order: the input, then the output of each op.

    Args:
        names: "" for the input, then the names of the ops.
        sizes_bytes: their sizes.
        crossing_bytes: sizes of all tensors that are made up to this one and read after it.
    """

    names: Sequence[str]
    sizes_bytes: Sequence[int]
    crossing_bytes: Sequence[int]


def find_cuts(first: StepModel, second: StepModel, link: Link) -> Iterator[Cut]:
    """Yield every cut of an inference in order: all on `second`, ..., all on `first`.

    Args:
        first: the network on the device of the ops before a cut.
        second: the same network on the device of the ops after it.
        link: between the two.

    Raises:
        InputError: as a prediction does.
    """
    lowered = first.lower_step()
    flop_by_op = first.flop_by_row()
    ops = [row for row in lowered.rows if not row.is_input]
    tensors = _order_tensors(lowered.input_bytes, ops)
    transfer = first.method.join_devices(link)
    # Item k of each is of the first k ops: their seconds on each device, and their work.
    first_elapsed_s = _elapsed_s(first, ops)
    second_elapsed_s = _elapsed_s(second, ops)
    elapsed_flop = list(accumulate((flop_by_op[op.name]["forward"] for op in ops), initial=0.0))
    second_total_s = second_elapsed_s[-1]
    for op_count, name in enumerate(tensors.names):
        crossing_bytes = tensors.crossing_bytes[op_count]
        first_s = first_elapsed_s[op_count]
        transfer_s = transfer.message_s(crossing_bytes) if crossing_bytes else 0.0
        second_s = second_total_s - second_elapsed_s[op_count]
        yield Cut(
            after=name,
            flop=elapsed_flop[op_count],
            output_bytes=tensors.sizes_bytes[op_count],
            crossing_bytes=crossing_bytes,
            first_s=first_s,
            transfer_s=transfer_s,
            second_s=second_s,
            total_s=first_s + transfer_s + second_s,
        )


def _elapsed_s(model: StepModel, ops: Sequence[LoweredRow]) -> list[float]:
    """Return the seconds of the forward pass before each op, and those of all at the end."""
    forward_s_by_op = {row.row.name: row.forward.value for row in model.timeline().rows}
    return list(accumulate((forward_s_by_op[op.name] for op in ops), initial=0.0))


def _order_tensors(input_bytes: int, ops: Sequence[LoweredRow]) -> _Tensors:
    """Return the tensors of a network with the sizes that cross the cut after each."""
    names = ["", *(op.name for op in ops)]  # "" is the input
    sizes_bytes = [input_bytes, *(op.output_bytes for op in ops)]
    last_reader_index: dict[str, int] = {}
    for op_index, op in enumerate(ops, start=1):
        for parent in op.parents:
            last_reader_index[parent] = op_index
    # A tensor crosses every cut from the op that makes it to the one before its last reader.
    crossing_change_bytes = [0] * len(names)
    for index, name in enumerate(names):
        if name in last_reader_index:
            crossing_change_bytes[index] += sizes_bytes[index]
            crossing_change_bytes[last_reader_index[name]] -= sizes_bytes[index]
    return _Tensors(names, sizes_bytes, list(accumulate(crossing_change_bytes)))
