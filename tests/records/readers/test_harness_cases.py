"""Every file of ../shared/cases/harness that can be imported, with its right times or its refusal.

The mappings are those of the cases; a case that needs a key more has it in `KEYS`. All of these
forms of files are also written out in the tests beside this one, which need no such folder.
"""

import json
from pathlib import Path

import pytest

from places import ROOT
from steptime.cli.main import run

HARNESS = ROOT.parent / "shared" / "cases" / "harness"
TWO = [0.0125, 0.0301]
ONE = [0.0125]
IMPORTED = {
    "csv/blank_first/t.csv": TWO,
    "csv/comment_first/t.csv": TWO,
    "csv/cp1252_device/t.csv": TWO,
    "csv/cr_only/t.csv": TWO,
    "csv/crlf_bom/t.csv": TWO,
    "csv/cyrillic/t.csv": ONE,
    "csv/decimal_comma_quoted/t.csv": ONE,
    "csv/decimal_comma_semicolon/t.csv": TWO,
    "csv/digit_col/t.csv": ONE,
    "csv/excel_formula/t.csv": ONE,
    "csv/fullwidth/t.csv": ONE,
    "csv/hhmmss/t.csv": [12.5],
    "csv/int_as_float/t.csv": ONE,
    "csv/kw_class/t.csv": ONE,
    "csv/latin1/t.csv": TWO,
    "csv/markdown/t.csv": ONE,
    "csv/minmax_call/t.csv": [0.0124],
    "csv/minmax_cols/t.csv": [0.012],
    "csv/nan/t.csv": ONE,
    "csv/nbsp/t.csv": ONE,
    "csv/nul_bytes/t.csv": TWO,
    "csv/pandas_index/t.csv": TWO,
    "csv/percent/t.csv": ONE,
    "csv/percentile_cols/t.csv": [0.015],
    "csv/percentile_cols2/t.csv": [0.015],
    "csv/quoted_newline/t.csv": TWO,
    "csv/quotes_inside/t.csv": ONE,
    "csv/sci/t.csv": ONE,
    "csv/semicolon_in_header/t.csv": ONE,
    "csv/sep_line/t.csv": TWO,
    "csv/thousands_dot/t.csv": [1.234],
    "csv/thousands_quoted/t.csv": [1.2345],
    "csv/title_line/t.csv": TWO,
    "csv/torn_last/t.csv": ONE,
    "csv/torn_quote/t.csv": ONE,
    "csv/trailing_comma_all/t.csv": TWO,
    "csv/two_unnamed/t.csv": ONE,
    "csv/unicode_minus_thin/t.csv": [1.25],
    "csv/units_in_cell/t.csv": [0.0125, 1.2],
    "csv/upper/RESULTS.CSV": TWO,
    "csv/upper/r.CSV.GZ": TWO,
    "csv/upper/r.csv.gz": TWO,
    "csv/utf16_tab/t.csv": TWO,
    "csv/utf16le_bom/t.csv": TWO,
    "csv/zero_negative/t.csv": ONE,
    "csv2/a.csv": ONE,
    "csv2/al.txt": ONE,
    "csv2/hash.csv": ONE,
    "csv2/its.csv": [1 / 1.9],
    "csv2/j.json": ONE,
    "csv2/j.jsonl": ONE,
    "csv2/r.csv": ONE,
    "csv2/semi.csv": ONE,
    "csv2/tab.tsv": ONE,
    "csv3/rep.csv": [0.010],
    "csv3/rep2.csv": [0.010],
    "csv3/t.csv": TWO,
    "logs/google_benchmark_csv/gb.csv": [0.0412],
    "logs/hf_all_results/all_results.json": [1 / 0.81],
    "logs/hf_trainer_state/trainer_state.json": [1 / 0.81],
    "logs/hyperfine_json/bench.json": [0.405],
    "logs/json_nested/b.json": [0.405],
    "logs/jsonl_blank_garbage/b.jsonl": [0.45],
    "logs/jsonl_bom_crlf/b.jsonl": [0.45],
    "logs/jsonl_torn/b.jsonl": [0.45],
    "logs/lightning_profiler/profile.txt": [0.0412],
    "logs/pytest_benchmark_json/0001_x.json": [0.405],
    "logs/torch_bench_table/bench.txt": [0.0412],
    "traces/async_3steps.pt.trace.json": [0.060],
    "traces/control_char.pt.trace.json": [0.060],
    "traces/windows_backslash.pt.trace.json": [0.060],
}
REFUSED = {
    "csv/backslash_escape/t.csv": "no line of CSV: ',' expected after '\"'",
    "csv/case_header/t.csv": "did you mean 'Time_ms'?",
    "csv/decimal_comma_quoted/t.csv": "decimal = ',' in the mapping reads it",
    "csv/dup_header/t.csv": "two columns are named time_ms",
    "csv/thousands_quoted/t.csv": "thousands = ',' in the mapping reads groups of digits",
    "csv/unicode_minus_thin/t.csv": 'thousands = " " in the mapping reads it',
    "csv/upper/r.zip": "save as CSV, or unpack it",
    "csv/upper/results.dat": "a table ends in .csv, .tsv, .txt",
    "csv/upper/results.log": "a table ends in .csv, .tsv, .txt",
    "csv2/nohead.csv": "it lacks columns of the mapping: batch",
    "logs/hf_console/train.log": "a table ends in .csv, .tsv, .txt",
    "logs/hf_console_txt/train.txt": "5 cells under 4 columns",
}
UNREAD = {
    "csv/torn_last/t.csv": "3: the file ends within the number '3'",
    "csv/torn_quote/t.csv": "no line of CSV",
    "csv/zero_negative/t.csv": "time_ms must be above 0, not '-1'",
    "logs/jsonl_blank_garbage/b.jsonl": "b.jsonl, 2:",
    "logs/jsonl_torn/b.jsonl": "b.jsonl, 3:",
}
KEYS = {
    "csv/decimal_comma_quoted/t.csv": 'decimal = ","',
    "csv/decimal_comma_semicolon/t.csv": 'decimal = ","',
    "csv/thousands_dot/t.csv": 'thousands = "."\ndecimal = ","',
    "csv/thousands_quoted/t.csv": 'thousands = ","',
    "csv/unicode_minus_thin/t.csv": 'thousands = " "',
}
WORDS = {'"1/item(speed,0)"': '"1 / number(speed)"'}  # of mappings of 0.15.0

