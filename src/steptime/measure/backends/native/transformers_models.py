"""Models of transformers: as code, by their class, with no weights and no download."""

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from steptime.core.errors import InputError, unknown
from steptime.measure.backends.native.inputs import (
    VALUE_ERRORS,
    Spec,
    describe_inputs,
    find_run_fault,
    missing_arguments,
    runs_with,
)
from steptime.measure.backends.native.known_values import keep_small_values, list_value_buffers
from steptime.measure.backends.native.making import (
    META,
    make_module,
    without_values,
)
from steptime.measure.backends.native.model_inputs import (
    IMAGE_INPUT,
    MASK_ENDING,
    TOKEN_INPUT,
    TOKENS,
    complete_inputs,
    list_layer_widths,
    list_rare_image_specs,
    list_signal_specs,
    propose_model_inputs,
)
from steptime.measure.backends.native.obstacles import describe_obstacle
from steptime.measure.backends.native.packed_model import propose_packed_models

BATCH = 2
MAX_CPU_PARAMETERS = 500_000_000  # of a model that is made with values, since it reads some
MAX_VALUE_FAULTS = 3  # inputs that are tried of a model that reads values
TYPE_FIELD = "model_type"
PLACEHOLDER_FIELD = "_backends"  # of a class that stands for one whose libraries are missing
MAIN_INPUT = "main_input_name"  # attribute of a model that names its first input
BASE_MAPPINGS = (  # tables of classes by type, where a file names no class
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
)
ATTENTIONS = ("sdpa", "eager")  # of transformers; the first that a class has
EXPERTS = "batched_mm"  # products of the chosen experts, which an export can follow


def make_transformers(
    library: Any, name: str, device: str, inputs: Mapping[str, Any] | None
) -> tuple[nn.Module, dict[str, Spec]]:
    """Return a model of transformers and the inputs that it takes.

    Args:
        library: the module `transformers`.
        name: a class, a `model_type` of which the default configuration is taken, or the path of
            a `config.json`.
        device: where parameters lie.
        inputs: inputs that the user gave; None for those that the model is known to take.

    Raises:
        InputError: for an unknown name, and a model that the library does not make.
    """
    place = f"transformers:{name}"
    config, class_name = _find_config(library, name)
    model_class = find_class(library, class_name, place)
    config = model_class.config_class() if config is None else config
    prepare_config(config)
    model = make_module(lambda: make_model(model_class, config), device, place)
    if inputs:
        return find_form(model, config, inputs), dict(inputs)
    # A model that takes the patches of all images in one row comes back in a wrapper.
    network, usual_inputs = find_inputs(model, config)
    is_small = sum(weight.numel() for weight in model.parameters()) <= MAX_CPU_PARAMETERS
    can_have_values = device == META and is_small
    if usual_inputs or not can_have_values:
        return network, usual_inputs
    # Some models find no inputs without the values of their buffers: try once more with them.
    model = make_module(lambda: make_model(model_class, config), "cpu", place)
    return find_inputs(model, config)


def _find_config(library: Any, name: str) -> tuple[Any, str]:
    """Return the configuration that a name stands for, None for a class, and the class's name."""
    if name.endswith(".json"):
        table = json.loads(Path(name).read_text(encoding="utf-8"))
        kind = table.get(TYPE_FIELD)
        if kind not in library.CONFIG_MAPPING:
            raise unknown(TYPE_FIELD, kind, list(library.CONFIG_MAPPING.keys()), name)
        # Quantized weights need kernels of other libraries: the model is made without.
        config = library.CONFIG_MAPPING[kind].from_dict(
            {key: value for key, value in table.items() if key != "quantization_config"}
        )
        classes = table.get("architectures") or [find_class_name(library, kind)]
        return config, str(classes[0])
    if name in library.CONFIG_MAPPING:
        return library.CONFIG_MAPPING[name](), find_class_name(library, name)
    return None, name  # a class, which has a configuration of its own


def find_class_name(library: Any, kind: str) -> str:
    """Return the class of a `model_type` without a head, else of the first head that it has.

    Raises:
        InputError: for a type without a class.
    """
    tables = library.models.auto.modeling_auto
    for mapping in BASE_MAPPINGS:
        classes = getattr(tables, mapping, {}).get(kind)
        if classes:
            return str(classes if isinstance(classes, str) else classes[0])
    raise InputError(f"transformers:{kind}: transformers has no class of this {TYPE_FIELD}")


