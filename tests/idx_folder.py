"""Small IDX folders: what real ones look like, and each way in which one can be wrong."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def idx(array: Bytes, kind: int = 8) -> bytes:
    """The content of an IDX file, from its definition and not by steptime's own code."""
    sizes = b"".join(struct.pack(">I", size) for size in array.shape)
    return bytes((0, 0, kind, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


def write(
    folder: Path, train: int = 40, test: int = 10, side: int = 4, *, gz: bool = False
) -> Path:
    """Write images that tell their label (row `label % side` is white) and their number."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(train)
    for word, count in (("train", train), ("t10k", test)):
        labels = np.arange(count) % 4
        images = rng.integers(0, 100, (count, side, side))
        images[np.arange(count), labels % side] = 255
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array.astype(np.uint8))
            path = folder / f"{word}-{name}-ubyte{'.gz' if gz else ''}"
            path.write_bytes(gzip.compress(content) if gz else content)
    return folder
