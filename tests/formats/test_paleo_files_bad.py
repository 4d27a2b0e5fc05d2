"""Paleo's network files that hold no network: one line says what is wrong, and in which layer."""

from __future__ import annotations

import pytest

from every import every
from paleo_net import Table, block, by_name, conv, graph_of, image, layer, message, pool, split
from steptime.core.errors import InputError
from steptime.formats import Source
from steptime.paleo.files.read import read

DATA = {"data": image(2, 8, 8, 3)}


def nested(depth: int) -> Table:
    inner: Table = {"r": layer("ReLU")}
    for i in range(depth):
        end = "r" if i == 0 else "b"
        inner = {"b": layer("Block", endpoint=end, layers=inner)}
    inner["b"]["parents"] = ["data"]
    return inner


BAD: dict[str, tuple[Table, str]] = {
    "no layers": ({}, "the network has no layers"),
    "only an input": (DATA, "no layers besides its input"),
    "no input": (
        {"a": layer("ReLU", "b"), "b": layer("ReLU", "a")},
        "layer 'a': is its own ancestor, by way of 'b'",
    ),
    "two inputs": (
        {**DATA, "more": image(2, 8, 8, 3), "s": layer("Elementwise", "data", "more")},
        "one layer of type Input; found 'data', 'more'",
    ),
    "orphan": ({**DATA, "a": layer("ReLU")}, "layer 'a': type 'ReLU' has one parent"),
    "two parents": (
        {**DATA, "a": layer("ReLU", "data", "data")},
        "layer 'a': type 'ReLU' has one parent, not 2",
    ),
    "unknown parent": (
        {**DATA, "a": layer("ReLU", "dta")},
        "layer 'a': unknown parent 'dta'; did you mean 'data'?",
    ),
    "unknown parent in a block": (
        {**DATA, "b": block("data", endpoint="one", one=layer("ReLU"), two=layer("ReLU", "onw"))},
        "layer 'b/two': unknown parent 'onw'; did you mean 'one'?",
    ),
    "unknown type": (
        {**DATA, "a": layer("Convolutoin", "data")},
        "layer 'a': unknown type of layer 'Convolutoin'; did you mean 'Convolution'?",
    ),
    "no type": ({**DATA, "a": {"parents": ["data"]}}, "layer 'a': the key 'type' is missing"),
    "no parents": ({**DATA, "a": {"type": "ReLU"}}, "layer 'a': the key 'parents' is missing"),
    "parents of an input": (
        {"data": image(2, 4) | {"parents": ["data"]}},
        "layer 'data': an input has no parents",
    ),
    "a text for parents": (
        {**DATA, "a": {"type": "ReLU", "parents": "data"}},
        "layer 'a': parents must be a list of names",
    ),
    "no table": ({**DATA, "a": 7}, "layer 'a': must be a table, not '7'"),
    "missing filter": (
        {**DATA, "a": layer("Convolution", "data", strides=[1, 1, 1, 1], padding="SAME")},
        "layer 'a': the key 'filter' is missing",
    ),
    "filter of rank 3": (
        {**DATA, "a": conv("data", 3, 3, 3)},
        "layer 'a': filter must be [kh, kw, c_in, c_out]",
    ),
    "channels": (
        {**DATA, "a": conv("data", 3, 3, 4, 5)},
        "layer 'a': its filter takes 4 channels, its parent gives 3",
    ),
    "rank": (
        {
            **DATA,
            "f": layer("InnerProduct", "data", num_outputs=2),
            "a": pool("Pooling", "f", 2, 2),
        },
        "layer 'a': needs [n, h, w, c], but its parent gives [2, 2]",
    ),
    "zero": ({**DATA, "a": conv("data", 3, 3, 3, 0)}, "layer 'a': filter must be whole numbers"),
    "stride of zero": (
        {**DATA, "a": conv("data", 3, 3, 3, 1, stride=0)},
        "layer 'a': strides must be whole numbers from 1",
    ),
    "float": (
        {**DATA, "a": layer("InnerProduct", "data", num_outputs=2.0)},
        "layer 'a': num_outputs must be whole numbers",
    ),
    "bool": (
        {**DATA, "a": layer("InnerProduct", "data", num_outputs=True)},
        "layer 'a': num_outputs must be whole numbers",
    ),
    "huge": (
        {**DATA, "a": layer("InnerProduct", "data", num_outputs=2**53)},
        "layer 'a': weights '[192, 9007199254740992]' has more than 2^53 elements",
    ),
    "larger than huge": (
        {"data": image(2, 10**400), "a": layer("ReLU", "data")},
        "layer 'data': tensor must be whole numbers from 1 to 2^53",
    ),
    "a batch that is a table": (
        {"data": {**image(2, 6), "tensor": [{}, 6, 6, 3]}, "a": layer("ReLU", "data")},
        "layer 'data': tensor must be whole numbers from 1 to 2^53",
    ),
    "huge input": (
        {"data": image(2, 2**30, 2**30), "a": layer("ReLU", "data")},
        "layer 'data': output '[2, 1073741824, 1073741824]' has more than 2^53 elements",
    ),
    "window": (
        {**DATA, "a": conv("data", 9, 9, 3, 1, padding="VALID")},
        "layer 'a': a window [9, 9] does not fit into [2, 8, 8, 3]",
    ),
    "padding": (
        {**DATA, "a": conv("data", 3, 3, 3, 1, padding="same")},
        "layer 'a': padding must be VALID, SAME or [height, width], not 'same'",
    ),
    "strides over images": (
        {**DATA, "a": conv("data", 3, 3, 3, 1) | {"strides": [2, 1, 1, 1]}},
        "layer 'a': strides must be [1, height, width, 1]",
    ),
    "keep": (
        {**DATA, "a": layer("Dropout", "data", dropout_keep_prob=0)},
        "layer 'a': dropout_keep_prob must be above 0",
    ),
    "activation": (
        {**DATA, "a": conv("data", 1, 1, 3, 1, activation_fn="rleu")},
        "layer 'a': unknown activation_fn 'rleu'; did you mean 'relu'?",
    ),
    "bias": (
        {**DATA, "a": conv("data", 1, 1, 3, 4, bias=[5])},
        "layer 'a': bias must be true, false or [filters], not '[5]'",
    ),
    "concat": (
        {
            **DATA,
            "p": pool("Pooling", "data", 2, 2),
            "a": layer("Concatenate", "p", "data", dim=3),
        },
        "layer 'a': [2, 8, 8, 3] of 'data' does not fit to [2, 4, 4, 3] along axis 3",
    ),
    "sum": (
        {**DATA, "p": pool("Pooling", "data", 2, 2), "a": layer("Elementwise", "p", "data")},
        "layer 'a': [2, 8, 8, 3] of 'data' is not the shape [2, 4, 4, 3]",
    ),
    "a sum of what broadcasts": (
        {
            "data": image(8, 8, 8, 3),
            "f": layer("InnerProduct", "data", num_outputs=8),
            "a": layer("Elementwise", "data", "f"),
        },
        "layer 'a': [8, 8] of 'f' is not the shape [8, 8, 8, 3]",
    ),
    "reshape": (
        {**DATA, "a": layer("Reshape", "data", output_shape=[2, -1, 7])},
        "layer 'a': [2, 8, 8, 3] cannot be seen as '[2, -1, 7]'",
    ),
    "deconvolution": (
        {
            **DATA,
            "a": conv("data", 3, 3, 4, 3, stride=2)
            | {"type": "Deconvolution", "output_shape": [2, 18, 18, 4]},
        },
        "layer 'a': its convolution leads from [2, 18, 18, 4] to [9, 9], not to the [8, 8]",
    ),
    "endpoint": (
        {**DATA, "b": block("data", endpoint="lsat", last=layer("ReLU"))},
        "block 'b': unknown endpoint 'lsat'; did you mean 'last'?",
    ),
    "nesting": ({**DATA, **nested(51)}, "more than 50 blocks within each other"),
    "splits": (
        {**DATA, "b": split("data", 0, a=layer("ReLU"))},
        "layer 'b': splits must be from 1 to 4096, not '0'",
    ),
    "more splits than filters": (
        {**DATA, "b": split("data", 4, a=conv("", 1, 1, 3, 3))},
        "layer 'b/a@0': 3 filters cannot be divided by 4 splits",
    ),
    "a million layers": (
        {**DATA, "b": split("data", 10**6, a=layer("ReLU"), c=layer("ReLU"))},
        "layer 'b': splits must be from 1 to 4096, not '1000000'",
    ),
    "a million parents": (
        {
            **DATA,
            "b": split("data", 2000, a=layer("ReLU"), c=layer("Concatenate", "a@all", dim=3)),
        },
        "the network has more than 1000000 parents",
    ),
    "a block in splits": (
        {**DATA, "b": split("data", 2, a=block(endpoint="c", c=layer("ReLU")))},
        "layer 'b/a': a ModelParallel block holds layers, not blocks",
    ),
    "self outside": (
        {**DATA, "b": split("data", 2, a=layer("ReLU")), "c": layer("ReLU", "b/a@self")},
        "layer 'c': parent 'b/a@self': @self has a meaning only inside its own block",
    ),
    "all of one": (
        {**DATA, "c": layer("ReLU", "data@all")},
        "layer 'c': parent 'data@all': 'data' is not split",
    ),
    "no such split": (
        {**DATA, "b": split("data", 2, a=layer("ReLU")), "c": layer("ReLU", "b/a@2")},
        "layer 'c': parent 'b/a@2': write @self or @all",
    ),
    "a split as parent": (
        {**DATA, "b": split("data", 2, a=layer("ReLU")), "c": layer("ReLU", "b")},
        "layer 'c': parent 'b' is split: name a layer of the block, with @all",
    ),
    "the same name": (
        {
            **DATA,
            "b": block("data", endpoint="c", c=layer("ReLU")),
            "b/c": layer("ReLU", "data"),
        },
        "layer 'b/c': there are two of this name",
    ),
    "a name of gradients": (
        {**DATA, "c": conv("data", 1, 1, 3, 1), "c/grad_input": layer("ReLU", "c")},
        "layer 'c/grad_input': 'grad_input' inside 'c' is a name of gradients",
    ),
    "a name of weights": (
        {**DATA, "c": conv("data", 1, 1, 3, 1), "c/w": layer("ReLU", "c")},
        "two ops are named 'c/w'",
    ),
    "a name with @": ({**DATA, "c@0": layer("ReLU", "data")}, "'c@0' is no name of a layer"),
    "a long name": ({**DATA, "c" * 301: layer("ReLU", "data")}, "is no name of a layer"),
}


