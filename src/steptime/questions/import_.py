"""Import other people's results as records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptime.build import make_workload, read_model
from steptime.core.answer import Answer, AnswerRow
from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError, check_choice
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import paths_of, text_of
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_count
from steptime.core.values import parse_count
from steptime.core.workload import OPTIMIZERS, PHASES
from steptime.questions import kinds
from steptime.records import store
from steptime.records.readers import NO_FORMAT, Import, is_mapped, read_path, source_key
from steptime.records.readers.sources import Unread
from steptime.records.readers.torch_trace import STEPS
from steptime.records.record import Record

MAX_UNREAD_NOTES = 8
MAX_NOTES = 8  # of readers
MAX_REASON_CHARACTERS = 300


class ImportedFormat(AnswerRow, frozen=True, kw_only=True):
    """The files of one format.

    Attributes:
        format: name of the reader that took the files.
        files: number of files.
    """

    format: str
    files: int


class UnreadEntry(AnswerRow, frozen=True, kw_only=True):
    """A file, or an entry of a file, that did not become a record.

    Attributes:
        file: its path in the folder or in the archive.
        line: the place in the file; None for the file as a whole.
        reason: why it was not read.
    """

    file: str
    line: int | str | None
    reason: str


class DuplicateFile(AnswerRow, frozen=True, kw_only=True):
    """A file with the content of another file.

    Attributes:
        file: its path in the folder or in the archive.
        duplicate_of: the path of the other file.
    """

    file: str
    duplicate_of: str


class ImportAnswer(Answer, frozen=True, kw_only=True):
    """Other people's results as records in a folder.

    Attributes:
        out: the folder of records.
        files: files at the paths.
        records: records that were written.
        skipped_records: records that the folder had before, not written again.
        rows: the files by format.
        unread: files and entries that were not read, with the reasons.
        duplicates: files with the content of another file.
        headline: the number of records and of files.
        notes: remarks on records that were not written and on files that were not read.
    """

    out: str
    files: int
    records: int
    skipped_records: int
    rows: tuple[ImportedFormat, ...]
    unread: tuple[UnreadEntry, ...]
    duplicates: tuple[DuplicateFile, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the files by format."""
        return [Table((Column("format"), Column("files")), [row.to_dict() for row in self.rows])]


def import_(
    paths: kinds.Paths,
    out: kinds.RecordsFolder,
    mapping: kinds.MappingFile | None = None,
    steps: kinds.Count | None = None,
    model: kinds.Name | None = None,
    batch: kinds.Batch | None = None,
    device: kinds.Name | None = None,
    dtype: kinds.Dtype | None = None,
    phase: kinds.Phase | None = None,
    optimizer: kinds.Optimizer | None = None,
    replicas: kinds.Count | None = None,
) -> ImportAnswer:
    """Read other people's results into a folder of records.

    The format of a file is recognised by its content. Rows, entries and files that are not read are
    listed with the reason.

    Args:
        paths: Files, folders, .tar or .tar.gz archives.
        out: Folder of records.
        mapping: What the columns mean: a mapping file, or the name of a shipped mapping, such as
            hyperfine.
        steps: Number of steps in a trace that does not mark them.
        model: The network, where the file does not say it; in a text, `{name}` stands for the cell
            of the column `name`.
        batch: Examples of one replica in a step, where the file does not say them.
        device: The device, where the file does not say it.
        dtype: Data type, where the file does not say it.
        phase: `train` or `infer`, where the file does not say it.
        optimizer: The optimizer, where the file does not say it.
        replicas: Data-parallel copies, where the file does not say them.

    Raises:
        InputError: if no file became a record, for a mapping that is not valid, and if the folder
            holds a trace with another number of steps.
        StoreError: if the records cannot be written.
    """
    from steptime.records.readers.mapping import read_mapping

    sources = paths_of(paths)
    folder = Path(out)
    value_by_option = {
        "model": model,
        "batch": batch,
        "device": device,
        "dtype": dtype,
        "phase": phase,
        "optimizer": optimizer,
        "replicas": replicas,
    }
    text_by_option = {
        key: text_of(value) for key, value in value_by_option.items() if value is not None
    }
    for key, text in text_by_option.items():
        _check_option_value(key, text)
    reader = read_mapping(Path(mapping), text_by_option) if mapping else None
    imported = read_path(
        *sources,
        mapping=reader,
        command_keys=text_by_option,
        steps=None if steps is None else parse_count(text_of(steps), "--steps"),
    )
    if not imported.records:
        raise InputError(f"{', '.join(map(str, sources))}: {_describe_first_failure(imported)}")
    if text_by_option and not any(map(is_mapped, imported.formats)):
        names = ", ".join(f"--{key}" for key in text_by_option)
        raise InputError(f"{names}: for files that a mapping reads, and none is among these")
    if steps is not None and not imported.formats["torch-trace"]:
        raise InputError("--steps: is for traces, and none is among these files")
    new_count = _write_new_records(imported, folder)
    return _make_answer(imported, new_count, folder)


