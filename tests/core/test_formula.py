import pytest

from every import every
from steptime.core.errors import InputError
from steptime.core.expressions.formula import column_name, fill_braces, formula, parse_cell


@every(
    ("text", "value"),
    [
        ("2 * (m + 1) // 4", 3),
        ("-m % 4", 3),
        ("m / 2", 2.5),
        ('op == "bmm" and m > 4', True),
        ('op in ("linear", "bmm") and not m < 5', True),
        ("m if m > 9 else 1", 1),
        ("ceil(m / 2) + max(m, 7) - min(1, m) + floor(1.5)", 10),
        ("number(dims, 2)", 64),
    ],
)
def test_formulas_compute(text, value):
    assert formula(text)({"m": 5, "op": "bmm", "dims": "8 512 64"}) == value


@every(
    "text",
    [
        "m().real", "__import__('os')", "m[0]", "2 ** m", "lambda: m", "f'{m}'", "(m", "m := 1",
        "[m for m in n]", "open('x')", "m" * 501, "",
    ],
)  # fmt: skip
def test_what_is_no_formula_is_one_line(text):
    with pytest.raises(InputError, match=r"^formula '.*") as error:
        formula(text)
    assert "\n" not in str(error.value)


def test_a_name_or_a_value_that_is_missing_is_one_line():
    with pytest.raises(InputError, match=r"formula 'dept / 2': unknown name 'dept'.*'depth'"):
        formula("dept / 2")({"depth": 3})
    for cell in ("", "nan"):
        with pytest.raises(InputError, match=f"formula 'm [*] 1e6': m is no number: '{cell}'$"):
            formula("m * 1e6")({"m": cell})
    with pytest.raises(InputError, match=r"m is no number: 'x'$"):
        formula("m * 1e6 + n")({"m": "x"})
    with pytest.raises(InputError, match="formula 'm / n': division by zero"):
        formula("m / n")({"m": 1, "n": 0})


def test_formulas_in_braces_fill_a_text():
    assert fill_braces("fc:layers={layers + 1},nodes={nodes}", {"layers": 3, "nodes": 8}) == (
        "fc:layers=4,nodes=8"
    )
    assert formula("layers + nodes").names == {"layers", "nodes"}


def test_columns_and_cells():
    assert [column_name(column) for column in (" time (ms)", "#params", "a-b")] == [
        "time_ms", "params", "a_b",
    ]  # fmt: skip
    assert [parse_cell(cell) for cell in (" 12", "1.5e-3", "inf", "x", "", 4)] == [
        12, 1.5e-3, "inf", "x", "", 4,
    ]  # fmt: skip


@every(
    ("text", "why"),
    [
        ("'%2000000000d' % 1", "'%2000000000d' is no number"),
        ("'a' * 9999999999", "'a' is no number"),
        ("9999999999 * ('a' if m else 'b')", "'a' is no number"),
        ("(1, 2) * 9999999999", r"'\(1, 2\)' is no number"),
        ("word * 9999999999", "word is no number: 'x'"),
        ("word + word", "word is no number: 'x'"),
        ("cells * 9999999999", r"'\[1\]' is no number"),
        ("number('1', -5)", "'1' has 1 numbers, counted from 0"),
        ("number('1', 1)", "'1' has 1 numbers, counted from 0"),
        ("*".join(["1" + "0" * 99] * 4), "a number above 10.300"),
        ("1e308 * 10 // 1 % 0", "zero|modulo"),
        ("m * 10 ** 9", "Pow is not allowed"),
        ("-" * 499 + "1", ""),
        ("not " * 120 + "1 + " + "(" * 5 + "m", ""),
        ("(" * 400 + "1" + ")" * 99, ""),
    ],
)
def test_no_formula_takes_more_than_a_line_does(text, why):
    with pytest.raises(InputError, match=f"^formula '.*{why}") as error:
        formula(text)({"m": 5, "word": "x", "cells": [1]})
    assert "\n" not in str(error.value)


def test_numbers_of_thousands_of_digits_are_texts():
    assert parse_cell("1" * 300) == int("1" * 300)
    assert parse_cell("1" * 5000) == "1" * 5000
    assert fill_braces("{m * m}", {"m": 10**140}) == str(10**280)
