"""What serve, plan and count make of a `config.json` whose weights are quantised."""

import json

import pytest

import steptime
from every import every
from steptime.core.errors import InputError
from steptime.formats.huggingface.quantised import find_quantised_part, weights_format

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
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
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
        steptime.plan(path, "h100", lora="16").to_dict(),
        steptime.plan(path, "h100", inside="nvlink-4", data=8, lora="16").to_dict(),
        steptime.fit(path, "h100", phase="infer").to_dict(),
    )
    for document in documents:
        assert any("are int4 (awq in 4 bits)" in note for note in document["notes"])


def layer_weights() -> int:
    """Count the weights of LLAMA's matrices in layers: q, k, v, o and the three of the MLP."""
    return 2 * (4 * 512 * 512 + 3 * 512 * 1024)


def test_inference_reads_the_weights_that_the_file_states(path):
    answer = steptime.fit(path, "h100", phase="infer", batch=1)
    plain = 2 * (2 * 1000 * 512 + 5 * 512)  # embedding, head, norms: bfloat16
    assert answer.weights_bytes == layer_weights() / 2 + plain
    assert answer.state_bytes >= 2 * layer_weights() / 128  # a float16 scale for 128
    assert answer.assumed["weights"] == "int4"
    assert answer.dtype == "bfloat16"
    assert "int4 weights" in str(answer)


def test_a_step_of_inference_is_quicker_on_few_bits(tmp_path):
    table = LLAMA | {"hidden_size": 4096, "intermediate_size": 16384}
    steps = {}
    for method in ("", "awq"):
        table["quantization_config"] = {"quant_method": method, "bits": 4} if method else {}
        file = tmp_path / f"{method or 'plain'}.json"
        file.write_text(json.dumps(table), encoding="utf-8")
        settings = {"phase": "infer", "dtype": "float16", "length": 1}
        steps[method] = steptime.predict(str(file), "t4", 1, **settings).step_s
    assert steps["awq"] < 0.6 * steps[""]


def test_weights_none_are_those_before(path):
    stated = steptime.fit(path, "h100", phase="infer", batch=1, dtype="bfloat16")
    plain = steptime.fit(path, "h100", phase="infer", batch=1, dtype="bfloat16", weights="none")
    assert plain.weights_bytes - stated.weights_bytes == 1.5 * layer_weights()
    assert "weights" not in plain.assumed


def test_weights_of_whole_numbers_train_adapters_alone(path):
    with pytest.raises(InputError, match="are int4, which have no gradient; nearest: --phase inf"):
        steptime.fit(path, "h100")
    with pytest.raises(InputError, match=r"plan: its weights are int4.*nearest: --lora 16"):
        steptime.plan(path, "h100")
    answer = steptime.fit(path, "h100", lora="16")
    assert answer.assumed["weights"] == "int4"
    assert steptime.plan(path, "h100", lora="16").assumed["weights"] == "int4"


def test_a_training_of_float8_weights_has_them_wide(tmp_path):
    file = tmp_path / "fp8.json"
    table = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
    file.write_text(json.dumps(table), encoding="utf-8")
    answer = steptime.fit(str(file), "h100", batch=1)
    assert "weights" not in answer.assumed
    assert any("a training of all of them has them in its --dtype" in note for note in answer.notes)
    assert steptime.fit(str(file), "h100", batch=1, phase="infer").assumed["weights"] == "float8"


def test_attention_that_a_file_leaves_stays_wide(tmp_path):
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    file = tmp_path / "nvfp4.json"
    weights = []
    for ignored in ([], ["lm_head", "model.layers.*.self_attn*"]):
        table = LLAMA | {"quantization_config": config | {"exclude_modules": ignored}}
        file.write_text(json.dumps(table), encoding="utf-8")
        weights.append(steptime.fit(str(file), "h100", phase="infer", batch=1).weights_bytes)
    assert weights[1] - weights[0] == 1.5 * 2 * 4 * 512 * 512


