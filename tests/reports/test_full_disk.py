"""A report where the disk is full: one line, and the exit code of output that cannot be written."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

import synthetic
from steptime.records import store

MAX_FILE_BYTES = 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with records of 24 networks."""
    folder = tmp_path_factory.mktemp("full") / "records"
    with store.open_writer(folder) as writer:
        writer.append_all(synthetic.sweep())
    return folder


@pytest.mark.parametrize("ending", ["html", "md"])
def test_a_report_under_a_limit_of_file_size_is_one_line(folder, tmp_path, ending):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))

    path = tmp_path / f"report.{ending}"
    done = subprocess.run(
        [sys.executable, "-m", "steptime", "report", str(folder), "-o", str(path)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert done.stderr.count("steptime: ") == 1
    assert not path.exists()
