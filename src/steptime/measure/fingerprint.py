"""What tells one data set from another of the same name, cheaply and before it is opened."""

import hashlib
import os
from functools import lru_cache
from pathlib import Path

_END_BYTES = 1 << 16


@lru_cache(maxsize=256)
def dataset_fingerprint(folder: str) -> str:
    """Return the folder's name and a hash of the sizes and both ends of its files.

    Where it lies changes nothing. A folder that is not here has its name alone.
    """
    path = Path(folder)
    name = path.absolute().name
    if not path.is_dir():
        return name
    digest = hashlib.sha256()
    for file in sorted(one for one in path.iterdir() if one.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as content:
            digest.update(content.read(_END_BYTES))
            content.seek(max(0, size - _END_BYTES), os.SEEK_SET)
            digest.update(content.read(_END_BYTES))
    return f"{name}-{digest.hexdigest()[:8]}"
