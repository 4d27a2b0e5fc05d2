"""An `adapter_config.json` of peft is the network of its base, with the options that train it."""

import json
from pathlib import Path

import pytest

from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError

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
    ("changes", "message"),
    [
        ({"base_model_name_or_path": "org/model"}, "'org/model' is no folder here; give the base"),
        ({"peft_type": "IA3"}, "peft_type: 'IA3' is not known, only LORA"),
        ({"base_model_name_or_path": None}, "must be the path of the base"),
    ],
)
def test_an_adapter_without_a_base_here_is_one_line(changes, message, tmp_path):
    folder = written(tmp_path, "adapter_config.json", ADAPTER | changes)
    with pytest.raises(InputError) as error:
        build(make_workload(read_model(str(folder)), None, phase="infer"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
