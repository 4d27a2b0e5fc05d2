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
TO_END = "!"  # of a mark: runs again to its end; others stop at the last saved tensor
CALLS: list[str] = []  # the marks of this process so far
_OPTIONS = ("context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


def mark_checkpoints() -> None:
    """Replace `torch.utils.checkpoint.checkpoint` for this process."""
    numbers = count(1)

    def checkpoint(
        function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, **kwargs: Any
    ) -> Any:
        # The options are for the checkpoint; further keywords are arguments of the function.
        keywords = {key: value for key, value in kwargs.items() if key not in _OPTIONS}
        outer_mark = traceback.current_meta.get("custom", {}).get(MARK)
        runs_to_end = use_reentrant is True or kwargs.get("early_stop") is False
        mark = f"{next(numbers)}{TO_END if runs_to_end else ''}"
        if outer_mark:  # a checkpoint inside of another: the path of both
            mark = f"{outer_mark}{MARK_SEPARATOR}{mark}"
        CALLS.append(mark)
        with traceback.annotate({MARK: mark}):
            return function(*args, **keywords)

    torch.utils.checkpoint.checkpoint = checkpoint


def checkpoints_of(program: Any) -> list[tuple[list[str], bool]]:
    """Return the names of the nodes of each checkpoint, and whether all of it runs again."""
    names_by_checkpoint: dict[str, list[str]] = {}
    for node in program.graph.nodes:
        path = node.meta.get("custom", {}).get(MARK) if node.op == "call_function" else None
        if not path:
            continue
        # of nested checkpoints the path has all marks: the node is an op of each of them
        marks = path.split(MARK_SEPARATOR)
        for depth in range(1, len(marks) + 1):
            checkpoint_path = MARK_SEPARATOR.join(marks[:depth])
            names_by_checkpoint.setdefault(checkpoint_path, []).append(node.name)
    return [(names, path.endswith(TO_END)) for path, names in names_by_checkpoint.items()]
