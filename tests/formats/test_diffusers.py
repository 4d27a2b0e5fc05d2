"""Transformers of diffusers by the `config.json` of a component: parameters and work."""

import json
from pathlib import Path
from typing import Any

import pytest

from every import every
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.network.count import count
from steptime.network.ops import OPS

FLUX = {"_class_name": "FluxTransformer2DModel"}
SD3 = {"_class_name": "SD3Transformer2DModel", "num_attention_heads": 24}
SD3 |= {"caption_projection_dim": 1536}
UNET = {"_class_name": "UNet2DConditionModel"}
SDXL = UNET | {"cross_attention_dim": 2048, "block_out_channels": [320, 640, 1280]}
SDXL |= {"attention_head_dim": [5, 10, 20], "transformer_layers_per_block": [1, 2, 10]}
SDXL |= {"addition_embed_type": "text_time", "projection_class_embeddings_input_dim": 2816}
SDXL |= {"down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * 2], "sample_size": 128}
SDXL |= {"up_block_types": [*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"]}
PIXART = {"_class_name": "PixArtTransformer2DModel"}


def network(folder: Path, table: dict[str, Any], settings: str = "") -> Graph:
    path = folder / "config.json"
    path.write_text(json.dumps(table))
    return build(make_workload(read_model(f"{path}{settings}"), None, phase="infer"))


@every(
    ("table", "parameters"),
    [  # as diffusers 0.42 counts them; FLUX.1 is published as of 12e9, SD 3 medium as of 2e9
        (FLUX, 11_891_178_560),
        (FLUX | {"guidance_embeds": True}, 11_901_408_320),
        (SD3 | {"num_layers": 24}, 2_028_328_000),
        (
            SD3 | {"num_layers": 6, "qk_norm": "rms_norm", "dual_attention_layers": [0, 1, 2]},
            548_254_144,
        ),
        (PIXART, 611_349_152),
        (UNET | {"cross_attention_dim": 768}, 859_520_964),  # Stable Diffusion 1.5
        (UNET | {"cross_attention_dim": 1024, "attention_head_dim": [5, 10, 20, 20]}, 865_910_724),
        (SDXL, 2_567_463_684),
        (PIXART | {"sample_size": 64}, 610_856_096),
    ],
)
def test_parameters_are_those_of_the_class(table, parameters, tmp_path):
    assert network(tmp_path, table).parameters == parameters


def test_work_of_pixart_is_that_of_its_products(tmp_path):
    """28 blocks of width 1152: 4096 patches attend to each other, and to 300 tokens of text."""
    width, tokens, text = 1152, 64 * 64, 300
    block = 4 * tokens * width**2 + 2 * tokens**2 * width  # attention
    block += 2 * tokens * width**2 + 2 * text * width**2 + 2 * tokens * text * width
    block += 8 * tokens * width**2
    ends = tokens * width * (4 * 4 + 4 * 8) + text * width * (4096 + width)
    time = 256 * width + width**2 + 6 * width**2
    conditions = 3 * (256 * width // 3 + (width // 3) ** 2)
    graph = network(tmp_path, PIXART)
    products = sum(op.flop for op in count(graph).ops if OPS[op.kind].work)
    assert products == 2 * (28 * block + ends + time + conditions)


@every(
    ("table", "message"),
    [
        ({"_class_name": "AutoencoderKL"}, "'AutoencoderKL' is not read; with diffusers installed"),
        ({"_class_name": 3}, "unknown _class_name '3'"),
        (PIXART | {"attention_bias": False}, "attention_bias: 'False' is not known, only True"),
        (SD3 | {"caption_projection_dim": 64}, "caption_projection_dim: '64' is not known"),
        (UNET | {"down_block_types": ["DownBlock2D"]}, "has 1 blocks for 4 widths"),
        (UNET | {"class_embed_type": "timestep"}, "class_embed_type: 'timestep' is not known"),
        (SDXL | {"attention_head_dim": [5, 10]}, "attention_head_dim: must be 3 whole numbers"),
        (FLUX | {"num_layers": "many"}, "num_layers: must be a whole number"),
    ],
)
def test_what_is_not_known_is_one_line(table, message, tmp_path):
    with pytest.raises(InputError) as error:
        network(tmp_path, table)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_image_must_divide_into_patches(tmp_path):
    assert network(tmp_path, PIXART, ":image=512,length=120").parameters == 611_349_152
    with pytest.raises(InputError, match="image 500 does not divide into patches of 16 pixels"):
        network(tmp_path, PIXART, ":image=500")
