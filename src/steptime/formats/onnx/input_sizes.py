"""The sizes of an ONNX file's inputs: its batch, those that it fixes, and free ones."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steptime.formats.onnx.fold import clean_name
from steptime.formats.onnx.model import Model, OnnxInput

BATCH = ""  # stands for the batch among sizes and names of hyperparameters
_BATCH_NAME = re.compile(r"batch|n|bs|b", re.IGNORECASE)
# names of the batch of further inputs, once the first has one: exporters number them
_FURTHER_BATCH_NAME = re.compile(r"\w*batch\w*|n|bs|b|unk_*\d+|dim_*\d*|\W*", re.IGNORECASE)


@dataclass(frozen=True)
class InputSizes:
    """The sizes of a file's inputs.

    Attributes:
        shape_by_input: the sizes of each input: a number, `BATCH`, or the hyperparameter of a free
            size.
        batch: the batch of the file, 1 where it is left open.
        is_fixed: whether the file fixes its batch.
        free_parameters: the hyperparameters of free sizes.
        number_inputs: inputs that are one integer, which a user may give.
        parameter_by_name: by the name that the file gives a size, its hyperparameter or `BATCH`.
    """

    shape_by_input: Mapping[str, tuple[int | str, ...]]
    batch: int
    is_fixed: bool
    free_parameters: tuple[str, ...]
    number_inputs: tuple[str, ...]
    parameter_by_name: Mapping[str, str]

    def bind_size_names(self, hyperparameters: Mapping[str, Any], batch: int) -> dict[str, int]:
        """Return each size that the file names.

        Args:
            hyperparameters: their values by name.
            batch: the batch that is built.
        """
        size_by_name: dict[str, int] = {}
        for name, parameter in self.parameter_by_name.items():
            is_batch = parameter == BATCH
            size_by_name[name] = batch if is_batch else hyperparameters[parameter]
        return size_by_name

    def shape_of(
        self, name: str, hyperparameters: Mapping[str, Any], batch: int
    ) -> tuple[int, ...]:
        """Return the shape of an input for hyperparameters and a batch."""
        shape: list[int] = []
        for size in self.shape_by_input[name]:
            if isinstance(size, int):
                shape.append(size)
            else:
                shape.append(batch if size == BATCH else hyperparameters[size])
        return tuple(shape)

    def describe_missing(self, hyperparameters: Mapping[str, Any]) -> str | None:
        """Return an error message if a free size is not given, else None."""
        missing_names = [name for name in self.free_parameters if not hyperparameters[name]]
        if not missing_names:
            return None
        example = ",".join(f"{name}=128" for name in missing_names)
        return f"give the sizes of its inputs, FILE:{example}"


def hyperparameter_name(name: str) -> str:
    """Return a name of the file as it can stand on a command line."""
    return re.sub(r"\W+", "_", name).strip("_") or "size"


def read_input_sizes(model: Model) -> InputSizes:
    """Return the sizes of a file's inputs; its batch is the first size, or has a name of a batch.

    Further inputs have the batch where they name it the same, or first under another usual name.
    """
    inputs = model.graph.inputs
    batch = _find_batch(inputs)
    sizes = _OpenSizes(batch, _find_batch_names(inputs, batch))
    shape_by_input = {graph_input.name: sizes.read_shape(graph_input) for graph_input in inputs}
    return InputSizes(
        shape_by_input=shape_by_input,
        batch=batch if isinstance(batch, int) else 1,
        is_fixed=isinstance(batch, int),
        free_parameters=tuple(sizes.free_parameters),
        number_inputs=_find_number_inputs(inputs),
        parameter_by_name=sizes.parameter_by_name,
    )


@dataclass
class _OpenSizes:
    """The sizes that a file leaves open, noted while the shapes of its inputs are read.

    Attributes:
        batch: the file's batch, a number or the name of an open size.
        batch_names: the names of an open batch.
        free_parameters: the hyperparameters of free sizes so far, as a set in the file's order.
        parameter_by_name: as in `InputSizes`.
    """

    batch: int | str
    batch_names: Collection[str]
    free_parameters: dict[str, None] = field(default_factory=dict)
    parameter_by_name: dict[str, str] = field(default_factory=dict)

    def read_shape(self, graph_input: OnnxInput) -> tuple[int | str, ...]:
        """Return the sizes of an input: numbers, `BATCH`, or names of hyperparameters."""
        shape: list[int | str] = []
        for axis, size in enumerate(graph_input.sizes):
            if _is_batch(size, axis, self.batch, self.batch_names):
                self.parameter_by_name[str(size)] = BATCH
                shape.append(BATCH)
            elif isinstance(size, int):
                shape.append(size)
            else:
                name = size if _is_size_name(size) else f"{graph_input.name}_{axis}"
                parameter = _free_size_name(name)
                self.free_parameters[parameter] = None
                self.parameter_by_name.setdefault(size, parameter)
                shape.append(parameter)
        return tuple(shape)


def _is_batch(size: int | str, axis: int, batch: int | str, batch_names: Collection[str]) -> bool:
    """Return whether a size is the batch: the first one that equals it, or one of its names.

    An open size without a name is the batch on the first axis alone.
    """
    is_first_axis = axis == 0
    if is_first_axis and size == batch:
        return True
    return size in batch_names and (is_first_axis or _is_size_name(size))


def _is_size_name(size: int | str) -> bool:
    """Return whether an open size has a name; "?" is none."""
    return isinstance(size, str) and bool(re.search(r"\w", size))


def _find_batch(inputs: Sequence[OnnxInput]) -> int | str:
    """Return the batch, a number or the file's name of it: 1 if no input has a size."""
    shapes = [graph_input.sizes for graph_input in inputs if graph_input.sizes]
    if not shapes:
        return 1
    first_size, *further_sizes = shapes[0]
    if isinstance(first_size, str):
        return first_size
    # a size with the name of a batch, on whatever axis, wins over a first size that is a number
    size_names = [size for size in further_sizes if isinstance(size, str)]
    batch_names = [name for name in size_names if _BATCH_NAME.match(name)]
    return batch_names[0] if batch_names else first_size


def _find_batch_names(inputs: Sequence[OnnxInput], batch: int | str) -> set[str]:
    """Return the names of an open batch: its own, and usual names of inputs' first sizes."""
    if isinstance(batch, int):
        return set()
    first_sizes = [graph_input.sizes[0] for graph_input in inputs if graph_input.sizes]
    size_names = [size for size in first_sizes if isinstance(size, str)]
    usual_names = {name for name in size_names if _FURTHER_BATCH_NAME.fullmatch(name)}
    return usual_names | {batch}


def _find_number_inputs(inputs: Sequence[OnnxInput]) -> tuple[str, ...]:
    """Return the inputs that are one integer."""
    return tuple(
        clean_name(graph_input.name)
        for graph_input in inputs
        if not graph_input.sizes and graph_input.dtype.startswith("int")
    )


def _free_size_name(name: str) -> str:
    """Return the hyperparameter of a free size; `batch` is taken by every network."""
    parameter = hyperparameter_name(name)
    return "size_batch" if parameter == "batch" else parameter
