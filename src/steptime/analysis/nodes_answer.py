"""The answer of `analyse nodes`: a row a node, and numbers of all nodes together."""

import msgspec

from steptime.core.answer import AnswerRow


class NodeRow(AnswerRow, frozen=True, kw_only=True):
    """A node compared with the others that measured the same cells.

    Attributes:
        host: name of the node.
        slower_fraction: how much slower it is than the others over all cells, 0.2 for 20 %.
        low_fraction: low end of the 95 % interval of `slower_fraction`.
        high_fraction: high end of the 95 % interval of `slower_fraction`.
        verdict: slow, fast, like the others, or not measured.
        slow_in: kinds of work for which it is slow, "all" for all; None if it is not slow.
        compute_fraction: how much slower it is in compute-bound cells; None without such cells.
        memory_fraction: how much slower it is in memory-bound cells; None without such cells.
        link_fraction: how much slower it is in cells of several replicas (link-bound).
        gpu: its GPU.
        cells: number of cells that it measured.
        cause: cause of the failure of a node without a measurement.
    """

    host: str
    slower_fraction: float | None = None
    low_fraction: float | None = None
    high_fraction: float | None = None
    verdict: str
    slow_in: str | None = None
    compute_fraction: float | None = None
    memory_fraction: float | None = None
    link_fraction: float | None = None
    gpu: str | None
    cells: int
    cause: str | None = None


class NodesSummary(AnswerRow, frozen=True, kw_only=True):
    """Numbers of all nodes together.

    Attributes:
        nodes: number of measured nodes.
        cells: number of cells that the nodes share.
        noise_fraction: standard deviation of a node's noise; None without nodes.
        margin_fraction: smallest difference that is reported.
        slow: names of the slow nodes.
        fast: names of the fast nodes.
        not_measured: names of the nodes without a measurement.
        is_judged: whether enough nodes share cells to tell which is slow.
    """

    nodes: int
    cells: int
    noise_fraction: float | None
    margin_fraction: float
    slow: list[str]
    fast: list[str]
    not_measured: list[str]
    is_judged: bool


class NodesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes, slow ones first.

    Attributes:
        rows: one row a node.
        kinds: kinds of work that were judged by themselves.
        summary: numbers of all nodes together.
    """

    rows: tuple[NodeRow, ...]
    kinds: tuple[str, ...]
    summary: NodesSummary
