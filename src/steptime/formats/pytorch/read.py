"""A `.pt2` file as a family: any batch, phase and type; sizes that were left open as parameters."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.formats import READ_ERRORS, Source, describe_error
from steptime.formats.batch_search import find_batch_axes
from steptime.formats.batches import Batches, find_main_output
from steptime.formats.code import STRICT, read_export_facts
from steptime.formats.loss import add_loss, describe_weights, find_trained_outputs
from steptime.formats.pytorch.aten import ATEN
from steptime.formats.pytorch.program import Program, document_of, program_of, ties_of
from steptime.formats.pytorch.symbols import SymbolError, symbol_of, symbols_of
from steptime.formats.pytorch.views import PUTS, VIEWS
from steptime.formats.pytorch.walk import Walk
from steptime.formats.tensors import is_float
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder

SOURCE = "torch.export"
_AXES = {2: ("", "length"), 3: ("", "length", "width"), 4: ("", "channels", "height", "width")}


def identity(source: Source) -> bytes:
    """Return what says the network: ops, arguments and shapes, not weights or places in code."""
    document = document_of(source)
    try:
        module = document["graph_module"]
        for node in module["graph"]["nodes"]:
            stack = node["metadata"].get("nn_module_stack")
            node["metadata"] = {"nn_module_stack": stack}
        says = [module["graph"], module["signature"], document["range_constraints"]]
        ties = ties_of(source)
        if ties:
            says.append(ties)
        if checkpoints := read_export_facts(source).get("checkpoints"):
            says.append(checkpoints)
        return json.dumps(says).encode()
    except READ_ERRORS:
        return bytes(source.content[:])  # what it lacks is told when it is read


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of a file that `torch.export.save` wrote; no PyTorch is loaded."""
    place = shorten(source.name)[1:-1]
    try:
        about = read_export_facts(source)
        is_unrolled = bool(about.get("unrolled"))
        fixed_reason = str(about.get("static", ""))
        program = program_of(document_of(source), ties_of(source), about)
        batch_symbol, own_batch = _batch(program)
        names = _free_sizes(program, batch_symbol)
    except InputError as error:
        known = str(error).startswith("model ")
        raise InputError(str(error) if known else f"{place}: {error}") from None
    except READ_ERRORS as error:
        raise InputError(f"{place}: not what torch.export writes: {_line(error)}") from None
    parameters = {
        name: Parameter(program.hints.get(symbol, 1), f"size {symbol} of the file")
        for symbol, name in names.items()
    }
    parameters[STRICT] = Parameter(False, "refuse ops of unknown work")
    parameters["dropout"] = Parameter(False, "dropout in training, where the export has none")

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        bound = {symbol: p[name] for symbol, name in names.items()}
        if batch_symbol:
            bound[batch_symbol] = batch
        _check_ranges(program, bound, names, place)
        if is_unrolled and batch != own_batch:
            hint = "give that one with its code: FILE.py:NAME:x=8x16"
            raise InputError(f"{place}: its ops depend on the batch, {own_batch}; {hint}")

        def walk(b: Builder, batches: Batches) -> str:
            return _ended(
                Walk(
                    program,
                    b,
                    ATEN,
                    VIEWS,
                    PUTS,
                    bound,
                    place,
                    batches,
                    p["dropout"],
                ),
                p[STRICT],
            )

        b.remarks += [f"{place}: {program.doubt}"] if program.doubt else []
        if fixed_reason and batch != own_batch:
            sizes = f"exported for batches {own_batch} and {own_batch + 1}"
            b.remarks.append(f"{place}: {sizes}, since its batch is not open: {fixed_reason}")
        b.remarks += [f"{place}: {remark}" for remark in program.remarks]
        key = (b.precision, b.training, tuple(sorted(p.items())))
        try:
            batches = find_batch_axes(
                Batches(batch if batch_symbol else own_batch, batch),
                source,
                key,
                lambda one: walk(Builder(b.name, b.precision, training=b.training), one),
            )
            last = walk(b, batches)
        except InputError:
            raise
        except READ_ERRORS as error:
            raise InputError(f"{place}: {_line(error)}") from None
        b.remarks += batches.describe_constant_products(b)
        return last

    return Family(source.name, build, parameters, SOURCE, batch=own_batch, is_preset=True)


def _line(error: Exception) -> str:
    more = ", which is not there" if isinstance(error, KeyError) else ""
    return f"{describe_error(error)}{more}"


def _ended(walk: Walk, is_strict: bool) -> str:
    """Return the end of the walk's graph: its main output, in training its loss.

    Raises:
        InputError: if it is strict and the graph has an op of unknown work.
    """
    outputs = [*dict.fromkeys(walk.run())]
    b = walk.b
    floats = [name for name in outputs if is_float(b, name)]
    if not outputs or (b.training and not floats):
        raise ValueError("gives no tensor of floating numbers")
    output = find_main_output(b, floats or outputs)
    if walk.batches.differ:
        name = next(name for name in walk.program.outputs if walk.env.get(name) == output)
        fault = walk.batches.describe_output_fault(name, walk.told(name), b.shape(output))
        if fault:
            raise walk.batch_error(walk.place, fault, [name])
    ends = find_trained_outputs(b, floats) if b.training else [output, *outputs]
    loss = add_loss(b, ends)
    b.remarks += describe_weights(b, loss)
    if is_strict:
        walk.unpriced.refuse(b, walk.place)
    b.remarks += walk.unpriced.describe(b)
    return loss


def _batch(program: Program) -> tuple[str, int]:
    """Return the symbol of the batch, "" where it is a number, and the batch of the export."""
    firsts = [program.specs[name].sizes[0] for name in program.inputs if program.specs[name].sizes]
    if not firsts:
        return "", 1
    for first in firsts:
        if symbol := symbol_of(first):
            return symbol, program.hints.get(symbol, 1)
    open_sizes = sorted({symbol for *_, symbol in _open(program)})
    if len(open_sizes) == 1:
        return open_sizes[0], program.hints.get(open_sizes[0], 1)
    first = firsts[0]
    if isinstance(first, int):
        return "", first
    raise SymbolError("the first size of its input is not one number")


def _open(program: Program) -> Iterator[tuple[str, int, int, str]]:
    """Return the symbols in sizes of inputs, each behind the input, its axes and which it is."""
    for name in program.inputs:
        sizes = program.specs[name].sizes
        for axis, size in enumerate(sizes):
            for symbol in () if isinstance(size, int) else symbols_of(size):
                yield name, len(sizes), axis, symbol


def _free_sizes(program: Program, batch: str) -> dict[str, str]:
    """Return names for the symbols of inputs beside the batch: `length`, `height`, `ids_1`."""
    found: dict[str, str] = {}
    for name, axes, axis, symbol in _open(program):
        plain = _AXES.get(axes, ("",) * axes)[axis]
        if symbol != batch and symbol not in found:
            taken = not plain or plain in found.values()
            found[symbol] = re.sub(r"\W", "_", f"{name}_{axis}") if taken else plain
    return found


def _check_ranges(
    program: Program, bound: Mapping[str, int], names: Mapping[str, str], place: str
) -> None:
    for symbol, value in bound.items():
        least, most = program.ranges.get(symbol, (0, None))
        what = names.get(symbol, "batch")
        if (most is not None and value > most) or (value < least and least > 2):
            limits = f"at least {least}" if most is None else f"{least} to {most}"
            raise InputError(f"{place}: {what} {value}; it was exported for {limits}")
