"""The part of an answer that says what was understood of a launch command or recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from steptime.core.answer import Answer
from steptime.core.tables.table import Printout

FactValue = str | int | float | bool | list[str]


class LaunchedAnswer(Answer, frozen=True, kw_only=True):
    """Base of answers to questions that take a launch command or recipe.

    Attributes:
        understood: settings read from a launch command or recipe, with the tool's documented
            defaults; null without one.
        not_used: options of the launch command or recipe that decide nothing here.
        emitted: the command or recipe of another tool that `--emit` asks for; null without it.
    """

    understood: Mapping[str, FactValue] | None = None
    not_used: tuple[str, ...] = ()
    emitted: str | None = None

    def printout(self) -> Printout:
        """Return the answer as the command line prints it: what is emitted stands alone."""
        printout = super().printout()
        if self.emitted is None:
            return printout
        return replace(printout, tables=[], text="", script=self.emitted)

    def remarks(self) -> list[str]:
        """Return the understood facts and the unused options of a job, then the notes."""
        if self.understood is None:
            return super().remarks()
        facts_text = ", ".join(
            f"{name} {format_fact(value)}" for name, value in self.understood.items()
        )
        unused_remarks = [f"not used: {'; '.join(self.not_used)}"] if self.not_used else []
        return [f"understood: {facts_text}", *unused_remarks, *super().remarks()]


def format_fact(value: FactValue) -> str:
    """Format a fact: `8`, `true`, `q_proj+v_proj`."""
    if isinstance(value, list):
        return "+".join(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
