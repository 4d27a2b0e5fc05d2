"""Models of diffusers: as code, by their class, with no weights and no download."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from steptime.core.errors import unknown
from steptime.measure.backends.native.inputs import Spec, runs_with
from steptime.measure.backends.native.making import make_module, without_values

CLASS_FIELD = "_class_name"
BATCH = 2
TEXT_TOKENS = 77  # of CLIP, which conditions most
SAMPLE_SIZE = 32  # of an image in latent space, where a configuration says none
FRAMES = 5
TEXT_WIDTH = 768


def make_diffusers(
    library: Any, name: str, device: str, inputs: Mapping[str, Any] | None
) -> tuple[nn.Module, dict[str, Spec]]:
    """Return a model of diffusers and the inputs that it takes.

    Args:
        library: the module `diffusers`.
        name: a class, or the path of a component's `config.json`.
        device: where parameters lie.
        inputs: inputs that the user gave; None for those that the model is known to take.

    Raises:
        InputError: for an unknown name, and a model that the library does not make.
    """
    place = f"diffusers:{name}"
    table = json.loads(Path(name).read_text(encoding="utf-8")) if name.endswith(".json") else {}
    class_name = str(table.get(CLASS_FIELD, name))
    model_class = getattr(library, class_name, None)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        class_names = [key for key in dir(library) if key.endswith(("Model", "Transformer"))]
        raise unknown("class of diffusers", class_name, class_names, place)
    factory: Any = model_class  # `nn.Module` declares no `from_config`
    model = make_module(lambda: factory.from_config(table).eval(), device, place)
    return model, dict(inputs) if inputs else find_inputs(model)


def find_inputs(model: Any) -> dict[str, Spec]:
    """Return the first of the usual inputs with which a model runs, {} for none."""
    config = dict(model.config)
    network = without_values(model)  # all of it lies on the CPU
    # Axes of space (and time): images, then videos. Their features lie in a grid or as tokens.
    for axes in (2, 3):
        for has_tokens in (False, True):
            inputs = _propose_inputs(model, config, axes, has_tokens)
            if runs_with(network, inputs):
                return inputs
    return {}


def _propose_inputs(
    model: nn.Module, config: Mapping[str, Any], axes: int, has_tokens: bool
) -> dict[str, Spec]:
    """Return inputs for the arguments of a model that have no default, or condition it."""
    channels = config.get("in_channels") or 4
    size = config.get("sample_size") or SAMPLE_SIZE
    side = size if isinstance(size, int) else size[0]
    is_video = axes == 3
    frames = (FRAMES,) if is_video else ()
    width = _find_text_width(config)
    # Transformers read an image as a sequence of tokens, and take the time as a float.
    token_shape = (BATCH, SAMPLE_SIZE**2, channels)
    grid_shape = (BATCH, channels, *frames, side, side)
    sample: Spec = (token_shape if has_tokens else grid_shape), "float32"
    pooled = config.get("pooled_projection_dim") or TEXT_WIDTH
    specs: dict[str, Spec] = {
        "sample": sample,
        "x": sample,
        "hidden_states": sample,
        "timestep": ((BATCH,), "float32" if has_tokens else "int64"),
        "encoder_hidden_states": ((BATCH, TEXT_TOKENS, width), "float32"),
        "encoder_attention_mask": ((BATCH, TEXT_TOKENS), "float32"),
        "pooled_projections": ((BATCH, pooled), "float32"),
        "class_labels": ((BATCH,), "int64"),
        "img_ids": ((SAMPLE_SIZE**2, 3), "float32"),
        "txt_ids": ((TEXT_TOKENS, 3), "float32"),
        "guidance": ((BATCH,), "float32"),
    }
    parameters = inspect.signature(model.forward).parameters.values()
    # Given wherever `forward` names them, although they have a default.
    optional = ("timestep", "encoder_hidden_states", "pooled_projections", "img_ids", "txt_ids")
    argument_names = [item.name for item in parameters if item.default is item.empty]
    argument_names += [item.name for item in parameters if item.name in optional]
    if config.get("num_class_embeds") or config.get("num_embeds_ada_norm"):
        argument_names.append("class_labels")
    if config.get("guidance_embeds"):
        argument_names.append("guidance")
    return {name: specs[name] for name in dict.fromkeys(argument_names) if name in specs}


def _find_text_width(config: Mapping[str, Any]) -> int:
    """Return the width of the text that conditions a model."""
    names = ("joint_attention_dim", "cross_attention_dim", "caption_channels", "text_embed_dim")
    for name in names:
        value = config.get(name)
        if isinstance(value, int):
            return value
        if isinstance(value, list | tuple) and value:  # a width a block; the first stands for all
            return int(value[0])
    return TEXT_WIDTH
