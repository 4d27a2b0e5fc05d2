"""Vision networks, the towers of vision-language models, and these models themselves."""

from math import isqrt

from steptime.formats.huggingface.config import Config, Settings, join_numbers
from steptime.formats.huggingface.types import describe_nothing, model_type
from steptime.network.layers.stems import PackedPatches

IMAGE_HEADS = ("ForImageClassification", "Model", "ForMaskedImageModeling")
GENERATION = ("ForConditionalGeneration",)


def patch_encoder(config: Config) -> Settings:
    """Describe an encoder of an image that is cut into patches."""
    return {
        "kind": "encoder",
        "width": config.count("hidden_size", 768),
        "layers": config.get("num_hidden_layers", 12),
        "stem": "patches",
        "image": config.get("image_size", 224),
        "patch": config.get("patch_size", 16),
        "channels": config.get("num_channels", 3),
        "heads": config.count("num_attention_heads", 12),
        "ffn": config.get("intermediate_size", 3072),
        "activation": config.get("hidden_act", "gelu"),
        "norms": "before",
    }


@model_type("vit", "ViT", IMAGE_HEADS, free_parameters=())
def vit(config: Config) -> Settings:
    """Describe ViT."""
    config.ignore_field("pooler_output_size", 0)
    return patch_encoder(config) | {
        "qkv_bias": config.get("qkv_bias", True),
        "head": config.head,
        "classes": config.label_count,
        "pooler": config.head == "none",
    }


@model_type(
    "dinov2",
    "Dinov2",
    ("Model", "ForImageClassification"),
    {"ForImageClassification": "classes_with_mean"},
    free_parameters=(),
)
def dinov2(config: Config) -> Settings:
    """Describe DINOv2: ViT whose parts are scaled by learned numbers."""
    config.fill_defaults(patch_size=14)
    config.require("use_swiglu_ffn", only=False)
    ratio = config.count("mlp_ratio", 4)
    settings = patch_encoder(config)
    config.ignore_field("layerscale_value", 1.0)
    return settings | {
        "ffn": ratio * settings["width"],
        "qkv_bias": config.get("qkv_bias", True),
        "layer_scale": True,
        "mask_token": config.get("use_mask_token", True),
        "pooler": False,
        "head": config.head,
        "classes": config.label_count,
    }


@model_type("deit", "DeiT", (*IMAGE_HEADS, "ForImageClassificationWithTeacher"), free_parameters=())
def deit(config: Config) -> Settings:
    """Describe DeiT, with a second token that a teacher trains."""
    return vit(config) | {"class_tokens": 2}


@model_type(
    "swin",
    class_ends=IMAGE_HEADS,
    free_parameters=(),
    family="steptime.network.families.swin:FAMILY",
)
def swin(config: Config) -> Settings:
    """Describe Swin: attention in windows that shift."""
    config.require("use_absolute_embeddings", only=False)
    stride = config.get("encoder_stride", 32)
    return {
        "width": config.count("embed_dim", 96),
        "depths": join_numbers(config.get("depths", [2, 2, 6, 2])),
        "image": config.get("image_size", 224),
        "patch": config.get("patch_size", 4),
        "channels": config.get("num_channels", 3),
        "heads": join_numbers(config.get("num_heads", [3, 6, 12, 24])),
        "window": config.get("window_size", 7),
        "ffn_ratio": config.get("mlp_ratio", 4.0),
        "activation": config.get("hidden_act", "gelu"),
        "qkv_bias": config.get("qkv_bias", True),
        "classes": config.label_count if config.head == "classes" else 0,
        "pixels": stride if config.head == "pixels" else 0,
    }


@model_type("clip_text_model", "CLIPText", ("Model", "ModelWithProjection"))
def clip_text_model(config: Config) -> Settings:
    """Describe the tower of words of CLIP."""
    max_length = config.get("max_position_embeddings", 77)
    return {
        "kind": "decoder",
        "width": config.count("hidden_size", 512),
        "layers": config.get("num_hidden_layers", 12),
        "vocabulary": config.get("vocab_size", 49408),
        "length": max_length,
        "max_length": max_length,
        "heads": config.count("num_attention_heads", 8),
        "ffn": config.get("intermediate_size", 2048),
        "activation": config.get("hidden_act", "quick_gelu"),
        "head": "vector" if config.head == "projected" else "none",
        "projection": config.get("projection_dim", 512),
    }


