"""`calibrate --serving`: constants of servers from what their clients measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptime.calibration.client_formats import read_client_runs
from steptime.calibration.client_runs import ClientRun
from steptime.calibration.client_settings import SETTING_NAMES
from steptime.calibration.serving_fit import RunFit, ServedRun, ServingFit, fit_serving
from steptime.core.answer import Answer, AnswerRow
from steptime.core.errors import InputError, unknown
from steptime.core.files import check_ending, check_writable
from steptime.core.signatures.kinds import File, Settings, paths_of, setting_texts
from steptime.core.tables.table import Column, Table
from steptime.core.toml_files import format_path
from steptime.core.units import format_count, format_percent, format_seconds
from steptime.core.values import parse_pairs
from steptime.questions.serve.options import ServeOptions
from steptime.serving.calibration import write_calibration
from steptime.serving.service import Service

DEFAULT_FILE = "serving.toml"
MAX_RUNS = 200
ERROR_COLUMNS = (
    Column("place", "run"),
    Column("requests"),
    Column("measured_request_s", "request"),
    Column("before", "before"),
    Column("after", "calibrated"),
    Column("left_out", "left out"),
)
CONSTANT_COLUMNS = (Column("constant"), Column("before"), Column("after", "calibrated"))


class ServingRunRow(AnswerRow, frozen=True, kw_only=True):
    """A run of a client, and how far predictions of it are off.

    Attributes:
        place: the file, and the place in it.
        model: the network.
        device: the device of the server.
        requests: requests that succeeded.
        failed: requests that failed, which are left out.
        measured_request_s: mean seconds of a request, as the client measured.
        request_s: mean seconds of a request, as predicted with the calibration.
        request_before: predicted / measured - 1 of the request, without calibration.
        request_error: predicted / measured - 1 of the request, with the calibration.
        request_left_out: predicted / measured - 1 of the request, calibrated on the other runs;
            None of a single run.
        measured_ttft_s: mean TTFT in seconds, None if it was not measured.
        ttft_s: mean TTFT in seconds, as predicted with the calibration.
        ttft_before: predicted / measured - 1 of the TTFT, without calibration.
        ttft_error: predicted / measured - 1 of the TTFT, with the calibration.
        ttft_left_out: predicted / measured - 1 of the TTFT, calibrated on the other runs; None of a
            single run.
    """

    place: str
    model: str
    device: str
    requests: int
    failed: int
    measured_request_s: float
    request_s: float
    request_before: float
    request_error: float
    request_left_out: float | None
    measured_ttft_s: float | None
    ttft_s: float | None
    ttft_before: float | None
    ttft_error: float | None
    ttft_left_out: float | None


class ServingConstant(AnswerRow, frozen=True, kw_only=True):
    """A constant of host and scheduler.

    Attributes:
        constant: its name.
        stack_s: seconds without calibration.
        constant_s: seconds with the calibration.
    """

    constant: str
    stack_s: float
    constant_s: float


class ServingNetworkFactor(AnswerRow, frozen=True, kw_only=True):
    """The factor of a network's time on a device.

    Attributes:
        model: the network, as the runs name it.
        device: the device.
        factor: measured seconds of the device over predicted seconds.
    """

    model: str
    device: str
    factor: float


class ServingCalibrationAnswer(Answer, frozen=True, kw_only=True):
    """Constants of servers, fitted to benchmarks of them.

    Attributes:
        path: the file of the calibration; None if none was written.
        stack: the software of the servers.
        source: the files of the runs.
        rows: the runs, each with its errors.
        constants: the constants before and after.
        networks: the factors of the networks that ran.
        median_request_error: median of |predicted / measured - 1| of a request, each run predicted
            without its own data; None of a single run.
        median_ttft_error: median of |predicted / measured - 1| of the TTFT, each run predicted
            without its own data; None of a single run.
        headline: how far left-out runs are off, and how to use the file.
        notes: remarks on what was left out.
    """

    path: str | None
    stack: str
    source: str
    rows: tuple[ServingRunRow, ...]
    constants: tuple[ServingConstant, ...]
    networks: tuple[ServingNetworkFactor, ...]
    median_request_error: float | None
    median_ttft_error: float | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the errors of the runs, and the constants."""
        error_rows = [
            {
                "place": row.place,
                "requests": row.requests,
                "measured_request_s": format_seconds(row.measured_request_s),
                "before": format_percent(row.request_before, "+"),
                "after": format_percent(row.request_error, "+"),
                "left_out": _format_error(row.request_left_out),
            }
            for row in self.rows
        ]
        constant_rows = [
            {
                "constant": row.constant,
                "before": format_seconds(row.stack_s),
                "after": format_seconds(row.constant_s),
            }
            for row in self.constants
        ]
        # Without a calibration the times of a network are not scaled: factor 1.
        network_rows = [
            {
                "constant": f"{row.model} on {row.device}",
                "before": "x 1",
                "after": f"x {row.factor:.3f}",
            }
            for row in self.networks
        ]
        return [
            Table(ERROR_COLUMNS, error_rows, "time of a request: predicted against measured"),
            Table(CONSTANT_COLUMNS, [*constant_rows, *network_rows], f"constants of {self.stack}"),
        ]


