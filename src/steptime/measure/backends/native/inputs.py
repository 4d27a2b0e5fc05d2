"""What a module is given: tensors, numbers, and dicts or lists of them, on the CPU.

Inputs are a flat mapping. A name with dots is a place inside of a dict or a list: `batch.ids` is
`ids` of the argument `batch`, `pair.0` the first of the list `pair`.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from steptime.core.json_types import JsonObject
from steptime.formats.code import NUMBER, parse_inputs

VALUE_ERRORS = (GuardOnDataDependentSymNode, DataDependentOutputException)  # a value is read
TIME_FIRST = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
_BATCH = 2  # of a proposal
_LENGTH, _IMAGE, _VOLUME = 16, 64, 16  # sizes of a proposal, where a layer does not say them
_CONVOLUTIONS = ((nn.Conv1d, (256,)), (nn.Conv2d, (_IMAGE,) * 2), (nn.Conv3d, (_VOLUME,) * 3))

Spec = tuple[Any, str]  # the shape and the type of a tensor, or a number and `NUMBER`


def tensors_of(inputs: Mapping[str, Spec]) -> tuple[list[Any], Mapping[str, Any]]:
    """Return arguments of `forward`, those without a name by their place."""
    return nest_arguments({name: _value_of(*spec) for name, spec in inputs.items()})


def _value_of(shape: Any, dtype: str) -> Any:
    return shape if dtype == NUMBER else torch.zeros(tuple(shape), dtype=getattr(torch, dtype))


class _Branch(JsonObject):
    """A place of a tree that has others below it."""


def nest_arguments(values: Mapping[str, Any]) -> tuple[list[Any], Mapping[str, Any]]:
    """Return the arguments that values of flat names are, by place and by name."""
    tree = _Branch()
    for dotted_name, value in values.items():
        *parents, leaf = dotted_name.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, _Branch())
        branch[leaf] = value
    arguments = {name: _as_lists(value) for name, value in tree.items()}
    # A name that is none of Python's ("0") is the place of a positional argument.
    positional = [value for name, value in arguments.items() if not name.isidentifier()]
    keywords = {name: value for name, value in arguments.items() if name.isidentifier()}
    return positional, keywords


def _as_lists(value: Any) -> Any:
    """Return a tree whose dicts with the keys `0`, `1`, ... are lists."""
    if not isinstance(value, _Branch):
        return value
    inner = {key: _as_lists(item) for key, item in value.items()}
    return list(inner.values()) if all(key.isdigit() for key in inner) else inner


def specs_of(inputs: Any) -> dict[str, Spec]:
    """Return the flat mapping of inputs that are tensors, `(shape, type)`, numbers or trees.

    Inputs may also be a text as commands have it (`x=2x512,t=2:int64`), and a value `2x512:int64`.

    Raises:
        InputError: for a text of another form.
    """
    if isinstance(inputs, str):
        return _read_texts(inputs.split(","))
    if isinstance(inputs, Mapping):
        value_by_argument: Mapping[Any, Any] = inputs
    else:  # positional arguments have their numbers as names
        values = [inputs] if isinstance(inputs, Tensor) else inputs
        value_by_argument = dict(enumerate(values))
    specs: dict[str, Spec] = {}
    for argument, value in value_by_argument.items():
        specs.update(_flatten_value(str(argument), value))
    return specs


def _read_texts(texts: list[str]) -> dict[str, Spec]:
    """Return the inputs that texts in the code state, one input each."""
    inputs = parse_inputs(texts, "INPUTS")
    return {name: (spec.value, spec.dtype) for name, spec in inputs.items()}


def _flatten_value(name: str, value: Any) -> Iterator[tuple[str, Spec]]:
    if isinstance(value, str):
        (spec,) = _read_texts([value]).values()
        yield name, spec
    elif isinstance(value, Tensor):
        yield name, (tuple(value.shape), str(value.dtype).removeprefix("torch."))
    elif isinstance(value, int | float):
        yield name, (value, NUMBER)
    elif _is_spec(value):
        shape, dtype = value  # of a number, the number in place of a shape
        yield name, (shape if dtype == NUMBER else tuple(shape), dtype)
    else:
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in inner:
            yield from _flatten_value(f"{name}.{key}", item)


def _is_spec(value: Any) -> bool:
    is_pair = isinstance(value, Sequence) and len(value) == 2
    return is_pair and isinstance(value[1], str) and not isinstance(value[0], str)


def shapes_of(inputs: Mapping[str, Spec]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs that are tensors with an axis."""
    return {
        name: tuple(shape)
        for name, (shape, dtype) in inputs.items()
        if dtype != NUMBER and len(shape) > 0
    }


