"""Constants that were fitted, written into a file of priors."""

from collections.abc import Mapping
from itertools import takewhile
from json import dumps
from pathlib import Path

from steptime.core.files import write_atomically
from steptime.core.toml_files import read_toml, toml_text
from steptime.hardware.constants import Constant


def write(path: Path, fitted: Mapping[str, Constant]) -> None:
    """Rewrite the constants `fitted` of a file; the other ones and its first comment stay.

    Rows that told a constant stay as they are where it does not say them. Values and spreads have 3
    significant digits. What is new follows the constants of its form.
    """
    table = read_toml(path)
    for name, one in fitted.items():
        form, _, own = name.partition(".")
        table.setdefault(form, {})[own] = {
            "value": rounded(one.value),
            "spread": rounded(one.spread),
            "fitted_on": one.fitted_on or None,
            "rows": one.rows or None,
            "why": one.why or None,
        }
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    head = takewhile(lambda line: line.startswith("#"), lines)
    write_atomically(path, "".join([*head, toml_text(table)]))


def write_lines(path: Path, fitted: Mapping[str, Constant]) -> None:
    """Rewrite constants such as `host.step_s` line by line in the file of a stack.

    Raises `KeyError` for one that the file does not have.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    places, section = {}, ""
    for i, line in enumerate(lines):
        section = line[1:].partition("]")[0] if line.startswith("[") else section
        places[f"{section}.{line.partition(' = ')[0]}"] = i
    for name, one in fitted.items():
        lines[places[name]] = (
            f"{name.partition('.')[2]} = {{ value = {rounded(one.value)!r}, "
            f'spread = {rounded(one.spread)!r}, fitted_on = "{one.fitted_on}", '
            f"rows = {dumps(one.rows)} }}"
        )
    write_atomically(path, "\n".join(lines) + "\n")


def rounded(value: float) -> float:
    """Return a number to 3 significant digits: 0.87654 is 0.877."""
    return float(f"{value:.3g}")