def calibrate_serving(
    results: File | Sequence[File],
    server: Settings | None,
    device: str | None,
    out: File | None,
    dry_run: bool,
) -> ServingCalibrationAnswer:
    """Fit the constants of servers on results of clients, and write them.

    Args:
        results: the files of results.
        server: what the files do not say of the server, by names of `serve`'s options.
        device: the device of the server; None where the files say it.
        out: the file to write; None for `serving.toml` in the working folder.
        dry_run: whether no file is written.

    Raises:
        InputError: for files that cannot be read, and servers that nobody describes.
    """
    path = Path(DEFAULT_FILE if out is None else out)
    check_ending(path, (".toml",), "a calibration")
    if not dry_run:
        # Before the fit, not after it.
        check_writable(path.absolute().parent)
    settings = _read_server_settings(server, device)
    files = paths_of(results)
    runs = [run for file in files for run in read_client_runs(file)]
    if len(runs) > MAX_RUNS:
        raise InputError(f"calibrate --serving: {len(runs):,} runs, at most {MAX_RUNS}")
    source = ", ".join(format_path(file) for file in files)
    fit = fit_serving([find_served_run(run, settings) for run in runs], source)
    if not dry_run:
        write_calibration(fit.calibration, path)
    return _make_answer(fit, None if dry_run else format_path(path))


def _read_server_settings(server: Settings | None, device: str | None) -> dict[str, object]:
    """Return the settings of the server that the user gives; raises `InputError`."""
    settings: dict[str, object] = {**parse_pairs(setting_texts(server), "--server")}
    for name in settings:
        if name not in SETTING_NAMES:
            raise unknown("setting", name, SETTING_NAMES, "--server")
    if device is not None:
        if "device" in settings:
            raise InputError("--server device: --of says it")
        settings["device"] = device
    return settings


def find_served_run(run: ClientRun, settings: Mapping[str, object]) -> ServedRun:
    """Return a run with the service that it used; what the user says of it comes first.

    Raises:
        InputError: for a run whose model or device nobody says, and a service that cannot be.
    """
    # The user's settings win over those in the results of the client.
    server_settings = {**run.settings, **settings}
    for name, remedy in (("model", "--server model=MODEL"), ("device", "--of DEVICE")):
        if name not in server_settings:
            raise InputError(
                f"{run.place}: does not say the {name} of the server; nearest: {remedy}"
            )
    model = str(server_settings.pop("model"))
    device = str(server_settings.pop("device"))
    try:
        service = _build_service(run, model, device, server_settings)
        phases = service.phases()
    except InputError as error:
        raise InputError(f"{run.place}: {error}") from None
    return ServedRun(run, service, phases)


