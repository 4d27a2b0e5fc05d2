"""The answer of a question that writes predictions into a folder of records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from steptime.core.answer import Answer, AnswerRow
from steptime.core.units import format_count

if TYPE_CHECKING:
    from steptime.grids.folder import Predicted


class RefusedSteps(AnswerRow, frozen=True, kw_only=True):
    """Steps that were not predicted for one reason.

    Attributes:
        reason: why they were not predicted.
        steps: number of steps.
    """

    reason: str
    steps: int


class WrittenPredictions(Answer, frozen=True, kw_only=True):
    """The predictions that a folder of records got.

    Attributes:
        folder: the folder.
        method: the cost model.
        added: predictions that were written now.
        present: predictions that were in the folder before.
        refused: steps that were not predicted, by reason.
        headline: the main numbers in words.
        notes: the reasons in words.
    """

    folder: str
    method: str
    added: int
    present: int
    refused: tuple[RefusedSteps, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]


def describe_predictions(
    folder: Path, method: str, predicted: Predicted, title: str = ""
) -> WrittenPredictions:
    """Return the answer that says how many predictions a folder got, below a title."""
    added = f"{format_count(predicted.added, 'prediction')} written to {folder}"
    present = f", {predicted.present} were there" if predicted.present else ""
    refused = tuple(
        RefusedSteps(reason=reason, steps=steps) for reason, steps in predicted.refused.items()
    )
    return WrittenPredictions(
        folder=str(folder),
        method=method,
        added=predicted.added,
        present=predicted.present,
        refused=refused,
        headline=(*([title] if title else []), f"{added}{present}"),
        notes=tuple(f"{row.steps} not predicted: {row.reason}" for row in refused),
    )
