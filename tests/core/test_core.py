"""The ground: ranges, numbers as people read them, errors, graphs' tensors, records as JSON."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from steptime.core.copying import replace
from steptime.core.dtypes import PRECISIONS, SIZE_BYTES, precision
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph import TensorSpec
from steptime.core.spelling import find_similar_names
from steptime.core.units import (
    QUANTITIES,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_seconds,
    format_si,
)
from steptime.core.values import (
    MAX_COUNT,
    is_range,
    number_of,
    parse_latency_s,
    parse_number,
    parse_range,
    parse_share,
)
from steptime.core.windows import count_positions, covered_size, tensorflow_padding
from steptime.core.workload import Plan, Workload
from steptime.records.reading import MAX_EXAMPLES, SMALLEST, record_from_json
from steptime.records.record import (
    FINAL_STATUSES,
    ORIGINS,
    STATUSES,
    Quantity,
    Record,
    RecordMethod,
    record_to_json,
)


@every(
    ("text", "values"),
    [
        ("1..3", [1, 2, 3]),
        ("0..0", [0]),
        ("2..8 +3", [2, 5, 8]),
        ("2..9 +3", [2, 5, 8]),  # the end is reached only by whole steps
        ("4..16 x2", [4, 8, 16]),
        ("4..16*2", [4, 8, 16]),
        ("  64 .. 70  x 2 ", [64]),
        ("9007199254740991..9007199254740992", [2**53 - 1, 2**53]),
    ],
)
def test_ranges(text, values):
    assert is_range(text)
    assert parse_range(text, "here") == values


@every(
    ("text", "message"),
    [
        ("1..", "'1..' is not a range of whole numbers such as 4..128 x2"),
        ("1..x", "is not a range"),
        ("-1..3", "is not a range"),
        ("1.5..3", "must be a whole number"),
        ("1..3 -1", "is not a range"),
        ("1..3 x2 x2", "is not a range"),
        ("8..4", "range '8..4' runs backwards"),
        ("1..4 +0", "stands still"),
        ("1..4 x1", "stands still"),
        ("0..4 x2", "stands still"),
        ("1..9007199254740993", "is larger than 2^53"),
        ("1..99999999999999999999", "is larger than 2^53"),
        ("0..10000000", "has more than 10000000 values"),
    ],
)
def test_what_is_no_range(text, message):
    with pytest.raises(InputError) as error:
        parse_range(text, "fc: layers")
    assert str(error.value).startswith("fc: layers: ")
    assert message in str(error.value)


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 50), st.sampled_from("+x"))
def test_a_range_lies_between_its_ends(first, more, step, how):
    if how == "x":
        step += 1
    values = parse_range(f"{first}..{first + more} {how}{step}", "here")
    assert values[0] == first
    assert values[-1] <= first + more
    following = values[-1] + step if how == "+" else values[-1] * step
    assert following > first + more
    assert values == sorted(set(values))


def test_other_values_are_no_ranges():
    assert not any(map(is_range, (3, 1.5, "3", "a.b", None, [1, 2])))
    assert MAX_COUNT == 9_007_199_254_740_992


@every(
    ("value", "unit", "text"),
    [
        (0, "FLOP", "0 FLOP"),
        (2.5e9, "FLOP", "2.5 GFLOP"),
        (999, "B", "999 B"),
        (999.96, "B", "1 kB"),  # not 1000 B
        (999_999, "B", "1 MB"),
        (12_345_678, "FLOP", "12.35 MFLOP"),
        (4e18, "FLOP", "4000 PFLOP"),
        (0.5, "B", "0.5 B"),  # half a byte has no smaller unit
        (0.25, "J", "250 mJ"),
        (-3e-6, "s", "-3 us"),
        (1e-12, "s", "0.001 ns"),
    ],
)
def test_numbers_as_people_read_them(value, unit, text):
    assert format_si(value, unit) == text


def test_times_and_sizes():
    assert [format_seconds(v) for v in (0, 0.0021, 0.99999999, 1, 3600)] == [
        "0 s", "2.1 ms", "1 s", "1 s", "3600 s",
    ]  # fmt: skip
    assert [format_bytes(v) for v in (0, 2.5e9, 80e9)] == ["0 B", "2.5 GB", "80 GB"]
    assert [format_duration(v) for v in (-3, 0.4, 59.6, 65, 3599.6, 90_061)] == [
        "0:00", "0:00", "1:00", "1:05", "1:00:00", "25:01:01",
    ]  # fmt: skip


def test_things_are_counted_in_words():
    assert [format_count(n, "row") for n in (0, 1, 1998)] == ["0 rows", "1 row", "1,998 rows"]


@given(st.floats(1e-9, 1e17), st.sampled_from(["s", "B", "FLOP"]))
def test_a_number_keeps_four_digits(value, unit):
    number, _, named = format_si(value, unit).partition(" ")
    prefixes = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "m": 1e-3, "u": 1e-6, "n": 1e-9}
    factor = prefixes.get(named.removesuffix(unit), 1.0)
    assert float(number) * factor == pytest.approx(value, rel=5.1e-4)


def test_quantities_wear_their_units():
    ends = {"s": "_s", "byte": "_bytes", "FLOP": "flop", "J": "_j", "W": "_w"}
    ends |= {"/s": "_per_s", "FLOP/s": "_flop_per_s", "FLOP/byte": "_byte", "": ""}
    for name, (unit, meaning) in QUANTITIES.items():
        assert unit == "1" or name.endswith(ends[unit])
        assert meaning


def test_shorten_shows_sixty_characters_on_one_line():
    assert shorten("a") == "'a'"
    assert shorten(3) == "'3'"
    assert shorten("x" * 60) == f"'{'x' * 60}'"
    assert shorten("x" * 61) == f"'{'x' * 60}...'"
    assert shorten("a\nb\x1b[1m") == "'a?b?[1m'"
    assert shorten([1, "b"]) == """'[1, 'b']'"""


def test_unknown_names_the_nearest():
    known = ("float32", "float64", "bfloat16")
    assert str(unknown("dtype", "Float-32", known)) == (
        "unknown dtype 'Float-32'; did you mean 'float32'?"
    )
    assert str(unknown("dtype", "complex", known, "a.toml")) == (
        "a.toml: unknown dtype 'complex'; known: float32, float64, bfloat16"
    )
    many = [f"device{n:02}" for n in range(20)]
    lister = ": steptime list devices"
    assert str(unknown("device", "?", many)).endswith(f"device07, ... (20 in all{lister})")
    assert str(unknown("place", "?", many)).endswith("device07, ... (20 in all)")
    assert find_similar_names("FC", ["fc", "rnn"]) == ["fc"]
    assert not find_similar_names("q" * 10_000, ["fc"])


@pytest.mark.parametrize(
    ("typed", "known", "names"),
    [
        ("nvlink", ["nvlink-1", "nvlink-2", "ethernet"], ["nvlink-1", "nvlink-2"]),
        ("vgg", ["vgg16", "gpt2"], ["vgg16"]),
        ("resnet101", ["resnet50", "resnet34"], []),  # never a smaller sibling
        ("float8", ["float64", "float32", "float16"], []),
        ("vgg19", ["vgg16"], ["vgg16"]),  # a digit is wrong, not the first
        ("resnet10", ["resnet101", "resnet50", "resnet18"], ["resnet18"]),  # of the same length
        ("l41", ["l4", "l40s", "l40", "l20"], ["l40"]),
        ("convnext_base", ["bert_base", "convnext_tiny"], []),
        ("resnt50", ["resnet50", "resnet34"], ["resnet50"]),
        ("resnet5", ["resnet50"], ["resnet50"]),  # a digit is lost
        ("v1000", ["V100", "a100"], ["V100"]),  # one is added
        ("megatron-2052", ["megatron-2025", "megatron-2022"], ["megatron-2025"]),  # two are swapped
        ("SGD", ["sgd", "adam"], ["sgd"]),
        ("adamw", ["sgd", "adam"], ["adam"]),
        ("a100-sxm4-80k", ["a100-sxm4-80gb", "a100-sxm4-40gb"], ["a100-sxm4-80gb"]),
        ("vit_s_16", ["vit_l_16", "vit_b_16"], []),  # one letter is a size
        ("rtx 6090", ["t600"], []),
        ("--requests-per-s", ["--requests"], []),  # words more
        ("rtx4080ti", ["rtx-4080", "rtx-4080-super"], []),
        ("f c", ["fc", "rnn"], ["fc"]),
        ("", ["sgd"], []),
    ],
)
def test_what_a_name_was_meant_to_be(typed, known, names):
    assert find_similar_names(typed, known) == names


def test_several_names_are_asked_back_and_many_are_shown_by_likeness():
    links = [f"nvlink-{n}" for n in range(1, 4)]
    said = "unknown link 'nvlink'; did you mean 'nvlink-1', 'nvlink-2' or 'nvlink-3'?"
    assert str(unknown("link", "nvlink", links)) == said
    many = [*(f"device{n:02}" for n in range(20)), "vgg16"]
    assert "; known: vgg16, device" in str(unknown("model", "vgg-net", many))


def test_precisions():
    assert precision("float32").mixed is False
    mixed = precision("bfloat16-mixed")
    assert (mixed.weights, mixed.compute, mixed.mixed) == ("float32", "bfloat16", True)
    for found in PRECISIONS.values():
        assert SIZE_BYTES[found.weights] >= SIZE_BYTES[found.compute]
    with pytest.raises(InputError, match="unknown dtype 'fp31'"):
        precision("fp31")


def test_sizes_of_tensors():
    assert TensorSpec((2, 3, 4), "bfloat16").size_bytes == 24 * 2
    assert TensorSpec((2, 3), "int64").size_bytes == 48
    assert TensorSpec(()).size == 1
    assert TensorSpec((), "bool").size_bytes == 1


WORKLOAD = Workload("fc", {"layers": 4, "nodes": 8, "inputs": 3, "outputs": 2}, 16)
MEASURED = Record(
    origin="measured",
    method=RecordMethod("torch", "2.13.0", {"compile": False, "threads": 2, "nested": {"a": [1]}}),
    workload=WORKLOAD,
    platform="cpu-some-2t",
    quantities={
        "step_s": Quantity(
            samples=(0.1, 0.2), low=0.1, high=0.2,
            columns={"run": (0, 0), "disturbed": (False, True)},
        ),
        "first_step_s": Quantity(0.0),
    },
    note="zero is not nothing",
    env={"host": "h", "steady": True},
    taken_at="2026-11-21T00:00:00+00:00",
)  # fmt: skip


def test_a_record_as_json_by_hand():
    table = record_to_json(MEASURED)
    assert table["quantities"] == {
        "step_s": {
            "low": 0.1,
            "high": 0.2,
            "samples": [0.1, 0.2],
            "columns": {"run": [0, 0], "disturbed": [False, True]},
        },
        "first_step_s": {"value": 0.0},
    }
    assert table["workload_key"] == WORKLOAD.key
    assert table["workload"]["plan"] == {"data": 1, "tensor": 1, "pipeline": 1}
    assert (table["schema"], table["status"], table["cause"]) == (2, "ok", "")


numbers = st.just(0.0) | st.floats(SMALLEST, 1e100)
facts = st.dictionaries(st.text(max_size=2), st.integers() | st.booleans(), max_size=3)
quantities = st.builds(
    lambda value, low, high, samples, columns: Quantity(
        value, samples, low, high, {name: (one,) * len(samples) for name, one in columns.items()}
    ),
    st.none() | numbers,
    st.none() | numbers,
    st.none() | numbers,
    st.lists(numbers, max_size=4).map(tuple),
    facts,
)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
plain = st.none() | st.booleans() | st.integers() | numbers | words
workloads = st.builds(
    Workload,
    words,
    st.dictionaries(words, st.integers() | numbers | words | st.booleans(), max_size=3),
    st.integers(1, MAX_EXAMPLES // 9),
    st.sampled_from(list(PRECISIONS)),
    st.sampled_from(["train", "infer"]),
    st.sampled_from(["sgd", "adam", "none"]),
    st.builds(Plan, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
records = st.builds(
    Record,
    st.sampled_from(ORIGINS),
    st.builds(RecordMethod, words, words, st.dictionaries(words, plain, max_size=3)),
    workloads,
    words,
    st.dictionaries(st.sampled_from(list(QUANTITIES)), quantities, max_size=3),
    st.sampled_from(STATUSES),
    words, words, words,
    st.dictionaries(words, plain, max_size=3),
    words,
)  # fmt: skip


@given(records)
def test_records_survive_json(record):
    again = record_from_json(json.loads(json.dumps(record_to_json(record))))
    assert again == record
    assert again.workload.key == record.workload.key


def test_what_is_no_record_is_refused():
    table = record_to_json(MEASURED)
    for key, value in (("origin", "guessed"), ("status", "fine")):
        with pytest.raises(ValueError, match=f"unknown {key} '{value}'"):
            record_from_json({**table, key: value})
    for key in ("workload", "method", "quantities", "schema"):
        with pytest.raises(ValueError, match=f"^no '{key}'$"):
            record_from_json({k: v for k, v in table.items() if k != key})
    assert set(FINAL_STATUSES) == set(STATUSES) - {"failed"}


def test_every_field_of_a_workload_is_in_its_key():
    changed = [
        replace(WORKLOAD, model="cnn"),
        replace(WORKLOAD, params={**WORKLOAD.params, "nodes": 9}),
        replace(WORKLOAD, batch_per_replica=17),
        replace(WORKLOAD, dtype="float16"),
        replace(WORKLOAD, phase="infer"),
        replace(WORKLOAD, optimizer="adam"),
        replace(WORKLOAD, plan=Plan(data=2)),
    ]
    assert len({WORKLOAD.key, *(one.key for one in changed)}) == 8
    other_order = dict(reversed(WORKLOAD.params.items()))
    assert replace(WORKLOAD, params=other_order).key == WORKLOAD.key
    assert WORKLOAD.key == "1bc091854d8fdea8"
    moved = replace(WORKLOAD, file="elsewhere/net.onnx")
    assert moved.key == replace(WORKLOAD, file="net.onnx").key == WORKLOAD.key  # where it lies


def test_labels():
    assert WORKLOAD.label == "fc:layers=4,nodes=8,inputs=3,outputs=2"
    assert replace(WORKLOAD, params={}).label == "fc"
    assert replace(WORKLOAD, params={"bias": False, "p": 0.5}).label == "fc:bias=no,p=0.5"


def test_a_whole_part_of_a_name_is_nearer_than_like_letters():
    known = ["a40", "tesla-k40", "tesla-k40-twice"]
    assert find_similar_names("K40", known) == known[1:]
    assert find_similar_names("alexnt", ["alexnet", "vgg16"]) == ["alexnet"]
    assert not find_similar_names("frobnicate", ["predict", "run"])


def test_windows():
    assert count_positions(7, 3, 2, (1, 1)) == 4  # at -1, 1, 3, 5
    assert count_positions(6, 3, 2) == 2
    assert count_positions(6, 3, 2, ceil=True) == 3  # the last hangs over
    assert count_positions(5, 2, 2, (1, 1), ceil=True) == 3  # a fourth would begin in the padding
    assert count_positions(5, 2, 2, (1, 1), ceil=True, in_padding=True) == 4
    assert count_positions(9, 3, 1, dilation=4) == 1  # it reaches over 9
    assert count_positions(2, 3, 1) < 1
    assert covered_size(4, 3, 2) == 9
    assert tensorflow_padding(224, 7, 2) == (2, 3)
    assert count_positions(224, 7, 2, tensorflow_padding(224, 7, 2)) == 112


def test_a_share_is_a_part_of_one_or_says_its_percent():
    assert [parse_share(text, "--accept") for text in ("0", "0.7", "1", "70%", "150%")] == [
        0, 0.7, 1, 0.7, 1.5,
    ]  # fmt: skip
    for text in ("5", "-1%", "1001000%", "nan"):
        with pytest.raises(InputError, match="--accept: is a share such as "):
            parse_share(text, "--accept")


def test_shares_are_read_as_people_write_them():
    shares = (0.0, 0.00123, 0.618, 9.99, 9.996, 12.34, -25.0, 1e4)
    assert [format_percent(share) for share in shares] == [
        "0 %", "0.123 %", "61.8 %", "999 %", "1,000 %", "1,234 %", "-2,500 %", "1,000,000 %",
    ]  # fmt: skip
    assert [format_percent(one, "+") for one in (-2.22e-16, 0.05, -0.05)] == [
        "+0 %",
        "+5 %",
        "-5 %",
    ]


def test_numbers_are_written_in_ascii_and_within_bounds():
    assert (number_of("3"), number_of(3)) == (3.0, 3.0)
    assert math.isnan(number_of("\uff13"))
    assert math.isnan(number_of("1_000"))  # Python's own way of writing
    for bounds, said in (
        ({}, "above 0, at most 2^53, not 'inf'"),
        ({"at_most": 1e6}, "above 0, at most 1,000,000, not 'inf'"),
        ({"at_least": 0, "at_most": 0.5}, "from 0 on, at most 0.5, not 'inf'"),
    ):
        with pytest.raises(InputError, match=re.escape(f"-x: must be a number {said}")):
            parse_number("inf", "-x", **bounds)


def test_a_latency_target_is_seconds_or_names_its_unit():
    """A bare number above the bound is meant in ms; one with a unit is taken as it is written."""
    texts = {"500ms": 0.5, "0.5": 0.5, "2s": 2.0, " 250 ms ": 0.25, "60": 60.0, "90s": 90.0}
    assert {text: parse_latency_s(text, "--ttft", 60.0) for text in texts} == texts
    with pytest.raises(InputError, match="for milliseconds write --ttft 500ms"):
        parse_latency_s("500", "--ttft", 60.0)
    for text in ("", "ms", "2m", "-1s", "0", "nan", "1s s"):
        with pytest.raises(InputError, match=r"must be a number above 0|unknown unit"):
            parse_latency_s(text, "--ttft", 60.0)
