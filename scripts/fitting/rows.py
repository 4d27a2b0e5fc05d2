"""Rows of CSV files, compressed or not."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a gzip of CSV, names and values without the blanks around them."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, skipinitialspace=True):
            yield {name.strip(): value.strip() for name, value in row.items()}


def plain_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