def _build_service(
    run: ClientRun, model: str, device: str, settings: Mapping[str, object]
) -> Service:
    """Return the service of a run, with the longest of its requests."""
    load = run.load
    text_by_setting: Any = {name: str(value) for name, value in settings.items()}
    # A closed loop keeps a number of requests running; an open loop sends them at their arrivals.
    if load.concurrency:
        options = ServeOptions(**text_by_setting, concurrency=load.concurrency)
    else:
        requests_per_s = len(load.inputs) / load.arrivals_s[-1]
        options = ServeOptions(**text_by_setting, rate=requests_per_s)
    request_lengths = zip(load.inputs, load.outputs, strict=True)
    # The service must hold the longest request, in prompt and answer together.
    longest_input, longest_output = max(request_lengths, key=sum)
    # There is one site (the device and its node) for each device, and a run has one device.
    site = options.sites(device)[0]
    return options.service(
        model,
        site,
        running_sequences=1,  # under load the demand decides how many run at once
        input_tokens=longest_input,
        output_tokens=longest_output,
    )


def _make_answer(fit: ServingFit, path: str | None) -> ServingCalibrationAnswer:
    """Return the answer that describes a fit."""
    calibration = fit.calibration
    return ServingCalibrationAnswer(
        path=path,
        stack=calibration.stack,
        source=calibration.source,
        rows=tuple(_make_run_row(run) for run in fit.runs),
        constants=tuple(
            ServingConstant(constant=name, stack_s=before_s, constant_s=calibration.constants[name])
            for name, before_s in fit.stack_constants.items()
        ),
        networks=tuple(
            ServingNetworkFactor(model=factor.model, device=factor.device, factor=factor.factor)
            for factor in calibration.factors
        ),
        median_request_error=calibration.request_error,
        median_ttft_error=calibration.ttft_error,
        headline=tuple(_describe_fit(fit, path)),
        notes=tuple(_list_notes(fit)),
    )


def _make_run_row(fit: RunFit) -> ServingRunRow:
    served_run = fit.run
    client_run = served_run.run
    return ServingRunRow(
        place=client_run.place,
        model=served_run.service.model,
        device=served_run.device,
        requests=client_run.request_count,
        failed=client_run.failed_count,
        measured_request_s=client_run.request_s,
        request_s=fit.request_s,
        request_before=fit.request_before,
        request_error=fit.request_error,
        request_left_out=fit.request_left_out,
        measured_ttft_s=client_run.ttft_s,
        ttft_s=fit.ttft_s,
        ttft_before=fit.ttft_before,
        ttft_error=fit.ttft_error,
        ttft_left_out=fit.ttft_left_out,
    )


def _describe_fit(fit: ServingFit, path: str | None) -> list[str]:
    """Describe how far runs are off that were left out, and how the file is used."""
    calibration = fit.calibration
    lines = []
    if calibration.request_error is not None:
        request_error = calibration.request_error
        ttft_error = calibration.ttft_error
        error = format_percent(request_error)
        line = f"a run that is left out is off by {error} end to end in the median"
        if ttft_error is not None:
            line += f", and by {format_percent(ttft_error)} in TTFT"
        lines.append(line)
    if path is not None:
        lines.append(f"written to {path}; use it as: steptime serve ... --calibration {path}")
    return lines


def _list_notes(fit: ServingFit) -> list[str]:
    """Return remarks on single runs, failed requests, and runs without a TTFT."""
    notes = []
    if fit.calibration.request_error is None:
        notes.append("one run: a second one would tell how far others are off")
    served_runs = [run_fit.run for run_fit in fit.runs]
    for served_run in served_runs:
        client_run = served_run.run
        if client_run.failed_count:
            failed = format_count(client_run.failed_count, "request")
            notes.append(f"{client_run.place}: {failed} failed and are left out")
        if client_run.ttft_s is None:
            notes.append(f"{client_run.place}: has no TTFT: times of requests alone are fitted")
    return notes


def _format_error(error: float | None) -> str:
    return "-" if error is None else format_percent(error, "+")
