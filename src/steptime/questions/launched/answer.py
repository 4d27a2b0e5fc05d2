"""The part of an answer that says what was understood of a launch command or recipe."""

from __future__ import annotations

from collections.abc import Mapping

from steptime.core.answer import Answer

FactValue = str | int | float | bool | list[str]


class LaunchedAnswer(Answer, frozen=True, kw_only=True):
    """Base of answers to questions that take a launch command or recipe.

    Attributes:
        understood: what the launch command or recipe says, with the tool's documented defaults;
            null without one.
        not_used: its options that decide nothing here, as written.
    """

    understood: Mapping[str, FactValue] | None = None
    not_used: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """Return what was understood of a launch command and what was not used, then the notes."""
        if self.understood is None:
            return super().remarks()
        facts = ", ".join(f"{name} {_text(value)}" for name, value in self.understood.items())
        unused = [f"not used: {'; '.join(self.not_used)}"] if self.not_used else []
        return [f"understood: {facts}", *unused, *super().remarks()]


def _text(value: FactValue) -> str:
    """Return a fact as text."""
    return (
        "+".join(value)
        if isinstance(value, list)
        else (str(value).lower() if isinstance(value, bool) else str(value))
    )
