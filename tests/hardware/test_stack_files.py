"""Files of stacks: what one inherits of another, what constants may be, and files of before."""

from __future__ import annotations

from pathlib import Path

import pytest

from every import every
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.constants import (
    constants_from_table,
    kinds_of_use,
    split_flags,
    value_of,
)
from steptime.hardware.stack import Stack, stack_from_table

TINY = 1e-9


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's folder of stacks."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    (tmp_path / "stacks").mkdir()
    return tmp_path / "stacks"


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.toml").write_text(f'name = "{name}"\nsource = "me"\n{text}', "utf-8")


def values(stack: Stack) -> dict[str, float]:
    every = (stack.host, stack.training, stack.serving, stack.memory, stack.interval)
    return {name: one.value for of in every for name, one in of.items()}


def test_a_stack_is_like_another_but_for_what_it_says(own):
    write(own, "mine", 'like = "megatron-2025"\n[training]\nlayer_s = {value = 0, fitted_on = "I"}')
    mine, base = catalog.stack("mine"), catalog.stack("megatron-2025")
    assert (mine.name, mine.source, mine.base) == ("mine", "me", "megatron-2025")
    assert (mine.since, mine.fitted_on, mine.fuses) == (base.since, base.fitted_on, base.fuses)
    assert (mine.kinds, mine.joins, mine.host) == (base.kinds, base.joins, base.host)
    assert values(mine) == values(base) | {"training.layer_s": 0}
    assert mine.training["training.layer_s"].spread == 0


def test_an_entry_is_replaced_whole(own):
    text = 'like = "megatron-2025"\n[kinds]\nattention_grad = {kernels = 4, source = "I"}'
    write(own, "mine", text)
    mine, base = catalog.stack("mine"), catalog.stack("megatron-2025")
    assert base.kinds["attention_grad"].flop == 1.25
    assert mine.kinds["attention_grad"].flop == 1
    assert mine.kinds["attention_grad"].kernels == 4
    assert mine.kinds["attention"] == base.kinds["attention"]


def test_what_a_stack_is_unlike_is_as_if_nobody_said_it(own):
    unlike = '["memory", "kinds.rotary", "training.slowed", "joins.bias", "backend"]'
    write(own, "mine", f'like = "torch-eager"\nunlike = {unlike}')
    mine, base = catalog.stack("mine"), catalog.stack("torch-eager")
    assert (mine.memory, mine.joins, mine.backend) == ({}, {}, "")
    assert base.kinds.keys() - mine.kinds.keys() == {"rotary"}
    assert base.training.keys() - mine.training.keys() == {"training.slowed"}


def test_a_base_that_was_written_anew_is_read_anew(own):
    write(own, "a", 'like = "torch-eager"\nsince = "2024-01"')
    write(own, "b", 'like = "a"')
    assert catalog.stack("b").since == "2024-01"
    write(own, "a", 'like = "torch-compile"\nsince = "2025-011"')
    assert (catalog.stack("b").since, catalog.stack("b").compile) == ("2025-011", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('like = "megatron-2052"', "mine.toml: like: unknown stack 'megatron-2052'; did you mean"),
        ('like = "mine"', "mine.toml: 'like' leads back to mine in a circle"),
        ("like = 2", "mine.toml: 'like' must be a text, not '2'"),
        ('unlike = ["memory"]', "mine.toml: 'unlike' needs 'like', the name of a stack"),
        ('like = "jax"\nunlike = ["knids"]', "unknown unlike 'knids'; did you mean 'kinds'?"),
        (
            'like = "torch-eager"\nunlike = ["kinds.rotery"]',
            "mine.toml: unknown unlike kinds 'rotery'; did you mean 'rotary'?",
        ),
        (
            'like = "torch-eager"\nunlike = ["training.slow"]',
            "unknown unlike training 'training.slow'; did you mean 'training.slowed'?",
        ),
        ('like = "torch-eager"\nunlike = ["host.step_s"]', "mine.toml: [host] lacks host.step_s"),
    ],
)
def test_a_fault_of_like_is_one_line(own, text, said):
    write(own, "mine", text)
    with pytest.raises(InputError) as caught:
        catalog.stack("mine")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_circle_of_two_is_found(own):
    write(own, "a", 'like = "b"')
    write(own, "b", 'like = "a"')
    with pytest.raises(InputError, match=r"b\.toml: 'like' leads back to a in a circle"):
        catalog.stack("a")


