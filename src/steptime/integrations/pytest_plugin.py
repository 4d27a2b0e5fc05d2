"""The pytest plugin: its options, its marker and the fixture `steptime_bench`.

pytest imports this module in every session of an environment that has steptime, so that it imports
nothing else; `pytest_bench` does the work.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from steptime.integrations.pytest_names import LINES_KEY, MARKER

if TYPE_CHECKING:
    from steptime.integrations.pytest_bench import StepBench

MARKER_TEXT = (
    "steptime(model=None, *, batch=None, fits=None, max_step=None, device=None, **step): limits of "
    'a step: fits="24GB" is predicted; max_step="15ms" or "1.2x predicted" is measured here. '
    "Without a model they hold for what the test gives steptime_bench."
)
SUMMARY_TITLE = "steptime"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of benchmarks."""
    group = parser.getgroup("steptime", "step times of neural networks (steptime)")
    group.addoption(
        "--steptime-baseline",
        metavar="DIR",
        help="compare each benchmark with its records in this folder; a slower one fails",
    )
    group.addoption(
        "--steptime-out", metavar="DIR", help="keep the records of benchmarks in this folder"
    )
    group.addoption(
        "--steptime-rounds",
        metavar="N",
        help="fresh processes that measure each benchmark, so many and no more (default: 5, and "
        "up to 20 where they differ so much that 5 would miss a large slowdown)",
    )
    group.addoption(
        "--steptime-budget",
        metavar="TIME",
        default="1s",
        help="time of the steps of a round (default: 1s)",
    )
    group.addoption(
        "--steptime-margin",
        metavar="SHARE",
        default="5%",
        help="smaller changes count as none (default: 5%%)",
    )
    group.addoption(
        "--steptime-fail-unsure",
        action="store_true",
        help="fail also where noise, few rounds or another machine leave no verdict",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER_TEXT)
    config.stash[LINES_KEY] = []


@pytest.fixture
def steptime_bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> StepBench:
    """A function that measures a step of a network and compares it with the baseline."""
    from steptime.integrations.pytest_bench import Bench

    return Bench(request.node, tmp_path_factory.mktemp("steptime"))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Hold the limits of a test's own model before the test runs."""
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is not None:
        from steptime.integrations.pytest_bench import check_marker

        check_marker(pyfuncitem, marker)
    return (yield)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print a line for each benchmark: its time, and the verdict against the baseline."""
    lines = config.stash[LINES_KEY]
    if lines:
        terminalreporter.section(SUMMARY_TITLE)
        for line in lines:
            terminalreporter.line(line)
