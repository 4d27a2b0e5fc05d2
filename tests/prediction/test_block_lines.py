"""Lines of the allocator's blocks: at each batch what the sizes of its own step say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.core.units import format_si
from steptime.prediction.memory import format_many_bytes
from steptime.prediction.steps import block_lines
from steptime.prediction.steps.allocator import peak_segment_bytes
from steptime.prediction.steps.block_lines import BlockLines, block_lines_through
from steptime.prediction.steps.step_model import StepModel

ENDS = (1, 200, 1601)
BATCHES = [*range(1, 60), *range(60, 1601, 40), 1601]


@pytest.mark.parametrize(
    "network",
    ["resnet18", "fc:layers=3,nodes=700", "transformer:layers=2,width=128,heads=4,length=64"],
)
def test_blocks_between_two_batches_are_those_of_each(network):
    model = StepModel(network, "A100")
    lines = block_lines_through(ENDS, [model.allocations(batch) for batch in ENDS])
    assert lines is not None
    unordered = [*BATCHES[::2], *BATCHES[1::2]]
    shares = (np.array(unordered) - ENDS[0]) / (ENDS[-1] - ENDS[0])
    expected = [peak_segment_bytes(model.allocations(batch)) for batch in unordered]
    assert lines.reserved_bytes(shares).tolist() == expected


def test_chunks_of_shares_change_nothing(monkeypatch):
    """A chunk prices the moments that may reserve most in it alone: in the whole, nearly all."""
    model = StepModel("resnet18", "A100")
    lines = BlockLines.through_batches(model.allocations(1), model.allocations(5000))
    shares = np.linspace(0, 1, 700)
    narrow = lines.reserved_bytes(shares)
    monkeypatch.setattr(block_lines, "MIN_CHUNK_SHARES", len(shares))
    assert lines.reserved_bytes(shares).tolist() == narrow.tolist()
    monkeypatch.setattr(
        BlockLines, "_can_reserve_peak", lambda lines, _: np.full(len(lines.counts), True)
    )
    assert lines.reserved_bytes(shares).tolist() == narrow.tolist()


@given(
    st.lists(st.integers(0, 2**53), max_size=30),
    st.lists(st.tuples(st.integers(1000, 9999), st.integers(0, 10)), max_size=30),
)
def test_many_sizes_have_the_texts_of_each(values, halves):
    """Halves lie in the middle of two texts: 12,345 is rounded to even, as 12.34 kB."""
    middles = [(10 * digits + 5) * 10**power for digits, power in halves]
    values += [middle + change for middle in middles for change in (-1, 0, 1)]
    values += [0, 1, 999, 1000, 9999, 10_000, 999_949, 999_950, 10**15 - 1, 10**15]
    assert format_many_bytes(values) == [format_si(value, "B") for value in values]
