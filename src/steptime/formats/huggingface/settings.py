"""From the settings of a model type to hyperparameters: activations, patterns of windows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from steptime.core.errors import InputError, unknown
from steptime.formats.huggingface.config import Config, Settings
from steptime.network.families.family import Family, resolve
from steptime.network.layers.designs import BlockDesign

DESIGN_FIELDS = ("designs", "ahead_designs")  # of all blocks, and of those that predict ahead
STEM_FIELD = "stem_design"
MAX_LAYERS = 2000  # of a file: some seconds, and a few hundred megabytes
LAYER_LETTERS = {
    "sliding_attention": "w",
    "full_attention": "a",
    "linear_attention": "l",
    "chunked_attention": "w",
}
GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}
ACTIVATIONS = {  # by their names in transformers
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "quick_gelu": "quick_gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
    "gelu_python": "gelu",
    "relu2": "relu2",
    "xielu": "xielu",
}


def finish_settings(config: Config, settings: Settings) -> Settings:
    """Return the hyperparameters of a family with an activation and a pattern of windows.

    Raises:
        InputError: for an unknown activation or kind of layer, or too many layers.
    """
    hyperparameters = {**settings}
    is_gated = hyperparameters.pop("gated", False)
    is_clamped = hyperparameters.pop("clamped", False)
    activation = resolve_activation(hyperparameters["activation"], is_gated, config.place)
    hyperparameters["activation"] = f"clamped_{activation}" if is_clamped else activation
    layer_types = config.table.get("layer_types")
    # a family that reads `layer_types` has windows; one with designs has put them there already
    family_has_windows = "layer_types" in config.read_fields and "designs" not in hyperparameters
    if layer_types and family_has_windows:
        hyperparameters["windows"] = window_letters_of(layer_types, config.place)
    check_layers(hyperparameters, config.place)
    return hyperparameters


def resolve_settings(base: Family, settings: Settings, place: str) -> Settings:
    """Return every hyperparameter of a network, and the designs of its blocks where these differ.

    Raises:
        InputError: for sizes that do not fit, in the network or in one of its blocks.
    """
    # designs and stems are objects: `resolve` reads and checks plain values alone
    object_fields = (*DESIGN_FIELDS, STEM_FIELD)
    plain_settings = {key: value for key, value in settings.items() if key not in object_fields}
    network: Settings = resolve(base, plain_settings, place)
    if STEM_FIELD in settings:
        network[STEM_FIELD] = settings[STEM_FIELD]
    designs: tuple[BlockDesign, ...] = settings.get("designs", ())
    if not designs:
        return network
    if len(designs) != network["layers"]:
        raise InputError(f"{place}: {len(designs)} blocks are described, not {network['layers']}")
    # blocks of one design, as most are, are resolved once
    designs_by_field = {name: settings[name] for name in DESIGN_FIELDS if name in settings}
    distinct_designs = {design for designs in designs_by_field.values() for design in designs}
    resolved_by_design = {
        design: _resolve_design(base, plain_settings, network, design, place)
        for design in distinct_designs
    }
    for name, field_designs in designs_by_field.items():
        network[name] = tuple(resolved_by_design[design] for design in field_designs)
    return network


def _resolve_design(
    base: Family, settings: Settings, network: Settings, design: BlockDesign, place: str
) -> BlockDesign:
    """Return a design whose changes are all hyperparameters that differ from the network's."""
    block = resolve(base, settings | dict(design.changes), place)
    changes = [(name, value) for name, value in block.items() if value != network[name]]
    return replace(design, changes=tuple(sorted(changes)))


def check_layers(settings: Mapping[str, object], place: str) -> None:
    """Refuse a network of more layers than any model has, those of its stages summed."""
    for key, value in settings.items():
        counts_layers = key.endswith(("layers", "depths"))
        if not counts_layers:
            continue
        stage_layers = re.findall(r"\d+", str(value))  # of "2-2-6-2", or of 12
        layers = sum(map(float, stage_layers))
        if layers > MAX_LAYERS:
            raise InputError(f"{place}: {layers:.0f} layers, at most {MAX_LAYERS}")


def resolve_activation(name: str, is_gated: bool, place: str) -> str:
    """Return the activation of a feed-forward part by its name in transformers."""
    activation_by_name = {
        spelling: activation
        for spelling, activation in ACTIVATIONS.items()
        if not is_gated or activation in GATED
    }
    if name not in activation_by_name:
        raise unknown("activation", name, activation_by_name, place)
    activation = activation_by_name[name]
    return GATED[activation] if is_gated else activation


def window_letters_of(names: Sequence[object], place: str) -> str:
    """Return a pattern of blocks from the kinds that `layer_types` lists."""
    letters = []
    for name in names:
        if not isinstance(name, str) or name not in LAYER_LETTERS:
            raise unknown("layer type", name, LAYER_LETTERS, place)
        letters.append(LAYER_LETTERS[name])
    return "".join(letters)
