"""Wrong command lines (`cli/mistakes.txt`), and wrong files of networks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

LONG = "x" * 500
LINES = Path(__file__).parent / "cli/mistakes.txt"


def _net(**changes: object) -> str:
    """Return Paleo's file of one convolution, with keys of its layer changed; None drops one."""
    layer = {
        "type": "Convolution", "parents": ["data"], "filter": [3, 3, 3, 4],
        "strides": [1, 1, 1, 1], "padding": "SAME",
    } | changes  # fmt: skip
    data = {"type": "Input", "parents": [], "tensor": [2, 8, 8, 3]}
    kept = {key: value for key, value in layer.items() if value is not None}
    return json.dumps({"name": "net", "layers": {"data": data, "conv1": kept}})


def _caffe(layer: str) -> str:
    return f'input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8\nlayer {{ {layer} }}'


NETWORKS: dict[str, tuple[str | bytes, str]] = {  # file: what it holds, what the line says
    "parent.json": (
        _net(parents=["dta"]),
        "layer 'conv1': unknown parent 'dta'; did you mean 'data'?",
    ),
    "cycle.json": (_net(parents=["conv1"]), "layer 'conv1'"),
    "missing.json": (_net(filter=None), "layer 'conv1': "),
    "rank.json": (_net(filter=[3, 3, 4]), "layer 'conv1': "),
    "channels.json": (_net(filter=[3, 3, 5, 4]), "layer 'conv1': "),
    "size.json": (_net(filter=[3, 3, 3, 10**30]), "layer 'conv1': "),
    "window.json": (_net(filter=[9, 9, 3, 4], padding="VALID"), "layer 'conv1': "),
    "type.json": (
        _net(type="Convolutoin"),
        "layer 'conv1': unknown type of layer 'Convolutoin'; did you mean 'Convolution'?",
    ),
    "activation.json": (_net(activation_fn="rleu"), "layer 'conv1': "),
    "nothing.json": ('{"name": "n", "layers": {}}', "nothing.json"),
    "layers.json": ('{"name": "n", "layers": 3}', "layers.json"),
    "deeper.json": ('{"layers": ' + '{"a": {"type": "Block", "layers": ' * 400, "deeper.json"),
    "junk.prototxt": (bytes(range(256)) * 4, "'junk.prototxt': not a text file in UTF-8"),
    "text.prototxt": ("}{ this is none", "text.prototxt"),
    "empty.prototxt": ("", "empty.prototxt"),
    "type.prototxt": (
        _caffe('name: "c" type: "Convolutoin" bottom: "data" top: "c"'),
        "Convolutoin",
    ),
    "bottom.prototxt": (_caffe('name: "r" type: "ReLU" bottom: "dta" top: "r"'), "'dta'"),
    "output.prototxt": (
        _caffe('name: "c" type: "Convolution" bottom: "data" top: "c" '
               "convolution_param { kernel_size: 3 }"),
        "num_output",
    ),
    "kernel.prototxt": (
        _caffe('name: "c" type: "Convolution" bottom: "data" top: "c" '
               "convolution_param { num_output: 4 kernel_size: 99 }"),
        "layer 'c': a filter [4, 3, 99, 99] does not fit into [1, 3, 8, 8]",
    ),
}  # fmt: skip

REPEATABLE = {"--option", "--set", "--level"}


def lines() -> Iterator[tuple[str, str]]:
    """Yield each wrong command line, and what is said of it."""
    for section in LINES.read_text(encoding="utf-8").strip().split("\n\n")[1:]:
        rows = [re.sub(r"\{(.)\*(\d+)\}", _many, row) for row in section.splitlines()]
        heads = [row.removeprefix("== ") for row in rows if row.startswith("== ")]
        for head in heads:
            for row in rows[len(heads) :]:
                words, _, message = row.partition(" => ")
                words = words.replace("\\n", "\n")
                yield _drop_options(head, words).replace("{}", words), message
    for file, (_, message) in NETWORKS.items():
        yield f"predict {file} --device T4", message
        yield f"count {file}", message


def _drop_options(head: str, words: str) -> str:
    """Return a head without the options, and their values, that the row has as well."""
    names = {word.partition("=")[0] for word in words.split()} - REPEATABLE
    return re.sub(
        r" (--[\w-]+) [^\s{]+", lambda option: "" if option[1] in names else option[0], head
    )


def _many(match: re.Match[str]) -> str:
    return match[1] * int(match[2])