@model_type("clip_vision_model", "CLIPVision", ("Model", "ModelWithProjection"), free_parameters=())
def clip_vision_model(config: Config) -> Settings:
    """Describe the tower of images of CLIP."""
    config.fill_defaults(patch_size=32, hidden_act="quick_gelu")
    projection_width = config.get("projection_dim", 512)
    return patch_encoder(config) | {
        "patch_bias": False,
        "final_norm": False,
        "embedding_norm": True,
        "pooler": False,
        "head": "vector",
        "projection": projection_width if config.head == "projected" else 0,
    }


@model_type("siglip_text_model", "SiglipText", ("Model",))
@model_type("siglip2_text_model", "Siglip2Text", ("Model",))
def siglip_text_model(config: Config) -> Settings:
    """Describe the tower of words of SigLIP: every token sees all, the last one is read."""
    width = config.count("hidden_size", 768)
    max_length = config.get("max_position_embeddings", 64)
    return {
        "kind": "encoder",
        "width": width,
        "layers": config.get("num_hidden_layers", 12),
        "vocabulary": config.get("vocab_size", 32000),
        "length": max_length,
        "max_length": max_length,
        "segments": 0,
        "heads": config.count("num_attention_heads", 12),
        "ffn": config.get("intermediate_size", 3072),
        "activation": config.get("hidden_act", "gelu_pytorch_tanh"),
        "norms": "before",
        "pooler": False,
        "head": "last",
        "projection": config.get("projection_size", 0) or width,
    }


@model_type(
    "siglip_vision_model",
    "SiglipVision",
    ("Model",),
    free_parameters=(),
    outer_fields=("vision_use_head",),
)
def siglip_vision_model(config: Config) -> Settings:
    """Describe the tower of images of SigLIP, which a probe pools."""
    config.fill_defaults(hidden_act="gelu_pytorch_tanh")
    is_pooled = config.get("vision_use_head", True)
    return patch_encoder(config) | {
        "class_tokens": 0,
        "pooler": False,
        "head": "probe" if is_pooled else "none",
    }


@model_type("siglip2_vision_model", "Siglip2Vision", ("Model",), free_parameters=())
def siglip2_vision_model(config: Config) -> Settings:
    """Describe the tower of images of SigLIP 2, whose file says the number of patches."""
    settings = siglip_vision_model(config)
    patch_count = config.count("num_patches", 256)
    patches_of_side = isqrt(patch_count)
    if patches_of_side**2 != patch_count:
        raise config.error("num_patches", f"{patch_count} is no square of patches")
    return settings | {
        "image": patches_of_side * settings["patch"],
        "stem_design": PackedPatches(patch_count),
    }


@model_type(
    "siglip",
    class_ends=("Model",),
    tower_types={"text": "siglip_text_model", "vision": "siglip_vision_model"},
)
@model_type(
    "siglip2",
    class_ends=("Model",),
    tower_types={"text": "siglip2_text_model", "vision": "siglip2_vision_model"},
)
def siglip(_: Config) -> Settings:
    """Describe how SigLIP joins its towers: it has no hyperparameter of its own."""
    return {}


@model_type(
    "clip",
    "CLIP",
    ("Model",),
    tower_types={"text": "clip_text_model", "vision": "clip_vision_model"},
)
def clip(config: Config) -> Settings:
    """Describe how CLIP joins its towers."""
    return {"projection_dim": config.get("projection_dim", 512)}


@model_type(
    "gemma3",
    class_ends=("ForConditionalGeneration", "Model"),
    tower_types={"text": "gemma3_text", "vision": "siglip_vision_model"},
)
def gemma3(config: Config) -> Settings:
    """Describe how Gemma 3 joins an image to its decoder of words."""
    return {
        "mm_tokens_per_image": config.get("mm_tokens_per_image", 256),
        "vision_use_head": config.get("vision_use_head", True),
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
    }


for _name, _class_name, _text in (
    ("kimi_k25", "KimiK25", "kimi_k2"),
    ("qwen3_5", "Qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "Qwen3_5Moe", "qwen3_5_moe_text"),
    ("qwen2_vl", "Qwen2VL", "qwen2_vl_text"),
    ("qwen2_5_vl", "Qwen2_5_VL", "qwen2_5_vl_text"),
    ("minimax_m3_vl", "MiniMaxM3Sparse", "minimax_m3_vl_text"),
    ("gemma3n", "Gemma3n", "gemma3n_text"),
    ("gemma4", "Gemma4", "gemma4_text"),
):
    model_type(_name, _class_name, GENERATION, decoder_type=_text)(describe_nothing)
