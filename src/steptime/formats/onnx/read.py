"""Makes an ONNX file a family of networks: any batch, phase and dtype, and its free sizes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.core.errors import InputError, shorten
from steptime.formats import Source
from steptime.formats.batch_search import find_batch_axes
from steptime.formats.batches import Batches, find_main_output
from steptime.formats.code import STRICT
from steptime.formats.loss import add_loss, describe_weights, find_trained_outputs
from steptime.formats.onnx.fold import cleaned
from steptime.formats.onnx.model import Model, Static, model_of
from steptime.formats.onnx.ops import OPS
from steptime.formats.onnx.run import Visit
from steptime.formats.onnx.stored import store
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder

SOURCE = "an ONNX file"
_BATCH = re.compile(r"batch|n|bs|b", re.IGNORECASE)
_BATCH_TOO = re.compile(
    r"\w*batch\w*|n|bs|b|unk_*\d+|dim_*\d*|\W*", re.IGNORECASE
)  # of other inputs


@dataclass(frozen=True)
class Sizes:
    """The sizes of a file's inputs: `shapes` has a number, "" for the batch, or a free name.

    `batch` is that of the file, 1 where it is left open, not `fixed`. `names` are the sizes that
    the file names -> "" for the batch, or the free name.
    """

    shapes: Mapping[str, tuple[int | str, ...]]
    batch: int
    fixed: bool
    free: tuple[str, ...]
    numbers: tuple[str, ...]
    names: Mapping[str, str]

    def by_name(self, values: Mapping[str, Any], batch: int) -> dict[str, int]:
        """Return the number of each size that the file names."""
        return {name: values[word] if word else batch for name, word in self.names.items()}

    def missing(self, values: Mapping[str, Any]) -> str | None:
        """Return what is wrong with hyperparameters: a size of an input that is not given."""
        names = [name for name in self.free if not values[name]]
        given = ",".join(f"{name}=128" for name in names)
        return f"give the sizes of its inputs, FILE:{given}" if names else None


def _output_tensors(model: Any, run: Visit) -> list[str]:
    """Return the tensors of a walk that are outputs of the file; most ops lead to the first.

    Raises `InputError` for an output that no node makes, a file without an output that depends on
    an input, and a main output that lost its batch.
    """
    outputs: dict[str, str] = {}
    for name in model.graph.outputs:
        if name not in run.env:
            raise InputError(f"{model.place}: output {shorten(name)} is made by nothing")
        if isinstance(run.env[name], str):
            outputs.setdefault(str(run.env[name]), name)
    if not outputs:
        raise InputError(f"{model.place}: no output depends on an input")
    main = find_main_output(run.b, [*outputs])
    own_shape = run.file_shape(outputs[main])
    if own_shape is not None:
        fault = run.batches.describe_output_fault(outputs[main], own_shape, run.b.shape(main))
        if fault:
            raise run.batch_error(model.place, fault, [outputs[main]])
    return [*outputs]


def read(source: Source, allow_unknown: bool) -> Family:
    """Return the network of an ONNX file, whose inputs' named sizes are hyperparameters."""
    model = model_of(source)
    sizes = _sizes(model)

    def walk(
        b: Builder, values: Mapping[str, Any], batches: Batches, before: Visit | None
    ) -> Visit:
        sizes_by_name = sizes.by_name(values, batches.new_batch)
        run = Visit(b, model, OPS, batches, before, allow_unknown, sizes_by_name)
        for one in model.graph.inputs:
            name = cleaned(one.name)
            if name in sizes.numbers and values[_word(name)]:
                number = np.asarray(values[_word(name)], one.dtype)
                run.env[one.name] = Static(one.name, (), one.dtype, number, derived=True)
                continue
            shape = [
                n if isinstance(n, int) else values[n] if n else batches.new_batch
                for n in sizes.shapes[one.name]
            ]
            run.env[one.name] = b.input(
                name, tuple(shape), "" if "float" in one.dtype else one.dtype
            )
        run.walk(model.graph)
        return run

    def build(b: Builder, values: Mapping[str, Any], batch: int) -> str:
        before, batches = None, Batches(sizes.batch, batch, sizes.fixed)
        if batches.differ:  # what the file says of its own batch is followed

            def apart() -> Builder:
                return Builder(b.name, b.precision, training=b.training)

            key = (allow_unknown, b.precision, b.training, tuple(sorted(values.items())))
            own = Batches(sizes.batch, sizes.batch, sizes.fixed)
            before = source.memoise(Visit, lambda: walk(apart(), values, own, None), key)
            batches = find_batch_axes(
                batches,
                source,
                key,
                lambda one: _output_tensors(model, walk(apart(), values, one, before)),
            )
        run = walk(b, values, batches, before)
        outputs = _output_tensors(model, run)
        last = add_loss(b, find_trained_outputs(b, outputs) if b.training else outputs)
        b.remarks += [
            *store(run),
            *batches.describe_constant_products(b),
            *run.unpriced.describe(b),
        ]
        _leave_out_unread_weights(b)
        if values[STRICT]:
            run.unpriced.refuse(b, model.place)
        b.remarks += describe_weights(b, last)
        return last

    parameters = {
        **{name: Parameter(0, "a size of an input", minimum=1) for name in sizes.free},
        **{_word(name): Parameter(0, "an input that is one number") for name in sizes.numbers},
        STRICT: Parameter(False, "refuse ops of unknown work"),
    }
    return Family(
        source.name, build, parameters, SOURCE, sizes.batch, is_preset=True, check=sizes.missing
    )


def _word(name: str) -> str:
    """Return a name as it can stand on a command line."""
    return re.sub(r"\W+", "_", name).strip("_") or "size"


def _sizes(model: Model) -> Sizes:
    """Return which sizes of inputs are the batch, the first or one named so, and which are free."""
    inputs = model.graph.inputs
    first = next((one for one in inputs if one.sizes), None)
    batch: int | str = first.sizes[0] if first else 1
    for size in first.sizes if first else ():
        if isinstance(size, str) and _BATCH.match(size) and not isinstance(batch, str):
            batch = size
    firsts = [one.sizes[0] for one in inputs if one.sizes]
    open_batch = isinstance(batch, str)
    names = {n for n in firsts if isinstance(n, str) and _BATCH_TOO.fullmatch(n) and open_batch}
    names |= {batch} if isinstance(batch, str) else set()
    shapes: dict[str, tuple[int | str, ...]] = {}
    free: dict[str, None] = {}
    words: dict[str, str] = {}
    for one in inputs:
        shape: list[int | str] = []
        for i, size in enumerate(one.sizes):
            is_name = isinstance(size, str) and bool(re.search(r"\w", size))  # "?" is none
            if (size == batch and i == 0) or (size in names and (i == 0 or is_name)):
                shape.append("")
                words[str(size)] = ""
            elif isinstance(size, int):
                shape.append(size)
            else:
                word = _word(size if is_name else f"{one.name}_{i}")
                word = "size_batch" if word == "batch" else word
                free[word] = None
                shape.append(word)
                words.setdefault(str(size), word)
        shapes[one.name] = tuple(shape)
    numbers = tuple(
        cleaned(one.name) for one in inputs if not one.sizes and one.dtype.startswith("int")
    )
    own = 1 if open_batch else int(batch)
    return Sizes(shapes, own, not open_batch, tuple(free), numbers, words)


def _leave_out_unread_weights(b: Builder) -> None:
    read = {name for op in b.ops for name in op.inputs}
    for name in [name for name in b.weights if name not in read]:
        b.weights.remove(name)
        del b.tensors[name]
