"""Rows of CSV files, compressed or not."""

import csv
import gzip
import random
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from steptime.hardware import catalog

device_of = lru_cache(catalog.device)  # a table names few devices, many times


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a gzip of CSV, names and values without the blanks around them."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, skipinitialspace=True):
            yield {name.strip(): value.strip() for name, value in row.items()}


def drawn(path: Path, most: int = 600, shuffled: bool = True) -> Iterator[dict[str, str]]:
    """Yield at most `most` rows of each device and op of a gzip of CSV, drawn by a fixed seed.

    More rows of one kind tell nothing new, and making kernels of them takes a minute. They are the
    first ones where they are not `shuffled`.
    """
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows(path):
        groups[row["device"], row.get("op", "")].append(row)
    for some in groups.values():
        if shuffled:
            random.Random(0).shuffle(some)  # noqa: S311  # a draw of rows keeps no secret
        yield from some[:most]


def plain_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
