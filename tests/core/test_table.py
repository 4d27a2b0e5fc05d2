"""One table, five printers; the unit of a number is the end of its key."""

import csv
import io
import json
import math
import xml.etree.ElementTree as ET
from types import MappingProxyType

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from every import every
from steptime.core.tables.printers import (
    PRINTERS,
    comma_separated,
    csv_parts,
    html,
    json_text,
    markdown,
    neutralise_csv_cell,
    replace_non_finite,
)
from steptime.core.tables.table import Column, Table, make_facts_table
from steptime.core.tables.text_table import text, wrap
from steptime.core.units import UNITS, format_interval, format_value

DEVICES = Table(
    (
        Column("name"),
        Column("memory_bytes", "memory"),
        Column("peak_flop_per_s", "peaks"),
        Column("source", is_spare=True),
    ),
    [
        {
            "name": "a-very-long-name-of-a-device",
            "memory_bytes": 8e10,
            "peak_flop_per_s": {"float32": 1.95e13, "bfloat16": 3.12e14},
            "source": "a datasheet that says | many words",
        },
        {"name": "b", "memory_bytes": None, "peak_flop_per_s": {}, "source": "<b>"},
    ],
    "devices",
)


@every(
    ("key", "value", "said"),
    [
        ("step_s", 0.0604, "60.4 ms"),
        ("peak_bytes", 11_360_000_000, "11.36 GB"),
        ("memory_bytes_per_s", 9e11, "900 GB/s"),
        ("flop_per_s", 1.041e14, "104.1 TFLOP/s"),
        ("examples_per_s", 12345.6, "12,346 examples/s"),
        ("intensity_flop_per_byte", 29.351, "29.35 FLOP/byte"),
        ("energy_j", 0.0142, "14.2 mJ"),
        ("power_w", 73, "73 W"),
        ("parameters", 25557032, "25,557,032"),
        ("flop_share", 0.618, "61.8 %"),
        ("run_kwh", 1.25, "1.25 kWh"),
        ("batch", 64, "64"),
        ("loss", 0.123456789, "0.123457"),
        ("compile", True, "yes"),
        ("step_s", None, "-"),
        ("step_s", "unknown", "unknown"),
        ("table_s", {"a": 1e-3, "b": 2.0}, "a=1 ms, b=2 s"),
        ("tables", ["alexnet", "vgg16"], "alexnet, vgg16"),
        ("status", 3, "3"),  # ends with an s, but not with _s
    ],
)
def test_the_end_of_a_key_is_its_unit(key, value, said):
    assert format_value(key, value) == said


def test_longer_ends_come_first():
    ends = list(UNITS)
    for i, end in enumerate(ends):
        assert not any(end.endswith(f"_{before}") for before in ends[:i]), end


def test_text_stands_in_columns_and_numbers_to_the_right():
    title, heads, first, second = text(DEVICES).splitlines()
    assert (title, heads.split()) == ("devices", ["name", "memory", "peaks", "source"])
    assert heads.index("source") == first.index("a datasheet") == second.index("<b>")
    assert first.index("80 GB") + 5 == heads.index("memory") + 6 == second.index("-") + 1
    assert "float32=19.5 TFLOP/s, bfloat16=312 TFLOP/s" in first
    assert first == first.rstrip()


