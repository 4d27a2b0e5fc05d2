"""Language models by name: rows of a table of the transformer's hyperparameters."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from steptime.core.toml_files import read_toml
from steptime.models.family import Family

_TABLE = Path(__file__).parents[1] / "data/language_models.toml"


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the hyperparameters of each model, its `source` and its `parameters`."""
    table = read_toml(_TABLE)
    styles, models = table["styles"], table["models"]
    return {name: {**styles.get(row.pop("like", ""), {}), **row} for name, row in models.items()}


@lru_cache(maxsize=64)
def model(name: str) -> Family:
    """Return a network of the table; its `length` may be chosen."""
    from steptime.models import transformer
    from steptime.models.zoo import setting

    row = dict(rows()[name])
    source = f"{row.pop('source')}: {row.pop('parameters'):,} parameters"
    return setting(name, transformer.FAMILY, source, row, "length")
