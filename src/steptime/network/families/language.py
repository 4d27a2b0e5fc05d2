"""Transformers by name, most of them language models: rows of a table of hyperparameters."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from steptime.core.toml_files import packaged
from steptime.network.families.family import Family, setting


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the hyperparameters of each model, its `source` and its `parameters`."""
    table = packaged("language_models.toml")
    styles, models = table["styles"], table["models"]
    found = {name: {**styles.get(row.get("like", ""), {}), **row} for name, row in models.items()}
    return {name: {key: row[key] for key in row if key != "like"} for name, row in found.items()}


@lru_cache(maxsize=64)
def model(name: str) -> Family:
    """Return a network of the table; its `length`, or the size of its images, may be chosen."""
    from steptime.network.families import transformer

    row = dict(rows()[name])
    source = f"{row.pop('source')}: {row.pop('parameters'):,} parameters"
    free = "image" if row.get("stem") == "patches" else "length"
    return setting(name, transformer.FAMILY, source, row, free)
