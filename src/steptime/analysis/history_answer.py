"""Rows of `analyse history`: a network in a folder, and the folders where its level changed."""

from steptime.core.answer import AnswerRow


class HistoryRow(AnswerRow, frozen=True, kw_only=True):
    """A network in one of the folders.

    Attributes:
        name: the network, with its batch.
        family: its family.
        platform: the platform.
        folder: the folder.
        taken_at: earliest date of the folder's records; None without a date.
        step_s: median time of a step.
        step_s_low: low end of its 95 % interval.
        step_s_high: high end of its 95 % interval.
        first_ratio: the time over the time in the first folder.
        changed_fraction: the change of the step from this folder on, 0.1 for 10 % slower; None if
            no change begins here.
    """

    name: str
    family: str | None
    platform: str
    folder: str
    taken_at: str | None
    step_s: float
    step_s_low: float | None
    step_s_high: float | None
    first_ratio: float
    changed_fraction: float | None


class HistoryChange(HistoryRow, frozen=True, kw_only=True):
    """A network in the folder where a level of it begins.

    Attributes:
        low_fraction: low end of the 95 % interval of the change.
        high_fraction: high end of the 95 % interval of the change.
        before: the folder before the change.
        after: the folder after the change.
    """

    low_fraction: float
    high_fraction: float
    before: str
    after: str


class HistoryEvent(AnswerRow, frozen=True, kw_only=True):
    """Changes of several networks between the same two folders.

    Attributes:
        before: the folder before the change.
        after: the folder after the change.
        verdict: slower or faster.
        changed: number of networks that changed.
        networks: number of all networks.
        changed_fraction: the median of their changes.
        differ: what else differs between the folders, in words.
    """

    before: str
    after: str
    verdict: str
    changed: int
    networks: int
    changed_fraction: float
    differ: list[str]
