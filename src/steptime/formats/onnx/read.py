"""Makes an ONNX file a family of networks: any batch, phase and dtype, and its free sizes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from steptime.core.errors import InputError, shorten
from steptime.formats import Source
from steptime.formats.batch_search import find_batch_axes
from steptime.formats.batches import Batches, find_main_output
from steptime.formats.code import STRICT
from steptime.formats.loss import add_loss, describe_weights, find_trained_outputs
from steptime.formats.onnx.constant import FileConstant
from steptime.formats.onnx.fold import Value, clean_name
from steptime.formats.onnx.input_sizes import hyperparameter_name, read_input_sizes
from steptime.formats.onnx.model import Model, OnnxInput, model_of
from steptime.formats.onnx.ops import OPS
from steptime.formats.onnx.run import OnnxWalk
from steptime.formats.onnx.stored import store_quantised
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder

SOURCE = "an ONNX file"


def read(source: Source, allow_unknown: bool) -> Family:
    """Return the network of an ONNX file, whose inputs' named sizes are hyperparameters."""
    file = _OnnxFile(source, allow_unknown)
    sizes = file.sizes
    # a size or number of 0 is not given
    parameters = {
        **{name: Parameter(0, "a size of an input", minimum=1) for name in sizes.free_parameters},
        **{
            hyperparameter_name(name): Parameter(0, "an input that is one number")
            for name in sizes.number_inputs
        },
        STRICT: Parameter(False, "refuse ops of unknown work"),
    }
    return Family(
        source.name,
        file.build,
        parameters,
        SOURCE,
        batch=sizes.batch,
        is_preset=True,
        check=sizes.describe_missing,
    )


class _OnnxFile:
    """An ONNX file that builds its network.

    Attributes:
        source: the file.
        model: the file as `onnx` reads it.
        sizes: the sizes of its inputs.
        allow_unknown: whether an unknown operator passes its input on.
    """

    def __init__(self, source: Source, allow_unknown: bool) -> None:
        self.source = source
        self.model = model_of(source)
        self.sizes = read_input_sizes(self.model)
        self.allow_unknown = allow_unknown

    def build(self, b: Builder, hyperparameters: Mapping[str, Any], batch: int) -> str:
        """Append the network to a graph and return its main output, the loss in training."""
        file_batch_walk = None
        batches = Batches(self.sizes.batch, batch, self.sizes.is_fixed)
        # shapes of a walk at the batch of the file tell what grows with the batch
        if batches.differs_from_file:
            # the same batches, now with the axes that the search decided on
            file_batch_walk, batches = self._decide_batch_axes(b, hyperparameters, batches)
        walk = self._build_walk(b, hyperparameters, batches, file_batch_walk)
        outputs = _find_outputs(self.model, walk)
        ends = find_trained_outputs(b, outputs) if b.training else outputs
        loss = add_loss(b, ends)
        b.remarks += [
            *store_quantised(walk),
            *batches.describe_constant_products(b),
            *walk.unpriced.describe(b),
        ]
        _remove_unread_weights(b)
        if hyperparameters[STRICT]:
            walk.unpriced.refuse(b, self.model.file_label)
        b.remarks += describe_weights(b, loss)
        return loss

    def _decide_batch_axes(
        self, b: Builder, hyperparameters: Mapping[str, Any], batches: Batches
    ) -> tuple[OnnxWalk, Batches]:
        """Return a walk with the file's own batch, and which constants grow with the new one."""
        memo_key = (
            self.allow_unknown,
            b.precision,
            b.training,
            tuple(sorted(hyperparameters.items())),
        )
        # Compared with a walk at the file's own batch, a walk at the new one shows which axes grow.
        file_batches = Batches(self.sizes.batch, self.sizes.batch, self.sizes.is_fixed)

        def walk_with_new_builder(batches: Batches, file_batch_walk: OnnxWalk | None) -> OnnxWalk:
            new_builder = Builder(b.name, b.precision, training=b.training)
            return self._build_walk(new_builder, hyperparameters, batches, file_batch_walk)

        def walk_file() -> OnnxWalk:
            return walk_with_new_builder(file_batches, file_batch_walk=None)

        file_batch_walk = self.source.memoise(OnnxWalk, walk_file, memo_key)

        def try_batches(candidate: Batches) -> None:  # raises if some op does not fit these axes
            _find_outputs(self.model, walk_with_new_builder(candidate, file_batch_walk))

        decided_batches = find_batch_axes(batches, self.source, memo_key, try_batches)
        return file_batch_walk, decided_batches

    def _build_walk(
        self,
        b: Builder,
        hyperparameters: Mapping[str, Any],
        batches: Batches,
        file_batch_walk: OnnxWalk | None,
    ) -> OnnxWalk:
        """Walk the graph of the file for one batch.

        Args:
            b: the builder of the graph.
            hyperparameters: their values by name.
            batches: the batch of the file and that of the graph.
            file_batch_walk: a walk with the file's own batch, None where that is built.
        """
        size_by_name = self.sizes.bind_size_names(hyperparameters, batches.new_batch)
        walk = OnnxWalk(
            b, self.model, OPS, batches, file_batch_walk, self.allow_unknown, size_by_name
        )
        for graph_input in self.model.graph.inputs:
            value = self._add_input(walk, graph_input, hyperparameters)
            walk.value_by_name[graph_input.name] = value
        walk.lower_graph(self.model.graph)
        return walk

    def _add_input(
        self, walk: OnnxWalk, graph_input: OnnxInput, hyperparameters: Mapping[str, Any]
    ) -> Value:
        """Append an input of the graph; a number that the user gives is a constant instead."""
        name = clean_name(graph_input.name)
        dtype = graph_input.dtype
        is_number = name in self.sizes.number_inputs
        stated_number = hyperparameters[hyperparameter_name(name)] if is_number else 0
        if stated_number:
            array = np.asarray(stated_number, dtype)
            return FileConstant(graph_input.name, (), dtype, array, derived=True)
        batch = walk.batches.new_batch
        shape = self.sizes.shape_of(graph_input.name, hyperparameters, batch)
        return walk.b.input(name, shape, "" if "float" in dtype else dtype)


