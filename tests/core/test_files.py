"""Files are written whole or not at all; what hinders that is said with one exit code a cause."""

import errno
import os
from pathlib import Path

import pytest

from steptime.core.errors import InputError, OutsideError
from steptime.core.files import write_atomically


def test_a_file_is_written_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "one")
    write_atomically(path, b"two")
    assert path.read_text() == "two"
    write_atomically(path, iter(["th", "ree"]))
    assert path.read_text() == "three"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, OutsideError), (errno.EACCES, InputError)]
)
def test_what_hinders_a_file_is_said_and_leaves_the_old_one(monkeypatch, tmp_path, code, kind):
    path = tmp_path / "a.txt"
    path.write_text("before")

    def refuse(*_arguments, **_options):
        raise OSError(code, "no")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    for content in ("after", b"after", iter(["af", "ter"])):
        with pytest.raises(kind, match=r"a\.txt: cannot be written: no"):
            write_atomically(path, content)
    monkeypatch.undo()
    assert path.read_text() == "before"


def test_a_folder_that_is_not_there_is_the_users_to_make(tmp_path):
    with pytest.raises(InputError, match="--out: cannot be written: No such file"):
        write_atomically(tmp_path / "none" / "a.txt", "", "--out")


def test_what_a_killed_command_left_of_a_file_goes_with_the_next(tmp_path):
    """Not what another may be writing, nor a file of somebody's own."""
    left, young, strange = (tmp_path / f".r.html.{end}" for end in ("0123abcd", "4567ef01", "bak"))
    for one in (left, young, strange):
        one.write_text("half")
    for one in (left, strange):
        os.utime(one, (0, 0))
    write_atomically(tmp_path / "r.html", "whole")
    assert {one.name for one in tmp_path.iterdir()} == {"r.html", young.name, strange.name}
