"""Real data sets as files: the question `data`."""

from pathlib import Path
from typing import Annotated

from steptime.core import registry
from steptime.core.answer import Answer, AnswerRow
from steptime.core.signatures.kinds import File, Kind
from steptime.questions import kinds

SOURCES = {"mnist": "steptime.measure.data.mnist"}
"""A module with `installed()`, where the source lies, and `write(source, out)`."""


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
    module = registry.resolve(SOURCES, "data_sources", "data set", name)
    source = module.installed() if from_ is None else Path(from_)
    contents = module.write(source, Path(out))
    images = contents["images"]
    headline = (
        f"{name}: {images['train']:,} training and {images['test']:,} test images in {out}, "
        "each file as published (sha256)"
    )
    return DataAnswer(
        name=name,
        out=str(out),
        source=contents["source"],
        training_examples=images["train"],
        test_examples=images["test"],
        rows=tuple(
            DataFile(file=file, sha256=sha256) for file, sha256 in contents["sha256"].items()
        ),
        headline=(headline,),
    )