def _check_option_value(key: str, text: str) -> None:
    """Raise `InputError` for a value that no file can mean; columns in braces are read with it."""
    option = f"--{key}"
    if not text.strip():
        raise InputError(f"{option}: must not be empty")
    is_column_pattern = "{" in text
    takes_any_name = key == "device"  # devices that the catalogue does not know are measured, too
    if is_column_pattern or takes_any_name:
        return
    if key in ("batch", "replicas"):
        parse_count(text, option)
    elif key == "dtype":
        find_dtype(text)
    elif key == "model":
        # Trusted: the user typed the model, so it may be the user's own code.
        make_workload(read_model(text, trusted=True))
    else:
        choices = PHASES if key == "phase" else OPTIMIZERS
        check_choice(key, text.lower(), choices)


def _write_new_records(imported: Import, folder: Path) -> int:
    """Write the records that the folder does not hold yet, and return their number."""
    # A second import of the same source may run at this moment.
    with store.exclusive(folder, store.IMPORT_LOCK, waits=True):
        step_count_by_source = {
            source_key(record): record.env.get(STEPS)
            for record in store.load(folder, print_note, required=False)
        }
        _check_step_counts(imported.records, step_count_by_source, folder)
        new_records = [
            record for record in imported.records if source_key(record) not in step_count_by_source
        ]
        with store.open_writer(folder) as writer:
            writer.append_all(new_records)
    return len(new_records)


def _check_step_counts(
    records: Sequence[Record],
    step_count_by_source: Mapping[tuple[Any, ...], int | None],
    folder: Path,
) -> None:
    """Refuse a trace that the folder holds already with another number of steps.

    Raises:
        InputError: for the first such trace.
    """
    for record in records:
        key = source_key(record)
        is_new_source = key not in step_count_by_source
        if is_new_source:
            continue
        stored_count = step_count_by_source[key]
        if stored_count != record.env.get(STEPS):
            # A trace without a number of steps is stored as one step.
            stored_steps = format_count(stored_count or 1, "step")
            raise InputError(
                f"{record.env['source_file']}: {folder} holds this trace as {stored_steps}: "
                "import it into another folder"
            )


def _make_answer(imported: Import, new_count: int, folder: Path) -> ImportAnswer:
    files = format_count(imported.files, "file")
    return ImportAnswer(
        out=str(folder),
        files=imported.files,
        records=new_count,
        skipped_records=len(imported.records) - new_count,
        rows=tuple(
            ImportedFormat(format=name, files=count) for name, count in imported.formats.items()
        ),
        unread=tuple(
            UnreadEntry(file=entry.file, line=entry.line, reason=entry.reason)
            for entry in imported.unread
        ),
        duplicates=tuple(
            DuplicateFile(file=file, duplicate_of=original)
            for file, original in imported.duplicates.items()
        ),
        headline=(f"{format_count(new_count, 'record')} of {files} written to {folder}",),
        notes=tuple(_describe_omissions(imported, len(imported.records) - new_count)),
    )


def _describe_first_failure(imported: Import) -> str:
    """Return why there is no record: "nothing here became a record (x: no known format)"."""
    # A file that a reader knows and cannot read is the better cause than one of no known format.
    entries = sorted(imported.unread, key=lambda entry: entry.reason.startswith(NO_FORMAT))
    if entries:
        first_cause = f"{entries[0].file}: {entries[0].reason}"
    else:
        first_cause = "no row or entry is in it" if imported.files else "an empty folder"
    remainder = f", and {len(entries) - 1} more" if len(entries) > 1 else ""
    return f"nothing here became a record ({first_cause}{remainder})"


def _describe_omissions(imported: Import, old_count: int) -> list[str]:
    """Return a line for each kind of record and of file that was left out."""
    lines = []
    if old_count:
        lines.append(f"{format_count(old_count, 'record')} there already, not written again")
    if imported.duplicates:
        files = format_count(len(imported.duplicates), "file")
        lines.append(f"{files} with the content of another (duplicate_of)")
    return [*lines, *imported.notes[:MAX_NOTES], *_describe_unread(imported.unread)]


def _describe_unread(entries: Sequence[Unread]) -> list[str]:
    """Return the first reasons why entries were not read, one a line."""
    lines = []
    for entry in entries[:MAX_UNREAD_NOTES]:
        place = entry.file if entry.line is None else f"{entry.file}, {entry.line}"
        lines.append(f"not read: {place}: {entry.reason[:MAX_REASON_CHARACTERS]}")
    remaining_count = len(entries) - MAX_UNREAD_NOTES
    if remaining_count > 0:
        lines.append(f"not read: {remaining_count} more, all in --json")
    return lines
