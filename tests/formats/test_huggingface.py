"""A `config.json` of Hugging Face: parameters as transformers counts them, refusals in one line."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from every import every
from formats.huggingface_defaults import DEFAULTS
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.formats.huggingface.config import Config
from steptime.formats.huggingface.types import types
from steptime.network.count import count
from steptime.network.ops import OPS


def _configs() -> dict[str, tuple[dict[str, Any], int]]:
    """Return configurations of people's models by their pages, and what transformers 5.23 counts.

    A number of labels stands for as many, as a file has them. From `minimax-m2` on numbers are by
    hand, and were held against the sums of the files of weights on those pages, from which they
    differ by what a file has besides: scales of 8 bit, biases that balance experts, layers that
    guess a second token (`MORE_IN_FILES`).
    """
    found = {}
    for line in Path(__file__).with_name("huggingface.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if labels := row["config"].get("id2label"):
            row["config"]["id2label"] = {str(n): f"class {n}" for n in range(labels)}
        found[row["name"]] = (row["config"], row["parameters"])
    return found


CONFIGS = _configs()


def written(folder: Path, table: object) -> str:
    path = folder / "config.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return str(path)


def network(text: str, phase: str = "infer", batch: int | None = None) -> Graph:
    return build(make_workload(read_model(text), batch, phase=phase))


def products(graph: Graph) -> int:
    return sum(op.flop for op in count(graph).ops if OPS[op.kind].work)


def test_every_type_has_its_parameters():
    assert DEFAULTS.keys() == types().keys()


@pytest.mark.slow
@every("name", DEFAULTS)
def test_an_empty_configuration_is_that_of_its_class(name, tmp_path):
    graph = network(written(tmp_path, {"model_type": name}))
    assert graph.parameters == DEFAULTS[name]
    assert any("no architectures; taken as ..." in remark for remark in graph.remarks)


@every(
    ("table", "parameters"),
    [  # one field of a small configuration changed, counted by transformers 5.23
        ({"model_type": "gemma3", "tie_word_embeddings": False}, 3_327_440_128),
        ({"model_type": "gemma3", "text_config": {"tie_word_embeddings": False}}, 2_723_312_896),
        ({"model_type": "clip", "text_config": {"projection_dim": 768}}, 151_277_313),
        (  # two classes by the first token beside the mean of the others
            {"model_type": "dinov2", "architectures": ["Dinov2ForImageClassification"]},
            85_728_770,
        ),
        ({"model_type": "qwen2_moe", "sliding_window": 0}, 14_315_784_192),
    ],
)
def test_a_field_counts_where_its_class_reads_it(table, parameters, tmp_path):
    graph = network(written(tmp_path, table))
    assert graph.parameters == parameters


def test_experts_that_give_tokens_back_are_chosen_and_compute_nothing(tmp_path):
    """A router of 6 chooses 3, of which 2 are among the 4 that compute; every second block."""
    sizes = {"hidden_size": 64, "ffn_hidden_size": 96, "vocab_size": 100, "num_layers": 1}
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "num_attention_heads": 2}
    experts = {"n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 3}
    table = {"model_type": "longcat_flash", **sizes, **latent, **experts}
    graph = network(written(tmp_path, {**table, "expert_ffn_hidden_size": 32}))
    found = {op.name: op for op in graph.ops if op.name.startswith("block2/experts/")}
    assert graph.tensors[found["block2/experts/router/linear"].outputs[0]].shape[-1] == 6
    assert found["block2/experts/experts"].attrs["per_token"] == 2
    assert not any(op.name.startswith("block1/experts") for op in graph.ops)
    assert any("identity experts" in remark for remark in graph.remarks)


@pytest.mark.slow
@every("name", CONFIGS)
def test_parameters_of_published_models(name, tmp_path):
    table, parameters = CONFIGS[name]
    assert network(written(tmp_path, table)).parameters == parameters


MORE_IN_FILES = {  # numbers of the published files, and what they have more
    # a scale for 128 x 128 of q, k, v, o and the experts, and a bias of 256 experts, in 62 layers
    "minimax-m2": (
        228_703_644_928,
        62 * ((3072 * (2 * 6144 + 2 * 1024) + 256 * 3 * 3072 * 1536) // 128**2 + 256),
    ),
    # biases of 160 experts in 89 layers; a layer, two norms and a product that join, a norm, words
    "glm-4.5": (
        358_337_791_296,
        89 * 160 + 2 * 5120 * 12288 + 12288 + 2 * (5120 + 1) * 1024 + 2 * 128 + 2 * 5120
        + 161 * 3 * 5120 * 1536 + 160 * 5121 + 2 * 5120**2 + 3 * 5120 + 2 * 151552 * 5120,
    ),
    "glm-4.5-air": (
        110_468_824_832,
        45 * 128 + 2 * 4096 * 12288 + 12288 + 2 * (4096 + 1) * 1024 + 2 * 4096
        + 129 * 3 * 4096 * 1408 + 128 * 4097 + 2 * 4096**2 + 3 * 4096 + 2 * 151552 * 4096,
    ),
    # one more layer that attends, with its experts; two norms and a product that join, a norm
    "qwen3-next-80b-a3b": (
        81_324_862_720,
        2048 * (2 * 4096 + 2 * 512 + 4096) + 2 * 256 + 512 * (3 * 2048 * 512 + 2048)
        + 3 * 2048 * 512 + 2048 + 2 * 2048 + 2 * 2048**2 + 3 * 2048,
    ),
    # a layer that guesses a second token: a block, a product that joins, three norms
    "mimo-7b": (
        7_833_409_536,
        2 * 4096**2 + 4096 + 2 * 4097 * 1024 + 3 * 4096 * 11008 + 2 * 4096 + 2 * 4096**2 + 3 * 4096,
    ),
    "olmoe-1b-7b": (6_919_161_856, 0),
    "phi-3.5-moe": (41_873_153_344, 0),
    "command-r": (34_980_831_232, 0),
    "dots.llm1": (142_774_381_696, 61 * 128),
    "hunyuan-a13b": (80_393_183_232, 0),
    "ernie-4.5-21b-a3b": (21_825_437_888, 0),
    "seed-oss-36b": (36_151_104_512, 0),
    "smollm3-3b": (3_075_098_624, 0),
    "olmo-3-7b": (7_298_011_136, 0),
    "olmo-3-32b": (32_233_522_176, 0),
    "glm-4-9b-0414": (9_400_279_040, 0),
}  # fmt: skip


@every("name", MORE_IN_FILES)
def test_published_files_have_the_parameters_and_what_is_named(name):
    published, more = MORE_IN_FILES[name]
    assert CONFIGS[name][1] + more == published


@every(
    ("name", "settings", "flop"),
    [  # FLOP of products that torch 2.13 counts in transformers 5.23
        ("gpt2", "length=1024", 291_648_307_200),
        ("llama", "length=2048", 29_261_612_187_648),
        ("mixtral", "length=2048", 54_417_235_640_320),
        ("deepseek_v3", "length=2048", 170_973_789_683_712),
        ("bert", "length=512", 96_637_943_808),
        ("t5", "length=512,target_length=512", 71_605_157_888),
        ("whisper", "target_length=448", 71_082_196_992),
    ],
)
def test_flop_of_products(name, settings, flop, tmp_path):
    path = written(tmp_path, {"model_type": name})
    graph = network(f"{path}:{settings}")
    assert products(graph) == flop
    assert products(network(f"{path}:{settings}", batch=3)) == 3 * flop


def test_flop_of_an_image(tmp_path):
    graph = network(written(tmp_path, CONFIGS["vit-base-16"][0]))
    assert products(graph) == 35_127_656_448


@every(
    ("zoo", "table", "length"),
    [
        ("gpt2", {"model_type": "gpt2"}, 1024),
        ("bert_base", {"model_type": "bert", "architectures": ["BertModel"]}, 512),
        ("llama_7b", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, 2048),
    ],
)
@every("phase", ["train", "infer"])
def test_the_family_and_the_configuration_say_one_network(zoo, table, length, phase, tmp_path):
    ours, theirs = (
        network(zoo, phase),
        network(f"{written(tmp_path, table)}:length={length}", phase),
    )
    assert (ours.parameters, products(ours)) == (theirs.parameters, products(theirs))
    assert count(ours).flop == count(theirs).flop
    assert count(ours).peak_bytes == count(theirs).peak_bytes


def test_fields_in_both_spellings(tmp_path):
    first = {"model_type": "gpt_neox", "rotary_pct": 0.5, "torch_dtype": "float16"}
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    second = {"model_type": "gpt_neox", "rope_parameters": rope, "dtype": "float16"}
    graphs = [network(written(tmp_path, table)) for table in (first, second)]
    assert [graph.tensors["angles"].shape for graph in graphs] == [(2048, 48)] * 2
    assert "its weights are float16; --dtype says what is computed" in graphs[0].remarks[1]


def test_what_is_not_counted_is_said(tmp_path):
    table = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "auto_map": {"AutoModel": "evil.Model"},
        "quantization_config": {"quant_method": "gptq", "bits": 4},
        "novel_gate_depth": 3,
        "attention_dropout": 0.0,
    }
    said = [
        remark.removeprefix("config.json: ") for remark in network(written(tmp_path, table)).remarks
    ]
    assert said == [
        "the code that auto_map names is not run",
        "its weights are int4 (gptq in 4 bits) in inference and under adapters",
        "fields that are not read: novel_gate_depth",
    ]


@every(
    ("table", "message"),
    [
        ({"model_type": "lama"}, "unknown model_type 'lama'; did you mean 'llama'?"),
        ({"model_type": 7}, "unknown model_type '7'"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention: 'True' is not"),
        ({"model_type": "llama", "hidden_size": "big"}, "hidden_size: must be a whole number"),
        ({"model_type": "llama", "hidden_size": -4}, "hidden_size: must be a whole number"),
        ({"model_type": "llama", "hidden_size": 1e300}, "hidden_size: must be a whole number"),
        ({"model_type": "llama", "hidden_size": 0}, "must be at least 1, not 0"),
        (
            {"model_type": "llama", "num_attention_heads": 0},
            "num_attention_heads: must be at least",
        ),
        ({"model_type": "llama", "num_attention_heads": None}, "heads: must be at least 1"),
        ({"model_type": "llama", "attention_bias": 1}, "attention_bias: must be true or false"),
        ({"model_type": "llama", "num_hidden_layers": 10**12}, "layers, at most 2000"),
        ({"model_type": "llama", "vocab_size": 2**53, "hidden_size": 2**50}, "bytes"),
        ({"model_type": "llama", "hidden_act": "mush"}, "unknown activation 'mush'"),
        ({"model_type": "llama", "architectures": "LlamaModel"}, "must be a list of names"),
        (
            {"model_type": "llama", "architectures": ["LlamaForX"]},
            "unknown architecture 'LlamaForX'",
        ),
        ({"model_type": "gemma3_text", "layer_types": ["chunked"]}, "unknown layer type 'chunked'"),
        ({"model_type": "llama", "layer_types": ["linear_attention"]}, "l need linear_heads"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "unknown layer 'X'"),
        (
            {"model_type": "glm_moe_dsa", "indexer_types": ["full"]},
            "indexer_types: has 1 values, not one for each of 78 layers",
        ),
        (
            {"model_type": "minimax_m1"},
            "model_type 'minimax_m1' is not read natively: it has attention to",
        ),
        (
            {"model_type": "gemma3n_text", "intermediate_size": [64, 64]},
            "intermediate_size: has 2 values, not one for each of 35 layers",
        ),
        ({"model_type": "gemma3n_text", "altup_active_idx": 1}, "altup_active_idx: '1' is not"),
        ({"model_type": "longcat_flash", "zero_expert_type": "drop"}, "only identity"),
        (
            {"model_type": "nanochat"},
            "'nanochat' is not read natively: it has norms without weights",
        ),
        ({"model_type": "granitemoe", "hidden_act": "relu2"}, "'relu2'; known: gelu,"),
        (
            {"model_type": "seer", "text_config": {"model_type": "nanochat"}},
            "model_type 'nanochat' is not read natively: it has norms without",
        ),
        ({"model_type": "cohere", "use_qk_norm": True}, "use_qk_norm: 'True' is not known"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv: '8.0' is not known"),
        ({"model_type": "exaone4", "sliding_window_pattern": "LG"}, "'LG' is not known"),
        (
            {"model_type": "llama4_text", "moe_layers": [48]},
            "moe_layers: '48' is none of 48 layers",
        ),
        ({"model_type": "llama4_text", "moe_layers": [[]]}, "moe_layers: must be a list"),
        ({"model_type": "hunyuan_v1_moe", "moe_topk": [8, 4]}, "moe_topk: must be a whole number"),
        ({"model_type": "minimax_m2", "qk_norm_type": "per_head"}, "only per_layer"),
        (
            {"model_type": "kimi_k25", "text_config": {"model_type": "lama"}},
            "config.json: text_config: unknown model_type 'lama'; did you mean 'llama'?",
        ),
        ({"model_type": "seer", "text_config": {}}, "text_config: has no model_type"),
        ({"model_type": "seer", "text_config": {"model_type": "bert"}}, "model_type 'bert'; known"),
        ({"model_type": "seer", "llm_config": {"model_type": 3}}, "llm_config: unknown model_type"),
        ({"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}}, "unknown"),
        ({"model_type": "qwen3_5", "text_config": 3}, "text_config: must be a table, not '3'"),
        ({"model_type": "gpt2", "n_inner": 0}, "n_inner: must be at least 1, not 0"),
        ({"model_type": "mixtral", "num_local_experts": 0}, "num_local_experts: must be at least"),
        ({"model_type": "deepseek_v3", "q_lora_rank": 0}, "q_lora_rank: must be at least 1, not 0"),
        ({"model_type": "t5", "num_decoder_layers": 0}, "num_decoder_layers: must be at least 1"),
        ({"model_type": "bart", "decoder_layers": 0}, "decoder_layers: must be at least 1, not 0"),
        ({"model_type": "t5", "is_gated_act": True}, "is_gated_act: 'True' is not known, only F"),
        ({"model_type": "gemma", "hidden_act": "quick_gelu"}, "'quick_gelu'; known: gelu, relu,"),
        (
            {"model_type": "llama", "num_attention_heads": 33, "num_key_value_heads": 33},
            "hidden_size: 4096 does not divide into 33 heads",
        ),
        ({"model_type": "gpt2", "n_head": 7}, "hidden_size: 768 does not divide into 7 heads"),
        ({"model_type": "deepseek_v3", "num_experts_per_tok": 300}, "experts_per_token 300 of 256"),
        ({"model_type": "vit", "patch_size": 15}, "image 224 does not divide into patches of 15"),
        ({"model_type": "clip", "text_config": 3}, "text_config: must be a table, not '3'"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "llama"}},
            "config.json: text_config: unknown model_type 'llama'; known: gemma3_text",
        ),
        (
            {"model_type": "gemma3", "mm_tokens_per_image": 0},
            "mm_tokens_per_image: must be at least 1",
        ),
        ({"model_type": "gemma3", "mm_tokens_per_image": 250}, "250 tokens of an image, a square"),
        ({"model_type": "swin", "depths": [2, "x"]}, "depths: must be numbers such as 2-2-6-2"),
        ({"model_type": "swin", "window_size": 9}, "window 9 is larger than 7 patches"),
        ({"model_type": "swin", "mlp_ratio": 0}, "ffn_ratio: must be above 0 and below 1000"),
        ({"model_type": "swin", "num_heads": [3]}, "are not of as many stages"),
        ({"model_type": "llama", "num_hidden_layers": 20000}, "20000 layers, at most 2000"),
        ({"model_type": "swin", "depths": [2, 19000, 994, 4]}, "20000 layers, at most 2000"),
        ('{"model_type": "llama", "hidden_size": NaN}', "hidden_size: must be a whole number"),
        ('{"model_type": "llama", "model_type": "gpt2"}', "key 'model_type' is given twice"),
        ('{"model_type": "llama", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "is no JSON"),
    ],
)
def test_what_is_wrong_is_one_line(table, message, tmp_path):
    with pytest.raises(InputError) as error:
        network(written(tmp_path, table))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


VALUES: tuple[object, ...] = (
    *(None, True, False, 0, 1, 2, -1, 3.5, 1e308, 2**53, 2**63, 10**30, "", "x", "gelu", [], {}),
    *([1], ["w"], {"rope_type": 3}, [[[]]], "a" * 10_000),
)


def _fields_of(name: str) -> list[str]:
    """Return the fields that a type reads."""
    row = types()[name]
    config = Config({}, name, next(iter(row.head_by_class_end.values())))
    row.describe(config)
    return sorted(config.read_fields)


@pytest.mark.slow
@every("seed", range(10))
def test_mutations_are_a_network_or_one_line(seed, tmp_path):
    rng = random.Random(seed)  # noqa: S311  # not for secrets
    small = {"num_hidden_layers": 1, "n_layer": 1, "num_layers": 1, "encoder_layers": 1}
    for _ in range(100):
        name = rng.choice([*types()])
        fields = [*_fields_of(name), "architectures", "id2label"]
        fields += ["rope_parameters", "layer_types", "quantization_config", "dtype", "model_type"]
        table = {"model_type": name, **small, "decoder_layers": 1}
        table |= {field: rng.choice(VALUES) for field in rng.sample(fields, rng.randint(1, 4))}
        try:
            graph = network(f"{written(tmp_path, table)}")
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017  # others are networks
        else:
            assert graph.parameters > 0


def test_the_docs_name_every_type():
    page = (Path(__file__).parents[2] / "docs/huggingface.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("Types: "))
    assert row == "Types: " + ", ".join(f"`{name}`" for name in types()) + "."


@pytest.mark.slow
def test_reading_loads_no_framework(tmp_path):
    path = written(tmp_path, {"model_type": "gpt2"})
    code = (
        "import sys; from steptime.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print({'torch', 'jax', 'onnx', 'keras', 'transformers', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "count", path], capture_output=True, text=True, check=True
    )
    assert "124,439,808" in done.stdout
    assert done.stdout.endswith("set()\n")
