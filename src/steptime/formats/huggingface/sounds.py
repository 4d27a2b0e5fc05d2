"""Encoders of raw sound: wav2vec 2 and HuBERT."""

from steptime.core.errors import unknown
from steptime.formats.huggingface.config import Config, Settings, check_value
from steptime.formats.huggingface.settings import resolve_activation
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.stems import Waveform

CHANNELS = [512] * 7
KERNELS = [10, 3, 3, 3, 3, 2, 2]
STRIDES = [5, 2, 2, 2, 2, 2, 2]
NORMS = ("group", "layer")
SAMPLES = 160_000  # 10 s of 16 kHz
SOUND_HEADS = ("ForCTC", "Model", "ForSequenceClassification")


def _read_positive_numbers(config: Config, name: str, default: list[int]) -> tuple[int, ...]:
    """Return a list of whole numbers of at least 1."""
    place = f"{config.place}: {name}"
    numbers = tuple(
        check_value(value, default=1, place=place) for value in config.get(name, default)
    )
    if not numbers or 0 in numbers:
        raise config.error(name, "must be numbers of at least 1")
    return numbers


def _read_waveform(config: Config) -> Waveform:
    """Return the convolutions that make frames of samples, as a file says them."""
    channels = _read_positive_numbers(config, "conv_dim", CHANNELS)
    kernels = _read_positive_numbers(config, "conv_kernel", KERNELS)
    strides = _read_positive_numbers(config, "conv_stride", STRIDES)
    if not len(channels) == len(kernels) == len(strides):
        raise config.error("conv_dim", "conv_kernel and conv_stride are not of one length")
    config.require("num_feat_extract_layers", only=len(channels))
    norm = config.get("feat_extract_norm", "group")
    if norm not in NORMS:
        raise unknown("feat_extract_norm", norm, NORMS, config.place)
    masked_shares = [config.get(name, default) for name, default in MASKS.items()]
    activation = config.get("feat_extract_activation", "gelu")
    return Waveform(
        channels=channels,
        kernels=kernels,
        strides=strides,
        norm=norm,
        bias=config.get("conv_bias", False),
        activation=resolve_activation(activation, is_gated=False, place=config.place),
        place_kernel=config.count("num_conv_pos_embeddings", 128),
        place_groups=config.count("num_conv_pos_embedding_groups", 16),
        has_norm=config.get("feat_proj_layer_norm", True),
        has_mask=any(masked_shares),
    )


MASKS = {"mask_time_prob": 0.05, "mask_feature_prob": 0.0}  # shares of frames and of features


@model_type(
    "wav2vec2",
    "Wav2Vec2",
    SOUND_HEADS,
    {"ForSequenceClassification": "sound"},
    free_parameters=("samples",),
)
@model_type(
    "hubert",
    "Hubert",
    SOUND_HEADS,
    {"ForSequenceClassification": "sound"},
    free_parameters=("samples",),
)
def wav2vec2(config: Config) -> Settings:
    """Describe wav2vec 2 and HuBERT: convolutions over samples, then an encoder like BERT."""
    for field in ("add_adapter", "use_weighted_layer_sum", "conv_pos_batch_norm"):
        config.require(field, only=False)
    config.require("adapter_attn_dim", only=None)
    norms_inputs = config.get("do_stable_layer_norm", False)
    head = config.head
    projection_width = config.get("classifier_proj_size", 256)
    characters = config.get("vocab_size", 32)
    if head == "tokens":
        config.remark("in training its loss counts as one class of each frame, not as CTC")
    return {
        "kind": "encoder",
        "width": config.count("hidden_size", 768),
        "layers": config.get("num_hidden_layers", 12),
        "stem_design": _read_waveform(config),
        "samples": SAMPLES,
        "positions": "none",
        "segments": 0,
        "heads": config.count("num_attention_heads", 12),
        "ffn": config.get("intermediate_size", 3072),
        "activation": config.get("hidden_act", "gelu"),
        "norms": "before" if norms_inputs else "after",
        "pooler": False,
        "projection": projection_width if head == "sound" else 0,
        "head": "mean" if head == "sound" else head,
        "classes": characters if head == "tokens" else config.label_count,
    }
