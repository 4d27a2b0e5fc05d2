"""Constants that were fitted, written into a file of priors."""

from collections.abc import Mapping
from pathlib import Path

from steptime.core.constants import Constant
from steptime.core.toml_files import read_toml, toml_text, write_whole

_HEAD = (
    "# Constants of the method `calibrated`; scripts/fit-priors DATA STAGE rewrites a section.\n"
)


def write(path: Path, fitted: Mapping[str, Constant]) -> None:
    """Rewrite the constants `fitted` of a file of priors; the other ones stay as they are.

    Values and spreads have 3 significant digits. What is new follows the constants of its form.
    """
    table = read_toml(path)
    for name, one in fitted.items():
        form, _, own = name.partition(".")
        table.setdefault(form, {})[own] = {
            "value": rounded(one.value),
            "spread": rounded(one.spread),
            "fitted_on": one.fitted_on,
        }
    write_whole(path, _HEAD + toml_text(table))


def rounded(value: float) -> float:
    """Return a number to 3 significant digits: 0.87654 is 0.877."""
    return float(f"{value:.3g}")
