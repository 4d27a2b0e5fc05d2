"""What serve, plan and count make of a `config.json` whose weights are quantised."""

import json

import pytest

import steptime
from every import every
from steptime.formats.huggingface.quantised import weights_format

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}
GROUP = {"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}


@every(
    ("config", "expected"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "fp8"}, "float8"),
        ({"quant_method": "fbgemm_fp8"}, "float8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "float4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "compressed-tensors", **GROUP}, "float8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "unheard"}, ""),
        ({"bits": {}, "config_groups": {"a": []}}, ""),
        (None, ""),
    ],
)
def test_the_format_of_quantised_weights(config, expected):
    assert weights_format({"quantization_config": config}) == expected


@pytest.fixture
def path(tmp_path):
    table = LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(table), encoding="utf-8")
    return str(file)


def test_serve_keeps_weights_as_the_file_does(path):
    usual = steptime.serve(path, "h100")
    assert usual.weights == "int4"
    assert usual.tpot_s == steptime.serve(path, "h100", weights="int4").tpot_s
    assert usual.tpot_s < steptime.serve(path, "h100", weights="bfloat16").tpot_s


def test_notes_on_a_file_stand_in_every_answer(path):
    documents = (
        steptime.count(path).to_dict(),
        steptime.serve(path, "h100").to_dict(),
        steptime.plan(path, "h100").to_dict(),
        steptime.plan(path, "h100", inside="nvlink-4", data=8).to_dict(),
        steptime.fit(path, "h100").to_dict(),
    )
    for document in documents:
        assert any("quantised (awq in 4 bits)" in note for note in document["notes"])


def test_a_plan_of_one_device_has_the_notes_of_predict():
    plan = steptime.plan("gpt2", "a100", dtype="bfloat16-mixed").to_dict()
    step = steptime.predict("gpt2", "a100", 1, dtype="bfloat16-mixed", optimizer="adam")
    assert {*step.notes} <= {*plan["notes"]}