@every("case", BAD)
def test_bad_networks(tmp_path, case):
    layers, expected = BAD[case]
    assert expected in message(tmp_path, layers)


@every(
    ("text", "expected"),
    [
        ('{"layers": [1]}', "a table of 'layers'"),
        ('{"layers": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}", "is no JSON"),
        ('{"layers": {"a": 1, "a": 2}}', "key 'a' is given twice"),
        ("\ufeff{}", "is no JSON"),
        ('{"layers": {"a": ' + "9" * 5000 + "}}", "is no JSON"),
        ("", "is no JSON"),
        ("[]", "a table of 'layers'"),
    ],
)
def test_junk(text, expected):
    with pytest.raises(InputError, match=expected) as caught:
        read(Source("x.json", text.encode()), allow_unknown=False)
    assert "\n" not in str(caught.value)


def test_unknown_layers_pass_their_input_on_if_asked(tmp_path):
    layers = {**DATA, "odd": layer("Swizzle", "data"), "c": conv("odd", 1, 1, 3, 2)}
    assert "unknown type of layer 'Swizzle'" in message(tmp_path, layers)
    graph = graph_of(tmp_path, layers, unknown=True)
    assert graph.unmodelled == ("odd",)
    assert by_name(graph)["odd"].outputs == (2, 8, 8, 3)
    assert by_name(graph)["odd"].op == ""