def batch_axes(inputs: Mapping[str, Spec], axis: int) -> tuple[int, dict[str, int]]:
    """Return the batch, and the axis of each input that is as long.

    The batch is the size of the first input along `axis`. Another input has it along the same axis,
    or along its first.
    """
    shapes = shapes_of(inputs)
    first = next(iter(shapes.values()))
    batch = first[axis]
    axes: dict[str, int] = {}
    for name, shape in shapes.items():
        # The batch lies along the same axis as in the first input, else along the first one.
        for candidate in (axis, 0):
            if candidate < len(shape) and shape[candidate] == batch:
                axes[name] = candidate
                break
    return batch, axes


def find_batch_axis(module: nn.Module, inputs: Mapping[str, Spec]) -> int:
    """Return the axis of the first input that is the batch: 1 where layers take time first.

    A layer with `batch_first=False` has the batch along its axis 1. The module runs on fake tensors
    with another length of axis 1; if that is what the layer sees along its axis 1, it is the batch.
    """
    layers = [
        layer
        for layer in module.modules()
        if isinstance(layer, TIME_FIRST) and not _is_batch_first(layer)
    ]
    shapes = shapes_of(inputs)
    if not layers:  # none takes time first
        return 0
    first_shape = next(iter(shapes.values()))
    if len(first_shape) < 2:  # no other axis
        return 0
    # Run once more with an axis 1 that is longer by one. If the layers, which have the batch along
    # their axis 1, then see another batch, axis 1 of the input is the batch, too.
    batch_or_length = first_shape[1]
    longer_inputs = dict(inputs)
    for name in shapes:
        shape, dtype = inputs[name]
        longer_inputs[name] = (_resize_batch_axis(shape, batch_or_length), dtype)
    layer_batch = _batch_of_layers(module, layers, inputs)
    longer_layer_batch = _batch_of_layers(module, layers, longer_inputs)
    if layer_batch is None or longer_layer_batch is None:  # the layers cannot be run
        return 0
    return 1 if layer_batch != longer_layer_batch else 0


