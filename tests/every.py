"""One test of a contract over all rows of a table: `every`, for `pytest.mark.parametrize`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

Test = Callable[..., None]
OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)  # they are no `Exception`


def every(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Callable[[Any], object] = str
) -> Callable[[Test], Test]:
    """Return what makes one test of a check: it fails with all rows that fail, and their names.

    The words are those of `pytest.mark.parametrize`. Each row has a folder, patches and output of
    its own, and none may be skipped; it costs its check, where a test costs pytest milliseconds.
    """
    table, words = list(rows), [one.strip() for one in _words(names)]

    def made(check: Test) -> Test:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            faults = []
            for number, row in enumerate(table):
                cells, label = _cells(row, len(words), ids)
                try:
                    with _alone(fixtures, number) as given:
                        check(**dict(zip(words, cells, strict=True)), **given)
                except (Exception, *OUTCOMES) as fault:  # noqa: BLE001  # each is raised below
                    fault.add_note(f"row: {label}")
                    faults.append(_plain(fault))
            if faults:
                raise ExceptionGroup(f"{len(faults)} of {len(table)} rows", faults)
            assert table, "a table without rows"

        signature = inspect.signature(check)
        kept = [one for name, one in signature.parameters.items() if name not in words]
        test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return test

    return made


def _words(names: str | tuple[str, ...]) -> Iterable[str]:
    return names.split(",") if isinstance(names, str) else names


def _cells(row: Any, count: int, ids: Callable[[Any], object]) -> tuple[tuple[Any, ...], str]:
    """Return the arguments of a row, and what it is called."""
    if isinstance(row, type(pytest.param())):
        assert not row.marks, "a row of a contract has no marks"
        return tuple(row.values), str(row.id or row.values)
    cells = (row,) if count == 1 else tuple(row)
    return cells, "-".join(str(ids(cell)) for cell in cells)


@contextmanager
def _alone(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Give the fixtures for one row, which leaves nothing to the next."""
    given = dict(fixtures)
    if "tmp_path" in given:
        given["tmp_path"] = fixtures["tmp_path"] / f"row{number}"
        given["tmp_path"].mkdir()
    try:
        yield given
    finally:
        if "monkeypatch" in given:
            given["monkeypatch"].undo()
        if "capsys" in given:
            given["capsys"].readouterr()


def _plain(fault: BaseException) -> Exception:
    """Return the fault as an exception that a group may hold."""
    if isinstance(fault, Exception):
        return fault
    return AssertionError(f"{type(fault).__name__}: {fault} ({fault.__notes__[0]})")