pytestmark = pytest.mark.skipif(not HARNESS.is_dir(), reason=f"no folder {HARNESS}")


def _mapping(case: str, folder: Path, has_keys: bool) -> list[str]:
    """Return the option `--map` of a case, whose mapping stands beside its file."""
    path = HARNESS / case
    if "traces" in case:
        return []
    names = {"csv2/its.csv": "its", "csv2/al.txt": "sp", "csv2/a.csv": "nocol"}
    default = "cols" if case.startswith("csv2") else "m"
    mapping = path.parent / f"{names.get(case, default)}.toml"
    text = (mapping if mapping.exists() else HARNESS / "csv/base.toml").read_text()
    for old_word, word in WORDS.items():
        text = text.replace(old_word, word)
    keys = KEYS.get(case, "") if has_keys else ""
    (folder / "mapping.toml").write_text(f"{keys}\n{text}")
    return ["--map", str(folder / "mapping.toml")]


@pytest.mark.parametrize("case", IMPORTED)
def test_a_file_has_the_right_times(case, tmp_path, capsys):
    mapping = _mapping(case, tmp_path, has_keys=True)
    out = str(tmp_path / "records")
    assert run(["import", str(HARNESS / case), *mapping, "--out", out]) == 0
    assert UNREAD.get(case, "") in capsys.readouterr().err
    assert run(["analyse", "results", out, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sorted(row["measured_s"] for row in rows) == pytest.approx(IMPORTED[case], rel=1e-6)


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_is_refused_with_the_remedy(case, tmp_path, capsys):
    mapping = _mapping(case, tmp_path, has_keys=False)
    assert run(["import", str(HARNESS / case), *mapping, "--out", str(tmp_path / "records")]) == 2
    assert REFUSED[case] in capsys.readouterr().err


@pytest.mark.parametrize("case", [case for case in IMPORTED if case.startswith("csv/")])
def test_evaluate_reads_the_same_times(case, tmp_path, capsys):
    mapping = _mapping(case, tmp_path, has_keys=True)
    assert run(["evaluate", str(HARNESS / case), *mapping, "--json"]) == 0
    worst = json.loads(capsys.readouterr().out)["worst"]
    times = sorted(case_row["measured_s"] for case_row in worst)
    assert times == pytest.approx(IMPORTED[case], rel=1e-6)
