"""The columns and words that the texts of a mapping name."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from steptime.core.errors import InputError
from steptime.core.expressions.formula import column_name, formula
from steptime.records.readers.mapped_row import SIZE_NAMES
from steptime.records.readers.mapping_keys import RowKeys


def list_columns_read(row: RowKeys) -> frozenset[str]:
    """Return the names of the columns that an entry reads for its times and its network."""
    formula_texts = [amount.formula for amount in row.quantities.values() if amount.formula]
    if not row.quantities:
        formula_texts.append(row.seconds)
    for template in (row.model, row.batch, row.device):
        formula_texts += re.findall(r"\{([^{}]+)\}", template)
    column_names: set[str] = set()
    for formula_text in formula_texts:
        try:
            column_names |= formula(formula_text).names
        except InputError:  # a heading that is no formula: {steps per s}
            column_names.add(column_name(formula_text))
    return frozenset(column_names - {*SIZE_NAMES})


def list_words(rows: Sequence[RowKeys]) -> frozenset[str]:
    """Return the words of all texts of the entries, among which are the columns that they read."""
    texts = (text for row in rows for text in _list_texts(row.model_dump()))
    return frozenset(
        word for text in texts for word in re.findall(r"\w+", unicodedata.normalize("NFKC", text))
    )


def _list_texts(value: object) -> Iterator[str]:
    """Yield the texts of an entry without the names of its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _list_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _list_texts(item)
