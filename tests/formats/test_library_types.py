"""Types of a `config.json` that transformers or diffusers build as code."""

import importlib.util
import json

import pytest

import steptime
from every import every
from steptime.core.errors import InputError
from steptime.formats import library_types, open_source
from steptime.formats.code import parse_code

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
needs_transformers = pytest.mark.skipif(not HAS_TRANSFORMERS, reason="transformers is missing")
needs_diffusers = pytest.mark.skipif(
    importlib.util.find_spec("diffusers") is None, reason="diffusers is missing"
)
ROC_BERT = {"model_type": "roc_bert", "num_hidden_layers": 1, "hidden_size": 96}
LLAVA = {"model_type": "llava", "text_config": {"model_type": "llama"}}


@every(
    ("table", "library"),
    [
        ({"model_type": "llama"}, ""),
        ({"model_type": "roc_bert"}, "transformers"),
        ({"model_type": "mamba"}, ""),
        ({"model_type": "marian", "architectures": ["MarianForCausalLM"]}, "transformers"),
        ({"model_type": "marian", "architectures": ["MarianMTModel"]}, ""),
        (LLAVA, ""),
        ({"model_type": "some_vlm", "text_config": {"model_type": "nanochat"}}, "transformers"),
        ({"_class_name": "UNet2DConditionModel"}, ""),
        ({"_class_name": "UNet1DModel"}, "diffusers"),
        ({"model_type": ["llama"]}, ""),
        ({"model_type": {}, "text_config": {"model_type": []}}, ""),
        ({"model_type": "roc_bert", "text_config": {"model_type": {}}}, "transformers"),
        ({"family": "fc"}, ""),
    ],
)
def test_which_library_builds_a_type(table, library, tmp_path, monkeypatch):
    monkeypatch.setattr(library_types, "find_spec", lambda _: object())
    file = tmp_path / "config.json"
    file.write_text(json.dumps(table), encoding="utf-8")
    assert library_types.find_library(open_source(str(file))) == library


def test_without_the_library_the_message_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(library_types, "find_spec", lambda _: None)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(ROC_BERT), encoding="utf-8")
    with pytest.raises(InputError, match=r"'roc_bert'.*with transformers installed"):
        steptime.count(str(file))


def test_a_kept_export_is_that_of_one_content(tmp_path):
    file = tmp_path / "config.json"
    places = []
    for width in (96, 192):
        file.write_text(json.dumps(ROC_BERT | {"hidden_size": width}), encoding="utf-8")
        places.append(parse_code(f"transformers:{file}").cache_path)
    assert places[0] != places[1]
    assert places[0].name.startswith("transformers.config-")


@needs_transformers
@pytest.mark.slow
def test_a_config_of_another_type_is_read_by_its_class(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    file = tmp_path / "config.json"
    table = ROC_BERT | {"architectures": ["RoCBertForMaskedLM"], "vocab_size": 100}
    file.write_text(json.dumps(table | {"num_attention_heads": 4}), encoding="utf-8")
    import torch
    import transformers

    answer = steptime.count(str(file), phase="infer")
    config = transformers.CONFIG_MAPPING["roc_bert"].from_dict(json.loads(file.read_text()))
    with torch.device("meta"):
        model = transformers.RoCBertForMaskedLM(config)
    assert answer.parameters == model.num_parameters()


@needs_transformers
@pytest.mark.slow
def test_a_type_and_a_class_have_names():
    by_type = steptime.count("transformers:gpt2:input_ids=2x16:int64", phase="infer")
    assert by_type.parameters == steptime.count("gpt2", phase="infer").parameters
    with pytest.raises(InputError, match="unknown class or model_type of transformers 'gpt22'"):
        steptime.count("transformers:gpt22")


@needs_diffusers
@pytest.mark.slow
def test_a_component_of_diffusers_is_read_by_its_class(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    import diffusers
    import torch

    answer = steptime.count("diffusers:UNet2DModel", phase="infer")
    with torch.device("meta"):
        model = diffusers.UNet2DModel()
    assert answer.parameters == sum(parameter.numel() for parameter in model.parameters())
