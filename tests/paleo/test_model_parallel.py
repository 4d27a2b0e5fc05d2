"""Model and hybrid parallelism: by hand, against the original Paleo, and as published."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import split_alexnet
from every import every
from steptime.core.errors import InputError
from steptime.grids.replicas import Sync, data_parallel
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device, Link
from steptime.paleo.layers import Layer
from steptime.paleo.model_parallel import (
    FORK_NOTE,
    MEMORY_NOTE,
    NESTED_NOTE,
    hybrid,
    model_parallel,
    splits_of,
)
from steptime.paleo.nesting import Fork, Nested, has_nested_forks, lower_bound, nest_layers
from steptime.paleo.placement import LayerTimes, time_layers
from steptime.prediction.steps.step_model import StepModel

MS = 1e3
PASSES = ("forward_s", "backward_s", "update_s")
BOUNDS = ("forward_lower_s", "forward_upper_s", "backward_lower_s", "backward_upper_s")
TOY = Device("toy", "gpu", Datasheet({"float32": 1e12}, 1e11, "made up for this test"))
WIRE = Link("wire", 1e-5, 1e9, "made up for this test")


def reference(shared: Path) -> Any:
    return json.loads(gzip.decompress((shared / "paleo/model_hybrid.json.gz").read_bytes()))


@pytest.mark.slow
def test_every_case_of_the_original(shared):
    cases = reference(shared)["cases"]
    assert len(cases) == 144
    for name, case in cases.items():
        model = StepModel(
            shared / "paleo/nets" / f"{name.partition('__')[0]}.json",
            case["device"],
            case["network"],
            "paleo",
            {
                "ppp_comp": case["ppp_comp"],
                "ppp_comm": case["ppp_comm"],
                "pipeline": case["use_pipeline"],
            },
        )
        data, split = case["hybrid"]["rows"]
        row = hybrid(model, case["batch"], case["gpus"])
        parts: Any = row.parts
        found = [MS * parts["data"][key] for key in (*PASSES, "sync_s")]
        assert [row.replicas, row.global_batch, *found] == pytest.approx(data, rel=1e-9), name
        found = [*(MS * parts["model"][key] for key in PASSES), 0.0]
        assert [row.replicas, row.global_batch, *found] == pytest.approx(split, rel=1e-9), name
        if "model" in case:
            bounds: Any = model_parallel(model, case["batch"], case["gpus"]).parts
            expected = [value for _, *both in case["model"]["rows"] for value in both]
            assert [MS * bounds[key] for key in BOUNDS] == pytest.approx(expected, rel=1e-9), name


def test_every_layer_of_the_original(shared):
    for name, case in reference(shared)["layer_detail_hybrid_mode"].items():
        net, device, link, batch, ppp = name.split("__")
        comp, comm = ppp.removeprefix("ppp").split("-")
        given = {"ppp_comp": comp, "ppp_comm": comm}
        model = StepModel(shared / "paleo/nets" / f"{net}.json", device, link, "paleo", given)
        found = {node.layer.name: node for node in time_layers(model, int(batch[1:]), "hybrid")}
        for direction, layers in case.items():
            assert set(layers) == set(found)
            for layer, expected in layers.items():
                part = getattr(found[layer], direction)
                times = [MS * t for t in (part.compute_s, part.memory_s, part.total_s)]
                wanted = [expected[key] for key in ("comp_ms", "comm_ms", "total_ms")]
                assert times == pytest.approx(wanted, rel=1e-9), (name, direction, layer)


def test_hybrid_alexnet_as_published(tmp_path):
    """Hours of 90 epochs of 1.2 million images on 1, 2, 4 and 8 K20, 128 images on each.

    Source: Qi, Sparks, Talwalkar (ICLR 2017), of Krizhevsky 2014; the update is not counted.
    """
    hours = []
    for splits in (1, 2, 4, 8):
        path = split_alexnet.write(tmp_path, splits)
        given = {"ppp_comp": 0.46, "ppp_comm": 0.75}
        row = hybrid(StepModel(path, "K20", "pcie2", "paleo", given), 128, splits)
        assert row.global_batch == 128 * splits
        steps = 90 * 1.2e6 / row.global_batch
        hours.append((row.step_s - row.update_s) * steps / 3600)
    assert hours == pytest.approx([96.31, 49.57, 25.42, 14.37], rel=0.005)


# The nested list


def made(parents: dict[str, str]) -> list[Layer]:
    return [
        Layer(name, "other", "x", tuple(of.split()), (1,), (1,)) for name, of in parents.items()
    ]


def shown(items: Nested) -> str:
    """Return a nested list as text: `a {b d | c} e`."""
    return " ".join(
        item
        if isinstance(item, str)
        else "{" + " | ".join(shown(chain) for chain in item.chains) + "}"
        for item in items
    )


@every(
    ("parents", "expected"),
    [
        ({"a": "", "b": "a", "c": "b"}, "a b c"),
        ({"a": "", "b": "a", "c": "a", "d": "b", "e": "b c d"[2:]}, "a {b d | c} e"),
        ({"a": "", "b": "a", "c": "b", "sum": "a c", "d": "sum"}, "a {b c} sum d"),
        ({"a": "", "b": "a", "sum": "a b", "c": "sum", "sum2": "sum c"}, "a {b} sum {c} sum2"),
        (  # two devices that exchange: each join starts a chain of the next group
            {"a": "", "f0": "a", "f1": "a", "j0": "f0 f1", "j1": "f0 f1", "g0": "j0", "g1": "j1"}
            | {"end": "g0 g1"},
            "a {f0 | f1} {j0 g0 | j1 g1} end",
        ),
        (  # a fork inside a chain, as in Inception v3
            {"a": "", "b": "a", "c": "a", "l": "c", "r": "c", "j": "b l r"},
            "a {b | c {l | r}} j",
        ),
        (  # which joins again inside the chain
            {"a": "", "b": "a", "c": "a", "l": "c", "r": "c", "m": "l r", "n": "m", "j": "b n"},
            "a {b | c {l | r} m n} j",
        ),
        ({"a": "", "b": "", "c": "a b"}, "{a | b} c"),
        ({"a": "data", "b": "a"}, "a b"),  # a parent that is no layer
        ({"a": "", "b": "a a", "c": "b"}, "a b c"),  # one parent, named twice
        ({"a": "", "b": "a", "c": "a", "d": "b c", "e": "c d"}, "a {b | c} d e"),
    ],
)
def test_nested_lists_by_hand(parents, expected):
    assert shown(nest_layers(made(parents))) == expected


def test_nested_lists_of_the_original(shared):
    """Of networks without forks, and of any that the data has with them."""
    for net, expected in json.loads((shared / "paleo/graph.json").read_text()).items():
        model = StepModel(shared / "paleo/nets" / f"{net}.json", "K40")
        assert as_json(nest_layers(model.graph(1).source)) == expected["nested"]


def as_json(items: Nested) -> list[Any]:
    return [
        item if isinstance(item, str) else {"parallel": [as_json(chain) for chain in item.chains]}
        for item in items
    ]


def names(items: Nested) -> Iterator[str]:
    for item in items:
        if isinstance(item, Fork):
            for chain in item.chains:
                yield from names(chain)
        else:
            yield item


@st.composite
def graphs(draw: st.DrawFn) -> list[Layer]:
    parents: dict[str, str] = {}
    for i in range(draw(st.integers(1, 14))):
        chosen = draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else []
        parents[f"n{i}"] = " ".join(f"n{j}" for j in chosen)
    return made(parents)


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_every_layer_stands_once_and_after_its_parents(layers):
    items = nest_layers(layers)
    order = list(names(items))
    assert Counter(order) == Counter(layer.name for layer in layers)
    place = {name: i for i, name in enumerate(order)}
    for layer in layers:
        assert all(place[parent] < place[layer.name] for parent in layer.parents)
    longest = lower_bound(items, lambda _: 1.0)
    assert longest <= len(layers)
    assert lower_bound(items, lambda _: 1.0, lambda _: 0) == len(layers)  # one device does it all


def test_bounds_of_a_nested_list():
    items = nest_layers(made({"a": "", "b": "a", "c": "a", "l": "c", "r": "c", "j": "b l r"}))
    seconds = {"a": 1.0, "b": 10.0, "c": 2.0, "l": 3.0, "r": 4.0, "j": 100.0}
    assert lower_bound(items, seconds.__getitem__) == 1 + 10 + 100
    devices = {"b": 0, "c": 1, "l": 1, "r": 1}
    both = lower_bound(items, seconds.__getitem__, lambda name: devices.get(name, 0))
    assert both == 1 + max(10, 2 + 3 + 4) + 100
    assert has_nested_forks(items)
    assert not has_nested_forks(nest_layers(made({"a": "", "b": "a", "c": "a", "d": "b c"})))


def test_long_chains_and_deep_forks():
    long = {"n0": ""} | {f"n{i}": f"n{i - 1}" for i in range(1, 20_000)}
    assert len(nest_layers(made(long))) == 20_000
    deep = {"n0": ""}
    for i in range(300):
        deep |= {f"n{i + 1}": f"n{i}", f"side{i}": f"n{i}"}
    with pytest.raises(InputError, match="more than 200 forks"):
        nest_layers(made(deep))


# What the original cannot do


def test_eight_splits_in_model_mode(tmp_path):
    """Fetches at memory bandwidth, not halved between groups of four."""
    link = Link("none", None, 1e-3, "too slow for anything")
    path = split_alexnet.write(tmp_path, 8)
    row = model_parallel(StepModel(path, "K20", link, "paleo"), 128)
    assert row.note == MEMORY_NOTE
    found = {
        n.layer.name: n for n in time_layers(StepModel(path, "K20", link, "paleo"), 128, "model")
    }
    one = 128 * (4096 // 8) * 4 / 2**30 / 208  # of drop6@k, K20 has 208 GB/s
    assert found["dense/join6@0"].fetch_s == pytest.approx(7 * one)
    assert found["dense/join6@7"].fetch_s == pytest.approx(7 * one)
    assert found["join7"].fetch_s == pytest.approx(8 * one)  # from its own device too
    assert not model_parallel(
        StepModel(split_alexnet.write(tmp_path, 4), "K20", link, "paleo"), 8
    ).note


def test_inception_in_model_mode():
    """Its branches fork again; one device holds them all, so only Paleo has them at once."""
    paleo = model_parallel(StepModel("inception_v3", "K40", method="paleo"), 8)
    assert (paleo.replicas, paleo.note) == (1, f"{NESTED_NOTE}; {FORK_NOTE}")
    bounds: Any = paleo.parts
    assert bounds["forward_lower_s"] < bounds["forward_upper_s"]
    model = StepModel("inception_v3", "K40")
    row = model_parallel(model, 8)
    assert not row.note
    assert row.step_s == pytest.approx(model.timeline(8).step_s)
    assert row.speedup == pytest.approx(1)


@pytest.mark.rare  # the error of a prediction that no published case asks for
def test_a_link_that_paleo_halves_to_nothing_is_refused(tmp_path):
    path = split_alexnet.write(tmp_path, 128)
    with pytest.raises(InputError, match=r"layer 'dense/join6@0' fetches from over 60 devices"):
        hybrid(StepModel(path, "K20", "pcie2", "paleo"), 1)
    assert hybrid(StepModel(path, "K20", "pcie2"), 1).step_s < 1


@every("method", ["analytic", "roofline", "paleo"])
@every("net", ["alexnet_v2", "resnet18", "squeezenet1_1", "transformer:layers=1,length=8"])
def test_one_device_has_nothing_to_split(method, net):
    """Hybrid on one device is the step; Paleo adds the three cycles of an empty update."""
    model = StepModel(net, "T4", method=method)
    assert splits_of(model) == 1
    expected = model.timeline(2)
    row = hybrid(model, 2)
    found = (row.forward_s, row.backward_s, row.update_s)
    parts = (expected.forward_s, expected.backward_s, expected.update_s)
    assert found == pytest.approx(parts, rel=1e-9, abs=1e-8)
    (data,) = data_parallel(model, [1], 2)
    assert row.step_s == pytest.approx(data.step_s, rel=1e-9, abs=1e-8)


# What every other method mends


def toy_nodes(tmp_path: Path, splits: int, **more: Any) -> dict[str, LayerTimes]:
    model = StepModel(split_alexnet.write(tmp_path, splits), TOY, WIRE, **more)
    return {node.layer.name: node for node in time_layers(model, 16, "model")}


def test_fetches_by_hand(tmp_path):
    """Device 0 has its own at hand; another group of four is reached at half the rate."""
    found = toy_nodes(tmp_path, 8)
    pool = 1e-5 + 16 * 5 * 5 * 256 * 4 / 1e9
    assert found["dense/fc6@0"].fetch_s == 0
    assert found["dense/fc6@3"].fetch_s == pytest.approx(pool)
    assert found["dense/fc6@4"].fetch_s == pytest.approx(pool + (pool - 1e-5))
    near = 1e-5 + 16 * 512 * 4 / 1e9
    far = near + 16 * 512 * 4 / 1e9
    assert found["dense/join6@0"].fetch_s == pytest.approx(3 * near + 4 * far)
    assert found["join7"].fetch_s == pytest.approx(3 * near + 4 * far)
    assert found["dense/drop6@5"].fetch_s == found["fc8"].fetch_s == 0
    half = toy_nodes(tmp_path, 8, options={"ppp_comm": 0.5}, dtype="float32")
    assert half["dense/fc6@3"].fetch_s == pytest.approx(1e-5 + 2 * (pool - 1e-5))


def test_layers_have_the_times_of_all_their_ops(tmp_path):
    model = StepModel(split_alexnet.write(tmp_path, 2), TOY, WIRE)
    found, step = time_layers(model, 16, "model"), model.timeline(16)
    for part in ("forward", "backward"):
        total = sum(getattr(node, part).total_s - node.fetch_s for node in found)
        assert total == pytest.approx(getattr(step, f"{part}_s"))
    assert sum(node.update_s for node in found) == pytest.approx(step.update_s)


def test_hybrid_by_hand(tmp_path):
    """Split layers: one batch in full, then the longer of fetching and working for each other."""
    splits, batch = 4, 16
    model = StepModel(split_alexnet.write(tmp_path, splits), TOY, WIRE)
    row = hybrid(model, batch, splits)
    found = {node.layer.name: node for node in time_layers(model, batch, "hybrid")}
    fetch = found["dense/fc6@3"].fetch_s
    parts: Any = row.parts

    def slowest(direction: str, *layers: str) -> float:
        """Adding up the gradients of what several devices read falls to some of them."""
        return max(
            sum(getattr(found[f"dense/{layer}@{k}"], direction).total_s for layer in layers)
            for k in range(splits)
        )

    for direction in ("forward", "backward"):
        once = slowest(direction, "fc6", "drop6") + slowest(direction, "join6", "fc7", "drop7")
        expected = once + (splits - 1) * max(once - fetch, fetch)
        assert parts["model"][f"{direction}_s"] == pytest.approx(expected)
    update = sum(found[f"dense/{layer}@3"].update_s for layer in ("fc6", "fc7"))
    assert parts["model"]["update_s"] == pytest.approx(update)
    whole = [node for node in found.values() if node.layer.split is None]
    for key in ("forward", "backward"):
        expected = sum(getattr(node, key).total_s for node in whole)
        assert parts["data"][f"{key}_s"] == pytest.approx(expected)
    parameters = sum(node.layer.parameters for node in whole)
    added = 4 * parameters * (splits - 1) / splits
    ring = 4e-5 + 2 * (splits - 1) * (1e-5 + 4 * parameters / splits / 1e9)
    ring += 3 * added / TOY.datasheet.memory_bytes_per_s
    assert parts["data"]["sync_s"] == row.exposed_communication_s == pytest.approx(ring)
    assert row.step_s == pytest.approx(row.compute_s + ring)
    assert row.examples_per_s == pytest.approx(splits * batch / row.step_s)
    small = hybrid(model, batch, splits, exchange=Sync("tree", compression=2.0))
    half = 4 * parameters / 2
    tree = 4e-5 + 2 * 2 * 1e-5 + 2 * half / 1e9 + 3 * half / TOY.datasheet.memory_bytes_per_s
    assert small.exposed_communication_s == pytest.approx(tree)
    shared = hybrid(model, splits * batch, splits, "strong")
    assert shared.global_batch == splits * batch
    assert shared.step_s == pytest.approx(row.step_s)


def test_what_does_not_fit_together_is_refused(tmp_path):
    path = split_alexnet.write(tmp_path, 2)
    model = StepModel(path, TOY, WIRE)
    for run in (hybrid, model_parallel):
        with pytest.raises(InputError, match="has 2 splits: replicas must be 2, not 4"):
            run(model, 16, 4)
        with pytest.raises(InputError, match="has no split layers: replicas must be 1, not 2"):
            run(StepModel("nin", TOY, WIRE), 16, 2)
        with pytest.raises(InputError, match="2 replicas need a link"):
            run(StepModel(path, TOY), 16)
    with pytest.raises(InputError, match="overlap"):
        hybrid(model, 16, exchange=Sync(overlap=True))
