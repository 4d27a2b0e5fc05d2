"""An `adapter_config.json` of peft is the network of its base, with the options that train it."""

import json
from pathlib import Path

import pytest

from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.tuning import make_tuning

BASE = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 50}
BASE |= {"num_hidden_layers": 2, "num_attention_heads": 4}
ADAPTER = {"peft_type": "LORA", "r": 16, "target_modules": ["v_proj", "q_proj"]}
ADAPTER |= {"lora_dropout": 0.1, "base_model_name_or_path": "base"}


def written(folder: Path, name: str, table: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(table))
    return folder


def test_a_folder_with_an_adapter_is_its_base_and_names_the_options(tmp_path):
    base = written(tmp_path / "base", "config.json", BASE)
    folder = written(tmp_path, "adapter_config.json", ADAPTER)
    graph, alone = (
        build(make_workload(read_model(str(path)), None, phase="infer")) for path in (folder, base)
    )
    assert graph.parameters == alone.parameters
    assert any(
        remark.endswith("the adapter is --lora r=16,on=q_proj+v_proj,dropout=0.1")
        for remark in graph.remarks
    )


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"use_dora": True}, "--adapter dora,r=16,on=q_proj+v_proj,dropout=0.1"),
        (
            {"peft_type": "IA3", "target_modules": ["k_proj", "down_proj"]},
            "--adapter ia3,on=down_proj+k_proj",
        ),
        ({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 30}, "--adapter prefix,tokens=30"),
        (
            {"target_modules": "all-linear", "modules_to_save": ["embed_tokens", "lm_head"]},
            "--lora r=16,on=linear,dropout=0.1 --modules-to-save embed_tokens,lm_head",
        ),
    ],
)
def test_an_adapter_of_any_kind_names_options_that_are_taken(changes, options, tmp_path):
    written(tmp_path / "base", "config.json", BASE)
    folder = written(tmp_path, "adapter_config.json", ADAPTER | changes)
    model = read_model(str(folder))
    graph = build(make_workload(model, None, phase="infer"))
    assert any(remark.endswith(f"the adapter is {options}") for remark in graph.remarks)
    words = [word for word in options.split() if not word.startswith("--")]
    names = [word[2:].replace("-", "_") for word in options.split() if word.startswith("--")]
    tuning = make_tuning(**dict(zip(names, words, strict=True)))
    assert build(make_workload(model, 1, "bfloat16", tuning=tuning)).parameters > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_model_name_or_path": "org/model"}, "'org/model' is no folder here; give the base"),
        ({"peft_type": "VERA"}, "peft_type: 'VERA' is not known, only LORA, IA3, PREFIX_TUNING"),
        ({"base_model_name_or_path": None}, "must be the path of the base"),
    ],
)
def test_an_adapter_without_a_base_here_is_one_line(changes, message, tmp_path):
    folder = written(tmp_path, "adapter_config.json", ADAPTER | changes)
    with pytest.raises(InputError) as error:
        build(make_workload(read_model(str(folder)), None, phase="infer"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
