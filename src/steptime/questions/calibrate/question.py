"""The question `calibrate`: measure what predictions of this machine need, or take it of rows."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from steptime.calibration.from_rows import Calibration, calibrate_from_rows
from steptime.calibration.here import POINTS, calibrate_machine, check_ceilings
from steptime.core.answer import Answer, AnswerRow
from steptime.core.errors import check_choice
from steptime.core.signatures.kinds import text_of
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_percent
from steptime.core.values import parse_count, parse_duration
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.hardware.device_file import device_from_table
from steptime.measure.contract import Options
from steptime.questions import kinds, options
from steptime.questions.calibrate.ceilings import (
    CeilingsAnswer,
    MeasuredLinkAnswer,
    measure_ceilings,
    measure_link,
)
from steptime.questions.calibrate.serving import ServingCalibrationAnswer, calibrate_serving

DEFAULT_MINUTES = 3.0
DEFAULT_ONLY_S = 20.0  # of ceilings or a link alone
MIN_MINUTES = 0.05  # fewer time not even the ceilings
MAX_MINUTES = 1440.0  # a day
MAX_DISTURBED_SHARE = 0.5  # of the rounds, before a note says to calibrate again
ERROR_COLUMNS = (
    Column("kind"),
    Column("points"),
    Column("mape", "MAPE", form=".1%"),
    Column("bias", form="+.2f"),
)


class KindErrors(AnswerRow, frozen=True, kw_only=True):
    """Errors of the points of a kind, each as if it was left out of the fit.

    Attributes:
        kind: the kind of op, or `all`.
        points: number of fitted times of this kind.
        mape: mean of |predicted / measured - 1|.
        bias: mean of ln(predicted / measured).
    """

    kind: str
    points: int
    mape: float
    bias: float


class FormInterval(AnswerRow, frozen=True, kw_only=True):
    """The interval that holds 80 % of the kernels of a form.

    Attributes:
        form: the form: the formula that prices the kernels.
        low: the lower end of ln(measured / predicted).
        high: the upper end of ln(measured / predicted).
    """

    form: str
    low: float
    high: float


class FailedPoint(AnswerRow, frozen=True, kw_only=True):
    """A point that could not be measured.

    Attributes:
        point: its name.
        reason: why it could not be measured.
    """

    point: str
    reason: str


class CalibrateAnswer(Answer, frozen=True, kw_only=True):
    """A calibrated device: the constants that moved, and how far predictions are off.

    Attributes:
        device: the name of the device.
        path: its file, which also has the residuals of the fit; None if none was written.
        date: when it was calibrated.
        source: what was fitted.
        points: number of times that were fitted: a measured point (an op or a step at given sizes)
            has one for each pass.
        stack: the software that ran the steps, "" if there were none.
        constants: constants that the fit changed from their shipped values, by name.
        intervals: intervals of kernels, by form (kind of formula, such as `product` or `stream`).
        rows: errors by kind of op, each time predicted by a fit without its point.
        backend: the library that ran the points, None if nothing was measured here.
        version: version of this library, None if nothing was measured here.
        threads: CPU threads of the points, None if nothing was measured here.
        driver: the driver of the GPU, None for another device.
        measured_points: points that were measured here, None if none were.
        check_points: points that were left out of the fit to check it, None if nothing was measured
            here.
        check_mape: mean of |predicted / measured - 1| of the check points, None without any.
        drift: relative change of the time of the first point when it was measured again at the end,
            None if it was not.
        disturbed_share: median share of the rounds that other work disturbed, None if nothing was
            measured here.
        failed: points that could not be measured.
        headline: the answer in words.
    """

    device: str
    path: str | None
    date: str
    source: str
    points: int
    stack: str
    constants: dict[str, float]
    intervals: tuple[FormInterval, ...]
    rows: tuple[KindErrors, ...]
    backend: str | None
    version: str | None
    threads: int | None
    driver: str | None
    measured_points: int | None
    check_points: int | None
    check_mape: float | None
    drift: float | None
    disturbed_share: float | None
    failed: tuple[FailedPoint, ...]
    headline: tuple[str, ...]
    _device: Device

    @property
    def calibrated_device(self) -> Device:
        """The device with its calibration, as `predict` takes it."""
        return self._device

    def tables(self) -> list[Table]:
        """Return the errors of points that were left out of the fit, by kind."""
        title = f"{self.device}: errors of points left out of the fit"
        return [Table(ERROR_COLUMNS, [row.to_dict() for row in self.rows], title)]


def calibrate(
    of: kinds.Device | None = None,
    records: kinds.Cases | None = None,
    points: kinds.Count | None = None,
    mapping: kinds.MappingFile | None = None,
    dry_run: bool = False,
    backend: kinds.Backend = "torch",
    device: kinds.Place = "cpu",
    threads: kinds.Threads | None = None,
    minutes: kinds.Minutes | None = None,
    only: kinds.Probe | None = None,
    processes: kinds.Count | None = None,
    serving: kinds.ServingResults | None = None,
    server: kinds.ServerSettings | None = None,
    out: kinds.OutFile | None = None,
) -> CalibrateAnswer | CeilingsAnswer | MeasuredLinkAnswer | ServingCalibrationAnswer:
    """Measure what predictions need of this machine.

    The highest rates are measured first (--only ceilings ends there), then the small graphs and
    networks that lower the uncertainty most, until the error of held-out points stops falling. The
    result is the device 'local'. With --from nothing is measured: constants are fitted to records
    of any device, and its file is written. Python also takes rows (mappings, a DataFrame) and then
    writes no file. With --serving, the constants of `serve` are fitted to benchmarks of a server.

    Args:
        of: With --from: the device of the records; with --serving: the device of the server.
        records: Calibrate from these records, cases or table of training steps, without measuring.
        points: Largest number of points (an op or a step at given sizes) to measure or fit.
            Default: 60. Rows that are given in Python are all taken.
        mapping: With --from: what the columns of a table mean.
        dry_run: With --from or --serving: write no file.
        backend: `torch`, `jax`, `onnxruntime`, or one that a package adds.
        device: Where to run: `cpu`, `cuda[:n]`, `mps`, `tpu[:n]`.
        threads: CPU threads. Default: all cores.
        minutes: Time of the whole calibration, such as 90s. Default: 3 (minutes); with --only a
            third of a minute.
        only: Measure a part only: `ceilings` (the highest rates of this machine) or `link`
            (all-reduces among processes).
        processes: With --only link: number of processes. Default: 2.
        serving: Fit to results of `vllm bench serve`, `bench_serving` of SGLang, AIPerf, GenAI-Perf
            or GuideLLM, or to a table of requests; may be repeated.
        server: With --serving: a setting of the server that the results lack, as `tensor=2`; may be
            repeated.
        out: With --serving: the file to write. Default: serving.toml.

    Raises:
        InputError: for options that do not go together, and for rows that cannot be read.
    """
    if serving is not None:
        # `refuse` raises for the first option that has a value; {} is the name of the option.
        measuring_options = {
            "--from": records,
            "--map": mapping,
            "--only": only,
            "--minutes": minutes,
            "--points": points,
            "--threads": threads,
            "--processes": processes,
        }
        options.refuse(measuring_options, "{} goes without --serving")
        return calibrate_serving(serving, server, _name_server_device(of), out, dry_run)
    options.refuse({"--server": server, "--out": out}, "{} needs --serving FILE")
    limit_s = _read_time_limit_s(minutes, DEFAULT_ONLY_S if only else 60 * DEFAULT_MINUTES)
    point_count = None if points is None else parse_count(text_of(points), "--points")
    worker_options = options.options_of(device, options.thread_count(threads))
    if only != "link":
        options.refuse({"--processes": processes}, "{} needs --only link")
    if only is not None:
        table_options = {"--from": records, "--map": mapping, "--of": of}
        options.refuse(table_options, "{} measures nothing: leave out --only")
        return _measure_part(only, backend, worker_options, processes, limit_s)
    if records is not None:
        rows = Path(records) if isinstance(records, str | PathLike) else records
        map_file = None if mapping is None else Path(mapping)
        calibrated_device = _find_calibrated_device(of, device)
        calibration = calibrate_from_rows(
            rows, map_file, calibrated_device, point_count, write=not dry_run
        )
        return _make_answer(calibration)
    record_options = {"--of": of, "--map": mapping, "--dry-run": dry_run}
    options.refuse(record_options, "{} needs --from DIR")
    check_ceilings(backend)
    table, path = calibrate_machine(backend, worker_options, limit_s, point_count or POINTS)
    local_device = device_from_table(table, table["name"])
    usage = f"written to {path}; use it as --device local"
    return _make_answer(Calibration(local_device, table["calibration"], path, usage))


def _find_calibrated_device(
    calibrated_device: kinds.Device | None, device: kinds.Place
) -> str | Device | None:
    """Return the device that rows calibrate; None where the rows say which device they are of."""
    if isinstance(calibrated_device, PathLike):
        return str(calibrated_device)
    if calibrated_device is not None:
        return calibrated_device
    # `--device` names the device only if it was typed: its default, a CPU, is no choice.
    is_device_typed = device != "cpu"
    return str(device) if is_device_typed else None


def _name_server_device(server_device: kinds.Device | None) -> str | None:
    """Return the name of the device of a server; raises `InputError` for an object."""
    if server_device is None:
        return None
    is_name = isinstance(server_device, str | PathLike)
    return str(server_device) if is_name else catalog.device(server_device).name


def _measure_part(
    only: str, backend: str, worker_options: Options, processes: kinds.Count | None, limit_s: float
) -> CeilingsAnswer | MeasuredLinkAnswer:
    """Measure the ceilings alone, or the link alone."""
    check_choice("--only", only, kinds.PROBES)
    if only == "ceilings":
        return measure_ceilings(backend, worker_options, limit_s)
    count = None
    if processes is not None:
        count = parse_count(text_of(processes), "--processes", at_least=2)
    return measure_link(backend, worker_options, count, limit_s)


def _read_time_limit_s(minutes: kinds.Minutes | None, default_s: float) -> float:
    """Return the seconds of an option of minutes."""
    if minutes is None:
        return default_s
    return 60 * parse_duration(minutes, "--minutes", "min", MIN_MINUTES, MAX_MINUTES)


def _make_answer(calibration: Calibration) -> CalibrateAnswer:
    """Return the answer that describes a calibration."""
    table = calibration.table
    path = calibration.path
    failed = tuple(
        FailedPoint(point=point, reason=reason) for point, reason in table.get("failed", {}).items()
    )
    headline = _describe_checks(table, failed)
    if calibration.usage:
        headline.append(calibration.usage)
    return CalibrateAnswer(
        device=calibration.device.name,
        path=None if path is None else str(path),
        date=str(table["date"]),
        source=table["source"],
        points=table["points"],
        stack=table.get("stack", ""),
        constants=dict(table["constants"]),
        # A form is a formula that prices kernels.
        intervals=tuple(
            FormInterval(form=form, low=low, high=high)
            for form, (low, high) in table.get("intervals", {}).items()
        ),
        rows=tuple(KindErrors(kind=kind, **errors) for kind, errors in table["errors"].items()),
        backend=table.get("backend"),
        version=table.get("version"),
        threads=table.get("threads"),
        driver=table.get("driver"),
        measured_points=table.get("measured_points"),
        check_points=table.get("check_points"),
        check_mape=table.get("check_mape"),
        drift=table.get("drift"),
        disturbed_share=table.get("disturbed"),
        failed=failed,
        headline=tuple(headline),
        _device=calibration.device,
    )


def _describe_checks(table: Mapping[str, Any], failed: tuple[FailedPoint, ...]) -> list[str]:
    """Return the checks of a calibration in words, and the points that failed."""
    lines = []
    if "check_mape" in table:
        mape = format_percent(table["check_mape"])
        lines.append(f"of {table['check_points']} points that were kept back: {mape}")
    if "drift" in table:
        lines.append(f"the first point, again at the end: {format_percent(table['drift'], '+')}")
    disturbed_share = table.get("disturbed", 0)
    if disturbed_share > MAX_DISTURBED_SHARE:
        share = f"{format_percent(disturbed_share)} of the rounds"
        lines.append(f"other work disturbed {share}: calibrate again when it is over")
    lines += [f"not measured: {point.point}: {point.reason}" for point in failed]
    return lines
