"""Compare one side with the other, pair by pair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from steptime.analysis.analyses import analysis
from steptime.analysis.comparison import pairs, watch
from steptime.analysis.comparison.pairing import Pairing
from steptime.analysis.comparison.power import Power, find_power
from steptime.analysis.comparison.reference import describe_withdrawals
from steptime.analysis.comparison.verdict import screen_words
from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import Kind, paths_of, text_of
from steptime.core.tables.table import CANNOT_JUDGE, UNSUCCESSFUL, JsonRows, LazySequence
from steptime.core.units import format_count, format_percent
from steptime.core.values import parse_share
from steptime.questions import kinds
from steptime.questions.compare.answer import (
    CompareAnswer,
    HostNodes,
    LevelRow,
    PairRow,
    UnpairedRow,
)
from steptime.questions.evaluate.accuracy import Accuracy
from steptime.questions.options import refuse
from steptime.questions.record_sources import load_records
from steptime.records.data import Data

DEFAULT_MARGIN = "5%"
MAX_UNPAIRED_NOTES = 8
RowStruct = TypeVar("RowStruct")
Platforms = Annotated[str | Sequence[str], Kind("A,B")]
Column = Annotated[str, Kind("COLUMN")]
Level = Annotated[str | float, Kind("VALUE")]
Margin = Annotated[str | float, Kind("SHARE")]
FailOn = Annotated[str, Kind("NAME", choices=tuple(watch.FAIL_ON))]


@dataclass(frozen=True)
class _CompareRequest:
    """What is compared.

    Args:
        folders: one folder, two folders, or with a column any number of folders.
        platforms: two names with a comma, or None.
        column: the column of `--by`, or None.
        against: the level that the other levels face, or None.
        any_dtype: whether types may differ.
        any_content: whether the content of a network's file may differ.
        quantity: the quantity.
        fail_on: a key of `watch.FAIL_ON`, or None.
        margin: share below which a difference counts as none, or None for the default.
    """

    folders: Sequence[Path]
    platforms: str | None
    column: str | None
    against: str | None
    any_dtype: bool
    any_content: bool
    quantity: str
    fail_on: str | None
    margin: float | None

    @property
    def has_two_folders(self) -> bool:
        """Whether the second folder is compared with the first."""
        return len(self.folders) == 2 and self.column is None

    @property
    def can_pair_types(self) -> bool:
        """Whether `--any-dtype` may pair a step with one of another type."""
        return bool(self.column or self.platforms)

    @property
    def is_of_predictions(self) -> bool:
        """Whether the sides are the predictions and the measurements of one folder."""
        return not (self.has_two_folders or self.can_pair_types)


def compare(
    folders: kinds.RecordPaths,
    platforms: Platforms | None = None,
    by: Column | None = None,
    against: Level | None = None,
    any_dtype: bool = False,
    any_content: bool = False,
    quantity: kinds.Name = "step_s",
    fail_on: FailOn | None = None,
    margin: Margin | None = None,
    mapping: kinds.MappingFile | None = None,
) -> CompareAnswer:
    """Compare predictions, folders, or the levels of any column.

    Ratios of medians with intervals, verdicts, and what has no partner. A
    column is platform, host, gpu, threads, dtype, method, predicted_by,
    staging, folder, any option or hyperparameter. The exit code is 0
    whatever the verdict, but with --fail-on: 3 on what it names, 2 where
    nothing can be judged or the hardware differs.

    Args:
        folders: One: predicted beside measured. Two: the second against the first. Folders of
            records, .jsonl files of records, or files that import reads.
        platforms: Compare platform B with platform A, in one folder.
        by: Compare each value (level) of this column with the first: host, threads, ...
        against: With --by: the value with which all others are compared. Default: the first.
        any_dtype: With --platforms or --by: also pair steps of different data types.
        any_content: For two folders: compare a network of a file or of code with its other
            versions.
        quantity: The quantity to compare: step_s, peak_bytes, ...
        fail_on: For two folders: exit with 3 if a step is slower, faster, changed (either) or
            vanished (not in the second); slower and changed include vanished.
        margin: Smaller changes count as none. Default: 5%.
        mapping: For a table in place of a folder: the mapping file that says what its columns mean.

    Raises:
        InputError: for folders without records, options that do not go together, and unknown
            platforms, columns, levels and quantities.
    """
    request = _CompareRequest(
        folders=paths_of(folders),
        platforms=text_of(platforms),
        column=by,
        against=text_of(against),
        any_dtype=any_dtype,
        any_content=any_content,
        quantity=quantity,
        fail_on=None if fail_on is None else check_choice("--fail-on", fail_on, watch.FAIL_ON),
        margin=None if margin is None else parse_share(text_of(margin), "--margin"),
    )
    _refuse_misplaced_options(request)
    data = load_records(request.folders, None if mapping is None else Path(mapping), print_note)
    name_a, name_b, pairing = _pair_sides(request, data)
    return _make_answer(request, data, pairing, name_a, name_b)


def _refuse_misplaced_options(request: _CompareRequest) -> None:
    """Raise `InputError` for options that do not go together."""
    column = request.column
    platforms = request.platforms
    if column and platforms:
        raise InputError("--by and --platforms: give one of them")
    # Two platforms are two sides already; so are two folders.
    max_folder_count = 1 if platforms else 2
    if not column and len(request.folders) > max_folder_count:
        raise InputError("compare takes one folder, two folders, or one with --platforms A,B")
    if not (column or platforms):
        refuse({"--any-dtype": request.any_dtype}, "{} goes with --platforms A,B or --by COLUMN")
    if not column:
        refuse({"--against": request.against}, "{} goes with --by COLUMN")
    if not request.has_two_folders:
        refuse(
            {
                "--any-content": request.any_content,
                "--fail-on": request.fail_on,
                "--margin": request.margin,
            },
            "{} goes with two folders",
        )


def _pair_sides(request: _CompareRequest, data: Data) -> tuple[str, str, Pairing]:
    """Return the names of the sides a and b, and their pairs."""
    quantity = request.quantity
    any_dtype = request.any_dtype
    if request.column:
        pairing = pairs.by_column(
            data, request.column, quantity, against=request.against, any_dtype=any_dtype
        )
        return pairing.against, ", ".join(pairing.levels), pairing
    if request.has_two_folders:
        margin = request.margin
        if margin is None:
            margin = parse_share(DEFAULT_MARGIN, "--margin")
        first, second = request.folders
        pairing = pairs.two_folders(data, quantity, margin, request.any_content)
        return str(first), str(second), pairing
    if request.platforms:
        names = [name.strip() for name in request.platforms.split(",")]
        if len(names) != 2:
            text = shorten(request.platforms)
            raise InputError(f"--platforms is two names, A,B, not {text}")
        name_a, name_b = names
        pairing = pairs.two_platforms(data, name_a, name_b, quantity, any_dtype=any_dtype)
        return name_a, name_b, pairing
    # One folder and no sides: its records hold predictions beside measurements.
    return "predicted", "measured", pairs.predicted_and_measured(data, quantity)


def _make_answer(
    request: _CompareRequest, data: Data, pairing: Pairing, name_a: str, name_b: str
) -> CompareAnswer:
    # The groups of equal steps, paired and unpaired, are named together, so that no name stands for
    # two of them.
    pairing.name_groups(np.r_[pairing.columns.b, pairing.unpaired.group])
    folder_changes = watch.find_changes(pairing) if request.has_two_folders else None
    detection_power = find_power(pairing, data) if request.has_two_folders else None
    slow_nodes = _find_slow_nodes(data) if request.column == "host" else None
    errors = msgspec.convert(pairing.summary(), Accuracy)
    levels = tuple(map(_make_level_row, pairing.summarise_levels()))
    has_verdicts = any(pairing.columns.verdict)
    headline = _describe_pairs(request, pairing, errors, levels)
    asks_for_verdict = bool(request.fail_on) or request.margin is not None
    if folder_changes and asks_for_verdict:
        headline += watch.describe_changes(folder_changes, request.quantity, detection_power)
    if slow_nodes:
        headline += slow_nodes.headline
    power_remarks = []
    if detection_power and detection_power.remark:
        power_remarks.append(detection_power.remark)
    unpaired = _convert_rows(pairing.unpaired_rows(), UnpairedRow)
    return CompareAnswer(
        a=name_a,
        b=name_b,
        by=request.column,
        quantity=request.quantity,
        rows=_convert_rows(pairing.rows(), PairRow),
        unpaired=unpaired,
        levels=levels,
        errors=errors,
        changes=folder_changes,
        is_judged=None if detection_power is None else detection_power.is_judged,
        smallest_slowdown=None if detection_power is None else detection_power.smallest_slowdown,
        nodes=slow_nodes,
        headline=tuple(headline),
        notes=(
            *power_remarks,
            *describe_withdrawals(pairing.columns.reference_ratio),
            *_describe_intervals(request, pairing, unpaired, has_verdicts),
            *_describe_unpaired(unpaired),
        ),
        _has_verdicts=has_verdicts,
        _exit_code=_find_exit_code(request.fail_on, folder_changes, detection_power, pairing),
    )


def _describe_pairs(
    request: _CompareRequest,
    pairing: Pairing,
    errors: Accuracy,
    levels: Sequence[LevelRow],
) -> list[str]:
    """Return lines on the pairs of each level, or on a prediction; none of two measurements."""
    if not len(pairing):
        return []
    if request.column:
        return _describe_levels(levels, request.quantity)
    # Two measurements have a verdict for each pair, and no error of a prediction.
    has_verdicts = any(pairing.columns.verdict)
    return [] if has_verdicts else [_describe_errors(errors, request.is_of_predictions)]


def _find_exit_code(
    fail_on: str | None,
    folder_changes: watch.FolderChanges | None,
    detection_power: Power | None,
    pairing: Pairing,
) -> int:
    """Return 3 where something changed that `fail_on` names, 2 where nothing can be judged."""
    if fail_on is None or detection_power is None:
        return 0
    # Another CPU or GPU explains any change: nothing is said about the software.
    if detection_power.is_other_hardware:
        return CANNOT_JUDGE
    failing_fields = watch.FAIL_ON[fail_on]
    has_failed = any(getattr(folder_changes, name) for name in failing_fields)
    if has_failed:
        return UNSUCCESSFUL
    # That a step vanished is certain; slower and faster need records that can be judged.
    verdict_fields = set(failing_fields) - {"vanished"}
    needs_verdicts = bool(verdict_fields)
    is_judged = detection_power.is_judged and np.isnan(pairing.columns.reference_ratio).all()
    return CANNOT_JUDGE if needs_verdicts and not is_judged else 0


def _convert_rows(rows: Sequence[Mapping[str, Any]], kind: type[RowStruct]) -> Sequence[RowStruct]:
    """Return rows as structs; many thousand rows are made anew on each pass."""
    if not isinstance(rows, JsonRows):
        return tuple(msgspec.convert(row, kind) for row in rows)
    decoder = msgspec.json.Decoder(kind)
    read_texts = rows.read_chunks  # lists of JSON texts, made anew by each call
    return LazySequence(len(rows), lambda: map(decoder.decode, chain.from_iterable(read_texts())))


def _find_slow_nodes(data: Data) -> HostNodes:
    nodes_analysis = analysis("nodes")
    table = nodes_analysis.answer(data)
    return HostNodes(
        summary=table.summary,
        headline=tuple(nodes_analysis.describe(table)),
        rows=tuple(table.rows),
    )


def _make_level_row(row: Mapping[str, Any]) -> LevelRow:
    return LevelRow(
        level=row["level"],
        pairs=row["pairs"],
        geometric_mean_ratio=row["geometric_mean_ratio"],
        median_ratio=row["median_ratio"],
        min_ratio=row["min_ratio"],
        max_ratio=row["max_ratio"],
        faster_count=row["faster"],
        slower_count=row["slower"],
        equal_count=row["same"],
        unsure_count=row["unsure"],
    )


def _describe_levels(levels: Sequence[LevelRow], quantity: str) -> list[str]:
    """Return a line for each level: its ratio in the mean, and its pairs by verdict."""
    words = screen_words(quantity)
    lines = []
    for level in levels:
        if not level.pairs:
            lines.append(f"{level.level}: no pair")
            continue
        count_by_verdict = {
            "faster": level.faster_count,
            "slower": level.slower_count,
            "same": level.equal_count,
            "unsure": level.unsure_count,
        }
        verdict_texts = [
            f"{count} {words.get(verdict, verdict)}"
            for verdict, count in count_by_verdict.items()
            if count
        ]
        mean = f"b / a is {level.geometric_mean_ratio:.3g} in the geometric mean"
        detail = "; ".join([format_count(level.pairs, "pair"), *verdict_texts])
        lines.append(f"{level.level}: {mean} ({detail})")
    return lines


def _describe_errors(errors: Accuracy, is_of_predictions: bool) -> str:
    """Return the ratio of all pairs in the mean, of a prediction with its errors."""
    mean = f"b / a is {errors.geometric_mean_ratio:.3g} in the geometric mean"
    median_error, share_within = errors.median_error, errors.within_factor_2
    # Only a prediction has an error: two measurements differ.
    if not is_of_predictions or median_error is None or share_within is None:
        return f"{mean} ({errors.pairs} pairs)"
    return (
        f"median error of a against b {format_percent(median_error)} "
        f"({format_count(errors.pairs, 'pair')}); {mean}; "
        f"{format_percent(share_within)} lie within a factor of 2"
    )


def _describe_intervals(
    request: _CompareRequest,
    pairing: Pairing,
    unpaired: Sequence[UnpairedRow],
    has_verdicts: bool,
) -> list[str]:
    """Return remarks on the pairs: that there is none, or why intervals are wide."""
    if not len(pairing):
        quantity = pairing.quantity
        line = f"nothing to compare: no network has its {quantity} on both sides"
        if request.can_pair_types and _have_different_types(unpaired):
            line += "; their types differ: --any-dtype pairs them"
        return [line]
    lines = []
    # 1: steady, 0: still changing, NaN: too few samples to tell.
    is_any_unsteady = (pairing.columns.steady == 0).any()
    if is_any_unsteady:
        lines.append("no steady state on a side of some pairs: their intervals are wide")
    has_single_runs = pairing.columns.is_single.any()
    are_two_folders = pairing.margin is not None  # `find_power` says what their single runs lack
    if has_verdicts and has_single_runs and not are_two_folders:
        lines.append("one run on a side: its interval leaves out how processes differ; use --runs")
    return lines


def _have_different_types(unpaired: Sequence[UnpairedRow]) -> bool:
    """Whether both sides have steps, and no data type is on both sides."""
    types_a = {row.dtype for row in unpaired if row.side == "a"}
    types_b = {row.dtype for row in unpaired if row.side == "b"}
    return bool(types_a) and bool(types_b) and types_a.isdisjoint(types_b)


def _describe_unpaired(unpaired: Sequence[UnpairedRow]) -> list[str]:
    """Return the first steps without a partner, one a line."""
    lines = []
    for index, row in enumerate(unpaired):
        if index == MAX_UNPAIRED_NOTES:
            lines.append(f"unpaired: and {len(unpaired) - index:,} more; --json has all")
            break
        lines.append(f"unpaired: {row.name} ({row.platform}): {row.reason}")
    return lines
