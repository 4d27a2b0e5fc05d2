"""The command `calibrate`: with a backend whose clock is made up, with records, and for real."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from record_cases import EACH, edited  # EACH has mark.slow and mark.rare
from steptime.analysis.rooflines.ceilings import list_ceilings
from steptime.calibration import log
from steptime.calibration.here import points_s
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.core.files import read_lines
from steptime.core.toml_files import toml_text
from steptime.hardware import catalog
from steptime.hardware.device_calibration import DeviceCalibration
from steptime.hardware.device_file import device_from_table
from steptime.measure.drivers import NvidiaGpu
from steptime.questions.doctor.question import find_changed_settings, read_calibration

FEW = ["--threads", "1", "--minutes", "0.1", "--points", "4"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


CEILINGS = ["calibrate", "--only", "ceilings"]


def answered(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    assert run([*words, "--json"]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


@pytest.fixture
def unhurried(monkeypatch):
    """Let the number of points end a calibration, however busy this machine is."""
    monkeypatch.setattr("steptime.calibration.here.points_s", lambda _limit_s, _spent_s: 3600.0)


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
def test_this_machine_from_end_to_end(capsys):
    document, said = answered(["calibrate", "--backend", "null", *FEW], capsys)
    made = document
    assert (made["backend"], made["version"], made["threads"]) == ("null", "1.0", 1)
    assert made["measured_points"] == 4
    assert made["check_points"] == 1
    assert made["drift"] == 0.0  # its clock is made up
    assert made["constants"]
    assert "all" in [row["kind"] for row in made["rows"]]
    assert "[1/4, " in said
    device = catalog.device("local")
    assert device.calibration.constants == made["constants"]
    assert (device.datasheet.cores, device.datasheet.l2_bytes is not None) == (1, True)
    with Path(document["path"]).open("rb") as file:
        assert tomllib.load(file)["calibration"]["stack"] == "torch-eager"
    # predictions by `local` follow
    predicted, _ = answered(
        ["predict", "fc", "--device", "local", "--method", "calibrated"], capsys
    )
    assert predicted["low_s"] < predicted["step_s"] < predicted["high_s"]
    words = [*CEILINGS, "--backend", "null", "--threads", "1", "--minutes", "0.05"]
    assert run(words) == 0
    printed = capsys.readouterr()
    assert "which is gone: steptime calibrate" in printed.err  # ceilings and shares go together
    assert catalog.device("local").calibration.table == {}
    assert catalog.device("local").name == document["device"]


@pytest.mark.rare
@pytest.mark.usefixtures("unhurried")
def test_what_was_measured_before_an_interrupt_is_kept(capsys, monkeypatch):
    said: list[str] = []

    def interrupted_at(point: str) -> dict[str, Any]:
        def note(said: str) -> None:
            if said.startswith(f"[{point}/"):
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("steptime.calibration.here.note", note)
            assert run(["calibrate", "--backend", "null", *FEW]) == 130
        said.append(capsys.readouterr().err)
        return dict(catalog.device("local").calibration.table)

    first = interrupted_at("3")
    assert (first["measured_points"], "drift" in first) == (3, False)
    assert interrupted_at("2") == first  # it has more points
    assert re.fullmatch(r"steptime: interrupted; 3 points kept in \S+\.toml\n", said[0])
    assert said[1] == "steptime: interrupted\n"
    whole, _ = answered(["calibrate", "--backend", "null", *FEW], capsys)
    assert whole["measured_points"] == 4
    kept = interrupted_at("3")
    assert kept == catalog.device("local").calibration.table
    assert kept["constants"] == whole["constants"]


@pytest.mark.rare  # Ctrl-C keeps its points by the same lines
@pytest.mark.usefixtures("unhurried")
def test_a_kill_loses_one_point_at_most(capsys, monkeypatch, home):
    class KilledError(BaseException):
        pass

    def killed_at(point: str) -> list[Any]:
        def note(said: str) -> None:
            if said.startswith(f"[{point}/"):
                raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr("steptime.calibration.here.note", note)
            with pytest.raises(KilledError):
                run(["calibrate", "--backend", "null", *FEW])
        return read_lines(kept)

    kept = home / "devices" / ".calibrating-null-cpu-1.jsonl"
    ceilings, *two = killed_at("2")
    assert len(two) == 2
    kept.write_text(kept.read_text("utf-8") + '{"point": "torn', encoding="utf-8")
    assert len(killed_at("3")) == 1 + 3
    words = ["calibrate", "--backend", "null", *FEW]
    whole, said = answered(words, capsys)
    assert "going on after 3 points of a calibration that was killed" in said
    assert "measuring ceilings" not in said
    assert whole["measured_points"] == 4
    assert not kept.exists()
    ceilings["of"]["version"] = "0.9"  # of the framework
    kept.write_text("".join(json.dumps(line) + "\n" for line in (ceilings, *two)), "utf-8")
    _, said = answered(words, capsys)
    assert "going on" not in said


@EACH
@pytest.mark.usefixtures("unhurried", "home")
def test_what_was_edited_by_hand_is_one_line_that_names_the_file(capsys, step):
    document, _ = answered(["calibrate", "--backend", "null", *FEW], capsys)
    path = Path(document["path"])
    whole = tomllib.loads(path.read_text("utf-8"))
    refused = 0
    for table in edited(whole, step=step):
        path.write_text(toml_text(table), "utf-8")
        code = run(["predict", "fc", "--device", str(path)])
        line = capsys.readouterr().err
        if code:
            assert (code, line.count("\n")) == (2, 1), line
            assert str(path) in line or document["device"] in line
            refused += 1
        else:
            device = catalog.device(path)
            assert list_ceilings(device)
            list(find_changed_settings(read_calibration(device.calibration), 1, None, {}))
    assert refused > 100 / step


def test_points_of_a_killed_calibration_that_were_edited_are_one_line(tmp_path):
    path, of = tmp_path / "points.jsonl", {"steptime": "1"}
    log.begin_log(path, of, catalog.device_table("t4"))
    log.append_answer(path, "relu", {"seconds": {"step": 0.1}, "disturbed": 0.0, "rounds": 3})
    log.append_answer(path, "gelu", {"note": "no memory"})
    lines = read_lines(path)
    for table in edited(lines):
        path.write_text("".join(json.dumps(line) + "\n" for line in table), "utf-8")
        try:
            ceilings, answers = log.resume_log(path, of)
        except InputError as error:
            said = str(error)
            assert said.startswith(f"{path}: ")
            assert said.endswith("without this file the calibration begins anew")
        else:
            assert ceilings is None or device_from_table(ceilings, "here")
            assert all(isinstance(one, dict) for held in answers.values() for one in held)


@pytest.mark.slow
def test_the_peak_that_a_probe_found_is_that_of_its_platform(capsys, home):
    """As of a shipped device, whose probed file has another name: `-probed` behind it."""
    words = [*CEILINGS, "--backend", "null", "--threads", "1", "--minutes", "0.05"]
    document, _ = answered(words, capsys)
    path = Path(document["path"])
    other = path.with_name(f"{path.stem}-probed.toml")
    text = path.read_text("utf-8")
    other.write_text(text.replace(f'name = "{path.stem}"', f'name = "{path.stem}-probed"', 1))
    path.unlink()
    run_ = ["run", "fc", "--backend", "null", "--threads", "1", "--budget", "0.01"]
    shares = answered(run_, capsys)[0]["fraction_of_peak"]
    assert shares["probed"] is not None
    assert shares["datasheet"] is None


@pytest.mark.parametrize("words", [["calibrate"], CEILINGS, ["calibrate", "--only", "link"]])
def test_a_home_that_cannot_be_written_to_is_said_before_measuring(
    words, capsys, monkeypatch, home
):
    def measures(*_: object, **__: object) -> None:
        raise AssertionError("it measured")

    monkeypatch.setattr("steptime.calibration.here.Worker", measures)
    monkeypatch.setattr("steptime.questions.calibrate.ceilings.Workers", measures)
    home.write_text("a file, not a folder")
    assert run(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written to: " in line
    assert str(home) in line


def test_records_of_a_device_in_place_of_measuring(capsys):
    rows = [
        f"{nodes},{batch},Tesla T4,{1e-3 + 4e-13 * batch * nodes**2:.6g}"
        for batch in (64, 128, 256, 512, 1024)
        for nodes in (256, 1024, 4096)
    ]
    Path("rows.csv").write_text("\n".join(["nodes,bs,device,time", *rows]))
    Path("map.toml").write_text(MAPPING)
    assert run(["import", "rows.csv", "--mapping", "map.toml", "--out", "records"]) == 0
    capsys.readouterr()
    document, _ = answered(["calibrate", "--from", "records", "--points", "8"], capsys)
    assert document["device"] == "t4-calibrated"
    assert document["points"] == 8
    assert document["source"] == "15 steps of records"
    found = catalog.device("t4-calibrated")
    assert found.datasheet.peak_flop_per_s == catalog.device("t4").datasheet.peak_flop_per_s
    with pytest.raises(Exception, match="device 'local' is not known"):
        catalog.device("local")  # it is of no machine here


def test_rows_of_a_device_in_a_file(capsys):
    figures = catalog.device_table("t4") | {"name": "card", "memory_GB_per_s": 300}
    Path("card.toml").write_text(toml_text(figures))
    row = {"kind": "add", "dtype": "float32", "condition": "repeated", "device": "card.toml"}
    sizes = [[2**i, 1024] for i in range(8, 20)]
    rows = [{**row, "shapes": [s, s], "seconds": 1e-5 * 2**i} for i, s in enumerate(sizes)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(["calibrate", "--from", "rows.jsonl"]) == 2
    assert "choose its file: --of card.toml" in capsys.readouterr().err
    words = ["calibrate", "--from", "rows.jsonl", "--of", "card.toml"]
    made, _ = answered(words, capsys)
    assert made["source"] == "12 rows of rows.jsonl"
    assert catalog.device("card").datasheet.memory_bytes_per_s == 3e11
    Path("rows.jsonl").write_text(Path("rows.jsonl").read_text().replace("card.toml", "card"))
    assert run(["evaluate", "rows.jsonl"]) == 0
    said = "note: card was calibrated with 12 rows of rows.jsonl: they are no check"
    assert said in "".join(capsys.readouterr())


MAPPING = """
name = "t4-steps"
source = "made up for a test"
model = "fc:layers=4,nodes={nodes},inputs=784,outputs=10"
batch = "{bs}"
platform = "{device}"