def _resize_batch_axis(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Return a shape with a longer axis 1 where that is the batch of all inputs."""
    return tuple(n + 1 if place == 1 and n == size else n for place, n in enumerate(shape))


def _is_batch_first(layer: nn.Module) -> bool:
    attention = getattr(layer, "self_attn", layer)
    return bool(getattr(attention, "batch_first", True))


def _batch_of_layers(
    module: nn.Module, layers: Sequence[nn.Module], inputs: Mapping[str, Spec]
) -> int | None:
    """Return the size of axis 1 of the first layer's input, None where that cannot be run."""
    sizes: list[int] = []

    def note(_: nn.Module, arguments: Any, keywords: Any) -> None:
        tensors = [item for item in (*arguments, *keywords.values()) if isinstance(item, Tensor)]
        if tensors and tensors[0].dim() == 3:  # [time, batch, features]
            sizes.append(int(tensors[0].shape[1]))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    runs_with(module, inputs)  # what the layers saw before a failure counts, too
    for hook in hooks:
        hook.remove()
    return sizes[0] if sizes else None


def missing_arguments(module: nn.Module, inputs: Mapping[str, Spec]) -> list[str]:
    """Return the arguments of `forward` that have no default and are not among the inputs."""
    roots = list(dict.fromkeys(name.split(".")[0] for name in inputs))  # `batch` of `batch.ids`
    # Inputs with a number as their name ("0") are positional: they fill the first parameters.
    positional_count = sum(not root.isidentifier() for root in roots)
    parameters = [
        item
        for item in inspect.signature(module.forward).parameters.values()
        if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    ]
    return [
        item.name
        for item in parameters[positional_count:]
        if item.default is item.empty and item.name not in roots
    ]


def propose_inputs(module: nn.Module, inputs: Mapping[str, Spec]) -> list[dict[str, Spec]]:
    """Return inputs that a module may take, the likeliest first.

    They have the names of the arguments of `forward`. The first takes the sizes of the first
    layer, all others too, or those of a layer each, or are numbers.
    """
    missing = missing_arguments(module, inputs)
    layer_inputs = [_input_of(layer) for layer in module.modules()]
    layer_specs = [spec for spec in layer_inputs if spec]
    first_spec = layer_specs[0] if layer_specs else ((_BATCH, _LENGTH), "float32")
    # 1. All arguments are like the input of the first layer.
    repeated = dict.fromkeys(missing, first_spec)
    # 2. Each is like the input of one layer in turn.
    specs_in_turn = [*layer_specs, *[first_spec] * len(missing)]
    by_layer = dict(zip(missing, specs_in_turn, strict=False))
    # 3, 4. The first one is a tensor, unless the user states one, and the others are numbers, or
    # time steps.
    tensor = {} if inputs else dict.fromkeys(missing[:1], first_spec)
    numbers: dict[str, Spec] = {**dict.fromkeys(missing, (0.5, NUMBER)), **tensor}
    time_steps: dict[str, Spec] = {**dict.fromkeys(missing, ((_BATCH,), "int64")), **tensor}
    return [{**inputs, **proposal} for proposal in (repeated, by_layer, numbers, time_steps)]


def _input_of(layer: nn.Module) -> Spec | None:
    """Return the input that a layer takes, None for a layer that does not say it."""
    for kind, sizes in _CONVOLUTIONS:
        if isinstance(layer, kind):
            return (_BATCH, layer.in_channels, *sizes), "float32"
    if isinstance(layer, nn.Embedding):
        return (_BATCH, _LENGTH), "int64"
    if isinstance(layer, nn.Linear):
        return (_BATCH, layer.in_features), "float32"
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        width = layer.input_size if isinstance(layer, nn.RNNBase) else layer.embed_dim
        shape = (_BATCH, _LENGTH, width) if layer.batch_first else (_LENGTH, _BATCH, width)
        return shape, "float32"
    return None


def runs_with(
    module: nn.Module,
    inputs: Mapping[str, Spec],
    *,
    as_exported: bool = False,
    opens_sizes: bool = False,
) -> bool:
    """Whether a module takes inputs, tried on fake tensors as in `find_run_fault`."""
    fault = find_run_fault(module, inputs, as_exported=as_exported, opens_sizes=opens_sizes)
    return fault is None


def find_run_fault(
    module: nn.Module,
    inputs: Mapping[str, Spec],
    *,
    as_exported: bool = False,
    opens_sizes: bool = False,
) -> Exception | None:
    """Return the error of a module that does not take inputs, tried on fake tensors, else None.

    Args:
        module: the module.
        inputs: its inputs.
        as_exported: code that asks whether it is exported is told so; some skips a default then.
        opens_sizes: sizes that values decide stay open, as in an export.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    flags = _export_flags() if as_exported else contextlib.nullcontext()
    sizes = ShapeEnv() if opens_sizes else None
    try:
        with FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes), torch.no_grad(), flags:
            positional, keywords = tensors_of(inputs)
            module(*positional, **keywords)
    except Exception as error:  # noqa: BLE001  # a module of a user may raise anything
        return error
    return None


@contextlib.contextmanager
def _export_flags() -> Iterator[None]:
    """Let `torch.compiler.is_exporting()` and `is_compiling()` be true in the block."""
    names = ("_is_exporting_flag", "_is_compiling_flag")  # of is_exporting() and is_compiling()
    before = {name: getattr(torch.compiler, name) for name in names}
    for name in names:
        setattr(torch.compiler, name, True)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(torch.compiler, name, value)


def describe_inputs(inputs: Mapping[str, Spec]) -> str:
    """Return inputs as they are typed behind a colon: `x=2x3x64x64,n=2:int64,scale=0.5`."""
    return ",".join(
        f"{'' if name.isdigit() else name + '='}{_describe_spec(*spec)}"
        for name, spec in inputs.items()
    )


def _describe_spec(shape: Any, dtype: str) -> str:
    if dtype == NUMBER:
        return f"{shape:g}:{NUMBER}"
    sizes = "x".join(map(str, shape)) or "scalar"
    return sizes if dtype == "float32" else f"{sizes}:{dtype}"
