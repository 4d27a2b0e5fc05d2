"""An analysis names the structs of its rows and of its summary, which pages and tools read."""

from __future__ import annotations

import pytest

import synthetic
from every import every
from steptime.analysis.analyses import ANALYSES, analysis
from steptime.core.answer import public_keys
from steptime.records.data import Data


@pytest.fixture(scope="module")
def data() -> Data:
    return Data.from_records(synthetic.sweep(ops=True, failures=True))


@every("name", ANALYSES)
def test_rows_and_summary_are_of_the_structs_that_an_analysis_names(name, data):
    row = analysis(name)
    table = row.answer(data)
    assert row.row_struct is not None
    for struct in table.structs[:3]:
        assert type(struct) is row.row_struct
    if row.summary_struct is not None and table.rows:
        assert {*public_keys(row.summary_struct).values()} <= {*table.summary}
