"""From what a user says to a workload: model text, labels, files, contradictions, keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.dtypes import PRECISIONS
from steptime.core.errors import InputError
from steptime.core.workload import OPTIMIZERS, Workload, workload_from_json, workload_to_json
from steptime.formats import LARGEST_FILE_BYTES
from steptime.network.families import FAMILIES, SHORT, ZOO, language
from steptime.network.families import list_names as model_names


def workload(text: str, *args: Any) -> Workload:
    return make_workload(read_model(text), *args)


def test_model_text():
    found = workload("fc:layers=4,nodes=256", 32, "bfloat16", "train", "adam")
    assert found.model == "fc"
    assert found.params == {"layers": 4, "nodes": 256, "inputs": 2000, "outputs": 200}
    assert (found.batch_per_replica, found.dtype, found.optimizer) == (32, "bfloat16", "adam")
    assert found == workload(" fc : nodes = 0256 , layers = 4 ", 32, "bfloat16", "train", "adam")
    assert workload("resnet50").params == {}
    assert workload("resnet50:image=160").params == {"image": 160}


def test_paradnn_labels():
    found = workload("layer_32-node_512-input_8000-output_200-bs_1024")
    assert found.label == "fc:layers=32,nodes=512,inputs=8000,outputs=200"
    assert found.batch_per_replica == 1024
    assert build(found).parameters == (
        8000 * 512 + 31 * 512**2 + 512 * 200 + 32 * 512 + 200  # biases at the end
    )
    same = workload("fc:layers=32,nodes=512,inputs=8000,outputs=200", 1024)
    assert found.key == same.key
    assert workload("layer_4-node_32-input_2000-output_1000").batch_per_replica == 64


def test_the_batch_is_given_once_or_twice_alike():
    assert workload("fc").batch_per_replica == 64
    assert workload("gpt2").batch_per_replica == 1
    assert workload("fc:batch=8").batch_per_replica == 8
    assert workload("fc:batch=8", 8).batch_per_replica == 8
    assert workload("fc:batch=08", "8").batch_per_replica == 8
    with pytest.raises(InputError, match="batch 9 contradicts 8 of the model"):
        workload("fc:batch=8", 9)
    with pytest.raises(InputError, match="batch 9 contradicts 1024 of the model"):
        workload("layer_4-node_32-input_2000-output_1000-bs_1024", "9")


@every(
    ("settings", "message"),
    [
        ((64, "float23"), "unknown dtype 'float23'; did you mean 'float32'?"),
        ((64, "float32", "trian"), "unknown phase 'trian'; did you mean 'train'?"),
        ((64, "float32", "train", "adan"), "unknown optimizer 'adan'; did you mean 'adam'?"),
        ((0,), "batch: must be at least 1, not 0"),
        ((2**53 + 1,), "batch: '9007199254740993' is larger than 2^53"),
        ((True,), "batch: must be a whole number, not 'True'; write it as 8, 1e3 or 1.2M"),
        ((2.5,), "batch: must be a whole number, not '2.5'; write it as 8, 1e3 or 1.2M"),
    ],
)
def test_settings_that_are_none(settings, message):
    with pytest.raises(InputError) as error:
        workload("fc", *settings)
    assert str(error.value) == message


def test_files(tmp_path):
    toml, table = tmp_path / "net.toml", tmp_path / "net.json"
    toml.write_text('family = "fc"\nlayers = 3\nnodes = 16\nbatch = 8\n')
    table.write_text('{"model": "fc:layers=3", "nodes": 16, "batch": 8}')
    typed = workload("fc:layers=3,nodes=16", 8)
    for path in (toml, table):
        assert workload(str(path)) == typed
        assert workload(str(path)).key == typed.key
    table.write_text('{"family": "transformer", "bias": false, "dropout": 0.25, "length": 16}')
    typed = workload("transformer:bias=no,dropout=0.25,length=16")
    assert workload(str(table)).key == typed.key
    toml.write_text('model = "layer_4-node_32-input_2000-output_1000-bs_64"')
    assert workload(str(toml)).batch_per_replica == 64


@every(
    ("name", "content", "message"),
    [
        ("a.toml", "layers = 3", "give one of 'family' and 'model'"),
        ("a.toml", 'family = "fc"\nmodel = "fc"', "give one of 'family' and 'model'"),
        ("a.toml", 'family = "fc"\nnode = 3', "unknown hyperparameter 'node'; did you mean 'n"),
        ("a.toml", "family = 3", "the name of a family is a text, not '3'"),
        ("a.toml", 'model = "a.toml"', "'a.toml' is a file, not the name of a family"),
        ("a.toml", 'model = "fc:layers=3"\nlayers = 3', "'layers' is given twice"),
        ("a.toml", 'model = "fc:batch=3"\nbatch = 4', "'batch' is given twice"),
        ("a.toml", "family = ", "Invalid value"),
        ("a.toml", 'family = "fc"\nlayers = 1\nlayers = 2', "Cannot overwrite"),
        ("a.json", "[]", "must be a table with 'family' or 'model'"),
        ("a.json", "{", "Expecting property name"),
        ("a.json", "[" * 100_000, "maximum recursion depth exceeded"),
        ("a.json", '{"family": "fc", "layers": true}', "layers: must be a whole number, not 'Tru"),
        ("a.json", '{"family": "fc", "layers": [2, 4]}', "a.json: layers: '[2, 4]'"),
        ("a.json", '{"family": "fc", "layers": null}', "a.json: layers: 'None'"),
        ("a.json", " " * (LARGEST_FILE_BYTES + 1), "larger than 4000000 bytes"),
    ],
)
def test_files_that_say_no_network(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    with pytest.raises(InputError) as error:
        workload(name)
    assert message in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_or_bytes_are_no_network(tmp_path):
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    for name in ("", "bytes.json"):
        with pytest.raises(InputError, match=r"cannot be read|not a text file"):
            read_model(f"{tmp_path}/{name}")


def test_a_key_given_twice_in_json_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"family": "fc", "layers": 3, "layers": 4}')
    with pytest.raises(InputError, match="'layers' is given twice"):
        read_model(str(path))


LABELLED = {  # settings that are not defaults
    "fc": ["fc:layers=2,nodes=3,inputs=4,outputs=5"],
    "cnn": ["cnn:block=residual,blocks=1-2-3-4,image=64", "cnn:blocks=2-2-2-2"],
    "rnn": ["rnn:cell=gru,layers=5,vocabulary=2"],
    "transformer": [
        "transformer:kind=encoder,bias=no,pooler=no,segments=0",
        "transformer:dropout=0.15,tied=no,kv_heads=4,ffn=100,norm=rms,positions=none",
    ],
    "resnet50": ["resnet50:image=160"],
    "bert_base": ["bert_base:length=128"],
}


@every("name", [*FAMILIES, *ZOO])
def test_a_label_gives_the_same_network_again(name):
    for text in (name, *LABELLED.get(name, [])):
        found = workload(text)
        again = workload(found.label)
        assert again == found
        assert again.key == found.key
        assert again.label == found.label


def test_a_network_said_in_two_ways_has_one_key():
    for one, other in (
        ("fc", "fc:layers=4,nodes=1024"),
        ("cnn:blocks=2-2-2-2", "cnn:blocks=2"),
        ("transformer", "transformer:ffn=3072,bias=yes,norm=layer,dropout=0"),
        ("transformer:tied=true", "transformer:tied=on"),
        ("bert_base", "bert_base:length=512"),
    ):
        assert workload(one).key == workload(other).key


def test_short_names_are_those_of_the_whole():
    for short, name in SHORT.items():
        assert short not in (*FAMILIES, *ZOO)
        assert workload(short) == workload(name)


@every(
    ("said", "name"),
    [
        ("ResNet50", "resnet50"),
        ("resnet-50", "resnet50"),
        ("llama-7b", "llama_7b"),
        ("GPT-2", "gpt2"),
        ("MobileNet", "mobilenet_v1"),
        ("ViT-L/16", "vit_l_16"),
        ("google-bert/bert-large-uncased", "bert_large"),
        ("FC:layers=2", "fc:layers=2"),
        ("transformer:positions=RoPE,norm=rmsnorm", "transformer:positions=rotary,norm=rms"),
        ("transformer:activation=swish", "transformer:activation=silu"),
    ],
)
def test_names_and_values_are_taken_as_people_write_them(said, name):
    assert workload(said) == workload(name)


def test_no_two_networks_are_one_in_other_spelling():
    plain = [name.lower().replace("_", "").replace("-", "") for name in (*FAMILIES, *ZOO, *SHORT)]
    assert len(set(plain)) == len(plain)


@every(
    ("said", "dtype"),
    [("fp32", "float32"), ("FP16", "float16"), ("half", "float16"), ("bf16", "bfloat16"),
     ("amp", "float16-mixed"), ("bf16-mixed", "bfloat16-mixed"), ("Float32", "float32")],
)  # fmt: skip
def test_types_are_taken_as_people_write_them(said, dtype):
    assert workload("fc", 8, said) == workload("fc", 8, dtype)


@every("text", ["x.pb", "net.h5", "./net.pt"])
def test_a_file_of_another_kind_is_told_what_would_do(text):
    with pytest.raises(InputError) as error:
        workload(text)
    assert str(error.value).startswith(f"unknown model '{text}'; a network of your own is")
    for word in (".toml", ".json", ".prototxt", "docs/cookbook.md"):
        assert word in str(error.value)


NET = {
    "layers": {
        "data": {"type": "Input", "tensor": [2, 8, 8, 3]},
        "fc": {"type": "InnerProduct", "parents": ["data"], "num_outputs": 4},
    }
}


def test_a_network_of_a_file_keeps_its_hash_in_a_place_of_its_own(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(NET) + "\n")
    found = make_workload(read_model(str(path), allow_unknown=True))
    assert (found.params, found.allow_unknown) == ({}, True)
    assert found.sha256 == "a82bcd1d7ca91c5d"
    # records say it as they always did, so that old ones are found again
    table = workload_to_json(found)
    assert table["params"] == {"sha256": "a82bcd1d7ca91c5d", "allow_unknown": True}
    assert found.key == "6726662b48f0a67f"
    assert workload_from_json(table) == found


def test_the_file_of_a_network_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(NET) + "\n")
    opened = []
    original = Path.open

    def counting(self: Path, *args: Any, **how: Any) -> Any:
        opened.append(self)
        return original(self, *args, **how)

    monkeypatch.setattr(Path, "open", counting)
    build_step(make_workload(read_model(str(path))))
    assert opened.count(path) == 1


def test_one_inference_has_one_key():
    keys = {workload("fc", 64, "float32", "infer", name).key for name in OPTIMIZERS}
    assert len(keys) == 1
    assert workload("fc", 64, "float32", "infer", "adam").optimizer == "none"


def test_keys_are_the_same_on_every_machine_and_in_every_version():
    """A store would not know its own records again if these changed."""
    assert workload("fc:layers=4,nodes=1024", 64).key == "2748f9da554ca390"
    assert workload("resnet50", 64).key == "17bdeea92e551e05"


def test_every_setting_changes_the_key():
    keys = {
        workload(text, batch, dtype, phase, optimizer).key
        for text in ("fc", "fc:nodes=32", "resnet50")
        for batch in (1, 2)
        for dtype in PRECISIONS
        for phase, optimizer in (("infer", "sgd"), *(("train", name) for name in OPTIMIZERS))
    }
    assert len(keys) == 3 * 2 * len(PRECISIONS) * (1 + len(OPTIMIZERS))


@given(
    st.sampled_from(["fc:layers=2", "cnn:blocks=1-2-3-4", "transformer:dropout=0.1", "gpt2"]),
    st.integers(1, 2**53),
    st.sampled_from(list(PRECISIONS)),
    st.sampled_from(["train", "infer"]),
    st.sampled_from(OPTIMIZERS),
)
def test_workloads_survive_json(text, batch, dtype, phase, optimizer):
    found = workload(text, batch, dtype, phase, optimizer)
    again = workload_from_json(json.loads(json.dumps(workload_to_json(found))))
    assert again == found
    assert again.key == found.key


def test_sizes_that_do_not_fit_name_the_op():
    found = workload("fc:layers=1,nodes=2,inputs=2,outputs=2", 2**53)
    with pytest.raises(InputError, match="fc: tensor 'input' has more than 2\\^53 bytes"):
        build_step(found)
    with pytest.raises(InputError, match="ops"):
        build(workload("fc:layers=9007199254740992,nodes=1,inputs=1,outputs=1"))


def test_model_names_are_families_and_named_networks():
    assert model_names() == list(dict.fromkeys((*FAMILIES, *ZOO, *language.rows())))
    assert model_names()[:4] == ["fc", "cnn", "rnn", "transformer"]