ATTENTION_NAMES = [f"self_attn.{letter}_proj" for letter in "qkvo"]
EVERY_PROJECTION = [f"model.layers.{i}.{name}" for i in range(8) for name in ATTENTION_NAMES]
SHARED_NAMES = ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*"]


@every(
    ("config", "part"),
    [
        ({}, "all"),
        ({"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]}, "all"),
        ({"modules_to_not_convert": ["self_attn", "visual"]}, "mlp"),
        ({"modules_to_not_convert": ["model.layers.*.self_attn", "model.embed_tokens"]}, "mlp"),
        ({"ignore": [f"language_model.model.layers.{i}.self_attn*" for i in range(8)]}, "mlp"),
        ({"ignore": ["model.layers.0.self_attn*"]}, "all"),
        ({"ignore": ["re:.*self_attn.*"]}, "mlp"),
        ({"ignore": SHARED_NAMES}, "experts"),
        ({"ignore": ["re:.*(self_attn"]}, "all"),  # no expression
        ({"ignored_layers": EVERY_PROJECTION}, "mlp"),
        ({"llm_int8_skip_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}, "mlp"),
        ({"llm_int8_skip_modules": ["q_proj"]}, "all"),
        ({"modules_in_block_to_quantize": [["mlp.up_proj", "mlp.gate_proj"]]}, "mlp"),
        ({"modules_in_block_to_quantize": [ATTENTION_NAMES]}, "all"),
        ({"config_groups": {"a": {"targets": ["Linear"]}}}, "all"),
        ({"config_groups": {"a": {"targets": ["re:.*mlp.experts.*"]}}}, "experts"),
        ({"exclude": {"self_attn": 1}}, "all"),
    ],
)
def test_which_weights_a_file_leaves_as_they_were(config, part):
    table = {"num_hidden_layers": 8, "quantization_config": config}
    assert find_quantised_part(table) == part


def test_serve_prices_attention_that_a_file_leaves_as_it_is(tmp_path):
    """A token of one sequence reads all weights: those of attention in 2 bytes, not in 0.516."""
    config = {"quant_method": "awq", "bits": 4}
    answers = []
    for names in ([], ["self_attn"]):
        file = tmp_path / f"{len(names)}.json"
        table = LLAMA | {"hidden_size": 4096, "intermediate_size": 16384}
        table["quantization_config"] = config | {"modules_to_not_convert": names}
        file.write_text(json.dumps(table), encoding="utf-8")
        answers.append(steptime.serve(str(file), "h100"))
    quantised, kept = answers
    attention = 2 * 4 * 4096**2  # of 2 blocks
    more_bytes = kept.weights_bytes - quantised.weights_bytes
    assert more_bytes == pytest.approx((2 - 0.516) * attention, rel=1e-6)
    read_s = more_bytes / 3.35e12  # the memory of an H100 SXM
    assert 0.8 * read_s < kept.tpot_s - quantised.tpot_s < 2 * read_s
    assert kept.weights == "int4"


def test_experts_are_kept_in_few_bits(tmp_path):
    table = {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 1000,
        "num_local_experts": 8,
    }
    sizes = []
    for config in ({}, {"quant_method": "mxfp4"}):
        file = tmp_path / "oss.json"
        file.write_text(json.dumps(table | {"quantization_config": config}), encoding="utf-8")
        settings = {"phase": "infer", "dtype": "bfloat16", "batch": 1}
        sizes.append(steptime.fit(str(file), "h100", **settings).weights_bytes)
    experts = 2 * 8 * 3 * 512 * 512
    assert sizes[0] - sizes[1] == 1.5 * experts


def test_a_plan_of_one_device_has_the_notes_of_predict():
    plan = steptime.plan("gpt2", "a100", dtype="bfloat16-mixed").to_dict()
    step = steptime.predict("gpt2", "a100", 1, dtype="bfloat16-mixed", optimizer="adam")
    assert {*step.notes} <= {*plan["notes"]}
