"""The commands of `analyse`: one for each analysis and each picture."""

from steptime.analysis.analyses import Analysis
from steptime.core.question import Inquiry, inquiry_of
from steptime.questions.analyse import analysis_question, picture_question


def question_of(analysis: Analysis) -> Inquiry:
    """Return the command of an analysis."""
    return inquiry_of(analysis_question(analysis))


def drawing(kind: str) -> Inquiry:
    """Return the command that draws one kind of picture."""
    return inquiry_of(picture_question(kind))
