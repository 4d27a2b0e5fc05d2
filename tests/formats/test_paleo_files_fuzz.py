"""Whatever stands in a Paleo file: a network that builds, or one line that says what is wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paleo_net import image, layer
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import check
from steptime.formats import Source
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph
from steptime.paleo.files.read import read

_ONE = [1, 1, 1, 1]
_SEEDS: list[dict[str, Any]] = [
    {
        "data": image(2, 6, 6, 3),
        "mixed": layer(
            "Block",
            "data",
            endpoint="join",
            layers={
                "a": layer(
                    "Convolution",
                    filter=[3, 3, 3, 4],
                    strides=[1, 2, 2, 1],
                    padding="SAME",
                    activation_fn="relu",
                    normalizer_fn="batch_norm",
                ),
                "b": layer("AvgPool", ksize=_ONE, strides=[1, 2, 2, 1], padding=[0, 0]),
                "join": layer("Concatenate", "a", "b", dim=3),
            },
        ),
        "up": layer(
            "Deconvolution",
            "mixed",
            filter=[2, 2, 5, 7],
            strides=[1, 2, 2, 1],
            padding="VALID",
            output_shape=[2, 6, 6, 5],
        ),
        "wide": layer("UpSampling2D", "up", ksize=[2, 2]),
        "fc": layer("InnerProduct", "wide", num_outputs=3, bias=[3]),
        "prob": layer("Softmax", "fc", num_classes=3),
        "top": layer("Accuracy", "fc"),
    },
    {
        "data": image(2, 4, 4, 4),
        "both": layer(
            "ModelParallel",
            "data",
            splits=2,
            layers={
                "a": layer("Convolution", filter=[1, 1, -1, 4], strides=_ONE, padding="VALID"),
                "d": layer("Dropout", "a@self", dropout_keep_prob=0.5),
                "j": layer("Concatenate", "d@all", dim=-1),
            },
        ),
        "sum": layer("Elementwise", "both/j@all"),
        "seen": layer("Reshape", "sum", output_shape=[2, 4, -1, 2]),
        "norm": layer("BatchNorm", "seen"),
        "scale": layer("Scale", "norm"),
        "lrn": layer("LRN", "scale"),
        "gate": layer("Sigmoid", "lrn"),
    },
]

_NUMBERS = st.sampled_from([-(2**70), -2, -1, 0, 1, 2, 3, 4, 6, 7, 2**53, 10**30, 0.5, 1e400])
_NAMES = ["data", "a", "b", "mixed", "both/a@all", "a@self", "a@1", "j", "fc", "", "@", "/", "x\n"]
_NAMES += [
    "b/a",
    "sum",
    "Convolution",
    "Block",
    "ModelParallel",
    "Softmax",
    "VALID",
    "SAME",
    "relu",
]
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    _NUMBERS,
    st.sampled_from(_NAMES),
    st.lists(st.sampled_from(_NAMES), max_size=3),
    st.lists(_NUMBERS, max_size=5),
    st.just({}),
    st.sampled_from([*_SEEDS[0].values(), *_SEEDS[1].values()]),
)
_KEYS = st.sampled_from([*_NAMES, "type", "parents", "layers", "splits", "grad_input", "a/w"])


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of nested tables and lists."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in inside:
        found.append((value, key))
        if isinstance(inner, dict | list):
            found.extend(_places(inner))
    return found


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """Return the layers of a good network, one to three places of it changed."""
    layers = {"layers": copy.deepcopy(draw(st.sampled_from(_SEEDS)))}
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        places = _places(layers)
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(["put", "put", "drop", "add"]))
        if how == "put":
            container[key] = copy.deepcopy(draw(_VALUES))
        elif how == "drop":
            del container[key]
        elif isinstance(container, dict):
            container[draw(_KEYS)] = copy.deepcopy(draw(_VALUES))
        else:
            container.append(copy.deepcopy(draw(_VALUES)))
    return layers


def outcome(text: str, batch: int, training: bool) -> str:
    """Return "" for a network that builds and is differentiated, else the one line."""
    try:
        family = read(Source("net.json", text.encode()), allow_unknown=batch % 2 == 1)
        b = Builder("net.json", precision("bfloat16-mixed"), training)
        graph = b.graph(family.build(b, {}, batch))
    except (InputError, ShapeError) as error:
        return str(error)
    check(graph)
    assert len(graph.source) >= 2
    assert {made.op for made in graph.source if made.op} <= {op.name for op in graph.ops}
    if training:
        check(training_graph(graph, "sgd"))
    return ""


def assert_one_line(message: str) -> None:
    assert len(message.splitlines()) <= 1
    assert len(message) < 1_000


def test_the_seeds_are_good():
    for seed in _SEEDS:
        for training in (False, True):
            assert outcome(json.dumps({"layers": seed}), 3, training) == ""


@pytest.mark.slow
@settings(max_examples=600)
@given(mutated(), st.sampled_from([1, 2, 5, 2**40]), st.booleans())
def test_changed_networks(layers, batch, training):
    assert_one_line(outcome(json.dumps(layers), batch, training))


@settings(max_examples=200)
@given(st.text(max_size=40), st.sampled_from(_SEEDS), st.integers(0, 2_000))
@example("", _SEEDS[0], 0)
def test_torn_text(piece, seed, at):
    text = json.dumps({"layers": seed})
    assert_one_line(outcome(text[:at] + piece, 2, training=True))
    assert_one_line(outcome(text[:at] + piece + text[at + len(piece) :], 2, training=True))