def find_class(library: Any, name: str, place: str) -> Any:
    """Return a class of models.

    Raises:
        InputError: for another name, and a class that needs a library which is not installed.
    """
    model_class: Any = getattr(library, name, None)
    is_module = isinstance(model_class, type) and issubclass(model_class, nn.Module)
    if is_module and model_class.config_class:
        return model_class
    missing_libraries = getattr(model_class, PLACEHOLDER_FIELD, [])
    if missing_libraries:
        raise InputError(f"{place}: {name} needs {' and '.join(missing_libraries)}, not installed")
    class_names = [key for key in dir(library) if key.endswith(("Model", "LM", "Generation"))]
    raise unknown("class or model_type of transformers", name, class_names, place)


def prepare_config(config: Any) -> None:
    """Let a configuration and those in it compute without a cache, in the first of its languages.

    A model with an adapter for each language runs in none unless it is told which.
    """
    # A configuration may hold others (of a vision tower, say), which have `to_dict` as it has.
    parts = [config, *(part for part in vars(config).values() if hasattr(part, "to_dict"))]
    for part in parts:
        if hasattr(part, "use_cache"):
            part.use_cache = False
        if hasattr(part, "use_mambapy"):
            part.use_mambapy = False
        # a multilingual model runs only once one of its languages is chosen
        languages = getattr(part, "languages", None)
        lacks_language = hasattr(part, "default_language") and part.default_language is None
        if languages and lacks_language:
            part.default_language = languages[0]


def make_model(model_class: Any, config: Any) -> nn.Module:
    """Return a model without values, its attention the first of `ATTENTIONS` that it has."""
    fault: Exception | None = None
    for attention in ATTENTIONS:
        try:
            model: nn.Module = model_class._from_config(  # noqa: SLF001  # no public one
                config, attn_implementation=attention
            )
        except (ValueError, ImportError) as error:  # a class without this attention
            fault = error
            continue
        set_experts = getattr(model, "set_experts_implementation", None)
        if set_experts is not None:
            _try_experts(set_experts)
        return model.eval()
    raise fault or InputError(f"{model_class.__name__} has none of {', '.join(ATTENTIONS)}")


def _try_experts(set_experts: Any) -> None:
    """Let experts multiply by one batched product, where the model has such experts."""
    try:
        set_experts(EXPERTS)
    except (ValueError, KeyError, NotImplementedError):
        return


def find_form(model: nn.Module, config: Any, inputs: Mapping[str, Any]) -> nn.Module:
    """Return the form of a model that takes inputs: itself, or one that makes the grids of images.

    Args:
        model: the model.
        config: its configuration.
        inputs: the inputs that the user gave.
    """
    # A packed model takes the patches of all images in one row; its wrapper makes the grids of
    # images, which are not among the user's inputs then.
    packed_models = propose_packed_models(model, _main_input_of(model), config, BATCH)
    for packed_model, packed_inputs in packed_models:
        takes_inputs = inputs.keys() == packed_inputs.keys()
        if takes_inputs and runs_with(without_values(packed_model), inputs):
            return packed_model
    return model


def find_inputs(model: nn.Module, config: Any) -> tuple[nn.Module, dict[str, Spec]]:
    """Return a form of a model and the first of the usual inputs with which it runs, {} for none.

    Inputs with which it runs as it is exported come first, then those with which it runs if its
    small integer buffers keep their values.
    """
    packed_models = propose_packed_models(model, _main_input_of(model), config, BATCH)
    for packed_model, packed_inputs in packed_models:
        if runs_with(without_values(packed_model), packed_inputs, as_exported=True):
            return packed_model, packed_inputs
    network = without_values(model)  # all of it lies on the CPU
    # First as it is exported, then as it runs.
    inputs = _find_running_inputs(network, config, as_exported=True)
    inputs = inputs or _find_running_inputs(network, config, as_exported=False)
    if inputs:
        return model, inputs
    # Last, with values in small integer buffers, by which some models decide their sizes.
    with keep_small_values(network, list_value_buffers(model)):
        return model, _find_running_inputs(network, config, as_exported=True, opens_sizes=True)


