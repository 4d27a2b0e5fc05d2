"""GGUF: sizes of published files, and headers of made ones without their weights."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from steptime.core.errors import InputError
from steptime.formats import open_source
from steptime.formats.gguf.header import read_header
from steptime.formats.gguf.types import file_types, tensor_types
from steptime.planning.ranks.language_model import read_language_model
from steptime.serving.desktop.tensors import weights_of
from tests.formats.gguf_files import decoder_metadata, decoder_tensors, write_gguf

MODELS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("gguf_sizes.toml").read_text(encoding="utf-8")
)["models"]
UNITS = {"GiB": 2**30, "GB": 10**9}


@pytest.mark.parametrize("row", MODELS, ids=lambda row: str(row["model"]))
def test_files_have_the_published_sizes(row: dict[str, Any]) -> None:
    """The size of a file is right to 1 %, from the types that llama-quantize gives to tensors."""
    shape = read_language_model(row["model"])
    for name, size in row["files"].items():
        file_bytes = weights_of(shape, name.lower()).file_bytes
        assert file_bytes / UNITS[row["unit"]] == pytest.approx(size, rel=0.01), name


def test_more_than_20_published_files_are_checked() -> None:
    """All types of files that people publish are among them."""
    names = {name for row in MODELS for name in row["files"]}
    assert sum(len(row["files"]) for row in MODELS) >= 20
    assert len(names) >= 20


def test_bits_of_types_are_those_of_their_blocks() -> None:
    """Bits a weight as llama.cpp prints them."""
    bits = {"Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625, "Q8_0": 8.5, "Q3_K": 3.4375, "Q2_K": 2.625}
    bits |= {"IQ4_XS": 4.25, "IQ3_XXS": 3.0625, "IQ2_XXS": 2.0625, "IQ1_S": 1.5625, "MXFP4": 4.25}
    for name, value in bits.items():
        assert tensor_types()[name].bits == value


def test_rows_that_no_block_divides_have_the_fallback() -> None:
    """Rows of 2880 numbers are no multiple of 256: Q4_K becomes Q5_0, Q6_K becomes Q8_0."""
    weights = weights_of(read_language_model("gpt_oss_20b"), "q4_k_m")
    types = {tensor.role: tensor.type.name for tensor in weights.tensors if tensor.is_matrix}
    assert types["attn_q"] == "Q5_0"
    assert types["ffn_up_exps"] == "Q5_0"
    assert types["attn_output"] == "Q4_K"  # its rows are those of the heads, 4096


def test_a_header_is_read_without_weights(tmp_path: Path) -> None:
    """A dense decoder: sizes, and the types of each tensor as the file says."""
    path = write_gguf(tmp_path / "a.gguf", decoder_metadata("llama"), decoder_tensors(range(2)))
    shape = read_language_model(str(path))
    weights = weights_of(shape, "")
    assert (shape.kind_settings["width"], len(shape.kinds), shape.vocabulary) == (256, 2, 1000)
    assert not shape.tied
    assert weights.label == "q4_k_m"
    q4_numbers = 1000 * 256 + 2 * (2 * 256 * 256 + 64 * 256 + 2 * 512 * 256)
    q6_numbers = 1000 * 256 + 2 * (64 * 256 + 512 * 256)
    norm_numbers = 256 + 2 * 2 * 256
    hand_bytes = q4_numbers * 4.5 / 8 + q6_numbers * 6.5625 / 8 + norm_numbers * 4
    assert weights.file_bytes == hand_bytes


def test_a_table_without_a_head_is_shared(tmp_path: Path) -> None:
    """A file without output.weight reads its table of embeddings twice."""
    tensors = decoder_tensors(range(2), has_output=False)
    path = write_gguf(tmp_path / "b.gguf", decoder_metadata("qwen3"), tensors)
    shape = read_language_model(str(path))
    assert shape.tied
    assert weights_of(shape, "").is_tied


def test_a_mixture_of_experts_is_read(tmp_path: Path) -> None:
    """Experts, and how many of them a token has."""
    metadata = decoder_metadata(
        "qwen3moe", expert_count=16, expert_used_count=4, expert_feed_forward_length=128
    )
    tensors = decoder_tensors(range(0))
    for layer in range(2):
        tensors.append((f"blk.{layer}.ffn_down_exps.weight", (16, 256, 128), "Q4_0"))
    shape = read_language_model(str(write_gguf(tmp_path / "c.gguf", metadata, tensors)))
    assert (shape.experts, shape.expert_share * shape.experts) == (16, 4)
    assert any(tensor.is_routed for tensor in weights_of(shape, "").tensors)


def test_parts_of_a_split_file_are_read_together(tmp_path: Path) -> None:
    """A file in two parts has the tensors of both; a part alone is refused."""
    metadata = decoder_metadata("llama") | {"split.count": 2}
    first = tmp_path / "d-00001-of-00002.gguf"
    write_gguf(first, metadata, decoder_tensors(range(1)))
    with pytest.raises(InputError, match="is not there"):
        read_header(open_source(str(first)))
    second = tmp_path / "d-00002-of-00002.gguf"
    write_gguf(second, {"split.count": 2}, decoder_tensors(range(1, 2), is_first=False))
    assert len(read_header(open_source(str(first))).tensors) == 3 + 2 * 9
    with pytest.raises(InputError, match="00001-of-00002"):
        read_header(open_source(str(second)))


def test_an_unknown_architecture_is_a_usual_decoder(tmp_path: Path) -> None:
    """An architecture without a row is read as a decoder, and a remark says so."""
    path = write_gguf(
        tmp_path / "e.gguf", decoder_metadata("future9"), decoder_tensors(range(2)), version=2
    )
    assert read_language_model(str(path)).kind_settings["width"] == 256


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GGML", "does not begin with GGUF"),
        (b"GGUF\x01\x00\x00\x00", "version 1"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "tensors"),
        (b"GGUF\x03\x00\x00\x00" + b"\x01" + b"\x00" * 15, "inside of its header"),
    ],
)
def test_a_broken_file_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    """What is no GGUF file is refused in one line that names it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(InputError) as error:
        read_language_model("broken.gguf")
    assert "broken.gguf" in str(error.value)
    assert "\n" not in str(error.value)
    assert message in str(error.value)


def test_every_type_of_files_has_known_types() -> None:
    """Each rule names a type of tensors."""
    for row in file_types().values():
        for rules in row.values():
            for rule in rules if isinstance(rules, list) else ():
                assert rule["type"] in tensor_types()
        assert row["base"] in tensor_types()
