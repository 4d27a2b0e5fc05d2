"""Steps under PyTorch's profiler: each op of the module annotated with its name in our graph."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.profiler import ProfilerActivity, profile, record_function

from steptime.measure.trace import STEP

OP = "steptime_op"  # in the `meta` of a node: the name of its op


def trace_of(step: Callable[[], None], sync: Callable[[], None], steps: int) -> str:
    """Return the trace of some steps, the device waited for at the end of each."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as made:
        for number in range(steps):
            with record_function(f"{STEP}{number}"):
                step()
                sync()
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        path = Path(folder) / "trace.json"
        made.export_chrome_trace(str(path))
        return path.read_text(encoding="utf-8", errors="replace")


def annotate(module: fx.GraphModule) -> None:
    """Let each call of a generated module say to the profiler whose it is; it is slower then."""
    for node in module.graph.nodes:
        if OP in node.meta:
            node.target = _annotated(node.target, node.meta[OP])
    module.recompile()


def _annotated(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(run)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return run(*args, **kwargs)

    annotated.__module__ = __name__  # torch.fx writes a module's code with names
    return annotated
