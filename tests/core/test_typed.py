"""Tables of files as typed values: which fault is named, where, and what would be right."""

from collections.abc import Mapping
from math import inf, nan
from typing import Literal

import pytest
from msgspec import Struct

from steptime.core.errors import InputError
from steptime.core.signatures.typed import (
    Above0,
    Figure,
    Text,
    Texts,
    convert_table,
    struct,
    typed_values,
)


class Inner(Struct, forbid_unknown_fields=True):
    rate: Above0
    words: Texts = ()


class File(Struct, forbid_unknown_fields=True):
    name: Text
    kind: Literal["cpu", "gpu"] = "cpu"
    memory: Figure | None = None
    inner: Inner | None = None
    rows: list[Inner] = []
    by_name: Mapping[str, tuple[Above0, Above0]] = {}
    flag: bool = False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nmae": 1}, "a.toml: unknown key 'nmae'; did you mean 'name'?"),
        ({"name": " "}, "a.toml: 'name' must be a text, not ' '"),
        ({"kind": "gpux"}, "a.toml: unknown kind 'gpux'; did you mean 'gpu'?"),
        ({"flag": 1}, "a.toml: 'flag' must be true or false, not '1'"),
        ({"rows": {}}, "a.toml: 'rows' must be a list, not '{}'"),
        ({"inner": []}, "a.toml: 'inner' must be a table, not '[]'"),
        ({"inner": {}}, "a.toml: 'inner.rate' is missing"),
        ({"inner": {"rate": 1, "word": 1}}, "a.toml: inner: unknown key 'word'; did you mean 'wor"),
        ({"inner": {"rate": 0}}, "a.toml: 'inner.rate' must be a number above 0, not '0'"),
        ({"inner": {"rate": 1, "words": "x"}}, "a.toml: 'inner.words' must be a list of texts, no"),
        ({"inner": {"rate": 1, "words": [1]}}, "a.toml: 'inner.words[0]' must be a text, not '1'"),
        ({"rows": [{"rate": 1}, {"rate": "x"}]}, "a.toml: 'rows[1].rate' must be a number above"),
        ({"by_name": {"a.b": [1, 2], "c": [1, inf]}}, "a.toml: 'by_name.c[1]' must be a number ab"),
        ({"by_name": {"c": [1]}}, "a.toml: 'by_name.c' must be a list of length 2, not '[1]'"),
        (
            {"memory": nan},
            "a.toml: 'memory' must be positive, in the unit of its name (1e-06",
        ),
        ({"memory": 10**400}, "a.toml: 'memory' must be positive, in the unit of its name"),
    ],
)
def test_a_fault_is_one_line_with_its_place(change, said):
    with pytest.raises(InputError) as error:
        convert_table({"name": "n", **change}, File, "a.toml")
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_what_is_no_table_is_told():
    with pytest.raises(InputError, match=r"^a\.toml: must be a table, not '\[1\]'$"):
        convert_table([1], File, "a.toml")
    with pytest.raises(InputError, match=r"^a\.toml: 'part\.name' is missing$"):
        convert_table({}, File, "a.toml", "part.")


def test_only_what_a_table_says_is_given():
    assert typed_values({"name": "n", "flag": True}, File, "a.toml") == {"name": "n", "flag": True}
    kind = struct("Own", {"rate": Above0, "words": Texts}, ["rate"], closed=False)
    assert typed_values({"rate": 2}, kind, "a.toml") == {"rate": 2.0}
    convert_table({"rate": 2, "more": 1}, kind, "a.toml")


def test_half_of_a_character_is_one_line():
    one = struct("One", {"name": Literal["a", "b"]}, ["name"])
    with pytest.raises(InputError, match="here: a text holds half of a character"):
        convert_table({"name": "\ud800"}, one, "here")