@every(
    ("name", "row", "said"),
    [
        ("serving.graphs", {"value": "yes"}, "'serving.graphs.value' must be a number, true or"),
        (
            "serving.vectors",
            {"value": True},
            "'serving.vectors.value' must be a number, not 'True'",
        ),
        ("serving.vectors", {"value": 0}, "serving.vectors: a value above 0 and a spread"),
        ("serving.kernel_s", {"value": -1}, "serving.kernel_s: a value 0 or more and a spread"),
        ("serving.kernel_s", {"value": 1, "spread": -1}, "a spread of 0 or more"),
        ("serving.kernel_s", {"value": float("nan")}, "a value 0 or more"),
        ("serving.kernel_s", {"value": 1, "rows": "neusight"}, "'serving.kernel_s.rows' must be a"),
        ("serving.kernel_s", {"value": 1, "fited_on": "I"}, "did you mean 'fitted_on'?"),
        ("serving.kernel_s", {"value": 1, "why": "", "fitted_on": "I"}, ".why' must be a text"),
        ("product.share", {"value": 0}, "product.share: a value above 0"),
    ],
)
def test_a_constant_that_cannot_be_is_one_line(name, row, said):
    form, _, own_name = name.partition(".")
    with pytest.raises(InputError) as caught:
        constants_from_table({form: {own_name: {"fitted_on": "me", **row}}}, "mine.toml")
    assert str(caught.value).startswith("mine.toml: ")
    assert said in str(caught.value)


def test_what_nobody_says_changes_nothing():
    numbers, flags = split_flags(
        "serving", {"serving.kernel_s": 2.0, "serving.ahead": 1, "x.y": 3.0}
    )
    assert (numbers["kernel_s"], numbers["routed_s"], numbers["vectors"]) == (2, 0, 1)
    assert flags["ahead"] is True
    assert flags["graphs"] is False
    assert not numbers.keys() & flags.keys()
    assert {f"serving.{name}" for name in numbers | flags} == set(kinds_of_use("serving"))
    assert value_of("training.products", {}) == 1
    assert value_of("training.routed_bytes", {}) == 0
    assert value_of("training.products", {"training.products": 1.3}) == 1.3


def test_a_constant_says_the_tables_that_told_it():
    row = {"value": 2, "spread": 0.1, "fitted_on": "I", "rows": ["neusight"]}
    one = constants_from_table({"a": {"b": row}}, "x")["a.b"]
    assert (one.rows, one.fitted_on, one.why) == (("neusight",), "I", "")


@pytest.mark.parametrize("row", [{}, {"rows": []}])
def test_a_constant_that_nothing_told_says_why(row):
    with pytest.raises(InputError) as caught:
        constants_from_table({"a": {"b": {"value": 2, **row}}}, "x.toml")
    assert str(caught.value) == "x.toml: a.b needs 'rows', the sets that told it, or 'why'"
    one = constants_from_table({"a": {"b": {"value": 2, **row, "why": "judged"}}}, "x")["a.b"]
    assert (one.rows, one.why) == ((), "judged")
    old = constants_from_table({"a": {"b": {"value": 2, **row, "fitted_on": "I"}}}, "x")["a.b"]
    assert (old.fitted_on, old.why) == ("", "I")


def test_a_stack_for_inference_alone_needs_no_host_of_a_training():
    names = ("step_s", "forward_op_s", "launch_s", "view_s", "factor")
    host = {name: {"value": 1, "fitted_on": "me"} for name in names}
    table = {"name": "mine", "source": "me", "host": host}
    assert len(stack_from_table({**table, "trains": False}, "mine.toml").host) == 5
    with pytest.raises(InputError, match=r"lacks host\.update_s, host\.backward_op_s"):
        stack_from_table(table, "mine.toml")


def test_no_constant_is_next_to_nothing():
    for name in catalog.stack_names(with_user_files=False):
        assert TINY not in values(catalog.stack(name)).values(), name


def test_the_month_of_a_stack_is_read_without_the_rest_of_its_files():
    for name in catalog.stack_names():
        assert catalog.stack_since(name) == catalog.stack(name).since, name


def test_a_stack_without_the_month_of_its_base_has_none(own):
    text = 'name = "mine"\nsource = "made up"\nlike = "fsdp-2022"\n'
    (own / "mine.toml").write_text(text, "utf-8")
    assert catalog.stack_since("mine") == catalog.stack("mine").since == "2022-10"
    (own / "mine.toml").write_text(text + 'unlike = ["since"]\n', "utf-8")
    assert catalog.stack_since("mine") == catalog.stack("mine").since == ""
