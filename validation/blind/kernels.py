"""Kernels of serving engines, under the stack of the engine: products, experts and attention."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from steptime.calibration.cases import Case, op_kernels
from steptime.calibration.plan_rows import Question
from steptime.core.errors import InputError
from steptime.core.tables.table_files import table_rows
from steptime.hardware import catalog
from steptime.hardware.software import resolve_stack
from steptime.prediction.kernel import Kernel, Settings
from steptime.prediction.method import Method
from validation.blind.cells import Cells
from validation.score import CaseAnswer
from validation.ways import Row

CAMPAIGN = "ai-dynamo/aiconfigurator x NVIDIA"
DRAW = 40  # of so many rows one is asked
ENGINES = {"trtllm": "trt-llm", "sglang": "sglang", "vllm": "vllm"}  # families of stacks
DTYPES = {  # by the words of the source; those of 128 x 128 blocks wait for the host in part
    "bfloat16": "bfloat16",
    "fp8": "float8",
    "fp8_static": "float8",
    "nvfp4": "float4",
}
SHORTEST_S = 1e-4  # of attention and experts: shorter rows are floors of several kernels
UNGATED_KERNEL = "moe_torch_flow_nongated"  # activates by the square of ReLU


class KernelTable(NamedTuple):
    """Rows of the kernel tables that are drawn together.

    Attributes:
        label: the name of the set.
        path: the file, in the folder of reference data.
        kind: the kind of op.
        accepts: whether a row belongs to it.
        lower: returns the kernels of a row under a stack.
        is_blind: whether the rows told no constant.
    """

    label: str
    path: str
    kind: str
    accepts: Callable[[Cells], bool]
    lower: Callable[[Cells, Settings], tuple[Kernel, ...]]
    is_blind: bool


def read_kernels(data: Path, method: str | Method) -> Iterator[tuple[Row, bool]]:
    """Yield rows of the kernel tables with their predictions, and whether they are blind."""
    for table in _list_tables():
        lines = (
            (line, cells)
            for line, cells in table_rows(data / table.path, {})
            if cells["draw"] == "newest" and table.accepts(cells)
        )
        for line, cells in islice(lines, 0, None, DRAW):
            try:
                case = _make_case(table, cells)
            except InputError:
                continue
            question = Question(
                table.label,
                f"{Path(table.path).name}:{line}",
                CaseAnswer(case),
                {"device": case.device.name},
                {},
                {"seconds": case.seconds},
                campaign=CAMPAIGN,
            )
            yield Row("blind", question, question.reply(method)), table.is_blind


def _list_tables() -> Iterator[KernelTable]:
    """Yield products by type, layers of experts, and attention of prompts and of new tokens."""
    for dtype in dict.fromkeys(DTYPES.values()):
        yield KernelTable(
            f"AIConfigurator, newest products in {dtype}",
            "kernels/gemm.csv.gz",
            "linear",
            partial(_has_dtype, dtype),
            _lower_product,
            is_blind=dtype != "float8",  # casts of stacks were fitted on them
        )
    for place, is_shared in (("of one rank", False), ("that ranks share", True)):
        yield KernelTable(
            f"AIConfigurator, experts {place}",
            "kernels/moe.csv.gz",
            "experts",
            partial(_is_long_mixture, is_shared),
            _lower_experts,
            is_blind=False,
        )
    for phase, file in (
        ("prompts", "attention_context"),
        ("new tokens", "attention_generation"),
    ):
        yield KernelTable(
            f"AIConfigurator, attention of {phase}",
            f"kernels/{file}.csv.gz",
            "attention",
            _is_long_attention,
            _lower_attention,
            is_blind=False,
        )


def _has_dtype(dtype: str, cells: Cells) -> bool:
    return DTYPES.get(str(cells["dtype"])) == dtype


def _make_case(table: KernelTable, cells: Cells) -> Case:
    stack = resolve_stack(ENGINES[str(cells["engine"])])
    kernels = table.lower(cells, Settings(stack=stack))
    device = catalog.device(cells["device"])
    seconds = float(cells["seconds"])
    return Case(kernels, device, seconds, table.kind, "repeated", stack=stack)


def _lower_product(cells: Cells, settings: Settings) -> tuple[Kernel, ...]:
    tokens, outputs, inputs = (int(cells[name]) for name in "mnk")
    shapes = ((tokens, inputs), (outputs, inputs))
    return op_kernels("linear", shapes, {}, DTYPES[str(cells["dtype"])], settings=settings)


def _is_long_mixture(is_shared: bool, cells: Cells) -> bool:
    """Return whether a row is a layer of experts, on one rank or shared by several."""
    is_mixture = cells["table"] == "moe" and cells["dtype"] in DTYPES
    is_of_ranks = is_mixture and (int(cells["moe_ep_size"]) > 1) == is_shared
    return is_of_ranks and float(cells["seconds"]) >= SHORTEST_S


def _lower_experts(cells: Cells, settings: Settings) -> tuple[Kernel, ...]:
    tokens, width, inner, experts, per_token, tensor, ranks = (
        int(cells[name])
        for name in (
            "num_tokens",
            "hidden_size",
            "inter_size",
            "num_experts",
            "topk",
            "moe_tp_size",
            "moe_ep_size",
        )
    )
    inner //= tensor
    is_gated = cells["kernel"] != UNGATED_KERNEL
    rank_experts = experts // ranks
    shapes = (
        (tokens, width),
        (tokens, experts),
        (rank_experts, 2 * inner if is_gated else inner, width),
        (rank_experts, width, inner),
    )
    attrs = {
        "per_token": per_token,
        "activation": "swiglu" if is_gated else "relu2",
        "expert": ranks,
        "routing": str(cells["distribution"]),
    }
    return op_kernels("experts", shapes, attrs, DTYPES[str(cells["dtype"])], settings=settings)


def _is_long_attention(cells: Cells) -> bool:
    """Return whether a row is attention of one type that takes more than the floor."""
    is_half = cells["dtype"] == cells["kv_cache_dtype"] == "bfloat16"
    return is_half and float(cells["seconds"]) >= SHORTEST_S


def _lower_attention(cells: Cells, settings: Settings) -> tuple[Kernel, ...]:
    batch, queries, cached, heads, key_heads, width = (
        int(cells[name])
        for name in (
            "batch_size",
            "isl",
            "step",
            "num_heads",
            "num_key_value_heads",
            "head_dim",
        )
    )
    keys = queries + cached
    shapes = tuple(
        (batch, length, count * width)
        for length, count in ((queries, heads), (keys, key_heads), (keys, key_heads))
    )
    attrs = {
        "heads": heads,
        "kv_heads": key_heads,
        "causal": cells["table"] == "context_attention",
        "window": int(cells["window_size"] or 0),
    }
    return op_kernels("attention", shapes, attrs, "bfloat16", settings=settings)
