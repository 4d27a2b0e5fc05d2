"""Real data sets as files: the question `data`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from steptime.core import registry
from steptime.core.answer import Answer, AnswerRow
from steptime.core.signatures.kinds import File, Kind
from steptime.questions import kinds

if TYPE_CHECKING:
    from steptime.measure.data.data_source import DataSource

SOURCES = {"mnist": "steptime.measure.data.mnist:SOURCE"}
"""The `DataSource` of each data set."""


class DataFile(AnswerRow, frozen=True, kw_only=True):
    """A file of a data set.

    Attributes:
        file: its name in the folder.
        sha256: its checksum, equal to that of the published file.
    """

    file: str
    sha256: str


class DataAnswer(Answer, frozen=True, kw_only=True):
    """A real data set that was written as files.

    Attributes:
        name: the data set.
        out: the folder of the files.
        source: the folder that it was read from.
        training_examples: examples of the training set.
        test_examples: examples of the test set.
        rows: the files.
        headline: what was written.
    """

    name: str
    out: str
    source: str
    training_examples: int
    test_examples: int
    rows: tuple[DataFile, ...]
    headline: tuple[str, ...]


def data(
    name: Annotated[str, Kind("NAME", is_argument=True)],
    out: kinds.OutFolder,
    from_: Annotated[File, Kind("DIR", names=("--from",))] | None = None,
) -> DataAnswer:
    """Write a real data set as files for `run --input dataset`.

    Args:
        name: The data set: mnist.
        out: Folder to write the files into.
        from_: Folder of the CSV files of the data set. Default: those of the installed package.

    Raises:
        InputError: for an unknown data set, and where `out` is not a folder.
        MissingFileError: where the source is not there.
        BadDataError: for a source that does not give the published files.
    """
    data_source: DataSource = registry.resolve(SOURCES, "data_sources", "data set", name)
    source = data_source.find_installed_files() if from_ is None else Path(from_)
    data_set = data_source.write(source, Path(out))
    headline = (
        f"{name}: {data_set.training_examples:,} training and "
        f"{data_set.test_examples:,} test images in {out}, each file as published (sha256)"
    )
    return DataAnswer(
        name=name,
        out=str(out),
        source=str(data_set.source),
        training_examples=data_set.training_examples,
        test_examples=data_set.test_examples,
        rows=tuple(
            DataFile(file=file, sha256=sha256) for file, sha256 in data_set.checksums.items()
        ),
        headline=(headline,),
    )
