"""A published data set that the command `data` writes: what an extension gives for one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WrittenDataSet:
    """A data set that was written as files.

    Args:
        source: the folder that it was read from.
        training_examples: examples of the training set.
        test_examples: examples of the test set.
        checksums: the SHA-256 of each file, by its name.
    """

    source: Path
    training_examples: int
    test_examples: int
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class DataSource:
    """A row of the table of published data sets.

    Args:
        find_installed_files: returns the folder of the source in an installed package; raises
            `MissingFileError` where it is not installed.
        write: writes the data set of a source folder as files into another folder.
    """

    find_installed_files: Callable[[], Path]
    write: Callable[[Path, Path], WrittenDataSet]
