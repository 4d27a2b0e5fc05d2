"""A test of a contract over rows fails with every row that fails, and hides none."""

from __future__ import annotations

from pathlib import Path

import pytest

from every import every


def test_every_row_that_fails_is_named(tmp_path, capsys):
    folders = []

    @every(("left", "right"), [(1, 1), (1, 2), pytest.param(2, 2, id="skips"), (3, 4)])
    def check(left: int, right: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folders.append(tmp_path)
        assert not [*tmp_path.iterdir()]
        print(left)
        assert capsys.readouterr().out == f"{left}\n"
        if left == 2:
            pytest.skip("no row may")
        assert left == right

    with pytest.raises(ExceptionGroup, match="3 of 4 rows") as told:
        check(tmp_path=tmp_path, capsys=capsys)
    assert len({*folders}) == 4
    said = [f"{one} {getattr(one, '__notes__', '')}" for one in told.value.exceptions]
    for row, text in zip(("1-2", "skips", "3-4"), said, strict=True):
        assert f"row: {row}" in text


def test_a_table_without_rows_or_with_marks_is_a_failure():
    with pytest.raises(AssertionError, match="without rows"):
        every("row", [])(lambda row: None)()
    marked = pytest.param(1, marks=pytest.mark.slow)
    with pytest.raises(AssertionError, match="no marks"):
        every("row", [marked])(lambda row: None)()


@every("word", ["one", "two"])
@every("number", range(3))
def test_tables_are_multiplied_and_patches_taken_back(number, word, monkeypatch):
    import math

    assert not hasattr(math, "patched")
    monkeypatch.setattr(math, "patched", (number, word), raising=False)
