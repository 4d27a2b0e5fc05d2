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
