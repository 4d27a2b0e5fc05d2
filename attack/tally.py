"""What an attack on one thing came to: numbers under the headings of the page, and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What came of attacks on one thing, as a row of the page, by its headings.

    `first` are the columns before the `counts`, `harm` names the counts that are faults by
    themselves; `wrong` are further faults, in words.
    """

    first: dict[str, object]
    counts: Counter[str] = field(default_factory=Counter)
    harm: Sequence[str] = ()
    wrong: list[str] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """How much went wrong."""
        return sum(self.counts[name] for name in self.harm) + len(self.wrong)

    def row(self) -> dict[str, object]:
        """Return the row of the page."""
        return {**self.first, **self.counts, "wrong": len(self.wrong)}

    def add(self, counts: Mapping[str, int]) -> None:
        """Add to the counts, of which the first call says the order."""
        for name, count in counts.items():
            self.counts[name] += count
