"""Activation checkpointing that a module does itself, which an exported graph does not show.

`torch.utils.checkpoint.checkpoint` is replaced before the user's file is imported, so that the ops
inside are marked in the graph, and the reentrant form is not taken for a part without gradients.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import torch.utils.checkpoint
from torch.fx import traceback

MARK = "steptime_checkpoint"
MARK_SEPARATOR = "/"  # between the marks of checkpoints that lie inside of each other
CALLS: list[str] = []  # the marks of this process so far
_OPTIONS = ("context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


def mark_checkpoints() -> None:
    """Replace `torch.utils.checkpoint.checkpoint` for this process."""
    numbers = count(1)

    def checkpoint(
        function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, **kwargs: Any
    ) -> Any:
        # The options are for the checkpoint; further keywords are arguments of the function.
        plain = {key: value for key, value in kwargs.items() if key not in _OPTIONS}
        outer_mark = traceback.current_meta.get("custom", {}).get(MARK)
        # "!" marks a checkpoint that runs again to its end; others stop at the last saved tensor.
        to_end = use_reentrant is True or kwargs.get("early_stop") is False
        mark = f"{next(numbers)}{'!' if to_end else ''}"
        if outer_mark:  # a checkpoint inside of another: the path of both
            mark = f"{outer_mark}{MARK_SEPARATOR}{mark}"
        CALLS.append(mark)
        with traceback.annotate({MARK: mark}):
            return function(*args, **plain)

    torch.utils.checkpoint.checkpoint = checkpoint


def checkpoints_of(program: Any) -> list[tuple[list[str], bool]]:
    """Return the names of the nodes of each checkpoint, and whether all of it runs again."""
    groups: dict[str, list[str]] = {}
    for node in program.graph.nodes:
        mark = node.meta.get("custom", {}).get(MARK) if node.op == "call_function" else None
        parts = mark.split(MARK_SEPARATOR) if mark else []
        for part_count in range(1, len(parts) + 1):  # the outer checkpoints, then the innermost
            path = MARK_SEPARATOR.join(parts[:part_count])
            groups.setdefault(path, []).append(node.name)
    return [(names, mark.endswith("!")) for mark, names in groups.items()]
