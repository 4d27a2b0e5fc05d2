"""A data set as data: which files a folder holds of it, its shape and classes, and its checksum."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from steptime.measure.contract import BadDataError, MissingFileError
from steptime.measure.data import idx
from steptime.measure.data.idx import Split

PARTS = ("train", "test")


@dataclass(frozen=True)
class DataSet:
    """The data set in a folder; its parts are read, and checked, when they are asked for."""

    folder: Path
    files: Mapping[str, Path]

    @cached_property
    def parts(self) -> Mapping[str, Split]:
        """The training and the test part; raises `BadDataError` where they do not fit together."""
        splits = {part: idx.read(self.files, part) for part in PARTS}
        train, test = (splits[part] for part in PARTS)
        train_shape = train.images.shape[1:]  # of one image
        test_shape = test.images.shape[1:]
        if train_shape != test_shape:
            train_text = " x ".join(map(str, train_shape))
            test_text = " x ".join(map(str, test_shape))
            raise BadDataError(
                f"{self.folder}: images of {train_text}, in the test set {test_text}"
            )
        unknown_labels = np.setdiff1d(test.labels, train.labels)
        if len(unknown_labels):
            fault = "in the test set is not in the training set"
            raise BadDataError(f"{self.folder}: label {unknown_labels[0]} {fault}")
        return splits

    @property
    def classes(self) -> int:
        """How many classes there are: the largest label of the training set, and one."""
        return int(self.parts["train"].labels.max()) + 1

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What a record says of it. The checksum is of the content, gzipped or not."""
        digest = hashlib.sha256()
        for part in self.parts.values():
            for array in (part.images, part.labels):
                digest.update(f"{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return {
            "name": self.folder.resolve().name,
            "folder": str(self.folder.absolute()),
            "format": "idx",
            "images": {name: len(part.labels) for name, part in self.parts.items()},
            "shape": list(self.parts["train"].images.shape[1:]),
            "classes": self.classes,
            "sha256": digest.hexdigest(),
        }


def find(folder: str) -> DataSet:
    """Return the data set in a folder; raises `MissingFileError` where there is none."""
    path = Path(folder)
    if not path.is_dir():
        fault = "is no folder" if path.exists() else "no such folder"
        raise MissingFileError(f"data '{folder}': {fault}")
    if files := idx.files(path):
        return DataSet(path, files)
    raise MissingFileError(f"data '{folder}': holds no data set of a known format (idx)")
