"""From what a family describes to hyperparameters that a network has: activations, patterns."""

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
    result = {**settings}
    is_gated, is_clamped = result.pop("gated", False), result.pop("clamped", False)
    activation = resolve_activation(result["activation"], is_gated, config.place)
    result["activation"] = f"clamped_{activation}" if is_clamped else activation
    layer_types = config.table.get("layer_types")
    if layer_types and "layer_types" in config.read_fields and "designs" not in result:
        result["windows"] = windows_of(layer_types, config.place)
    check_layers(result, config.place)
    return result


def resolve_settings(base: Family, settings: Settings, place: str) -> Settings:
    """Return every hyperparameter of a network, and the designs of its blocks where these differ.

    Raises:
        InputError: for sizes that do not fit, in the network or in one of its blocks.
    """
    objects = (*DESIGN_FIELDS, STEM_FIELD)
    usual = {key: value for key, value in settings.items() if key not in objects}
    fixed: Settings = resolve(base, usual, place)
    fixed |= {name: settings[name] for name in (STEM_FIELD,) if name in settings}
    designs: tuple[BlockDesign, ...] = settings.get("designs", ())
    if not designs:
        return fixed
    if len(designs) != fixed["layers"]:
        raise InputError(f"{place}: {len(designs)} blocks are described, not {fixed['layers']}")
    fields = {name: settings[name] for name in DESIGN_FIELDS if name in settings}
    distinct = {design for group in fields.values() for design in group}
    resolved = {design: _resolve_design(base, usual, fixed, design, place) for design in distinct}
    return fixed | {
        name: tuple(resolved[design] for design in group) for name, group in fields.items()
    }


def _resolve_design(
    base: Family, settings: Settings, fixed: Settings, design: BlockDesign, place: str
) -> BlockDesign:
    """Return a design whose changes are all hyperparameters that differ from the network's."""
    block = resolve(base, settings | dict(design.changes), place)
    changes = [(name, value) for name, value in block.items() if value != fixed[name]]
    return replace(design, changes=tuple(sorted(changes)))


def check_layers(settings: Mapping[str, object], place: str) -> None:
    """Refuse a network of more layers than any model has, those of its stages summed."""
    for key, value in settings.items():
        if not key.endswith(("layers", "depths")):
            continue
        numbers = re.findall(r"\d+", str(value))
        layers = sum(map(float, numbers))
        if layers > MAX_LAYERS:
            raise InputError(f"{place}: {layers:.0f} layers, at most {MAX_LAYERS}")


def resolve_activation(name: str, is_gated: bool, place: str) -> str:
    """Return the activation of a feed-forward part by its name in transformers."""
    activations = {
        spelling: activation
        for spelling, activation in ACTIVATIONS.items()
        if not is_gated or activation in GATED
    }
    if name not in activations:
        raise unknown("activation", name, activations, place)
    return GATED[activations[name]] if is_gated else activations[name]


def windows_of(names: Sequence[object], place: str) -> str:
    """Return a pattern of blocks from the kinds that `layer_types` lists."""
    letters = []
    for name in names:
        if not isinstance(name, str) or name not in LAYER_LETTERS:
            raise unknown("layer type", name, LAYER_LETTERS, place)
        letters.append(LAYER_LETTERS[name])
    return "".join(letters)
