"""Statements that would take all memory or all time end at their limits, in one line."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

import synthetic
from every import every
from steptime.analysis.query import QueryLimits, QueryProcess, export, query
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.records.data import Data
from steptime.records.store import open_writer

DATA = Data.from_records(synthetic.sweep())
MEMORY_BYTES = 256 << 20
LIMITS = QueryLimits(memory_bytes=MEMORY_BYTES, limit_s=20.0, max_rows=1000)
SHORT = QueryLimits(memory_bytes=MEMORY_BYTES, limit_s=1.0, max_rows=1000)
PROGRAM_BYTES = 300 << 20  # of a process, beside what a statement may take
ENDLESS_ROWS = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) FROM t"
ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
TOO_LARGE = [
    "SELECT repeat('x', 3000000000) AS a",
    "SELECT length(repeat('x', 3000000000))",
    "SELECT list_transform(range(200000000), lambda x: x + 1)",
    "SELECT list(range) FROM range(1000000000)",
    "SELECT string_agg(repeat('x', 1000000), '') FROM range(10000)",
    "WITH RECURSIVE t AS (SELECT 'x' AS n UNION ALL SELECT n || n FROM t) SELECT max(n) FROM t",
]
TOO_LONG = [
    "SELECT count(*) FROM records a, records b, records c, records d, records e, records f",
    "SELECT * FROM range(1000000) a, range(1000000) b ORDER BY a.range + b.range",
    ENDLESS,
]


@pytest.mark.slow
@every("sql", TOO_LARGE)
def test_a_statement_that_needs_more_memory_is_one_line(sql):
    with pytest.raises(InputError, match=r"^the query: needs more memory than 268.* --memory"):
        query(DATA, sql, LIMITS)


@pytest.mark.slow
@every("sql", TOO_LONG)
def test_a_statement_that_needs_more_time_is_one_line(sql):
    start_s = time.monotonic()
    with pytest.raises(InputError, match=r"^the query: was not answered within 1 s; --seconds"):
        query(DATA, sql, SHORT)
    assert time.monotonic() - start_s < SHORT.limit_s + 60  # a loaded machine; no endless wait


@pytest.mark.slow
def test_a_process_takes_no_more_memory_than_it_may(tmp_path):
    with open_writer(tmp_path / "records") as writer:
        writer.append_all(synthetic.sweep())
    code = (
        "import resource, sys, steptime\n"
        "from steptime.core.errors import InputError\n"
        "folder, memory, *statements = sys.argv[1:]\n"
        "for sql in statements:\n"
        "    try:\n"
        "        steptime.query(folder, sql, memory=memory)\n"
        "    except InputError as error:\n"
        "        assert 'needs more memory' in str(error)\n"
        # VmHWM begins with the program: ru_maxrss has what the test's process held at the fork
        "lines = open('/proc/self/status').read().splitlines()\n"
        "(own,) = (int(line.split()[1]) for line in lines if line.startswith('VmHWM'))\n"
        "child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print((own + child) << 10)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "records"), str(MEMORY_BYTES), *TOO_LARGE],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert int(done.stdout) < MEMORY_BYTES + PROGRAM_BYTES


@pytest.mark.slow
def test_an_answer_of_too_many_rows_or_bytes_is_refused_and_a_file_takes_it(tmp_path):
    with pytest.raises(InputError, match=r"more than 1,000 rows; --rows allows more"):
        query(DATA, "FROM range(1001)", LIMITS)
    assert len(query(DATA, "FROM range(1000)", LIMITS)) == 1000
    with pytest.raises(InputError, match=r"more than 1,000 rows"):
        query(DATA, ENDLESS_ROWS, LIMITS)
    with pytest.raises(InputError, match=r"is larger than 16.* --out writes it to a file"):
        query(DATA, "SELECT repeat('x', 1000000) FROM range(20)", LIMITS)
    assert export(DATA, tmp_path / "all.csv", "FROM range(200000)") == 200_000
    with pytest.raises(InputError, match=r"more than 1,000 rows"):
        export(DATA, tmp_path / "few.csv", "FROM range(1001)", LIMITS)
    assert not (tmp_path / "few.csv").exists()


def test_rows_keep_their_order_under_a_limit():
    sql = "SELECT range FROM range(900) ORDER BY range % 7, range DESC"
    values = [row["range"] for row in query(DATA, sql, LIMITS)]
    assert values == sorted(range(900), key=lambda value: (value % 7, -value))


def test_numbers_larger_than_64_bits_come_back():
    assert query(DATA, "SELECT 2::HUGEINT ** 0 * 100000000000000000000 AS a")[0]["a"] == 1e20
    assert query(DATA, "SELECT 170141183460469231731687303715884105727::HUGEINT AS a") == [
        {"a": 2**127 - 1}
    ]


def test_the_options_set_the_limits(tmp_path, capsys):
    with open_writer(tmp_path / "records") as writer:
        writer.append_all(synthetic.sweep())
    base = ["query", "--in", str(tmp_path / "records")]
    endless = [*base, ENDLESS]
    assert run([*endless, "--seconds", "1s"]) == 2
    assert "was not answered within 1 s" in capsys.readouterr().err
    assert run([*base, TOO_LARGE[0], "--memory", "100MB"]) == 2
    assert "needs more memory than 100 MB" in capsys.readouterr().err
    assert run([*base, "FROM records", "--rows", "10"]) == 2
    error = capsys.readouterr().err
    assert "more than 10 rows" in error
    assert error.count("\n") == 1
    assert run([*base, "FROM records", "--memory", "1MB"]) == 2
    assert "--memory: must be at least" in capsys.readouterr().err


def test_no_process_is_left_and_one_whose_parent_is_killed_ends_by_itself():
    with QueryProcess(SHORT) as process:
        pid = process._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    code = "import sys\nfrom steptime.records import query\nquery.GRACE_S = 0.2\nquery.main()\n"
    request = (
        b'{"sql": "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT '
        b'count(*) FROM t", "files": [], "model": "", "setting_kinds": {}, '
        b'"quantity_kinds": {}, "temporary_folder": "/nowhere", '
        b'"memory_bytes": 268435456, "limit_s": 0.5}\n'
    )
    done = subprocess.run([sys.executable, "-c", code], input=request, timeout=240, check=False)
    assert done.returncode == -signal.SIGALRM


def test_a_limit_of_the_system_is_not_raised():
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))\n"
        "from steptime.records.query import limit_memory\n"
        "limit_memory(1 << 40)\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0] == 1 << 31)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"True\n"
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == hard
