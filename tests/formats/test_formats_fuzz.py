"""Whatever stands in a file of any format: a network that fits together, or one line; nothing runs.

Every ending of `FORMATS` has a seed here, which is changed in its bytes and, where it is made of
JSON, in its values.
"""

from __future__ import annotations

import copy
import io
import json
import random
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rapidfuzz.distance  # noqa: F401  # an import while mutants are read would be seen

from exported import document
from onnx_bytes import function, model, node, tensor, value, whole
from paleo_net import image, layer
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import check
from steptime.core.graph_json import graph_to_json
from steptime.formats import FORMATS
from tests.formats.gguf_files import decoder_metadata, decoder_tensors, gguf_bytes

RUNS = ("exec", "compile", "marshal.loads", "pickle.find_class", "ctypes.dlopen")
OUTSIDE = ("subprocess.Popen", "os.system", "os.exec", "socket.connect", "os.remove", "os.rename")
STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**62, 10**30, 1e308, 0.5, "", "x", "../x", "\0", [], {}),
    *([[[[[]]]]], [1] * 30, {"a": 1}, "lambda: 1", "__import__('os')", -(2**63)),
    *({"as_int": -5}, "relu"),  # as a .pt2 says a size, and a tensor of it
)
PROGRAM = "net/models/model.json"  # in a .pt2
FORMULA = "<formula>"  # those of our own tables, of which what is not arithmetic is refused
_watching: list[bool] = []
_seen: list[tuple[str, str]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    ours = event in ("exec", "compile") and FORMULA in str(arguments)
    ours = ours or (event == "compile" and "<size>" in str(arguments))  # a tree, never run
    if _watching and not ours and (event in RUNS or event.startswith(OUTSIDE)):
        _seen.append((event, str(arguments)[:200]))


sys.addaudithook(_watch)


def _native() -> bytes:
    graph = build(make_workload(read_model("fc:layers=1,nodes=4,inputs=3,outputs=2"), 2))
    return json.dumps(graph_to_json(graph, phase="train", dtype="float32", batch=2)).encode()


def _paleo() -> bytes:
    layers = {"data": image(2, 6, 6, 3), "out": layer("Softmax", "data", num_classes=3)}
    return json.dumps({"name": "n", "layers": layers}).encode()


KERAS: dict[str, Any] = {
    "class_name": "Sequential",
    "config": {
        "name": "small",
        "layers": [
            {"class_name": "InputLayer", "config": {"name": "i", "batch_shape": [None, 8, 8, 3]}},
            {"class_name": "Conv2D", "config": {"name": "c", "filters": 4, "kernel_size": [3, 3]}},
            {"class_name": "GlobalAveragePooling2D", "config": {"name": "p"}},
            {"class_name": "Dense", "config": {"name": "d", "units": 5, "activation": "softmax"}},
        ],
    },
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 11,
    "max_position_embeddings": 12,
    "auto_map": {"AutoModel": "x.Y"},
}


def _archive(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return made.getvalue()


def _onnx() -> bytes:
    """Return convolutions, sizes that are worked out, and a function of the file's own."""
    return model(
        [
            node("Conv", "x w b", "c", kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2)),
            node("BatchNormalization", "c b b b b", "n", epsilon=1e-5),
            node("Relu", "n", "r"),
            node("Shape", "r", "size"),
            node("Gather", "size zero", "one"),
            node("Concat", "one minus", "to", axis=0),
            node("MaxPool", "r", "p", kernel_shape=(2, 2), strides=(1, 1), auto_pad="SAME_UPPER"),
            node("Reshape", "p to", "flat"),
            node("g", "flat v", "y", "f"),
        ],
        [
            tensor("w", (4, 3, 3, 3)),
            tensor("b", (4,)),
            tensor("v", (5, 64)),
            whole("zero", 0),
            whole("minus", -1),
        ],
        [value("x", "n", 3, 8, 8)],
        functions=[
            function(
                "g",
                "a m",
                "s",
                [node("Gemm", "a m", "h", transB=1, alpha=1.0), node("Softmax", "h", "s", axis=-1)],
            )
        ],
    )


PROTOTXT = b"""name: "n"
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c"
        convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "p" type: "Softmax" bottom: "c" top: "p" }
"""
SEEDS: dict[str, tuple[str, Callable[[], bytes]]] = {  # the file's name, and what stands in it
    "native": ("net.graph.json", _native),
    "paleo": ("net.json", _paleo),
    "config": ("config.json", lambda: json.dumps(LLAMA).encode()),
    "keras text": ("net.json", lambda: json.dumps(KERAS).encode()),
    "keras": ("net.keras", lambda: _archive("config.json", json.dumps(KERAS).encode())),
    "caffe": ("net.prototxt", lambda: PROTOTXT),
    "onnx": ("net.onnx", _onnx),
    "gguf": (
        "net.gguf",
        lambda: gguf_bytes(decoder_metadata("llama"), decoder_tensors(range(2))),
    ),
    "pt2": ("net.pt2", lambda: _archive(PROGRAM, json.dumps(document()).encode())),
}
KINDS = [pytest.param(kind, marks=[pytest.mark.onnx] * (kind == "onnx")) for kind in SEEDS]
OF_THEIR_OWN = ("keras text",)  # ten thousand in tests beside this one


def test_every_ending_has_a_seed():
    ends = {Path(name).suffix for name, _ in SEEDS.values()}
    assert {row.ending for row in FORMATS} <= ends


def places(table: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to each value of a table."""
    items = table.items() if isinstance(table, dict) else enumerate(table)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*path, key))
    return found


def other_values(table: Any, chance: random.Random) -> Any:
    """Return a table with a value replaced, doubled or left out."""
    table = copy.deepcopy(table)
    *way, last = chance.choice(places(table))
    inner = table
    for key in way:
        inner = inner[key]
    match chance.randrange(4):
        case 0:
            del inner[last]
        case 1 if isinstance(inner, list):
            inner.extend([inner[last]] * chance.choice((1, 3, 1000)))
        case 2:
            inner[last] = chance.choice(STRANGE)
        case _:
            inner[last] = [inner[last]]
    return table


def other_bytes(content: bytes, chance: random.Random, ways: int = 3) -> bytes:
    """Return bytes with some changed, left out or doubled, a bit turned, a long number put in."""
    made = bytearray(content)
    for _ in range(chance.randint(1, ways)):
        at = chance.randrange(len(made)) if made else 0
        match chance.randrange(ways):
            case 0 if made:
                made[at] = chance.randrange(256)
            case 1:
                del made[at : at + chance.randint(1, 9)]
            case 3 if made:
                made[at] ^= 1 << chance.randrange(8)
            case 4:
                made[at:at] = chance.choice((b"\xff" * 8 + b"\x7f", b"\x00"))
            case _:
                made[at:at] = made[at : at + chance.randint(1, 30)]
    return bytes(made)


def mutated(name: str, content: bytes, chance: random.Random) -> bytes:
    """Return a seed, changed in its values or in its bytes."""
    if name.endswith((".onnx", ".gguf")):
        return other_bytes(content, chance, 5)
    if chance.random() < 0.3 or name.endswith(".prototxt"):
        return other_bytes(content, chance)
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return json.dumps(other_values(json.loads(content), chance)).encode()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (member,) = archive.namelist()
        inner = archive.read(member)
    inside = (
        json.dumps(other_values(json.loads(inner), chance)).encode()
        if chance.random() < 0.8
        else other_bytes(inner, chance)
    )
    return _archive(member, inside)


def endures(folder: Path, kind: str, first: int, last: int) -> int:
    """Hold that each mutation is a network or one line; return how many were networks."""
    name, seed = SEEDS[kind]
    content, path = seed(), folder / name
    lines, networks, slowest = [], 0, 0.0
    for number in range(first - 1, last):
        chance = random.Random(number)  # noqa: S311
        path.write_bytes(mutated(name, content, chance) if number >= first else content)
        before = time.process_time()
        try:
            _watching[:] = [True] * (number >= first)
            graph = build_step(make_workload(read_model(str(path)), 2))
            _watching.clear()
            check(graph)
            networks += 1
        except InputError as error:
            lines.append(str(error))
        finally:
            _watching.clear()
        slowest = max(slowest, time.process_time() - before)
    assert not any("\n" in line or len(line) > 2000 for line in lines)
    assert not _seen
    assert slowest < 10
    return networks


@pytest.mark.filterwarnings("ignore:invalid escape:DeprecationWarning")  # of google.protobuf
@pytest.mark.parametrize("kind", KINDS)
def test_mutations_are_networks_or_one_line(tmp_path, kind):
    assert endures(tmp_path, kind, 0, {"onnx": 600, "pt2": 600}.get(kind, 150)) >= 1


@pytest.mark.rare
@pytest.mark.filterwarnings("ignore:invalid escape:DeprecationWarning")  # of google.protobuf
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.values[0] not in OF_THEIR_OWN])
def test_ten_thousand_mutations_of_each_format(tmp_path, kind):
    endures(tmp_path, kind, 150, 10_150)
