"""A `.pt2` file as a family: any batch, phase and type; sizes that were left open as parameters."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from steptime.core.errors import InputError, shorten
from steptime.formats import READ_ERRORS, Source, describe_error
from steptime.formats.batch_search import find_batch_axes
from steptime.formats.batches import Batches, find_main_output
from steptime.formats.code import STRICT, read_export_facts
from steptime.formats.loss import (
    add_loss,
    describe_idle_gradients,
    describe_weights,
    find_trained_outputs,
)
from steptime.formats.pytorch.aten import ATEN
from steptime.formats.pytorch.document import read_document, read_program, read_ties
from steptime.formats.pytorch.program import NO_LIMITS, Program
from steptime.formats.pytorch.symbols import SymbolError, symbol_of, symbols_of
from steptime.formats.pytorch.unread import describe_unread
from steptime.formats.pytorch.value_sizes import (
    describe_value_sizes,
    estimate_value_sizes,
    find_value_symbols,
)
from steptime.formats.pytorch.views import VIEWS
from steptime.formats.pytorch.walk import Walk
from steptime.formats.pytorch.writes import WRITES
from steptime.formats.tensors import is_float
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder

SOURCE = "torch.export"
DROPOUT = "dropout"
SMALLEST_CHECKED = 2  # torch states at least 2 where a size is not 0 or 1; 1 works, too
_AXIS_NAMES = {  # of sizes that the file leaves open, by the number of axes
    2: ("", "length"),
    3: ("", "length", "width"),
    4: ("", "channels", "height", "width"),
}


class ExportedBatch(NamedTuple):
    """The symbol of the batch, "" where it is a number, and its value at export."""

    symbol: str
    size: int


class OpenSize(NamedTuple):
    """A symbol in the shape of an input."""

    input_name: str
    rank: int
    axis: int
    symbol: str


def identity(source: Source) -> bytes:
    """Return the bytes that say the network: ops, arguments, shapes; no weights or code lines."""
    document = read_document(source)
    try:
        module = document["graph_module"]
        for node in module["graph"]["nodes"]:
            module_stack = node["metadata"].get("nn_module_stack")
            # the rest of the metadata, such as lines of code, changes without the network
            node["metadata"] = {"nn_module_stack": module_stack}
        deciding_values = [module["graph"], module["signature"], document["range_constraints"]]
        ties = read_ties(source)
        if ties:
            deciding_values.append(ties)
        checkpoints = read_export_facts(source).get("checkpoints")
        if checkpoints:
            deciding_values.append(checkpoints)
        return json.dumps(deciding_values).encode()
    except READ_ERRORS:
        return bytes(source.content[:])  # what is wrong with the file is said when it is read


class ProgramFile:
    """An exported program, with what a family needs to build its graph at any batch."""

    def __init__(self, source: Source) -> None:
        """Read the program; raises `InputError` for a file that holds none."""
        self.source = source
        self.file_label = shorten(source.name)[1:-1]  # without quotes
        try:
            facts = read_export_facts(source)
            # a loop over the batch was unrolled at export: another batch would have other nodes
            self.depends_on_batch = bool(facts.get("unrolled"))
            # why the export could not leave the batch open; "" if it could
            self.fixed_batch_reason = str(facts.get("static", ""))
            self.program = read_program(read_document(source), read_ties(source), facts)
            self.batch_symbol, self.file_batch = _find_batch(self.program)
            self.name_by_symbol = _name_open_sizes(self.program, self.batch_symbol)
            self.value_symbols = find_value_symbols(self.program)
        except InputError as error:
            # an error of opening the file names it already
            names_file = str(error).startswith("model ")
            message = str(error) if names_file else f"{self.file_label}: {error}"
            raise InputError(message) from None
        except READ_ERRORS as error:
            fault = _describe_fault(error)
            raise InputError(f"{self.file_label}: not what torch.export writes: {fault}") from None

    def list_parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the family: open sizes, sizes of values, choices."""
        parameters = {
            name: Parameter(self.program.export_values.get(symbol, 1), f"size {symbol} of the file")
            for symbol, name in self.name_by_symbol.items()
        }
        for symbol in self.value_symbols:
            description = f"size {symbol} of the file, which values decide; 0 for the largest"
            parameters[symbol] = Parameter(0, description)
        parameters[STRICT] = Parameter(False, "refuse ops of unknown work")
        parameters[DROPOUT] = Parameter(False, "dropout in training, where the export has none")
        return parameters

    def build(self, b: Builder, parameters: Mapping[str, Any], batch: int) -> str:
        """Build the graph for a batch; return its end. Raises `InputError`."""
        value_by_symbol = self._bind_open_sizes(parameters, batch)
        self._check_batch(batch)
        b.remarks += self._list_remarks(batch)
        b.remarks += self._bind_value_sizes(value_by_symbol, parameters)

        def try_batches(batches: Batches) -> str:
            trial_builder = Builder(b.name, b.precision, training=b.training)
            return self._build_graph(trial_builder, batches, value_by_symbol, parameters)

        has_open_batch = bool(self.batch_symbol)
        # with an open batch the file's shapes are those of the new batch
        batches = Batches(batch if has_open_batch else self.file_batch, batch)
        memo_key = (b.precision, b.training, tuple(sorted(parameters.items())))
        try:
            batches = find_batch_axes(batches, self.source, memo_key, try_batches)
            end = self._build_graph(b, batches, value_by_symbol, parameters)
        except InputError:
            raise
        except READ_ERRORS as error:
            raise InputError(f"{self.file_label}: {_describe_fault(error)}") from None
        b.remarks += batches.describe_constant_products(b)
        return end

    def _build_graph(
        self,
        b: Builder,
        batches: Batches,
        value_by_symbol: Mapping[str, int],
        parameters: Mapping[str, Any],
    ) -> str:
        """Build the graph for a choice of batch axes, with all symbols bound; return its end."""
        walk = Walk(
            program=self.program,
            b=b,
            handler_by_op=ATEN,
            view_handlers=VIEWS,
            base_rebuilders=WRITES,
            value_by_symbol=value_by_symbol,
            file_label=self.file_label,
            batches=batches,
            activates_dropout=parameters[DROPOUT],
        )
        return _finish_graph(walk, parameters[STRICT])

    def _bind_open_sizes(self, parameters: Mapping[str, Any], batch: int) -> dict[str, int]:
        """Return the values of the batch and of open sizes of inputs, by their symbols."""
        value_by_symbol = {symbol: parameters[name] for symbol, name in self.name_by_symbol.items()}
        if self.batch_symbol:
            value_by_symbol[self.batch_symbol] = batch
        self._check_ranges(value_by_symbol)
        return value_by_symbol

    def _check_batch(self, batch: int) -> None:
        """Raise `InputError` for another batch than the file's if its ops depend on the batch."""
        if self.depends_on_batch and batch != self.file_batch:
            hint = "give that one with its code: FILE.py:NAME:x=8x16"
            raise InputError(
                f"{self.file_label}: its ops depend on the batch, {self.file_batch}; {hint}"
            )

    def _list_remarks(self, batch: int) -> list[str]:
        """List what the file leaves open, as remarks of a graph for a batch."""
        remarks = [self.program.tie_doubt] if self.program.tie_doubt else []
        is_other_batch = batch != self.file_batch
        if self.fixed_batch_reason and is_other_batch:
            sizes = f"exported for batches {self.file_batch} and {self.file_batch + 1}"
            reason = f"since its batch is not open: {self.fixed_batch_reason}"
            remarks.append(f"{sizes}, {reason}")
        remarks += self.program.remarks
        return [f"{self.file_label}: {remark}" for remark in remarks]

    def _bind_value_sizes(
        self, value_by_symbol: dict[str, int], parameters: Mapping[str, Any]
    ) -> list[str]:
        """Bind the sizes that values decide: as stated, else as limited; return remarks.

        Raises:
            InputError: if nothing limits a size that is not stated.
        """
        for symbol in self.value_symbols:
            stated_size = parameters[symbol]
            # 0: not stated
            if stated_size:
                value_by_symbol[symbol] = stated_size
        counted_sizes = estimate_value_sizes(self.program, value_by_symbol)
        value_by_symbol |= {symbol: size.value for symbol, size in counted_sizes.items()}
        for symbol in self.value_symbols:
            if symbol not in value_by_symbol:
                hint = f"state it in the exported file: FILE.pt2:{symbol}=100"
                raise InputError(f"{self.file_label}: size {symbol} depends on values; {hint}")
        return [f"{self.file_label}: {remark}" for remark in describe_value_sizes(counted_sizes)]

    def _check_ranges(self, value_by_symbol: Mapping[str, int]) -> None:
        """Raise `InputError` for a size outside of the range that the file was exported for."""
        for symbol, value in value_by_symbol.items():
            lowest, highest = self.program.symbol_limits.get(symbol, NO_LIMITS)
            # torch states a minimum of 2 for any open size, which excludes no 1
            is_too_small = value < lowest and lowest > SMALLEST_CHECKED
            is_too_large = highest is not None and value > highest
            if is_too_small or is_too_large:
                name = self.name_by_symbol.get(symbol, "batch")
                limits = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
                raise InputError(f"{self.file_label}: {name} {value}; it was exported for {limits}")


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of a file that `torch.export.save` wrote; no PyTorch is loaded."""
    file = ProgramFile(source)
    parameters = file.list_parameters()
    return Family(
        source.name, file.build, parameters, SOURCE, batch=file.file_batch, is_preset=True
    )


def _describe_fault(error: Exception) -> str:
    """Return an exception of the reader as one line."""
    addition = ", which is not there" if isinstance(error, KeyError) else ""
    return f"{describe_error(error)}{addition}"


def _finish_graph(walk: Walk, is_strict: bool) -> str:
    """Build a walk's graph and return its end: the main output, in training the loss.

    Raises:
        InputError: if it is strict and the graph has an op of unknown work.
    """
    outputs = list(dict.fromkeys(walk.run()))
    b = walk.b
    float_outputs = [name for name in outputs if is_float(b, name)]
    cannot_be_trained = b.training and not float_outputs
    if not outputs or cannot_be_trained:
        raise ValueError("gives no tensor of floating numbers")
    main_output = find_main_output(b, float_outputs or outputs)
    if walk.batches.differs_from_file:
        _check_output_batch(walk, main_output)
    # without a loss the first of them becomes the output
    ends = find_trained_outputs(b, float_outputs) if b.training else [main_output, *outputs]
    loss = add_loss(b, ends, walk.list_unread_ends())
    b.remarks += describe_unread(b, (loss, *ends))
    b.remarks += describe_weights(b, loss)
    b.remarks += describe_idle_gradients(b, loss)
    if is_strict:
        walk.unpriced.refuse(b, walk.file_label)
    b.remarks += walk.unpriced.describe(b)
    return loss


def _check_output_batch(walk: Walk, output: str) -> None:
    """Raise `FixedBatchError` if the output has not as many examples as the new batch."""
    output_name = next(
        name for name in walk.program.outputs if walk.value_by_name.get(name) == output
    )
    file_shape = walk.file_shape(output_name)
    fault = walk.batches.describe_output_fault(output_name, file_shape, walk.b.shape(output))
    if fault:
        raise walk.make_batch_error(walk.file_label, fault, [output_name])


def _find_batch(program: Program) -> ExportedBatch:
    """Return the batch of a program: the first size of an input, or the only open size."""
    specs = [program.specs[name] for name in program.inputs]
    first_sizes = [spec.sizes[0] for spec in specs if spec.sizes]
    if not first_sizes:
        return ExportedBatch(symbol="", size=1)
    first_symbols = [symbol for symbol in map(symbol_of, first_sizes) if symbol]
    open_symbols = sorted({open_size.symbol for open_size in _list_open_sizes(program)})
    if first_symbols:
        batch_symbol = first_symbols[0]
    elif len(open_symbols) == 1:
        batch_symbol = open_symbols[0]  # the batch need not be the first axis
    else:
        batch_symbol = ""
    if batch_symbol:
        return ExportedBatch(batch_symbol, program.export_values.get(batch_symbol, 1))
    if isinstance(first_sizes[0], int):
        return ExportedBatch(symbol="", size=first_sizes[0])
    raise SymbolError("the first size of its input is not one number")


def _list_open_sizes(program: Program) -> Iterator[OpenSize]:
    """Yield the symbols in the shapes of inputs."""
    for name in program.inputs:
        sizes = program.specs[name].sizes
        for axis, size in enumerate(sizes):
            symbols = () if isinstance(size, int) else symbols_of(size)
            for symbol in symbols:
                yield OpenSize(name, len(sizes), axis, symbol)


def _name_open_sizes(program: Program, batch_symbol: str) -> dict[str, str]:
    """Name the symbols of inputs other than the batch: `length`, `height`, else `ids_1`."""
    name_by_symbol: dict[str, str] = {}
    for open_size in _list_open_sizes(program):
        has_name = open_size.symbol in {batch_symbol, *name_by_symbol}
        if has_name:
            continue
        # the axes of an image or a sequence have usual names: `height`, `length`
        axis_names = _AXIS_NAMES.get(open_size.rank, ("",) * open_size.rank)
        name = axis_names[open_size.axis]
        is_repeated = name in name_by_symbol.values()
        if not name or is_repeated:
            name = re.sub(r"\W", "_", f"{open_size.input_name}_{open_size.axis}")
        name_by_symbol[open_size.symbol] = name
    return name_by_symbol
