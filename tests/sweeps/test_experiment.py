"""Experiment files: the cells that they span, and that garbage is refused or understood."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from every import every
from steptime.build import make_workload, read_model
from steptime.core.errors import InputError
from steptime.network.families import FAMILIES
from steptime.sweeps.cells import Cell, CellList, cells_of
from steptime.sweeps.experiment import Experiment, check_experiment

EXAMPLE = """
name = "example"
backend = "torch"
device = "cpu"
phase = "train"
dtype = "float32"
optimizer = "sgd"
batch = [64, 128]

[[networks]]
family = "fc"
layers = "4..16 x2"
nodes = [256, 1024]
inputs = 2000
outputs = 200
"""


def asked(text: str, **changes: Any) -> CellList:
    return cells_of(check_experiment({**tomllib.loads(text), **changes}, "e.toml"), "e.toml")


def cells(text: str, **changes: Any) -> list[Cell]:
    return asked(text, **changes).cells


def _shape(cell: Cell) -> tuple[Any, ...]:
    params = cell.workload.params
    return cell.workload.batch_per_replica, params["layers"], params["nodes"]


def test_the_example_has_its_twelve_cells_in_order():
    found = cells(EXAMPLE)
    assert len(found) == 3 * 2 * 2  # layers 4, 8, 16; nodes; batches
    assert [_shape(cell) for cell in found] == [
        (batch, layers, nodes)
        for batch in (64, 128)
        for layers in (4, 8, 16)
        for nodes in (256, 1024)
    ]
    assert {(cell.backend, cell.options.device) for cell in found} == {("torch", "cpu")}


FC = ("layers", "nodes", "inputs", "outputs")


def test_what_is_left_out_is_the_default_of_the_command_line():
    (cell,) = cells('name = "e"\n[[networks]]\nfamily = "fc"')
    assert cell.workload == make_workload(read_model("fc"))
    six = asked(
        EXAMPLE, batch=[1, 2, 4], dtype=["float32", "bfloat16"], networks=[{"family": "fc"}]
    )
    assert len(six.cells) == 6
    assert six.text == "6 cells: 3 batches x 2 types"


def test_a_table_may_name_several_networks():
    apart = [{"model": "resnet50", "batch": 4}, {"model": "vgg16", "batch": 4}]
    together = asked(EXAMPLE, networks=[{"model": ["resnet50", "vgg16"], "batch": 4}])
    assert together.cells == cells(EXAMPLE, networks=apart)
    assert together.text == "2 cells: 2 networks"
    with pytest.raises(InputError, match=r"networks\[0\]: unknown hyperparameter 'nodes'"):
        cells(EXAMPLE, networks=[{"family": ["fc", "rnn"], "nodes": 4}])
    with pytest.raises(InputError, match=r"networks\[0\]: the name of a family is a text, not "):
        cells(EXAMPLE, networks=[{"model": []}])


@every("value", ["fc", ["fc", "rnn"]])
def test_a_network_out_of_its_table_is_told_where_it_goes(value):
    where = r"e.toml: 'model' is a key of a table of networks: write \[\[networks\]\] on the line"
    with pytest.raises(InputError, match=where):
        check_experiment({"name": "one", "model": value}, "e.toml")


def test_all_is_the_published_range_of_an_axis():
    # layers 4..128, nodes 32..8192, inputs 2000..8000, outputs 200..1000, batch 64..16384
    network = {"family": "fc", **dict.fromkeys(FC, "all")}
    found = cells(EXAMPLE, batch="all", networks=[network])
    assert len(found) == 6 * 9 * 4 * 5 * 9 == 9720
    assert len(cells(EXAMPLE, batch="all", networks=[{"family": "fc"}])) == 9  # 64..16384 x2
    kinds = cells(EXAMPLE, networks=[{"family": "transformer", "layers": 1, "kind": "all"}])
    assert {cell.workload.params["kind"] for cell in kinds} == {"encoder", "decoder"}
    with pytest.raises(InputError, match=r"networks\[0\]: batch has no range for 'all'"):
        cells(EXAMPLE, batch="all", networks=[{"model": "resnet50"}])
    with pytest.raises(InputError, match=r"networks\[0\]: heads has no range for 'all'"):
        cells(EXAMPLE, networks=[{"family": "transformer", "heads": "all"}])


def test_cells_say_which_axes_they_are_of():
    assert asked(EXAMPLE).text == "12 cells: 2 values of nodes x 3 values of layers x 2 batches"
    left = "8 cells of 12: 2 values of nodes x 3 values of layers x 2 batches"
    assert asked(EXAMPLE, where="layers != 8").text == left
    one, two = {"family": "fc"}, {"family": "rnn"}
    assert asked(EXAMPLE, networks=[one, two]).text == "4 cells: 2 networks x 2 batches"
    assert asked(EXAMPLE, batch=64, networks=[one]).text == "1 cell: 1 network"
    mixed = asked(EXAMPLE, batch=64, networks=[one, {"family": "fc", "layers": [4, 8, 16]}, two])
    assert mixed.text == "4 cells of 5: 2 networks + 3 values of layers"  # fc of 4 layers twice


def test_every_fault_is_named_with_its_place():
    faults = {
        "phse": "train", "optimizer": ["sgd", "adamax"], "loaders": -1, "compile": "no",
        "threads": [1, True], "sample": {"cout": 3}, "slurm": {"cpuss": 2}, "dtype": "float9",
    }  # fmt: skip
    with pytest.raises(InputError) as error:
        check_experiment({**tomllib.loads(EXAMPLE), **faults}, "e.toml")
    assert str(error.value).startswith("e.toml: ")
    assert {*str(error.value).removeprefix("e.toml: ").split("; ")} >= {
        "unknown key 'phse'",
        "did you mean 'phase'?",
        "unknown optimizer 'adamax'",
        "did you mean 'adam'?",
        "loaders: must be at least 0, not -1",
        "compile: must be true or false, not 'no'",
        "threads: must be a whole number, not 'True'",
        "sample: unknown key 'cout'",
        "did you mean 'count'?",
        "slurm: unknown key 'cpuss'",
        "did you mean 'cpus'?",
        "unknown dtype 'float9'",
    }
    table = {**tomllib.loads(EXAMPLE), "measure": False, "train_steps": 1, "link": "local"}
    with pytest.raises(InputError) as error:
        check_experiment(table, "e.toml")
    for said in ("measure = false predicts", "link is for predictions", "train_steps: must be 0"):
        assert said in str(error.value)


def test_a_range_of_names_is_one_fault_however_long_it_is():
    with pytest.raises(InputError) as refused:
        cells(EXAMPLE, predict="1..1000")
    assert str(refused.value) == "e.toml: predict: must be a text, not '1'"


def test_more_cells_than_a_sweep_has_are_refused():
    with pytest.raises(InputError, match="1000001 cells are more than 1000000; sample or narrow"):
        cells(EXAMPLE, batch="1..1000001", networks=[{"family": "fc"}])


def test_equal_cells_are_one():
    assert len(cells(EXAMPLE, batch=[64, "64", 64])) == 3 * 2
    assert len(cells(EXAMPLE, phase="infer", optimizer=["sgd", "adam"])) == 12  # no update
    table = tomllib.loads(EXAMPLE)
    assert len(cells(EXAMPLE, networks=table["networks"] * 2)) == 12


def test_filters():
    assert len(cells(EXAMPLE, where="nodes < 1024")) == 3 * 2
    assert len(cells(EXAMPLE, where=["batch >= 128", "layers != 8"])) == 2 * 2
    assert len(cells(EXAMPLE, where="nodes  <\n +1024")) == 3 * 2
    assert len(cells(EXAMPLE, where="layers * nodes < 4096 and batch == 64")) == 2
    limit = 2000 * 256 + 3 * 256**2 + 256 * 200 + 4 * 256 + 200
    assert len(cells(EXAMPLE, where=f"parameters <= {limit}")) == 2  # 4 layers of 256, two batches
    experiment = check_experiment({**tomllib.loads(EXAMPLE), "where": "fits  in memory"}, "e")
    assert cells_of(experiment, "e").must_fit


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_a_sample_is_that_of_its_seed(method):
    def drawn(seed: int) -> list[Any]:
        return [
            _shape(c) for c in cells(EXAMPLE, sample={"method": method, "count": 5, "seed": seed})
        ]

    assert drawn(1) == drawn(1)
    assert len(set(drawn(1))) == 5
    assert any(drawn(1) != drawn(seed) for seed in (2, 3))


TEXT = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"(fc|cnn|rnn|transformer|resnet50)(:[a-z]{1,8}=[-0-9a-z.]{1,6}(,|$)){0,3}"),
    st.builds(
        lambda name, key, value: f"{name}:{key}={value}",
        st.sampled_from(sorted(FAMILIES)),
        st.sampled_from(["layers", "nodes", "image", "blocks", "heads", "batch", "length"]),
        st.one_of(st.integers(), st.text(max_size=8)),
    ),
)


def _is_one_line(message: str) -> None:
    assert len(message.splitlines()) == 1
    assert len(message) < 1000


@settings(max_examples=200)
@given(TEXT)
def test_garbage_as_model_text_is_refused_or_understood(text):
    try:
        workload = make_workload(read_model(text))
    except InputError as error:
        _is_one_line(str(error))
    else:
        again = make_workload(read_model(workload.label), workload.batch_per_replica)
        assert again.key == workload.key


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["fc", "numpy", "4..16 x2", "train", "float32", "flop < 5"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = [field.alias or name for name, field in Experiment.model_fields.items()]
NETWORK = st.fixed_dictionaries(
    {"family": st.just("fc"), "layers": st.just(1), "nodes": st.just(8), "inputs": st.just(8)},
    optional={"outputs": VALUES, "batch": VALUES},
)


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(sorted(KEYS)), VALUES, max_size=3),
    st.lists(NETWORK, min_size=1, max_size=2),
)
def test_garbage_as_an_experiment_is_refused_or_understood(table, networks):
    try:
        experiment = check_experiment({"name": "e", "networks": networks, **table}, "e.toml")
        found, *_ = cells_of(experiment, "e.toml")
    except InputError as error:
        _is_one_line(str(error))
    else:
        assert len(found) == sum(1 for _ in found)
