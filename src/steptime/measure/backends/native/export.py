"""A module as a `.pt2` file: run as a process of its own, which answers with one line of JSON.

It reads a request from its standard input: the code, and where the file goes. The user's file is
code and is run here. Nothing is computed: `forward` is traced on fake tensors.
"""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn.modules import transformer

from steptime.core.errors import InputError
from steptime.core.files import replace_on_success
from steptime.core.json_types import JsonObject
from steptime.formats.code import ASSUMED, BATCH_AXIS, FACTS_FILE
from steptime.measure.backends.native.checkpoints import CALLS, checkpoints_of, mark_checkpoints
from steptime.measure.backends.native.decompose import decompose_unknown, drop_checks
from steptime.measure.backends.native.flexible_attention import (
    ASSUMPTIONS,
    replace_flex_attention,
)
from steptime.measure.backends.native.inner_gradients import refused_gradients
from steptime.measure.backends.native.inputs import (
    Spec,
    batch_axes,
    describe_inputs,
    find_batch_axis,
    missing_arguments,
    nest_arguments,
    propose_inputs,
    runs_with,
    shapes_of,
    specs_of,
    tensors_of,
)
from steptime.measure.backends.native.known_values import (
    INPUTS_NOTE,
    keep_small_values,
    list_value_buffers,
)
from steptime.measure.backends.native.losses import traceable_losses
from steptime.measure.backends.native.low_type import export_in_low_type
from steptime.measure.backends.native.making import META, without_values
from steptime.measure.backends.native.module import module_of
from steptime.measure.backends.native.obstacles import describe_obstacle
from steptime.measure.backends.native.outputs import tensors_alone
from steptime.measure.backends.native.transformers_models import (
    MAIN_INPUT,
    describe_input_fault,
)


class _ProgramExport(NamedTuple):
    """An exported program.

    Attributes:
        fixed_batch_reason: why its batch is fixed, "" for an open one.
        program: the program.
        is_unrolled: whether the number of its nodes depends on the batch.
        assumptions: values that were assumed while it was traced, in words.
    """

    fixed_batch_reason: str
    program: Any
    is_unrolled: bool
    assumptions: Sequence[str] = ()


def export(
    module: nn.Module,
    inputs: Mapping[str, Spec],
    path: Path,
    about: Mapping[str, Any],
    batch_axis: int | None = None,
) -> str:
    """Write a module as a `.pt2` file, its batch left open where that works.

    Args:
        module: the module; it is left as it is.
        inputs: shape and type by name (or place, where the name is not one of Python's).
        path: the file.
        about: what the file says of the code that it was made from.
        batch_axis: the axis of the first input that is the batch; None to find out.

    Returns:
        Why the batch is fixed, or "".
    """
    if not shapes_of(inputs):
        raise InputError("an input with a batch as its first size is needed")
    network = without_values(module)
    axis = find_batch_axis(network, inputs) if batch_axis is None else batch_axis
    if axis >= len(next(iter(shapes_of(inputs).values()))):
        raise InputError(f"{BATCH_AXIS} {axis}: the first input has fewer axes")
    ASSUMPTIONS.clear()  # those of another module
    program_export = _export_with_assumptions(module, network, inputs, axis)
    program = program_export.program
    drop_checks(program)
    decompose_unknown(program)
    # Tied weights are one tensor under several names: map the later names to the first one.
    name_by_tensor: dict[int, str] = {}
    tied = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        first_name = name_by_tensor.setdefault(id(tensor), name)
        if first_name != name:
            tied[name] = first_name
    facts = {
        **about,
        "inputs": inputs,
        "tied": tied,
        "static": program_export.fixed_batch_reason,
        BATCH_AXIS: axis,
        "checkpoints": checkpoints_of(program),
        "unrolled": program_export.is_unrolled,
        ASSUMED: [
            *getattr(module, "assumptions", ()),
            *program_export.assumptions,
            *ASSUMPTIONS,
        ],
    }
    _save(program, path, {FACTS_FILE: json.dumps(facts)})
    return program_export.fixed_batch_reason


