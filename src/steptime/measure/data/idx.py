"""IDX, the format of MNIST: four files, images and labels of a training and a test set.

A file is two zero bytes, a byte for the type of its elements, one for the number of dimensions,
each dimension as four bytes, the largest first, and the elements (LeCun, Cortes, Burges 1998). A
file that is not gzipped is mapped into memory; a gzipped one is unpacked into it when it is opened.
"""

import gzip
import math
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steptime.measure.contract import BadDataError, MissingFileError

Bytes = npt.NDArray[np.uint8]

UNSIGNED_BYTE = 0x08
_DIMENSIONS = {"images": 3, "labels": 1}
_NAMES = {  # of files; some sets have a prefix, some a dot for the dash
    (part, content): re.compile(rf"(.*-)?{word}-{content}[-.]idx{rank}-ubyte(\.gz)?")
    for part, word in (("train", "train"), ("test", "(t10k|test)"))
    for content, rank in _DIMENSIONS.items()
}
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Split:
    """A part of a data set: `images` are bytes `[n, c, h, w]`, `labels` `[n]` count from 0."""

    images: Bytes
    labels: Bytes


def files(folder: Path) -> Mapping[str, Path]:
    """Return the files of an IDX folder by `train-images` and so on; {} where it has none of them.

    Of a file that is there twice, plain and gzipped, the plain one is taken. Raises
    `MissingFileError` where one is missing or two could be meant.
    """
    # In this order "x.gz" comes before "x", so that below a plain file replaces its gzipped copy.
    file_names = sorted((path.name for path in folder.iterdir()), reverse=True)
    paths: dict[str, Path] = {}
    missing_names = []
    for (part, content), pattern in _NAMES.items():
        file_by_plain_name = {
            file_name.removesuffix(".gz"): file_name
            for file_name in file_names
            if pattern.fullmatch(file_name)
        }
        if len(file_by_plain_name) > 1:
            plain_names = ", ".join(sorted(file_by_plain_name))
            raise MissingFileError(f"{folder}: which are the {part} {content}: {plain_names}?")
        for file_name in file_by_plain_name.values():  # one or none
            paths[f"{part}-{content}"] = folder / file_name
        if not file_by_plain_name:
            word = "train" if part == "train" else "t10k"
            missing_names.append(f"{word}-{content}-idx{_DIMENSIONS[content]}-ubyte")
    if paths and missing_names:  # without any of the files the folder is of another format
        raise MissingFileError(f"{folder}: has no {missing_names[0]}, gzipped or not")
    return paths


def read(paths: Mapping[str, Path], part: str) -> Split:
    """Return a part: images `[n, 1, h, w]` and as many labels; raises `BadDataError`."""
    images_path, labels_path = paths[f"{part}-images"], paths[f"{part}-labels"]
    images = read_array(images_path, _DIMENSIONS["images"])
    labels = read_array(labels_path, _DIMENSIONS["labels"])
    if len(images) != len(labels):
        partner = f"the {len(images)} images of {images_path.name}"
        raise BadDataError(f"{labels_path}: {len(labels)} labels for {partner}")
    return Split(images[:, np.newaxis], labels)  # with an axis for the only channel


def read_array(path: Path, rank: int) -> Bytes:
    """Return the array of bytes with `rank` dimensions of a file; raises `BadDataError`."""
    if not path.is_file():
        raise BadDataError(f"{path}: is no plain file")
    with path.open("rb") as file:
        start = file.read(len(_GZIP))
    content: Bytes
    if start == _GZIP:
        try:
            content = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadDataError(f"{path}: is no whole gzip file: {error}") from None
    else:
        # An empty file cannot be mapped.
        content = np.memmap(path, np.uint8, "r") if start else np.empty(0, np.uint8)
    header_bytes = 4 + 4 * rank  # the magic number, and each dimension
    shape = _parse_shape(path, content[:header_bytes].tobytes(), rank)
    length = len(content) - header_bytes  # an element is one byte
    element_count = math.prod(shape)
    dimensions = " x ".join(map(str, shape))
    if not element_count:
        raise BadDataError(f"{path}: has no elements: dimensions {dimensions}")
    if length != element_count:
        fault = "truncated" if length < element_count else "too long"
        sizes = f"{length} bytes after the header, {dimensions} are {element_count}"
        raise BadDataError(f"{path}: {fault}: {sizes}")
    return content[header_bytes:].reshape(shape)


def _parse_shape(path: Path, header: bytes, rank: int) -> tuple[int, ...]:
    # Two zeros, the type of the elements, the number of dimensions; then each size in 4 bytes.
    expected = bytes((0, 0, UNSIGNED_BYTE, rank))
    magic = header[:4]
    if len(magic) < 4 or not magic.startswith(b"\0\0"):
        begins = magic.hex(" ") or "nothing"
        raise BadDataError(f"{path}: begins with {begins}, an IDX file with {expected.hex(' ')}")
    _, _, element_type, dimensions = magic
    if element_type != UNSIGNED_BYTE:
        raise BadDataError(f"{path}: elements of type 0x{element_type:02x}, expected bytes (0x08)")
    if dimensions != rank:
        raise BadDataError(f"{path}: {dimensions} dimensions, expected {rank}")
    if len(header) < 4 + 4 * rank:
        raise BadDataError(f"{path}: ends within its header")
    return struct.unpack(f">{rank}I", header[4:])


def idx_bytes(array: Bytes) -> bytes:
    """Return an array of bytes as the content of an IDX file."""
    header = bytes((0, 0, UNSIGNED_BYTE, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()
