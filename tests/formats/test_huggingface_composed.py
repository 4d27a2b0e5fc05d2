"""A `config.json` of words and images: its decoder of words is read by its own type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from every import every
from steptime.build import build, make_workload, read_model
from steptime.core.graph import Graph

LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 50}
LLAMA |= {"num_hidden_layers": 2, "num_attention_heads": 4}
QWEN = {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}
QWEN |= {"num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936}


def _network(folder: Path, table: dict[str, Any]) -> Graph:
    path = folder / "config.json"
    path.write_text(json.dumps(table))
    return build(make_workload(read_model(str(path)), None, phase="infer"))


@every("nested", ["text_config", "llm_config", "language_config"])
def test_the_decoder_of_words_is_read_by_its_own_type(nested, tmp_path):
    alone = _network(tmp_path, LLAMA)
    table = {"model_type": "seer", "architectures": ["SeerForAnything"], nested: LLAMA}
    graph = _network(tmp_path, {**table, "vision_config": {"hidden_size": 32}})
    assert graph.ops == alone.ops
    assert [remark.removeprefix("config.json: ") for remark in graph.remarks] == [
        "the name of its class is not checked",
        f"{nested} alone is counted: what sees images is not",
    ]


def test_a_row_of_the_whole_takes_another_decoder_that_is_known(tmp_path):
    """Kimi-K2.5 names `deepseek_v3`, whose defaults are not those of its own decoder."""
    text = {"model_type": "deepseek_v3", "num_hidden_layers": 2, "n_routed_experts": 384}
    graph = _network(tmp_path, {"model_type": "kimi_k25", "text_config": text})
    assert graph.parameters == _network(tmp_path, text).parameters


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(None, None, False), (True, None, True), (None, True, True), (False, True, True)],
)
def test_words_are_tied_as_the_nested_table_says_or_else_the_whole(outer, inner, tied, tmp_path):
    text = LLAMA if inner is None else {**LLAMA, "tie_word_embeddings": inner}
    table: dict[str, Any] = {"model_type": "seer", "text_config": text}
    graph = _network(tmp_path, table if outer is None else {**table, "tie_word_embeddings": outer})
    apart = _network(tmp_path, LLAMA).parameters
    assert graph.parameters == apart - (50 * 64 if tied else 0)
    differ = outer is not None and inner is not None
    assert any("the whole has another" in remark for remark in graph.remarks) == differ


@every(
    ("kind", "architecture"),
    [
        ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    ],
)
def test_fields_of_words_may_stand_beside_those_of_images(kind, architecture, tmp_path):
    """Qwen2.5-3B has 3,085,938,688 parameters, and so has the decoder of Qwen2.5-VL-3B."""
    table = {"model_type": kind, "architectures": [architecture], **QWEN}
    table |= {"tie_word_embeddings": True, "vision_config": {"depth": 32, "hidden_size": 1280}}
    assert _network(tmp_path, table).parameters == 3_085_938_688


def test_quantised_weights_of_the_whole_are_those_of_its_words(tmp_path):
    table = {"model_type": "seer", "text_config": LLAMA}
    table |= {"quantization_config": {"quant_method": "awq", "bits": 4}}
    assert any("awq in 4 bits" in remark for remark in _network(tmp_path, table).remarks)


@every(
    ("parts", "senses"),
    [
        (("vision_config",), "what sees images is not"),
        (("audio_config",), "what hears sound is not"),
        (("vision_config", "audio_config"), "what sees images and hears sound is not"),
    ],
)
def test_a_note_names_the_senses_that_are_left_out(parts, senses, tmp_path):
    table = {"model_type": "gemma3n", "text_config": {"num_hidden_layers": 5}}
    table |= {part: {"hidden_size": 64} for part in parts}
    assert any(senses in remark for remark in _network(tmp_path, table).remarks)