def _export_with_assumptions(
    module: nn.Module, network: nn.Module, inputs: Mapping[str, Spec], axis: int
) -> _ProgramExport:
    """Export with an open batch if possible, and with what has to be assumed for it.

    Where the plain export fails, or leaves sizes to values, small integer tensors keep theirs.

    Args:
        module: the module as it was made.
        network: its copy on the CPU, whose large tensors have no values.
        inputs: shape and type by name.
        axis: that of the batch.

    Raises:
        Exception: that of the plain export, if neither export works.
    """
    # Integer buffers may decide sizes by their values, which a trace does not have. An export with
    # values lets them keep these, and assumes values of small tensors that are made while it runs.
    buffers = list_value_buffers(module)
    try:
        plain_export = _export_with_open_batch(network, inputs, axis)
    except Exception:
        export_with_values = _export_with_values(network, buffers, inputs, axis)
        if export_with_values is None:
            raise
        return export_with_values
    if not _has_value_sizes(plain_export.program):
        return plain_export
    export_with_values = _export_with_values(network, buffers, inputs, axis)
    if export_with_values is None:
        return plain_export
    # Without buffers only assumed values decide sizes: they must settle all of them, and must not
    # be those of inputs, which differ from step to step.
    has_fixed_sizes = not _has_value_sizes(export_with_values.program)
    assumes_inputs = INPUTS_NOTE in export_with_values.assumptions
    if buffers or (has_fixed_sizes and not assumes_inputs):
        return export_with_values
    return plain_export


def _export_with_values(
    network: nn.Module, buffers: Collection[str], inputs: Mapping[str, Spec], axis: int
) -> _ProgramExport | None:
    """Export while small integer tensors keep their values; None if that fails, for any reason."""
    with keep_small_values(network, buffers) as assumptions, contextlib.suppress(Exception):
        export_with_values = _export_with_open_batch(network, inputs, axis)
        return export_with_values._replace(assumptions=assumptions)
    return None


def _has_value_sizes(program: Any) -> bool:
    """Whether values decide a size in an exported program."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return any(free_unbacked_symbols(tensor) for tensor in tensors)


def _export_with_open_batch(
    network: nn.Module, inputs: Mapping[str, Spec], axis: int
) -> _ProgramExport:
    """Export with an open batch, else with a fixed one."""
    batch, axes = batch_axes(inputs, axis)
    wide = _with_batch(inputs, axes, max(2, batch))  # sizes of 0 and 1 are never left open
    try:
        program = _export_with_types(network, wide, axes)
        return _ProgramExport("", program, is_unrolled=False)
    except Exception as error:  # noqa: BLE001  # whatever stands in the way of an open batch
        fixed_batch_reason = describe_obstacle(error)
    program = _export_with_types(network, inputs, {})
    # A loop over the batch is unrolled: then a larger batch has more nodes.
    try:
        larger = _export_network(network, _with_batch(inputs, axes, batch + 1), {})
    except Exception:  # noqa: BLE001  # it runs at this batch alone
        return _ProgramExport(fixed_batch_reason, program, is_unrolled=True)
    is_unrolled = len(larger.graph.nodes) != len(program.graph.nodes)
    return _ProgramExport(fixed_batch_reason, program, is_unrolled)


def _export_with_types(
    network: nn.Module, inputs: Mapping[str, Spec], axes: Mapping[str, int]
) -> Any:
    """Export in float32, or in bfloat16 a module that switches types itself."""

    def export_with_axes(module: nn.Module, specs: Mapping[str, Spec]) -> Any:
        return _export_network(module, specs, axes)

    program = export_with_axes(network, inputs)
    calls = list(CALLS)  # checkpoints of this export; the next export overwrites them
    low_program = export_in_low_type(program, network, inputs, export_with_axes)
    if low_program is program:
        CALLS[:] = calls
    return low_program


def _with_batch(inputs: Mapping[str, Spec], axes: Mapping[str, int], batch: int) -> dict[str, Spec]:
    return {
        name: ((*shape[: axes[name]], batch, *shape[axes[name] + 1 :]), dtype)
        if name in axes
        else (shape, dtype)
        for name, (shape, dtype) in inputs.items()
    }


def _export_network(network: nn.Module, inputs: Mapping[str, Spec], axes: Mapping[str, int]) -> Any:
    """Return the exported program, with an open batch along the axes of inputs."""
    positional, keywords = tensors_of(inputs)
    dim = torch.export.Dim("batch")
    # which axis of each input stays open, nested as the arguments are
    open_axes = {name: {axes[name]: dim} if name in axes else None for name in inputs}
    positional_axes, keyword_axes = nest_arguments(open_axes)
    dynamic: Any = (keyword_axes or tuple(positional_axes)) if axes else None
    CALLS.clear()  # the checkpoints that the module calls are appended
    with (
        warnings.catch_warnings(),
        tensors_alone(network),
        _without_fast_paths(),
        traceable_losses(),
        refused_gradients(),
    ):
        warnings.simplefilter("ignore")
        settings = {"dynamic_shapes": dynamic, "strict": False}
        program = torch.export.export(network, tuple(positional), keywords, **settings)
        if CALLS:
            # Marks of checkpoints survive only under `preserve_node_meta`. As `torch.cond` fails
            # under it, only modules that call checkpoints are exported so.
            with torch.fx.traceback.preserve_node_meta():
                program = torch.export.export(network, tuple(positional), keywords, **settings)
    return _flatten_vmap(program)


def _flatten_vmap(program: Any) -> Any:
    """Trace a program with `torch.vmap` once more: inside of it nodes lack the mapped axis."""
    targets = [getattr(node.target, "__name__", "") for node in program.graph.nodes]
    if "_add_batch_dim" not in targets:
        return program
    return program.run_decompositions({})


@contextlib.contextmanager
def _without_fast_paths() -> Iterator[None]:
    """Export encoders op by op, and their masks without their values.

    The fast path runs an encoder layer as one op, which would hide its products. Encoders also look
    whether a mask is causal, which asks for its values; a mask is taken as it is said to be.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with mock.patch.object(transformer, "_detect_is_causal_mask", _take_stated_causality):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _take_stated_causality(_mask: Any, is_causal: bool | None = None, *_: Any) -> bool:
    """Return whether the caller says that its mask is causal."""
    return is_causal is True


