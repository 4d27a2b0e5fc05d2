"""Tied and unused weights of `.pt2` files: as many parameters as PyTorch counts, never a guess."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import steptime
from every import every
from steptime.build import build, make_workload, read_model
from steptime.core.graph import Graph

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore::UserWarning")]
nn = torch.nn


class Net(nn.Module):
    """Modules by name, ties as pairs of paths, and what is computed of them and the input."""

    def __init__(
        self, parts: dict[str, Any], forward: Callable[[Any, Any], Any], *ties: tuple[str, str]
    ) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        for second, first in ties:
            module, _, leaf = second.rpartition(".")
            setattr(self.get_submodule(module), leaf, self.get_parameter(first))
        self.computed = forward

    def forward(self, x: Any) -> Any:
        return self.computed(self, x)


def square() -> Any:
    return nn.Parameter(torch.zeros(16, 16))


def words() -> Any:
    return torch.zeros(3, 5, dtype=torch.int64)


def rows() -> Any:
    return torch.zeros(3, 16)


def lin(n: int = 16, m: int = 16) -> Any:
    return nn.Linear(n, m)


def table() -> Any:
    return nn.Embedding(50, 16)


def out(bias: bool = False) -> Any:
    return nn.Linear(16, 50, bias=bias)


def once(m: Any, x: Any) -> Any:
    return m.b(m.a(x))


def twice(part: Any) -> Any:
    return Net({"a": part, "b": part}, once)


def language(m: Any, x: Any) -> Any:
    return m.out(m.words(x))


TIE = ("out.weight", "words.weight")
NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "nothing special": (lambda: Net({"a": lin(), "b": lin()}, once), rows),
    "one of two squares is unused": (
        lambda: Net({"a": square(), "b": square()}, lambda m, x: x @ m.a),
        rows,
    ),
    "an unused layer of another shape": (
        lambda: Net({"a": lin(), "b": lin(16, 4), "c": lin(16, 7)}, once),
        rows,
    ),
    "two unused layers of a used one's shape": (
        lambda: Net({"a": lin(), "b": lin(), "c": lin(), "d": lin()}, once),
        rows,
    ),
    "a tied output": (lambda: Net({"words": table(), "out": out()}, language, TIE), words),
    "a tied output with a bias": (
        lambda: Net({"words": table(), "out": out(True)}, language, TIE),
        words,
    ),
    "a tied output beside a spare table": (
        lambda: Net({"words": table(), "out": out(), "spare": table()}, language, TIE),
        words,
    ),
    "a spare table before a tied output": (
        lambda: Net({"spare": table(), "words": table(), "out": out()}, language, TIE),
        words,
    ),
    "an output that is not tied": (lambda: Net({"words": table(), "out": out()}, language), words),
    "an output and a table that are alike, unused": (
        lambda: Net({"words": table(), "out": out(), "more": out()}, language),
        words,
    ),
    "three layers with one weight": (
        lambda: Net(
            {"a": lin(), "b": lin(), "c": lin()},
            lambda m, x: m.c(m.b(m.a(x))),
            ("b.weight", "a.weight"),
            ("c.weight", "a.weight"),
        ),
        rows,
    ),
    "tied biases": (lambda: Net({"a": lin(), "b": lin()}, once, ("b.bias", "a.bias")), rows),
    "all tied, one unused": (
        lambda: Net(
            {"a": lin(), "b": lin(), "c": lin()},
            once,
            ("c.weight", "b.weight"),
            ("c.bias", "b.bias"),
        ),
        rows,
    ),
    "a module with two names": (lambda: twice(lin()), rows),
    "a module that is called twice": (
        lambda: Net({"a": lin()}, lambda m, x: m.a(m.a(x))),
        rows,
    ),
    "tied inside of blocks": (
        lambda: Net(
            {"a": nn.Sequential(lin(), nn.ReLU()), "b": nn.Sequential(lin(), nn.ReLU())},
            once,
            ("b.0.weight", "a.0.weight"),
        ),
        rows,
    ),
    "a weight that is read turned": (
        lambda: Net({"a": lin()}, lambda m, x: m.a(x) @ m.a.weight),
        rows,
    ),
    "an unused norm": (lambda: Net({"a": lin(), "b": lin(), "n": nn.LayerNorm(16)}, once), rows),
    "an unused recurrent layer": (
        lambda: Net({"a": lin(), "b": lin(), "r": nn.LSTM(16, 16)}, once),
        rows,
    ),
    "two tables that are tied, one unused": (
        lambda: Net(
            {"words": table(), "spare": table(), "out": out()},
            language,
            ("spare.weight", "words.weight"),
        ),
        words,
    ),
}


def graph_of(file: str, batch: int) -> Graph:
    return build(make_workload(read_model(file), batch, phase="infer"))


@pytest.mark.slow
@every("name", NETWORKS)
def test_parameters_are_those_that_pytorch_counts(name, tmp_path):
    make, given = NETWORKS[name]
    net, x = make().eval(), given()
    wanted = sum(one.numel() for one in net.parameters())
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    ours = steptime.from_module(net, [x], tmp_path / "ours.pt2")  # its batch is open
    for file in (str(tmp_path / "net.pt2"), ours):
        graph = graph_of(file, 4)
        assert graph.parameters == wanted
        assert all("are read by no op" in text for text in graph.remarks)  # of layers unused


def test_a_file_that_cannot_say_its_ties_counts_them_apart_with_a_remark(tmp_path):
    with warnings.catch_warnings(), torch.device("meta"):
        net = Net({"words": table(), "out": out(), "spare": table()}, language, TIE).eval()
        program = torch.export.export(net, (words(),))
    torch.export.save(program, tmp_path / "net.pt2")
    graph = graph_of(str(tmp_path / "net.pt2"), 3)
    assert graph.parameters == 3 * 50 * 16
    remark, unread = graph.remarks
    assert "does not say whether" in remark
    assert "'spare.weight'" in remark
    assert "of 2,400 parameters are read by no op" in unread
