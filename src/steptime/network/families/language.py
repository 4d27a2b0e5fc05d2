"""Transformers by name, most of them language models: rows of a table of hyperparameters."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from steptime.core.toml_files import packaged
from steptime.network.families.family import Family, make_setting


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the hyperparameters of each model, its `source` and its `parameters`."""
    table = packaged("language_models.toml")
    styles, models = table["styles"], table["models"]
    settings: dict[str, Mapping[str, Any]] = {}
    for name, row in models.items():
        values = {**styles.get(row.get("like", ""), {}), **row}
        values.pop("like", None)
        settings[name] = values
    return settings


@lru_cache(maxsize=64)
def model(name: str) -> Family:
    """Return a network of the table; its `length`, or the size of its images, may be chosen."""
    from steptime.network.families import transformer

    row = dict(rows()[name])
    source = f"{row.pop('source')}: {row.pop('parameters'):,} parameters"
    free = "image" if row.get("stem") == "patches" else "length"
    return make_setting(name, transformer.FAMILY, source, row, [free])
