"""What the measured steps of a folder of records wait for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_line, assumed_text
from steptime.core.errors import InputError
from steptime.core.progress import print_note, track_progress
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_count
from steptime.hardware.device import Device
from steptime.prediction.assumed import common_settings
from steptime.questions.bound import BOUNDS
from steptime.questions.why.answer import UNEXPLAINED, WhyAnswer
from steptime.questions.why.diagnose import diagnose_record, diagnose_records
from steptime.questions.why.sentences import is_mostly_unexplained
from steptime.records import store
from steptime.records.record import Record

MAX_ROWS = 40  # that people see
SHARES = (*BOUNDS, UNEXPLAINED)


class BottleneckCount(AnswerRow, frozen=True, kw_only=True):
    """The number of steps with one bottleneck.

    Attributes:
        bound: compute, memory, host, input or communication.
        step_count: number of steps.
    """

    bound: str
    step_count: int


class Refusal(AnswerRow, frozen=True, kw_only=True):
    """A reason why steps have no diagnosis.

    Attributes:
        reason: the reason.
        step_count: number of steps.
    """

    reason: str
    step_count: int


class WhyFolderAnswer(Answer, frozen=True, kw_only=True):
    """What the measured steps of a folder of records wait for.

    Attributes:
        folder: the folder.
        bounds: number of steps by bottleneck, the largest first.
        refusals: number of steps without a diagnosis, by reason.
        assumed: settings that were not given and decide all predictions alike, by the option that
            changes them.
        rows: the diagnosis of each step, without what would help.
        headline: number of steps by bottleneck, in a line.
        notes: remarks that change how the answer is read.
    """

    folder: str
    bounds: tuple[BottleneckCount, ...]
    refusals: tuple[Refusal, ...]
    assumed: dict[str, str]
    rows: tuple[WhyAnswer, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return a row for each step with its shares."""
        stacks = {row.evidence.stack for row in self.rows if row.evidence}
        has_several_stacks = len(stacks) > 1
        heads = (
            Column("model"),
            Column("batch"),
            Column("stack", is_spare=True),
            Column("device"),
            Column("step_s", "step"),
            Column("bound", "bottleneck"),
            *(Column(f"{name}_share", name, is_spare=True) for name in SHARES),
        )
        rows = []
        for row in self.rows:
            shares = row.shares.to_dict()
            cells = {
                "model": row.model,
                "batch": row.batch,
                "stack": row.evidence.stack if row.evidence and has_several_stacks else None,
                "device": row.device,
                "step_s": row.step_s,
                "bound": row.bound,
            }
            rows.append(cells | {f"{name}_share": shares[name] for name in SHARES})
        below = assumed_line([(self.folder, assumed_text(self.assumed))])
        return [Table(heads, rows, self.folder, below, max_rows=MAX_ROWS)]


def explain_folder(
    folder: Path,
    name: str | None,
    device: Device | None,
    method: str,
    options: Mapping[str, str],
) -> WhyAnswer | WhyFolderAnswer:
    """Diagnose the measured steps of a folder; a single step with changes that would help.

    Args:
        folder: the folder of records.
        name: a part of the networks' names; None for all.
        device: the device of all steps. Default: that of each record's platform.
        method: the cost model.
        options: its options.

    Raises:
        InputError: where the folder holds no such step, and where none has a diagnosis.
    """
    records = _load_steps(folder, name)
    if len(records) == 1:
        return diagnose_record(records[0], device, method, options)
    rows: list[WhyAnswer] = []
    refusal_counts = Counter[str]()
    for diagnosis in diagnose_records(track_progress(records, "steps"), device, method, options):
        if isinstance(diagnosis, str):  # the reason why there is none
            refusal_counts[diagnosis] += 1
        else:
            rows.append(diagnosis)
    if not rows:
        first_reason = next(iter(refusal_counts))
        raise InputError(f"{folder}: {first_reason}")
    bound_counts = Counter(row.bound for row in rows).most_common()
    counts_text = ", ".join(f"{count:,} bound by {bound}" for bound, count in bound_counts)
    return WhyFolderAnswer(
        folder=str(folder),
        bounds=tuple(
            BottleneckCount(bound=bound, step_count=count) for bound, count in bound_counts
        ),
        refusals=tuple(
            Refusal(reason=reason, step_count=count) for reason, count in refusal_counts.items()
        ),
        assumed=common_settings(row.assumed for row in rows),
        rows=tuple(rows),
        headline=(f"{format_count(len(rows), 'step')}: {counts_text}",),
        notes=tuple(_make_notes(rows, refusal_counts)),
    )


def _load_steps(folder: Path, name: str | None) -> list[Record]:
    """Return the measured and published steps of a folder; raises `InputError` for none."""
    records = []
    for record in store.load(folder, print_note):
        is_measured_step = record.origin != "predicted" and not record.scope
        # Without a name every label matches.
        has_name = (name or "") in record.workload.label
        if is_measured_step and has_name:
            records.append(record)
    if not records:
        place = f"{folder}: holds no step that was measured or published"
        raise InputError(f"{place} of '{name}'" if name else place)
    return records


def _make_notes(rows: Sequence[WhyAnswer], count_by_reason: Mapping[str, int]) -> list[str]:
    """Return remarks on steps that the model does not explain."""
    notes = []
    unexplained_count = sum(is_mostly_unexplained(row.shares) for row in rows)
    if unexplained_count:
        steps = format_count(unexplained_count, "step")
        notes.append(f"of {steps} the model leaves more than half unexplained")
    return [
        *notes,
        *(f"{count:,} not explained: {reason}" for reason, count in count_by_reason.items()),
    ]
