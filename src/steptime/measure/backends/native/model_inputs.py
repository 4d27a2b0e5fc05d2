"""The usual inputs of models of transformers, by the name of their main input."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from torch import nn

from steptime.measure.backends.native.inputs import Spec

TOKEN_INPUT = "input_ids"  # the main input of a model that names none
IMAGE_INPUT = "pixel_values"
TOKENS = 128  # of a sequence
TARGET_TOKENS = 64  # that a decoder beside an encoder reads
FLAT_PATCHES = 256  # of an image that is given as a sequence of them
IMAGE_SIZES = (224, 256, 384, 512, 1024)  # tried where a configuration says none
LARGE_IMAGE = 1536  # of a model that cuts an image into several of the size that it says
SAMPLES = 16_000  # of a second of sound
FRAMES = (3000, 1024, 512, 128)  # of features of sound
CHANNELS = 3
IMAGES_OF_PAIR = 2
VIDEO_FRAMES = 16
MEL_BINS = 80
DEFAULT_WIDTH = 768
MAX_LACKING, MAX_GUESSES = 2, 8  # arguments, and shapes that are tried of them
HIDDEN_INPUTS = ("latents", "audio_mel", "state")  # as wide as the model
HIDDEN_ENDINGS = ("embeds", "hidden_states")  # ... and so are inputs whose names end so
PATCH = 16  # pixels along a side of a patch, where a configuration says none
SOUND_INPUTS = ("input_features", "input_values")
MAX_LAYER_WIDTHS = 4  # of layers that are tried as those of features
LENGTH_ENDINGS = ("_seq_len", "_seq_length", "_length")  # of settings of tokens of an argument
MASK_ENDING = "mask"  # of the name of an argument
BOX = 4  # numbers that say a box
PARTS = (
    "",
    "vision_config",
    "encoder",
    "text_config",
    "audio_config",
    "backbone_config",
    "decoder",
)


def find_setting(config: Any, *names: str) -> Any:
    """Return the first setting of these names, of a configuration or of one in it; else None."""
    for part in PARTS:  # "" is the configuration itself
        table = config if not part else getattr(config, part, None)
        for name in names:
            value = getattr(table, name, None)
            if value is not None and not callable(value):
                return value
    return None


def propose_model_inputs(
    main: str, config: Any, batch: int, arguments: Collection[str] = ()
) -> Iterator[dict[str, Spec]]:
    """Yield inputs that a model may take, the likeliest first.

    Args:
        main: the name of the main input, `main_input_name` of the class.
        config: the configuration.
        batch: the size of the first axis.
        arguments: the names of all that the model takes.
    """
    additions = [{}, *_additions(config, batch)]
    for spec in _main_specs(main, config, batch):
        for addition in additions:
            yield {main: spec, **addition}
    # Models of several inputs: token IDs with the main input, or the main input with an image.
    if main != TOKEN_INPUT:
        words = _tokens(config, batch)
        for spec in _main_specs(main, config, batch):
            yield {TOKEN_INPUT: words, main: spec}
            yield {TOKEN_INPUT: words, main: spec, **_decoder_tokens(batch)}
    # What it sees or hears beside its main input, where it has such an argument.
    for name in (IMAGE_INPUT, *(name for name in SOUND_INPUTS if name in arguments)):
        for spec in _main_specs(name, config, batch):
            yield {main: next(_main_specs(main, config, batch)), name: spec}


def list_layer_widths(model: nn.Module) -> list[int]:
    """Return the first widths that linear layers of a model take, each once."""
    layers = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    return list(islice(dict.fromkeys(layer.in_features for layer in layers), MAX_LAYER_WIDTHS))


def list_rare_image_specs(config: Any, batch: int) -> list[Spec]:
    """Return images that few models take: two views that are matched, and one that is cut."""
    channels = _image_channels(config)
    pair = (batch, IMAGES_OF_PAIR, channels, *_image_sizes(config)[0])
    large_image = (batch, channels, LARGE_IMAGE, LARGE_IMAGE)
    return [(shape, "float32") for shape in (pair, large_image)]


def list_signal_specs(model: nn.Module, batch: int) -> list[Spec]:
    """Return signals in time with as many channels as the first layer, as coders of sound take."""
    layers = (layer for layer in model.modules() if isinstance(layer, nn.Conv1d))
    first_layers = islice(layers, 1)
    return [((batch, layer.in_channels, SAMPLES), "float32") for layer in first_layers]


def complete_inputs(
    proposal: Mapping[str, Spec],
    names: Sequence[str],
    config: Any,
    batch: int,
    widths: Sequence[int] = (),
) -> Iterator[dict[str, Spec]]:
    """Yield a proposal with inputs of further names, each of the shapes that its name tells.

    Args:
        proposal: inputs by name.
        names: arguments that lack, of which more than `MAX_LACKING` are not guessed.
        config: the configuration.
        batch: the size of the first axis.
        widths: those that the model's layers take, tried for features whose width no setting says.
    """
    if not 0 < len(names) <= MAX_LACKING:  # none is missing, or too many to guess
        return
    main_spec = next(iter(proposal.values()))
    choices_by_name = []
    for name in names:
        if name.endswith(MASK_ENDING):
            specs = list(_mask_specs(main_spec))
        else:
            specs = list(_main_specs(name, config, batch))
            if _is_hidden(name):
                specs += [((batch, TOKENS, width), "float32") for width in widths]
        choices_by_name.append(list(dict.fromkeys(specs)))
    for guesses in islice(product(*choices_by_name), MAX_GUESSES):
        yield {**proposal, **dict(zip(names, guesses, strict=True))}


def _is_hidden(name: str) -> bool:
    """Whether an input of this name holds features inside of a model, as wide as its layers."""
    return name in HIDDEN_INPUTS or name.endswith(HIDDEN_ENDINGS)


def _mask_specs(main_spec: Spec) -> Iterator[Spec]:
    """Yield masks of a main input: for each example, a value for each place of one of its axes."""
    (batch, *sizes), _ = main_spec
    for dtype in ("int64", "bool"):
        for size in dict.fromkeys(sizes):
            yield (batch, size), dtype


def _tokens(config: Any, batch: int) -> Spec:
    limit = find_setting(config, "max_position_embeddings", "n_positions")
    is_limit = isinstance(limit, int) and limit > 0
    return (batch, min(TOKENS, limit) if is_limit else TOKENS), "int64"


def _decoder_tokens(batch: int) -> dict[str, Spec]:
    return {"decoder_input_ids": ((batch, TARGET_TOKENS), "int64")}


def _additions(config: Any, batch: int) -> Iterator[dict[str, Spec]]:
    """Yield inputs that models take beside the main one."""
    # inputs that some models need beside the main one: of a decoder, layouts, speech, forecasts
    tokens = _tokens(config, batch)
    yield _decoder_tokens(batch)
    yield {"attention_mask": tokens}
    token_shape, _dtype = tokens
    yield {"bbox": ((*token_shape, BOX), "int64")}
    yield {"decoder_input_values": ((batch, TARGET_TOKENS, MEL_BINS), "float32")}
    yield {"attention_mask": tokens, **_decoder_tokens(batch)}
    yield from _trajectories(config, batch)
    length = find_setting(config, "context_length", "prediction_length")
    if isinstance(length, int):
        # A forecast reads `length` values, and earlier ones as far back as the longest lag.
        lags = find_setting(config, "lags_sequence") or [0]
        times = length + max(lags) if isinstance(lags, list) else length
        features = find_setting(config, "num_time_features") or 1
        future = find_setting(config, "prediction_length") or length
        yield {
            "past_time_features": ((batch, times, features), "float32"),
            "past_observed_mask": ((batch, times), "bool"),
            "future_values": ((batch, future), "float32"),
            "future_time_features": ((batch, future, features), "float32"),
        }
        yield {"past_observed_mask": ((batch, times), "bool")}


def _trajectories(config: Any, batch: int) -> Iterator[dict[str, Spec]]:
    """Yield actions, returns and times of a model of decisions, if the configuration is of one."""
    action_width = find_setting(config, "act_dim")
    if isinstance(action_width, int):
        yield {
            "actions": ((batch, TOKENS, action_width), "float32"),
            "returns_to_go": ((batch, TOKENS, 1), "float32"),
            "timesteps": ((batch, TOKENS), "int64"),
        }


def _main_specs(main: str, config: Any, batch: int) -> Iterator[Spec]:
    """Yield shapes and types of a main input, the likeliest first."""
    if main in (IMAGE_INPUT, "inputs"):
        yield from _image_specs(config, batch)
    elif main == "pixel_values_videos":
        for size in _image_sizes(config):
            frames = find_setting(config, "num_frames", "frames_per_clip") or VIDEO_FRAMES
            yield (batch, frames, CHANNELS, *size), "float32"
    elif main in ("input_features", "spectrogram"):
        yield from _feature_specs(config, batch)
    elif main in ("input_values", "audio_values"):
        yield (batch, SAMPLES), "float32"
        yield (batch, 1, SAMPLES), "float32"
        yield from _feature_specs(config, batch)
        yield (batch, TOKENS), "int64"
    elif main == "states":
        width = find_setting(config, "state_dim") or DEFAULT_WIDTH
        yield (batch, TOKENS, width), "float32"
    elif main == "past_values":
        yield from _series_specs(config, batch)
    elif main == "flattened_patches":  # each with its row and its column in front
        yield (
            (batch, TOKENS, 2 + CHANNELS * (find_setting(config, "patch_size") or PATCH) ** 2),
            "float32",
        )
    elif _is_hidden(main):
        width = find_setting(config, "hidden_size", "d_model", "latent_dim") or DEFAULT_WIDTH
        yield (batch, TOKENS, width), "float32"
        yield (batch, width), "float32"
        yield (batch, width, TOKENS), "float32"  # a convolution takes channels first
    else:
        topic = main.partition("_")[0]  # `task_inputs` may have a setting `task_seq_len`
        length = find_setting(config, *(f"{topic}{ending}" for ending in LENGTH_ENDINGS))
        if isinstance(length, int):
            yield (batch, length), "int64"
        yield _tokens(config, batch)
        yield (batch, TARGET_TOKENS // 2), "int64"


def _image_sizes(config: Any) -> list[tuple[int, int]]:
    """Return heights and widths of images, the likeliest first."""
    size = find_setting(config, "image_size", "img_size", "input_size", "crop_size")
    sizes = [(side, side) for side in IMAGE_SIZES]
    if isinstance(size, int):
        sizes = [(size, size)]
    elif isinstance(size, list | tuple) and len(size) >= 2:
        sizes = [(int(size[-2]), int(size[-1]))]
    return sizes


def _image_channels(config: Any) -> int:
    channels = find_setting(config, "num_channels", "in_channels", "in_chans")
    return channels if isinstance(channels, int) else CHANNELS


def _image_specs(config: Any, batch: int) -> Iterator[Spec]:
    channels = _image_channels(config)
    frames = find_setting(config, "num_frames") or VIDEO_FRAMES
    patch = find_setting(config, "patch_size")
    for size in _image_sizes(config):
        yield (batch, channels, *size), "float32"
        yield (batch, frames, channels, *size), "float32"
        yield (batch, channels, frames, *size), "float32"
    if isinstance(patch, int):  # an image as a sequence of flattened patches
        yield (batch, FLAT_PATCHES, channels * patch * patch), "float32"


def _feature_specs(config: Any, batch: int) -> Iterator[Spec]:
    names = ("num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", "n_mels")
    bins = find_setting(config, *names)
    bins = bins if isinstance(bins, int) else MEL_BINS
    positions = find_setting(config, "max_source_positions")
    max_length = find_setting(config, "max_length")
    # Whisper and its like halve the frames by a convolution with stride 2.
    frames = [2 * positions] if isinstance(positions, int) else []
    frames += [max_length] if isinstance(max_length, int) else []
    for count in (*frames, *FRAMES):
        yield (batch, bins, count), "float32"
        yield (batch, count, bins), "float32"
        yield (batch, 1, bins, count), "float32"
        yield (batch, 1, count, bins), "float32"


def _series_specs(config: Any, batch: int) -> Iterator[Spec]:
    length = find_setting(config, "context_length", "history_length") or TOKENS
    lags = find_setting(config, "lags_sequence") or [0]
    channels = find_setting(config, "num_input_channels", "input_size") or 1
    # Models with lags read values from before the context, too.
    longest = length + (max(lags) if isinstance(lags, list) else 0)
    for times in dict.fromkeys((longest, length)):
        yield (batch, times, channels), "float32"
        yield (batch, times), "float32"
