"""GGUF files of a test: headers with tensors whose weights are left out."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from steptime.formats.gguf.types import tensor_types

_TYPES = {int: (4, "<I"), float: (6, "<f"), bool: (7, "<?")}


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        number, layout = (8, "") if isinstance(value[0], str) else _TYPES[type(value[0])]
        items = [_text(item) if number == 8 else struct.pack(layout, item) for item in value]
        return struct.pack("<IIQ", 9, number, len(value)) + b"".join(items)
    number, layout = _TYPES[type(value)]
    return struct.pack("<I", number) + struct.pack(layout, value)


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Sequence[tuple[str, tuple[int, ...], str]],
    version: int = 3,
) -> Path:
    """Write the header of a GGUF file, and a little in place of its weights."""
    path.write_bytes(gguf_bytes(metadata, tensors, version))
    return path


def gguf_bytes(
    metadata: Mapping[str, object],
    tensors: Sequence[tuple[str, tuple[int, ...], str]],
    version: int = 3,
) -> bytes:
    """Return the header of a GGUF file, and a little in place of its weights."""
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    for name, shape, type_name in tensors:
        parts.append(_text(name) + struct.pack("<I", len(shape)))
        parts += [struct.pack("<Q", axis) for axis in reversed(shape)]
        parts.append(struct.pack("<IQ", tensor_types()[type_name].number, 0))
    return b"".join(parts) + bytes(64)


def decoder_metadata(architecture: str, **values: object) -> dict[str, object]:
    """Return the metadata of a small decoder."""
    sizes: dict[str, object] = {
        "block_count": 2,
        "embedding_length": 256,
        "feed_forward_length": 512,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "context_length": 4096,
    }
    inner = {f"{architecture}.{key}": value for key, value in {**sizes, **values}.items()}
    tokens = {"tokenizer.ggml.tokens": [f"t{number}" for number in range(1000)]}
    return {"general.architecture": architecture, "general.file_type": 15, **inner, **tokens}


def decoder_tensors(
    layers: range, *, has_output: bool = True, is_first: bool = True
) -> list[tuple[str, tuple[int, ...], str]]:
    """Return the tensors of some layers of a small decoder."""
    tensors: list[tuple[str, tuple[int, ...], str]] = []
    if is_first:
        tensors.append(("token_embd.weight", (1000, 256), "Q4_K"))
        tensors.append(("output_norm.weight", (256,), "F32"))
        if has_output:
            tensors.append(("output.weight", (1000, 256), "Q6_K"))
    for layer in layers:
        for role, shape, type_name in (
            ("attn_norm", (256,), "F32"),
            ("attn_q", (256, 256), "Q4_K"),
            ("attn_k", (64, 256), "Q4_K"),
            ("attn_v", (64, 256), "Q6_K"),
            ("attn_output", (256, 256), "Q4_K"),
            ("ffn_norm", (256,), "F32"),
            ("ffn_gate", (512, 256), "Q4_K"),
            ("ffn_up", (512, 256), "Q4_K"),
            ("ffn_down", (256, 512), "Q6_K"),
        ):
            tensors.append((f"blk.{layer}.{role}.weight", shape, type_name))
    return tensors
