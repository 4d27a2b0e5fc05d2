"""Options of a question with remarks on what has none."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from steptime.launch.job import Facts


@dataclass
class QuestionSettings:
    """Options of a question with remarks on what has none.

    Attributes:
        options: options by parameter name.
        notes: facts that change time or memory and are not priced.
    """

    options: MutableMapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set_from_facts(self, facts: Facts, option_by_fact: Mapping[str, str]) -> None:
        """Set options from facts, by a table from fact to option."""
        for fact, option in option_by_fact.items():
            if fact in facts:
                self.options[option] = facts[fact]

    def note_unpriced_facts(self, facts: Facts, reason_by_fact: Mapping[str, str]) -> None:
        """Add a note for each of these facts that is there and neither 1, false nor `none`."""
        for fact, reason in reason_by_fact.items():
            value = facts.get(fact)
            # Degrees of 1 and "none" change nothing, so they need no remark.
            is_off = value in {None, 1, "none"} or value is False
            if not is_off:
                self.notes.append(f"{fact} {_format_fact_value(facts[fact])}: {reason}")


def _format_fact_value(value: Any) -> str:
    """Return a fact as text."""
    return ", ".join(value) if isinstance(value, list) else str(value).lower()
