"""Transformers by name, most of them language models: rows of a table of hyperparameters."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from steptime.core.toml_files import read_packaged_toml
from steptime.network.families.family import Family, make_setting


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the hyperparameters of each model, its `source` and its `parameters`."""
    table = read_packaged_toml("language_models.toml")
    settings_by_model: dict[str, Mapping[str, Any]] = {}
    for name, row in table["models"].items():
        style_name = row.get("like", "")
        style: Mapping[str, Any] = table["styles"].get(style_name, {})
        settings = {**style, **row}
        settings.pop("like", None)
        settings_by_model[name] = settings
    return settings_by_model


@lru_cache(maxsize=64)
def model(name: str) -> Family:
    """Return a network of the table; its `length`, or the size of its images, may be chosen."""
    from steptime.network.families import transformer

    row = dict(rows()[name])
    source = f"{row.pop('source')}: {row.pop('parameters'):,} parameters"
    free = "image" if row.get("stem") == "patches" else "length"
    return make_setting(name, transformer.FAMILY, source, row, [free])