[quantities]
step_s = {column = "time"}
"""


def test_a_calibration_of_other_versions_is_stale():
    table = {"backend": "torch", "version": "2.12.0", "threads": 2, "date": "2026-01-01"}
    on_cpu, on_gpu = (
        read_calibration(DeviceCalibration.from_table(facts))
        for facts in (table, table | {"driver": "550.1"})
    )
    differences = find_changed_settings(on_cpu, 4, None, {"torch": "2.13.0+cpu"})
    assert list(differences) == [("torch", "2.12.0", "2.13.0"), ("threads", "2", "4")]
    assert not list(find_changed_settings(on_cpu, 2, None, {"torch": "2.12.0"}))
    gpu = NvidiaGpu(
        name="T4", driver="560.2", capacity_bytes=None, power_limit_w=None, mig_mode="[N/A]"
    )
    # Threads do not matter.
    differences = find_changed_settings(on_gpu, 9, (gpu,), {"torch": "2.12.0"})
    assert list(differences) == [("driver", "550.1", "560.2")]


@pytest.mark.rare
@pytest.mark.framework
@pytest.mark.usefixtures("unhurried")
def test_this_machine_for_real(capsys):
    words = ["calibrate", "--threads", "1", "--minutes", "0.4", "--points", "8"]
    document, said = answered(words, capsys)
    made = document
    assert made["backend"] == "torch"
    assert not made["failed"]
    assert made["measured_points"] >= 4
    assert 0 < next(row["mape"] for row in made["rows"] if row["kind"] == "all") < 2
    assert "left] " in said


@pytest.mark.parametrize(("spent_s", "left_s"), [(10, 30), (55, 20)])
def test_ceilings_that_took_long_leave_time_for_points(spent_s, left_s):
    assert points_s(40, spent_s) == left_s