def test_a_narrow_place_loses_spare_columns_and_breaks_no_name():
    lines = text(DEVICES, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "source" not in lines[1]
    assert lines[-1] == "hidden columns (terminal width): source; --json has all"
    for width in range(30, 130):
        shown_text = text(DEVICES, width)
        assert "a-very-long-name-of-a-device" in shown_text
        table = [line for line in shown_text.splitlines() if not line.startswith("(")]
        assert width < 40 or max(map(len, table)) <= width
    assert text(DEVICES, 1000) == text(DEVICES)


def test_a_column_may_have_a_format_of_its_own():
    table = Table((Column("ratio", "b / a", form=".3f"),), [{"ratio": 1.2345}, {"ratio": None}])
    assert text(table) == " b / a\n 1.234\n     -\n"
    assert comma_separated(table) == 'ratio\n1.2345\n""\n'


def test_people_see_the_first_rows_and_are_told_of_the_rest():
    table = Table((Column("n"),), [{"n": i} for i in range(50)], max_rows=20)
    lines = text(table).splitlines()
    assert (len(lines), lines[-1]) == (22, "... and 30 more; --json has all")
    assert len(json.loads(PRINTERS["json"](table))) == 50
    assert (markdown(table).count("\n"), html(table).count("<tr>")) == (52, 51)


def test_programs_get_numbers_in_their_units():
    rows = list(csv.DictReader(io.StringIO(comma_separated(DEVICES))))
    assert (rows[0]["memory_bytes"], rows[1]["memory_bytes"]) == ("80000000000.0", "")
    assert json.loads(PRINTERS["json"](DEVICES))[0]["peak_flop_per_s"]["float32"] == 1.95e13
    assert "many words" in markdown(DEVICES)
    assert r"says \| many" in markdown(DEVICES)


def test_html_is_well_formed_and_escaped():
    root = ET.fromstring(html(DEVICES))  # noqa: S314  # made here
    assert root.findtext("caption") == "devices"
    cells = [[cell.text for cell in row] for row in root.iter("tr")]
    assert cells[0] == ["name", "memory", "peaks", "source"]
    assert cells[2][3] == "<b>"
    assert root[2][0][1].get("class") == "number"


def test_facts_stand_under_each_other():
    lines = text(
        make_facts_table("fc", "one step", [("step", "2 ms"), ("  forward", None)])
    ).splitlines()
    assert lines == ["fc", "            one step", " step           2 ms", "   forward         -"]


@given(
    st.lists(
        st.fixed_dictionaries(
            {"a": st.text(), "b_s": st.floats(0, 1e9) | st.none(), "c": st.integers()}
        )
    ),
    st.integers(1, 100),
)
def test_every_printer_prints_any_rows(rows, width):
    table = Table((Column("a"), Column("b_s", "time"), Column("c", is_spare=True)), rows)
    for printer in PRINTERS.values():
        assert printer(table)
    body = text(table).split("\n")
    assert len(body) == len(rows) + 2  # heads, and nothing after the last newline
    assert text(table, width)


@every(
    "document",
    [
        None,
        [],
        {"a": {}, "b": [(), []], 1: True, None: 2, 1.5: [[1], {"x": math.nan}]},
        {"rows": [{"name": 'a, "b":\n  ü', "low": -0.0, "none": [], "of": [1, [2.5, -math.inf]]}]},
        MappingProxyType({"a": 1, True: np.float64(0.1), "c": np.float64("nan"), "d": (1, "x")}),
        [
            math.inf,
            MappingProxyType({"a": MappingProxyType({})}),
            [MappingProxyType({"b": 10**30})],
        ],
    ],
)
def test_a_document_reads_as_the_standard_library_indents_it(document):
    assert json_text(document) == json.dumps(replace_non_finite(document), indent=2) + "\n"


def test_an_interval_is_one_text_in_the_unit_of_its_value():
    assert format_interval("step_s", 0.147, 0.1183, 0.1871) == "147 ms [118.3-187.1]"
    assert format_interval("step_s", 1.62, 0.95, 1.92) == "1.62 s [0.95-1.92]"
    assert format_interval("energy_j", 25.37, 21.51, 30.08) == "25.37 J [21.51-30.08]"
    assert format_interval("speedup", 12.39, 10.0, 14.0) == "12.39x [10-14]"
    assert (
        format_interval("examples_per_s", 4000.0, 3000.0, 5000.0) == "4000 examples/s [3000-5000]"
    )
    assert format_interval("step_s", 0.147, 0.147, None) == "at least 147 ms"
    assert format_interval("step_s", 0.147, None, None) == "147 ms"
    assert format_interval("step_s", 0.0, 0.0, 0.0) == "0 s [0-0]"
    assert (
        format_interval("step_s", 6.18249, 5.6755, 6.7345) == "6.182 s [5.676-6.734]"
    )  # no end moves
    assert format_interval("step_s", 0.99999, 0.5, 2.0) == "1 s [0.5-2]"
    assert format_interval("step_s", None, None, None) == "-"


def test_a_column_with_an_interval_is_three_for_programs():
    heads = (
        Column("name"),
        Column("step_s", "step", ends=("low_s", "high_s")),
        Column("energy_j", "energy", is_spare=True),
    )
    row = {"name": "a", "step_s": 0.147, "low_s": 0.1183, "high_s": 0.1871, "energy_j": 3.0}
    table = Table(heads, [row])
    assert (
        text(table) == " name                  step  energy\n a     147 ms [118.3-187.1]     3 J\n"
    )
    said = " ".join(text(table, 34).splitlines()[-2:])
    assert said == "hidden columns (terminal width): energy; --json has all"
    assert "147 ms [118.3-187.1]" in text(table, 34)
    assert comma_separated(table) == (
        "name,step_s,low_s,high_s,energy_j\na,0.147,0.1183,0.1871,3.0\n"
    )


def test_an_interval_is_the_last_to_go():
    heads = (
        Column("name"),
        Column("kind"),
        Column("batch"),
        Column("step_s", "step", ends=("low_s", "high_s")),
        Column("memory_bytes", "memory"),
    )
    rows = [
        {"name": "a", "kind": "cnn", "batch": 8, "memory_bytes": 1e9}
        | {"step_s": 0.147, "low_s": 0.1183, "high_s": 0.1871}
    ]
    table = Table(heads, rows)
    for width in range(10, 90):
        lines = text(table, width).splitlines()
        words = " ".join(lines[1:3]).split()
        assert words[0] == "a", width
        assert words.index("[118.3-187.1]") == words.index("147") + 2, width
    assert text(table, 27).splitlines() == [
        " name                  step",
        " a     147 ms [118.3-187.1]",
        "hidden columns (terminal",
        "width): kind, batch,",
        "memory; --json has all",
    ]
    assert text(table, 20).splitlines()[1:3] == [" a            147 ms", "       [118.3-187.1]"]


def test_a_long_text_that_begins_as_a_number_is_folded():
    said = "0.91 USD per million tokens, 4.18 per hour (2026, an undated copy of the page)"
    lines = text(
        make_facts_table("", "serving", [("cost", said), ("tokens", "1,276/s")]), 40
    ).splitlines()
    assert [line.strip() for line in lines] == [
        "serving",
        "cost    0.91 USD per million tokens,",
        "4.18 per hour (2026, an undated",
        "copy of the page)",
        "tokens  1,276/s",
    ]


def test_prose_is_broken_between_words_and_lists_behind_commas():
    made = wrap("fc:layers=4,nodes=1,000, batch 64", 20)
    assert made == ["fc:layers=4,", "nodes=1,000, batch", "64"]
    assert wrap("  unbreakable", 5) == ["  unbreakable"]
    table = Table(
        (Column("n"),), [{"n": 1}], "a title of many words", ["below it,", "a b c d e f g"]
    )
    assert text(table, 10).splitlines() == [
        "a title of", "many words", " n", " 1", "below it,", "a b c d e", "f g",
    ]  # fmt: skip
    assert text(table).splitlines()[0] == table.title


def test_a_column_with_a_format_may_have_an_interval():
    table = Table((Column("ratio", "b / a", ends=("low", "high"), form=".3g"),), [
        {"ratio": 1.0049, "low": 1.0009, "high": 1.0101}, {"ratio": 2.0, "low": None, "high": None}
    ])  # fmt: skip
    assert text(table).splitlines()[1:] == [" 1 [1-1.01]", "          2"]


CSV_CELLS = st.none() | st.booleans() | st.integers() | st.floats() | st.text('a,"\n\r; ')


@given(st.lists(st.lists(CSV_CELLS, min_size=1, max_size=4), max_size=4))
def test_lines_of_csv_are_those_of_pythons_writer(rows):
    harmless_rows = [
        [neutralise_csv_cell(cell) if isinstance(cell, str) else cell for cell in row]
        for row in rows
    ]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([["a", "b"], *harmless_rows])
    assert "".join(csv_parts(["a", "b"], rows)) == buffer.getvalue()


def test_no_cell_of_csv_is_a_formula_and_numbers_stay_numbers():
    texts = ["=cmd|'/C calc'!A0", "+1+2", "-2+3", "@SUM(1)", "\t=1", "\r=1", "-5.2", "+3e5", "a=b"]
    rows = [{"=x": one} for one in (*texts, -5.2, None)]
    told = list(csv.reader(io.StringIO(comma_separated(Table([Column("=x", "x")], rows)))))
    assert [one for one, *_ in (line or [""] for line in told)] == [
        "'=x",
        *("'=cmd|'/C calc'!A0", "'+1+2", "'-2+3", "'@SUM(1)", "'?=1", "'?=1"),
        *("-5.2", "+3e5", "a=b", "-5.2", ""),
    ]


def test_no_text_of_a_table_moves_a_cursor():
    escape = "\x1b]0;owned\x07"
    heads = [Column("a", f"head{escape}")]
    for form in ("text", "csv", "markdown", "html"):
        printed = PRINTERS[form](Table(heads, [{"a": f"cell{escape}\x9b2J"}]))
        assert "\x1b" not in printed
        assert "\x07" not in printed
        assert "\x9b" not in printed


def test_a_spare_column_of_which_nothing_is_known_is_for_programs_alone():
    table = Table(
        (Column("name"), Column("cause", is_spare=True), Column("step_s", "step")),
        [{"name": "a", "cause": None, "step_s": 1}],
    )
    assert "cause" not in text(table)
    assert "cause" in comma_separated(table)


def test_what_says_which_network_and_device_is_the_last_to_go_where_it_is_narrow():
    """Of a spare one only where rows are told apart by nothing else."""
    heads = (
        Column("speed"),
        Column("platform", is_spare=True),
        *map(Column, "abcdefgh"),
        Column("model"),
    )
    base = dict.fromkeys("abcdefgh", 1.5)
    rows = [
        {"speed": 2.5, "platform": place, "model": name} | base
        for place in ("here", "there")
        for name in ("resnet50", "vgg16")
    ]
    assert text(Table(heads, rows), 30).splitlines()[0].split() == ["speed", "platform", "model"]
    told_apart = [row | {"platform": "here"} for row in rows[:2]]
    assert "platform" not in text(Table(heads, told_apart), 30).splitlines()[0]
    alike = [row | {"model": "vgg16"} for row in told_apart]
    assert text(Table(heads, alike), 14).splitlines()[0].split() == ["speed", "model"]
