"""Files of stacks: what one inherits of another, what constants may be, and files of before."""

from __future__ import annotations

from pathlib import Path

import pytest

from every import every
from places import ROOT
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.constants import (
    constants_from_table,
    is_retired,
    known,
    typed,
    uses,
    value_of,
)
from steptime.hardware.stack import Stack, stack_from_table

OLD = ROOT / "tests/data/stacks-0.14"
NONE = 1e-9  # what a file said before 0.15 where it meant nothing


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
    assert (mine.name, mine.source, mine.like) == ("mine", "me", "megatron-2025")
    assert (mine.since, mine.seen, mine.fuses) == (base.since, base.seen, base.fuses)
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
    numbers, flags = typed("serving", {"serving.kernel_s": 2.0, "serving.ahead": 1, "x.y": 3.0})
    assert (numbers["kernel_s"], numbers["routed_s"], numbers["vectors"]) == (2, 0, 1)
    assert flags["ahead"] is True
    assert flags["graphs"] is False
    assert not numbers.keys() & flags.keys()
    assert {f"serving.{name}" for name in numbers | flags} == set(known("serving"))
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
    assert (old.fitted_on, old.why) == ("", "I")  # files of before 0.15


MEANT = {  # what files of 0.14 say beside those of today, whose values told nothing left out
    "megatron-2024": {
        "training.gradient_bytes": 4, "training.update_bytes": 30, "training.layer_s": 2e-05,
        "training.routed_bytes": 40,
    },
    "torch-eager": {
        "training.layer_s": 0.0001, "training.products": 1, "training.selective_kept": 0.45,
        "training.logit_bytes": 6, "training.step_s": 0.01, "training.update_bytes": 28,
    },
    "vllm-2025": {
        "serving.step_s": 0.002, "serving.sequence_s": 4e-05, "serving.low_share": 0.75,
        "serving.prompt_s": 0.01, "serving.chunk_tokens": 2048,
    },
}  # fmt: skip


RECURRENT = {f"{cell}{end}" for cell in ("rnn", "lstm", "gru") for end in ("", "_grad")}
VOLUMES = ("conv3d", "conv_transpose3d")  # kinds that there were not


@every("path", sorted(OLD.glob("*.toml")), ids=lambda path: path.stem)
def test_a_file_of_before_means_what_it_did(path):
    """Copies of files of 0.14, which say 1 and 1e-9 for yes and no, and each constant anew."""
    old, new = catalog.stack(str(path)), catalog.stack(path.stem)
    flags = {name for use in uses() for name, what in known(use).items() if what == "flag"}
    before, after = values(old), values(new)
    assert all(type(before[name]) is bool for name in flags & before.keys())
    assert all(before[name] == after[name] for name in flags & before.keys())
    left = {
        name: value
        for name, value in before.items()
        if after.get(name) != value and not name.startswith("host.")  # measured anew
    }
    meant = MEANT.get(path.stem, {})
    assert {name: value for name, value in left.items() if value != NONE} == meant
    assert not any(after.get(name) for name in left.keys() - meant.keys())
    added = {
        "training.straggling_devices",
        "training.step_s",
        "host.backward_conv2d_s",
        "training.expert_bias_bytes",
        "training.clamped_bytes",
        "training.routed_layer_s",
        "training.expert_s",
        "interval.plan_shared",
        "serving.four_hidden",
        "serving.send_s",
        "training.send_s",
        "serving.graph_tokens",
        "serving.long_prompt_s",
        "serving.max_sequences",
        "serving.small_chunk_tokens",
        "serving.small_max_sequences",
    }  # that stood in code, and in the base, or was not counted
    assert {name for name in after.keys() - before.keys() if "memory." not in name} <= added
    assert not {*filter(is_retired, before)}
    assert (old.since, old.fuses) == (new.since, new.fuses)
    assert old.joins == {
        of: tuple(kind for kind in kinds if kind not in VOLUMES) for of, kinds in new.joins.items()
    }
    nothing: dict[str, list[str]] = {"models": [], "devices": []}  # what told it is told by another
    more = all({*old.fitted_on.get(key, [])} <= {*new.fitted_on.get(key, [])} for key in nothing)
    assert new.fitted_on == nothing or more
    anew = {"batch_norm", *RECURRENT}  # counts its batches by one more kernel; what cuDNN is asked
    assert {k: one[:-1] for k, one in old.kinds.items() if k not in anew} == {
        k: one[:-1] for k, one in new.kinds.items() if k not in {*anew, "adamw"}
    }


def test_a_stack_for_inference_alone_needs_no_host_of_a_training():
    names = ("step_s", "forward_op_s", "launch_s", "view_s", "factor")
    host = {name: {"value": 1, "fitted_on": "me"} for name in names}
    table = {"name": "mine", "source": "me", "host": host}
    assert len(stack_from_table({**table, "trains": False}, "mine.toml").host) == 5
    with pytest.raises(InputError, match=r"lacks host\.update_s, host\.backward_op_s"):
        stack_from_table(table, "mine.toml")


def test_no_constant_is_next_to_nothing():
    for name in catalog.stack_names(with_user_files=False):
        assert NONE not in values(catalog.stack(name)).values(), name


def test_the_month_of_a_stack_is_read_without_the_rest_of_its_files():
    for name in catalog.stack_names():
        assert catalog.stack_since(name) == catalog.stack(name).since, name


def test_a_stack_without_the_month_of_its_base_has_none(own):
    text = 'name = "mine"\nsource = "made up"\nlike = "fsdp-2022"\n'
    (own / "mine.toml").write_text(text, "utf-8")
    assert catalog.stack_since("mine") == catalog.stack("mine").since == "2022-10"
    (own / "mine.toml").write_text(text + 'unlike = ["since"]\n', "utf-8")
    assert catalog.stack_since("mine") == catalog.stack("mine").since == ""
