"""The predicted time of one op on a device, for use in programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from steptime.core.tables.printers import html
from steptime.core.tables.table import make_facts_table, make_frame
from steptime.core.units import format_interval
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.hardware.software import resolve_stack
from steptime.network.ops.expert_loads import UNIFORM, RankLoad, format_load
from steptime.network.ops.experts import load_of
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.kernel import Kernel
from steptime.prediction.method import Method


@dataclass(frozen=True)
class KernelTime:
    """The predicted time of one op.

    Attributes:
        kind: the kind of the op table.
        device: the device's name.
        dtype: the type of the op's inputs.
        condition: `isolated` or `repeated`.
        method: the method that predicted the time.
        stack: the software whose kernels run, "" where none was named.
        seconds: the predicted time.
        low: lower end of the 80 % interval in seconds, None without one.
        high: upper end of the interval in seconds, None without one.
        kernels: the kernels that run.
        rank_load: of `experts`: what the rank that is predicted does; None for other kinds.
        assumed: attributes that decide the time and were not given, by their names.
    """

    kind: str
    device: str
    dtype: str
    condition: str
    method: str
    stack: str
    seconds: float
    low: float | None
    high: float | None
    kernels: tuple[Kernel, ...] = field(repr=False)
    rank_load: RankLoad | None = None
    assumed: Mapping[str, str] = field(default_factory=dict)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each kernel; needs pandas."""
        return make_frame(kernel._asdict() for kernel in self.kernels)

    def _repr_html_(self) -> str:
        time_text = format_interval("step_s", self.seconds, self.low, self.high)
        title = f"{self.kind}, {self.dtype} on {self.device} ({self.method})"
        facts = [(self.condition, time_text)]
        if self.rank_load:
            facts.append(("busiest rank", format_load(self.rank_load)))
        facts += [(f"{name} (assumed)", value) for name, value in self.assumed.items()]
        return html(make_facts_table(title, "one op", facts))


def predict_op(
    kind: str,
    shapes: Sequence[Sequence[int]],
    dtype: str,
    device: str | Path | Device,
    attrs: Mapping[str, Any] | None = None,
    condition: Literal["isolated", "repeated"] = "repeated",
    pass_: Literal["forward", "backward", "both"] = "forward",  # noqa: S107  # of a step
    method: str | Method = DEFAULT,
    tf32: Literal["auto", "on", "off"] = "auto",
    stack: str | Path | None = None,
) -> KernelTime:
    """Predict the time of one op on a device.

    Args:
        kind: a kind of the op table or a usual name (`matmul`, `bmm`, `conv2d`, `softmax`).
        shapes: shapes of the inputs; weights of norms may be left out, since they follow from the
            first input.
        dtype: the type of the inputs. `float8` and `float4` (nvfp4) are those of the operands of
            `linear` and `experts`: a kernel casts the first input, and the result is in bfloat16.
        device: a device's name, its file, or the device.
        attrs: attributes of the op, such as `stride`. `experts` are those of one of `expert` ranks
            (expert parallelism): the inputs are the tokens and logits of all of these ranks, and
            the matrices of the experts of one. `routing` is `uniform` (each token chooses with
            equal chances, the default), `balanced` (all experts have equally many tokens) or
            `power_law_A` (their tokens have the density x^-A, and the busiest rank is predicted).
        condition: `repeated`, the time of a kernel among many, or `isolated`, the time between two
            events around one call.
        pass_: the passes that run.
        method: the method of prediction.
        tf32: whether products of float32 use TF32; `auto` is the stack's default, which is
            convolutions alone.
        stack: the software whose kernels run: a name, a family or a year as of `predict`
            (`vllm`, `sglang-2025`), or a file. The kernels of servers cast to 8 bit and attend in
            ways of their own. Default: the best kernels of the libraries.

    Raises:
        InputError: for an unknown kind or stack, and for shapes that the op cannot take.
    """
    from steptime.calibration.cases import resolve_kind
    from steptime.calibration.evaluate import score
    from steptime.calibration.mapped import plain_case

    used_device = catalog.device(device)
    stack_name = "" if stack is None else resolve_stack(str(stack))
    if stack_name:
        catalog.stack(stack_name)  # raises for a file that is none
    op_kind = resolve_kind(kind)
    row = {
        "kind": op_kind,
        "shapes": [list(shape) for shape in shapes],
        "attrs": dict(attrs or {}),
        "dtype": dtype,
        "condition": condition,
        "pass": pass_,
        "tf32": tf32,
        "stack": stack_name or None,
        "seconds": 1.0,  # nothing was measured
    }
    case = plain_case(row, f"op {kind}", used_device)
    used_method = method if isinstance(method, Method) else cost_model(method)
    used_method.derate(used_device, dtype, used_method.settings)  # raises where no peak is known
    (scored,) = score([case], used_method)
    is_of_experts = op_kind == "experts"
    return KernelTime(
        kind=op_kind,
        device=used_device.name,
        dtype=dtype,
        condition=condition,
        method=used_method.name,
        stack=stack_name,
        seconds=scored.value,
        low=scored.low,
        high=scored.high,
        kernels=case.kernels,
        rank_load=_find_load(shapes, attrs or {}) if is_of_experts else None,
        assumed={"routing": UNIFORM} if is_of_experts and "routing" not in (attrs or {}) else {},
    )


def _find_load(shapes: Sequence[Sequence[int]], attrs: Mapping[str, Any]) -> RankLoad:
    """Return the load of the rank that runs a layer of experts with these inputs."""
    tokens, _logits, up, *_ = (tuple(shape) for shape in shapes)
    routing = attrs.get("routing", UNIFORM)
    return load_of(tokens, up, attrs["per_token"], attrs.get("expert", 1), routing)