def _find_running_inputs(
    network: nn.Module, config: Any, *, as_exported: bool, opens_sizes: bool = False
) -> dict[str, Spec]:
    """Return the first of the usual inputs with which a network runs, {} for none.

    Where shapes do not fit in the same way twice, with other inputs beside the same main input,
    it is the main input that does not fit, and no more is tried beside it. Where values are read
    that no input has here, other inputs rarely help: no more are tried after some.
    """
    main = _main_input_of(network)
    faults_by_spec: dict[Spec | None, set[str]] = {}
    unfit_specs: set[Spec | None] = set()  # of the main input, whatever the other inputs are
    value_fault_count = 0
    for inputs in _inputs_of(network, config):
        spec = inputs.get(main)
        if spec in unfit_specs:
            continue
        fault = find_run_fault(network, inputs, as_exported=as_exported, opens_sizes=opens_sizes)
        if fault is None:
            return inputs
        if isinstance(fault, VALUE_ERRORS):
            value_fault_count += 1
            if value_fault_count == MAX_VALUE_FAULTS:
                return {}
        faults = faults_by_spec.setdefault(spec, set())
        # Where shapes do not fit in the same way with two sets of other inputs, the main input is
        # the one that does not fit.
        is_of_shapes = type(fault) is RuntimeError  # a missing argument is a TypeError
        if is_of_shapes and str(fault) in faults:
            unfit_specs.add(spec)
        faults.add(str(fault))
    return {}


def describe_input_fault(model: nn.Module) -> str:
    """Describe why a model of transformers runs with none of the usual inputs.

    Example: `runs with none of the usual inputs; with input_ids=2x128:int64: TypeError: no k`.
    """
    proposals = list(_inputs_of(model, model.config))
    # That an argument is missing says less than what is wrong with all of them.
    complete = (inputs for inputs in proposals if not missing_arguments(model, inputs))
    inputs = next(complete, proposals[0])
    # Sizes that values decide stay open, as in an export: some do no harm.
    fault = find_run_fault(without_values(model), inputs, opens_sizes=True)
    reason = describe_obstacle(fault) if fault is not None else "it runs, and is not exported"
    return f"runs with none of the usual inputs; with {describe_inputs(inputs)}: {reason}"


def _main_input_of(model: nn.Module) -> str:
    """Return the name of a model's main input.

    A class may inherit the name from one around it, whose argument it does not take itself: then
    the main input is the first argument that it requires.
    """
    name = getattr(model, MAIN_INPUT, TOKEN_INPUT)
    main = str(name[0] if isinstance(name, list | tuple) else name)  # the first of several
    if main in inspect.signature(model.forward).parameters:
        return main
    required_names = missing_arguments(model, {})
    return next((name for name in required_names if not name.endswith(MASK_ENDING)), main)


def _inputs_of(model: nn.Module, config: Any) -> Iterator[dict[str, Spec]]:
    """Yield inputs that a model may take, the likeliest first."""
    main = _main_input_of(model)
    arguments = [*inspect.signature(model.forward).parameters]
    proposals = list(propose_model_inputs(main, config, BATCH, arguments))
    for proposal in proposals:
        has_required_arguments = not missing_arguments(model, proposal)
        if has_required_arguments:
            yield proposal
    # All proposals, as some signatures require arguments that need not be there.
    yield from proposals
    widths = list_layer_widths(model)

    def complete(proposal: Mapping[str, Spec]) -> Iterator[dict[str, Spec]]:
        lacking = missing_arguments(model, proposal)
        return complete_inputs(proposal, lacking, config, BATCH, widths)

    for proposal in proposals:  # with guesses for the missing arguments
        yield from complete(proposal)
    if main == IMAGE_INPUT:
        for image in list_rare_image_specs(config, BATCH):
            yield {main: image}
    if main != TOKEN_INPUT:
        for width in widths:
            proposal = {main: ((BATCH, TOKENS, width), "float32")}
            yield proposal
            yield from complete(proposal)
        for signal in list_signal_specs(model, BATCH):
            yield {main: signal}
