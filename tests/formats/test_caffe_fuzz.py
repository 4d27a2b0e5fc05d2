"""Whatever stands in a prototxt, it is a network that fits together or one line of error."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prototxt import layer
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import check
from steptime.formats import Source
from steptime.formats.caffe.inputs import SOURCES
from steptime.formats.caffe.read import CAFFE_TYPES, read
from steptime.formats.caffe.schema import ENUMS, MESSAGES
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph

WHOLE = (
    'input: "data" input_shape { dim: 2 dim: 3 dim: 8 dim: 10 }\n'
    + layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }", top="c")
    + layer("BatchNorm", bottom="c", top="c", name="n")
    + layer("Scale", "scale_param { axis: 1 bias_term: true }", "c", "c", "s")
    + layer("ReLU", "relu_param { negative_slope: 0.1 }", "c", "c", "r")
    + layer(
        "Pooling", "pooling_param { pool: AVE kernel_h: 3 kernel_w: 2 stride: 2 }", "c", "p", "p"
    )
    + layer("Slice", "slice_param { slice_point: 1 }", "p", "a b", "cut")
    + layer("Concat", "concat_param { axis: 1 }", "b a", "k", "k")
    + layer("Eltwise", "eltwise_param { operation: SUM coeff: 1 coeff: -1 }", "k p", "e", "e")
    + layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }", "e", "q", "q")
    + layer("Dropout", "include { phase: TRAIN }", "q", "q", "d")
    + layer(
        "InnerProduct",
        'param { name: "w" lr_mult: 1 } inner_product_param { num_output: 5 }',
        "q",
        "h",
        "h",
    )
    + layer("SoftmaxWithLoss", "loss_weight: 1", "h data", "l", "l")
)
TOKENS = re.findall(r'"[^"]*"|[\w.-]+|\S', WHOLE)
NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "-9",
    "0.5",
    "4294967295",
    "9" * 25,
    "9" * 5000,
    "nan",
    "inf",
]
WORDS = [
    *NUMBERS,
    "{",
    "}",
    ":",
    "[",
    "]",
    '"',
    "'",
    "#",
    "\\",
    "<",
    ">",
    "true",
    "MAX",
    "name",
    "layer",
]
BLOBS = ["data", "label", "a", "b", "c"]


def survives(text: str) -> None:
    """Read and build in both phases; only errors for the user may come out, in one line."""
    for allow_unknown in (False, True):
        for training in (False, True):
            try:
                family = read(Source("net.prototxt", text.encode()), allow_unknown)
                b = Builder("net", precision("float32"), training)
                graph = b.graph(family.build(b, {}, 3))
                check(graph)
                if training:
                    check(training_graph(graph, "sgd"))
            except (InputError, ShapeError) as error:
                told = str(error)
                assert "\n" not in told  # not every text is an error
                assert len(told) < 1000  # as above


@settings(max_examples=60)
@given(st.text(max_size=60))
def test_any_text(text):
    survives(text)


def substitutes(place: int) -> st.SearchStrategy[str]:
    """Mostly words of the kind of the one that stands there."""
    alike = NUMBERS if TOKENS[place][0].isdigit() else TOKENS
    if TOKENS[place].startswith('"'):
        alike = [token for token in TOKENS if token.startswith('"')]
    return st.sampled_from(alike) | st.sampled_from(["", *WORDS])


EDITS = st.lists(
    st.integers(0, len(TOKENS) - 1).flatmap(lambda i: st.tuples(st.just(i), substitutes(i))),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=50)
@given(EDITS)
def test_a_network_with_words_changed(edits):
    tokens = list(TOKENS)
    for place, word in edits:
        tokens[place] = word
    survives(" ".join(tokens))


FIELDS = {
    name: [part.partition("=")[0].partition(":")[::2] for part in fields.split()]
    for name, fields in MESSAGES.items()
}
SIZES = st.sampled_from([0, 1, 1, 2, 2, 3, 4, 5, -1, -2, 9, 4_000_000_000])


@st.composite
def messages(draw: st.DrawFn, name: str, depth: int = 2) -> str:
    """Some fields of a message of the schema, with values of the right type."""
    parts = []
    for field, kind in draw(st.lists(st.sampled_from(FIELDS[name]), max_size=4, unique=True)):
        for _ in range(draw(st.integers(1, 2)) if kind.endswith("*") else 1):
            word = draw(values(kind.rstrip("*"), depth))
            parts.append(f"{field} {word}")
    return " ".join(parts)


def values(kind: str, depth: int) -> st.SearchStrategy[str]:
    if kind in MESSAGES:
        inner = messages(kind, depth - 1) if depth else st.just("")
        return inner.map(lambda text: f"{{ {text} }}")
    if kind in ENUMS:
        return st.sampled_from(ENUMS[kind].split()).map(lambda word: f": {word}")
    if kind == "string":
        return st.sampled_from(BLOBS).map(lambda word: f': "{word}"')
    if kind == "bool":
        return st.sampled_from([": true", ": false"])
    if kind == "double":
        return st.sampled_from([": 0", ": 1", ": 0.5", ": -2", ": nan", ": inf"])
    return SIZES.map(lambda size: f": {abs(size) if kind == 'uint32' else size}")


@st.composite
def layers(draw: st.DrawFn) -> str:
    """A layer of any type with its own parameters drawn from the schema."""
    kind = draw(st.sampled_from([*CAFFE_TYPES, *SOURCES, "Mystery"]))
    bottom = draw(st.lists(st.sampled_from(BLOBS[:3]), max_size=3))
    top = draw(st.lists(st.sampled_from(BLOBS), max_size=3))
    key = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    key = {"deconvolution": "convolution", "re_lu": "relu"}.get(key, key)
    own = f"{key}_param"
    more = f"{own} {{ {draw(messages(own))} }}" if own in MESSAGES else ""
    also = draw(messages("Layer", 1)) if draw(st.booleans()) else ""
    also = re.sub(r'(type|name|bottom|top) : "\w*"', "", also)
    return layer(
        kind, f"{more} {also}", " ".join(bottom), " ".join(top), draw(st.sampled_from(BLOBS))
    )


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(layers(), min_size=1, max_size=5))
def test_any_layers(drawn):
    start = layer("Input", "input_param { shape { dim: [2, 4, 6, 6] } }", "", "data a", "in")
    survives(start + "".join(drawn))


@pytest.mark.rare  # any layers and changed words end soon
def test_large_files_end_soon():
    start = layer("Input", "input_param { shape { dim: [2, 4] } }", "", "data", "in")
    for text in (
        start + "".join(layer("ReLU", top=f"b{i}", name=f"r{i}") for i in range(4000)),
        start + layer("ReLU", top="a") + layer("ReLU", bottom="a", top="a", name="a") * 4000,
        start + layer("Eltwise", bottom="data " * 20_000),
        start + layer("Concat", bottom="data " * 20_000),
        start + layer("Reshape", f"reshape_param {{ shape {{ {'dim: 9 ' * 50_000} }} }}"),
        layer("Input", f"input_param {{ shape {{ {'dim: 9 ' * 50_000} }} }}", "", "data", "in"),
        start + "strange: 1 " * 200_000,
        start + "strange: 1\n" * 10_000,
        "layer { " * 400_000,
        "[" * 1_000_000,
        "9" * 1_000_000,
        "a" * 1_000_000,
    ):
        survives(text)
