"""Twelve networks from the form that they come in: through every command, and run."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from steptime.build import build, make_workload, read_model
from steptime.cli.main import run

pytestmark = [pytest.mark.slow, pytest.mark.framework, pytest.mark.filterwarnings("ignore")]
HERE = Path(__file__).parents[1]
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_WORDS = {**_SIZES, "intermediate_size": 24, "vocab_size": 11, "max_position_embeddings": 16}
_SPEECH = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
    "d_model": 16,
    "vocab_size": 11,
    "num_mel_bins": 4,
    "max_source_positions": 6,
    "max_target_positions": 5,
}
_IMAGE = {**_SIZES, "intermediate_size": 24, "image_size": 8, "patch_size": 4, "num_labels": 3}
_WINDOWS = {"depths": [1, 1], "num_heads": [1, 2], "embed_dim": 8, "window_size": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "BERT": {"model_type": "bert", "architectures": ["BertForMaskedLM"], **_WORDS},
    "GPT-2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **_WORDS},
    "Llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **_WORDS},
    "Mixtral": {"model_type": "mixtral", **_WORDS, "num_key_value_heads": 1, "num_experts": 4},
    "Whisper": {"model_type": "whisper", **_SPEECH},
    "Swin": {
        "model_type": "swin",
        "architectures": ["SwinForImageClassification"],
        **_WINDOWS,
        "image_size": 32,
        "patch_size": 4,
        "num_labels": 3,
    },
    "ViT": {"model_type": "vit", "architectures": ["ViTForImageClassification"], **_IMAGE},
}
CODE = {
    "U-Net": "unet.py:UNet",
    "diffusion U-Net": "own_networks.py:Diffusion",
    "LSTM tagger": "own_networks.py:Tagger",
    "ResNet": "own_networks.py:Residual",
    "EfficientNet": "own_networks.py:Inverted",
}
NETWORKS = (*CONFIGS, *CODE)
ON = ("--device", "V100")
COMMANDS = (
    ("count", "{}", "--batch", "3"),
    ("predict", "{}", *ON, "--method", "analytic"),
    ("scale", "{}", *ON, "--replicas", "1,8", "--link", "ethernet-25"),
    ("fit", "{}", *ON),
    ("choose", "{}", "--device", "V100,T4"),
    ("why", "{}", *ON),
    ("energy", "{}"),
)


RARE = {  # and what holds most of it more quickly
    "ViT": "Swin comes from a config.json, test_onnx_networks.py reads ONNX files",
    "U-Net": "the documents show it in every command, the diffusion U-Net trains",
    "ResNet": "EfficientNet comes from code, test_backend_values.py holds its gradients",
}
BUILT_IN_FAMILIES = {"BERT", "GPT-2", "Llama"}  # test_backend_values.py holds them in JAX


def make_cases(rare_names: Collection[str]) -> list[Any]:
    """Return the networks as parameters; some are rare, and one of them is an ONNX file."""
    return [
        pytest.param(
            name,
            marks=[pytest.mark.rare] * (name in rare_names) + [pytest.mark.onnx] * (name == "ViT"),
        )
        for name in NETWORKS
    ]


def form_of(name: str, folder: Path) -> str:
    """Return a network as it comes: code, a config.json, or for ViT an ONNX file."""
    shutil.copy(HERE / "own_networks.py", folder)
    shutil.copy(HERE.parent / "examples" / "unet.py", folder)
    if name in CODE:
        return str(folder / CODE[name])
    path = folder / f"{name.lower()}.json"
    path.write_text(json.dumps(CONFIGS[name]))
    if name == "ViT":
        assert run(["convert", str(path), "-o", str(folder / "vit.onnx")]) == 0
        return str(folder / "vit.onnx")
    return str(path)


@pytest.mark.usefixtures("exported_here")
@pytest.mark.parametrize("name", make_cases(RARE))
def test_a_network_goes_through_every_command_and_trains(name, tmp_path, capsys):
    from steptime.measure.backends.torch import backend

    form = form_of(name, tmp_path)
    for command in COMMANDS:
        assert run([part.format(form) for part in command]) == 0, capsys.readouterr().err
    assert trained(backend, form)


@pytest.mark.jax
@pytest.mark.usefixtures("exported_here")
@pytest.mark.parametrize("name", make_cases({*RARE, *BUILT_IN_FAMILIES}))
def test_a_network_trains_in_jax(name, tmp_path, capsys):
    from steptime.measure.backends.jax import backend

    assert trained(backend, form_of(name, tmp_path))


def trained(backend: Any, form: str) -> bool:
    """Whether the loss of a network is a number after a step."""
    from steptime.measure.contract import Options

    workload = make_workload(read_model(form, trusted=True), 2)
    ready = backend.prepare(build(workload), workload, Options())
    ready.step()
    ready.sync()
    return math.isfinite(ready.loss())