def _find_outputs(model: Model, walk: OnnxWalk) -> list[str]:
    """Return the tensors of a walk that are outputs of the file and depend on an input.

    Raises:
        InputError: for an output that no node makes, a file without an output that depends on an
            input, and a main output (that most ops lead to) that lost its batch.
    """
    output_name_by_tensor = _index_outputs(model, walk)
    outputs = list(output_name_by_tensor)
    if not outputs:
        raise InputError(f"{model.file_label}: no output depends on an input")
    main_output = find_main_output(walk.b, outputs)
    main_name = output_name_by_tensor[main_output]
    file_shape = walk.file_shape(main_name)
    if file_shape is not None:
        shape = walk.b.shape(main_output)
        fault = walk.batches.describe_output_fault(main_name, file_shape, shape)
        if fault:
            raise walk.make_batch_error(model.file_label, fault, [main_name])
    return outputs


def _index_outputs(model: Model, walk: OnnxWalk) -> dict[str, str]:
    """Return the file's first name of each output that depends on an input, by its tensor."""
    output_name_by_tensor: dict[str, str] = {}
    for output_name in model.graph.outputs:
        if output_name not in walk.value_by_name:
            raise InputError(f"{model.file_label}: no node makes output {shorten(output_name)}")
        value = walk.value_by_name[output_name]
        if isinstance(value, str):  # a tensor, which depends on an input
            output_name_by_tensor.setdefault(value, output_name)
    return output_name_by_tensor


def _remove_unread_weights(b: Builder) -> None:
    tensors_read = {name for op in b.ops for name in op.inputs}
    unread_weights = [name for name in b.weights if name not in tensors_read]
    for name in unread_weights:
        b.weights.remove(name)
        del b.tensors[name]
