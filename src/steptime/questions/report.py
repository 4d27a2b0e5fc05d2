"""Write one offline page on a folder of records."""

import shlex
from pathlib import Path

import msgspec

from steptime.core.answer import Answer, AnswerRow
from steptime.core.progress import note
from steptime.core.table import Table, make_facts_table
from steptime.core.units import counted, percent, seconds
from steptime.questions import kinds
from steptime.questions.evaluate.accuracy import Accuracy
from steptime.questions.record_sources import load_records


class BestNetwork(AnswerRow, frozen=True, kw_only=True):
    """The measured network with the largest share of its device's peak.

    Attributes:
        name: the network, with what tells it from the others.
        model: the network.
        batch: examples of one replica in a step.
        peak_fraction: its speed over the device's peak.
        flop_per_s: its speed, predicted FLOP over measured seconds.
        peak_flop_per_s: the device's peak.
    """

    name: str
    model: str
    batch: int | None
    peak_fraction: float | None
    flop_per_s: float | None
    peak_flop_per_s: float | None


class RecordCount(AnswerRow, frozen=True, kw_only=True):
    """The number of steps with one status.

    Attributes:
        status: oom, timeout, failed or another one.
        count: number of steps.
    """

    status: str
    count: int


class FarPredictions(AnswerRow, frozen=True, kw_only=True):
    """Predictions that are off by more than 20 %.

    Attributes:
        number: number of such predictions.
        disturbed: those whose measurement other work disturbed; None if unknown.
    """

    number: int
    disturbed: int | None


class ReportAnswer(Answer, frozen=True, kw_only=True):
    """A report that was written, and the numbers at its top.

    Attributes:
        path: the file of the report.
        networks: number of networks that were measured or predicted here.
        measured: number of these networks that were measured.
        platforms: number of platforms of these networks.
        measured_platforms: number of platforms with a measurement.
        fastest_s: seconds of the fastest measured step.
        slowest_s: seconds of the slowest measured step.
        best: the network nearest to its device's peak; None if no share is known.
        median_peak_fraction: median of the speeds over the devices' peaks.
        median_roof_fraction: median of the speeds over the roofline's bounds.
        above_peak: number of networks above the peak of their device's file.
        published: number of results that others published.
        published_platforms: number of platforms of published results.
        published_fastest_s: seconds of the fastest published step.
        published_slowest_s: seconds of the slowest published step.
        unsuccessful: steps that did not succeed, by status.
        prediction: errors of the predictions.
        far: predictions that are more than 20 % off.
        headline: the number of networks and the file.
    """

    path: str
    networks: int
    measured: int
    platforms: int
    measured_platforms: int
    fastest_s: float | None
    slowest_s: float | None
    best: BestNetwork | None
    median_peak_fraction: float | None
    median_roof_fraction: float | None
    above_peak: int
    published: int
    published_platforms: int
    published_fastest_s: float | None
    published_slowest_s: float | None
    unsuccessful: tuple[RecordCount, ...]
    prediction: Accuracy
    far: FarPredictions
    headline: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the numbers at the top of the report."""
        times = [
            seconds(time_s) for time_s in (self.fastest_s, self.slowest_s) if time_s is not None
        ]
        error, peak = self.prediction.median_error, self.median_peak_fraction
        rows = [
            ("networks", str(self.networks)),
            ("measured", str(self.measured)),
            ("published", str(self.published)),
            ("fastest and slowest step", ", ".join(times) or None),
            ("median share of the peak", None if peak is None else percent(peak)),
            ("median error of predictions", None if error is None else percent(error)),
        ]
        return [make_facts_table("", "", rows)]


def report(
    folder: kinds.RecordPath,
    out: kinds.OutFile | None = None,
    mapping: kinds.MappingFile | None = None,
) -> ReportAnswer:
    """Write one offline page, HTML or Markdown, of all results.

    Args:
        folder: Folder of records, .jsonl file of records, or a file that import reads.
        out: A .html or .md file. Default: report.html in the folder.
        mapping: For a table in place of a folder: what its columns mean.

    Raises:
        InputError: if there are no records or no place for the file.
        OutsideError: if the disk does not take the file.
    """
    from steptime.reports import check_report_path, write_page

    source = Path(folder)
    default_folder = source.parent if source.is_file() else source
    path = Path(out) if out else default_folder / "report.html"
    if out:
        check_report_path(path)
    data = load_records([source], None if mapping is None else Path(mapping), note)
    options = [] if mapping is None else ["--map", str(mapping)]
    command = shlex.join(["steptime", "report", str(source), *options, "-o", str(path)])
    numbers = write_page(data, source.resolve().name, path, command)
    unsuccessful = numbers.pop("unsuccessful").items()
    headline = counted(numbers["networks"], "network")
    if numbers["published"]:
        headline += f", {counted(numbers['published'], 'published result')}"
    fields = numbers | {
        "unsuccessful": [{"status": status, "count": count} for status, count in unsuccessful],
        "headline": [f"{headline}, {path}"],
    }
    return msgspec.convert(fields, ReportAnswer)