def _save(program: Any, path: Path, extra: dict[str, str]) -> None:
    """Write a program without the values of its weights."""
    for name, tensor in program.state_dict.items():
        empty = tensor.detach().to(META)
        is_weight = isinstance(tensor, nn.Parameter)
        program.state_dict[name] = nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
    program._example_inputs = None  # noqa: SLF001  # they would be written, too
    with replace_on_success(path) as part:
        new = part.with_name(f"{part.name}.pt2")  # torch asks for this ending
        try:
            torch.export.save(program, new, extra_files=extra)
            new.replace(part)
        finally:
            new.unlink(missing_ok=True)


def _lacking_batch(module: nn.Module, inputs: Mapping[str, Spec]) -> str:
    """Return a hint where the network takes its inputs with a batch in front, else ""."""
    shapes = shapes_of(inputs)
    wide = {
        name: ((2, *shape) if name in shapes else shape, dtype)
        for name, (shape, dtype) in inputs.items()
    }
    if runs_with(module, inputs) or not runs_with(module, wide):
        return ""  # a missing batch is not the fault
    return f"its inputs lack a batch, which is their first size: {describe_inputs(wide)}"


def check_arguments(module: nn.Module, inputs: Mapping[str, Spec], place: str) -> None:
    """Raise `InputError` for unknown arguments of `forward`, with a command that has them."""
    missing = missing_arguments(module, inputs)
    if inputs and not missing:  # all arguments are known
        return
    proposals = propose_inputs(module, inputs)  # the likeliest first
    working = [proposal for proposal in proposals if runs_with(module, proposal)]
    best = [*working, *proposals][0]  # empty if the module has no arguments to fill
    hint = f"say it as {place}:x=2x3x64x64"
    if best:
        certainty = "works" if working else "may be near"
        hint = f"this {certainty}: steptime count {place}:{describe_inputs(best)}"
    elif not inputs and hasattr(module, MAIN_INPUT):
        raise InputError(f"{place}: {describe_input_fault(module)}")
    arguments = ", ".join(missing) or "what it is given"
    raise InputError(f"{place}: {arguments} of forward unknown; {hint} (or INPUTS in the class)")


def _answer(request: Mapping[str, Any]) -> JsonObject:
    """Export what a request names: on the meta device first, else on the CPU."""
    source = request["where"]  # a library, or the path of a Python file
    name = request["name"]
    place = f"{source}:{name}"
    about = {key: request[key] for key in ("where", "name", "key")}  # facts, kept in the file
    fault = ""
    for device in (META, "cpu"):  # some modules compute with values while they are made
        module, stated_inputs = module_of(source, name, device, request["inputs"])
        # Inputs that the user states, else those in the code, else those of the last conversion.
        inputs = specs_of(request["inputs"] or stated_inputs or request.get("before") or {})
        check_arguments(module, inputs, place)
        try:
            path, axis = Path(request["path"]), request.get(BATCH_AXIS)
            return {"path": request["path"], "static": export(module, inputs, path, about, axis)}
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        except Exception as error:  # noqa: BLE001  # torch and user code raise anything
            fault = _lacking_batch(module, inputs) or describe_obstacle(error)
    raise InputError(f"{place}: {fault}")


def _limit_cpu(seconds: int) -> None:
    """End this process after so many seconds of CPU time, where the system can do that."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def main() -> None:
    """Answer the request of the standard input; what the code prints goes to standard error."""
    # Standard output is for the answer alone: what user code prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.closing(answers):
        try:
            request = json.load(sys.stdin)
            _limit_cpu(request["cpu_limit_s"])
            mark_checkpoints()
            replace_flex_attention()
            answer = _answer(request)
        except InputError as error:
            answer = {"refused": str(error)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
