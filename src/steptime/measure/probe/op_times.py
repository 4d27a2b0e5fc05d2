"""The times of PyTorch's ops in standard sizes on a CPU, as its threads and instructions run them.

Each op runs a few times in a row, so that caches hold what they would hold in a small network's
step. All ops are visited in turns; the least of an op's visits counts.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from steptime.records.traces.standard_ops import (
    FLOAT_NAMES,
    Argument,
    Result,
    StandardOp,
    Tensor,
    Tensors,
    list_standard_ops,
)

MIN_BUDGET_S = 6.0  # in which a slow machine visits all ops once
MAX_VISITS = 5
VISIT_S = 0.001  # of calls of short ops
MIN_CALLS = 3
MAX_CALLS = 30

OpTimes = dict[str, dict[str, float]]  # seconds by data type and label


def time_standard_ops(budget_s: float) -> OpTimes:
    """Return the seconds of the standard ops; {} where the budget is too small for them.

    An op that this version of PyTorch does not have is left out.
    """
    if budget_s < MIN_BUDGET_S:
        return {}
    import torch

    end_s = time.perf_counter() + budget_s
    standard_ops = list_standard_ops()
    times: OpTimes = {dtype: {} for dtype in FLOAT_NAMES}
    for visit in range(MAX_VISITS):
        for dtype in FLOAT_NAMES:
            if visit and time.perf_counter() > end_s:
                return times
            for op in standard_ops:
                try:
                    seconds = time_op(op, getattr(torch, dtype))
                except (RuntimeError, TypeError, AttributeError):  # of another version of PyTorch
                    continue
                label = op.label
                times[dtype][label] = min(seconds, times[dtype].get(label, seconds))
    return times


def time_op(op: StandardOp, dtype: Any) -> float:
    """Return the median seconds of a visit's calls."""
    function = _find_overload(op)
    arguments = [_make_argument(argument, dtype) for argument in op.arguments]
    function(*arguments)  # makes the kernels
    function(*arguments)
    times_s: list[float] = []
    start_s = time.perf_counter()
    while len(times_s) < MIN_CALLS or (
        len(times_s) < MAX_CALLS and time.perf_counter() - start_s < VISIT_S
    ):
        began_s = time.perf_counter()
        function(*arguments)
        times_s.append(time.perf_counter() - began_s)
    return median(times_s)


def _find_overload(op: StandardOp) -> Callable[..., Any]:
    import torch

    name, _, overload = op.overload.partition(".")
    function: Callable[..., Any] = getattr(getattr(torch.ops.aten, name), overload)
    return function


def _make_argument(argument: Argument, dtype: Any) -> Any:
    """Return an argument for a call."""
    import torch

    if isinstance(argument, Tensors):
        return [_make_argument(item, dtype) for item in argument.items]
    if isinstance(argument, Result):
        results = _find_overload(argument.op)(
            *[_make_argument(item, dtype) for item in argument.op.arguments]
        )
        return results[argument.position]
    if not isinstance(argument, Tensor):
        return argument
    shape = argument.shape
    if argument.index_limit:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(argument.index_limit, shape, generator=generator)
    if argument.is_transposed:
        *outer, rows, columns = shape
        return torch.full((*outer, columns, rows), argument.value, dtype=dtype).transpose(-1, -2)
    return torch.full(shape, argument.value, dtype=dtype)
