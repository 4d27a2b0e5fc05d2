"""Benchmarks of steps inside of pytest: what `steptime_bench` measures and a marker checks."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pytest

from steptime.core.errors import InputError, OutsideError
from steptime.core.units import format_count, format_percent
from steptime.core.values import parse_count, parse_share
from steptime.integrations.pytest_limits import (
    LIMIT_NAMES,
    BenchStep,
    Limits,
    Verdict,
    describe_step,
    judge_fit,
    judge_time,
    list_run_options,
    read_limits,
)
from steptime.integrations.pytest_names import LINES_KEY, MARKER
from steptime.integrations.pytest_rounds import (
    FIRST_ROUNDS,
    MIN_ROUNDS,
    BenchRounds,
    RelativeChange,
    judge_relative,
    needs_further_rounds,
    read_reference,
    read_rounds,
    write_reference,
)
from steptime.measure.reference import measure_reference

if TYPE_CHECKING:
    from steptime.questions.compare.answer import CompareAnswer
    from steptime.questions.run.measured_step import RunAnswer

MAX_TYPED_ROUNDS = 100  # that a person can ask for
REFUSED = 2  # exit code of `compare` for steps that it cannot compare
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class BenchResult:
    """A benchmark.

    Attributes:
        measured: the measured step, None where only a prediction was asked for.
        comparison: the step against the baseline, None without a baseline of it.
        verdict: faster, slower, same or unsure; `new` without a baseline, `fits` of a prediction.
        folder: the records of the step, None where nothing was measured.
    """

    measured: RunAnswer | None
    comparison: CompareAnswer | None
    verdict: str
    folder: Path | None


class StepBench(Protocol):
    """The function that the fixture `steptime_bench` is."""

    def __call__(
        self, model: Any, batch: int | None = None, *, rounds: int | None = None, **step: Any
    ) -> BenchResult:
        """Measure a step in fresh processes; fail where it is slower than its baseline.

        Args:
            model: a MODEL of `steptime run`, a class or function of a file that makes a module, or
                a `torch.nn.Module` with `inputs=`.
            batch: the batch size; None for the model's own.
            rounds: fresh processes; None for `--steptime-rounds`, and where that says nothing for
                five, and up to twenty on a machine with much noise.
            **step: further options of `steptime run`, such as `device`, `dtype` or `threads`.
        """


class Bench:
    """The benchmarks of one test, each with a folder of records of its own."""

    def __init__(self, item: pytest.Item, scratch: Path) -> None:
        """Read the options of pytest and the marker of the test.

        Args:
            item: the test.
            scratch: holds the records where `--steptime-out` names no folder.
        """
        option = item.config.getoption
        self._test_item = item
        self._bench_count = 0
        self._out_folder = Path(option("--steptime-out") or scratch)
        baseline = option("--steptime-baseline")
        self._baseline_folder = None if baseline is None else Path(baseline)
        self._budget = option("--steptime-budget")
        self._margin = option("--steptime-margin")
        with failing_on_wrong_input():
            self._margin_share = parse_share(self._margin, "--steptime-margin")
            self._rounds: int | None = None
            rounds = option("--steptime-rounds")
            if rounds is not None:
                self._rounds = parse_count(rounds, "--steptime-rounds", at_most=MAX_TYPED_ROUNDS)
            # A marker with a model is held by `check_marker` before the test runs.
            marker = item.get_closest_marker(MARKER)
            names_no_model = marker is not None and not marker.args
            self._limits = read_limits(marker.kwargs) if marker and names_no_model else None

    def __call__(
        self, model: Any, batch: int | None = None, *, rounds: int | None = None, **step: Any
    ) -> BenchResult:
        """Measure a step and compare it with its baseline, as `StepBench` says."""
        with failing_on_wrong_input():
            inputs = step.pop("inputs", None)
            return self.run(
                BenchStep(_model_text(model, inputs), batch, step), self._limits, rounds
            )

    def run(self, step: BenchStep, limits: Limits | None, rounds: int | None = None) -> BenchResult:
        """Check the limits of a step, measure it where they ask for it, and compare it.

        Args:
            step: the step.
            limits: its limits; one of memory alone needs no measurement.
            rounds: fresh processes; None for `--steptime-rounds`.
        """
        if limits is not None and limits.fits is not None:
            self._enforce(judge_fit(step, limits))
            if limits.max_step is None:  # memory is predicted: nothing is measured
                return BenchResult(measured=None, comparison=None, verdict="fits", folder=None)
        folder = self._next_folder()
        bench_rounds = self._measure_rounds(step, limits, rounds or self._rounds, folder)
        if limits is not None and limits.max_step is not None:
            self._enforce(self._judge_time(step, limits, bench_rounds.answer))
        return self._compare(bench_rounds, folder)

    def _next_folder(self) -> Path:
        """Return the name of the folder of the next benchmark: that of the test, and a number."""
        self._bench_count += 1
        suffix = "" if self._bench_count == 1 else f"-{self._bench_count}"
        return Path(
            _UNSAFE_CHARACTERS.sub("-", _stable_node_id(self._test_item)).strip("-.") + suffix
        )

    def _measure_rounds(
        self, step: BenchStep, limits: Limits | None, rounds: int | None, folder: Path
    ) -> BenchRounds:
        """Measure a step in fresh processes, and in further ones while their noise asks for them.

        Args:
            step: the step.
            limits: its limits.
            rounds: so many processes and no more; None for as many as are needed.
            folder: the folder of the records, in that of all benchmarks.
        """
        _refuse_records(self._out_folder / folder)
        if rounds is not None:  # the user's number, and no more
            bench_rounds = self._measure_chunk(step, limits, rounds, folder)
        else:
            bench_rounds = self._measure_chunk(step, limits, FIRST_ROUNDS, folder)
            while needs_further_rounds(bench_rounds, self._margin_share):
                further_rounds = self._measure_chunk(step, limits, FIRST_ROUNDS, folder)
                bench_rounds = bench_rounds.join(further_rounds)
        if bench_rounds.referenced is not None:
            write_reference(self._out_folder / folder, bench_rounds.referenced)
        return bench_rounds

    def _measure_chunk(
        self, step: BenchStep, limits: Limits | None, rounds: int, folder: Path
    ) -> BenchRounds:
        """Measure a step in so many fresh processes, each with the reference beside it."""
        from steptime.core.progress import report_progress_to

        options = {"budget": self._budget, **list_run_options(step, limits)}
        # The reference is of a core; a step of a GPU does not share what slows it.
        is_on_cpu = options.get("device", "cpu") == "cpu"
        reference_s: list[float] = []

        def take_reference(noun: str, *_: int) -> None:
            if noun == "runs" and is_on_cpu:  # one of the fresh processes has ended
                reference_s.append(measure_reference())

        with report_progress_to(take_reference):
            answer = self._measure(step, options, limits, rounds, folder)
        return read_rounds(answer, tuple(reference_s))

    def _measure(
        self,
        step: BenchStep,
        options: Mapping[str, Any],
        limits: Limits | None,
        rounds: int,
        folder: Path,
    ) -> RunAnswer:
        """Measure a step in fresh processes and keep its record; skip what cannot run here."""
        from steptime.questions.run.measured_step import RunAnswer
        from steptime.questions.run.question import run

        out = self._out_folder / folder
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            answer = run(step.model, step.batch, runs=rounds, out=out, **options)
        except InputError as error:
            # A test for a GPU is skipped on a machine without one; wrong input fails the test.
            if "is not available here" in str(error):
                self._skip(str(error))
            raise
        if not isinstance(answer, RunAnswer):
            self._skip("rank 0 measures for all ranks")
        if answer.status == "unsupported":
            self._skip("; ".join(answer.headline))
        if answer.step_s is None:
            _fail("; ".join(answer.headline))
        device = None if limits is None else limits.device
        if device is not None and not _is_device(device, answer.platform):
            self._skip(f"the device is {answer.platform}, not {device}")
        return answer

    def _judge_time(self, step: BenchStep, limits: Limits, measured: RunAnswer) -> Verdict:
        try:
            return judge_time(step, limits, measured)
        except InputError as error:
            self._skip(f"no prediction of {measured.platform}: {error}")

    def _enforce(self, verdict: Verdict) -> None:
        """Fail the test where a limit does not hold."""
        self._add_line(verdict.line)
        if verdict.word == "no":
            _fail(verdict.line)
        if verdict.word == "unsure":
            self._fail_unsure(verdict.line)

    def _compare(self, bench_rounds: BenchRounds, folder: Path) -> BenchResult:
        """Return a benchmark beside its baseline; fail the test where it is slower."""
        from steptime.questions.compare.question import compare

        out = self._out_folder / folder
        measured = bench_rounds.answer
        step_text = describe_step(measured, bench_rounds.median_s)
        round_count = len(bench_rounds.medians_s)
        if round_count > FIRST_ROUNDS:
            step_text += f" in {format_count(round_count, 'round')}"
        baseline = None if self._baseline_folder is None else self._baseline_folder / folder
        if baseline is None or not baseline.is_dir():
            folder_text = "" if baseline is None else f" in {baseline}"
            self._add_line(f"{step_text}; no baseline{folder_text}")
            return BenchResult(measured, comparison=None, verdict="new", folder=out)
        comparison = compare(
            [baseline, out],
            any_content=True,  # the network's code may have changed since the baseline
            fail_on="slower",
            margin=self._margin,
        )
        # There is one row: the benchmark's folder has the records of one step.
        verdict_of_times = (comparison.rows[0].verdict if comparison.rows else None) or "unsure"
        verdict = verdict_of_times
        line = f"{step_text}; {_describe_change(comparison)}"
        # the reference, timed beside the step, shows how fast the machine was at that time
        relative = self._judge_relative(bench_rounds, baseline)
        if relative is not None:
            verdict = relative.adjust(verdict_of_times)
            prefix = "" if verdict == verdict_of_times else f"{verdict}: "
            line += f"; {prefix}{relative.describe()}"
        self._add_line(line)
        # Other hardware, or runs that are too few to tell: then "slower" is no verdict.
        is_not_comparable = comparison.exit_code == REFUSED
        if verdict == "slower" and not is_not_comparable:
            _fail("\n".join([line, *comparison.headline]))
        if verdict == "unsure" or not comparison.is_judged:
            self._fail_unsure("\n".join([line, *comparison.notes]))
            return BenchResult(measured, comparison, "unsure", folder=out)
        return BenchResult(measured, comparison, verdict, folder=out)

    def _judge_relative(self, rounds: BenchRounds, baseline: Path) -> RelativeChange | None:
        """Return the change in multiples of the reference; None where a side has too few of it."""
        referenced_baseline = read_reference(baseline)
        if rounds.referenced is None or referenced_baseline is None:
            return None
        round_counts = (len(rounds.medians_s), len(referenced_baseline.medians_s))
        if min(round_counts) < MIN_ROUNDS:
            return None
        return judge_relative(referenced_baseline, rounds.referenced, self._margin_share)

    def _fail_unsure(self, text: str) -> None:
        if self._test_item.config.getoption("--steptime-fail-unsure"):
            _fail(f"unsure: {text}")

    def _skip(self, reason: str) -> NoReturn:
        """Skip the test, with a line of the summary."""
        self._add_line(f"{self._test_item.name}: skipped: {reason}")
        pytest.skip(f"steptime: {reason}")

    def _add_line(self, line: str) -> None:
        self._test_item.config.stash[LINES_KEY].append(line)


def check_marker(item: pytest.Function, marker: pytest.Mark) -> None:
    """Hold the limits of a marker that names a model.

    Args:
        item: the test.
        marker: its marker; one without a model is left to `steptime_bench`.
    """
    if not marker.args:
        if "steptime_bench" not in item.fixturenames:
            _fail(f"@pytest.mark.{MARKER}: name a model, or let the test take steptime_bench")
        return
    options = {name: value for name, value in marker.kwargs.items() if name not in LIMIT_NAMES}
    batch = options.pop("batch", None)
    inputs = options.pop("inputs", None)
    with TemporaryDirectory(prefix="steptime-") as scratch, failing_on_wrong_input():
        step = BenchStep(_model_text(marker.args[0], inputs), batch, options)
        Bench(item, Path(scratch)).run(step, read_limits(marker.kwargs))


@contextmanager
def failing_on_wrong_input() -> Iterator[None]:
    """Fail the test with the one line of a wrong input, without a traceback."""
    try:
        yield
    except (InputError, OutsideError) as error:
        _fail(str(error))


def _stable_node_id(item: pytest.Item) -> str:
    """Return the node id of a test, which is the same with every `--steptime-baseline`.

    Without a configuration file pytest takes the values of options for test folders when it looks
    for its root: a baseline elsewhere moves the root, and with it the node ids.
    """
    has_fixed_root = item.config.inipath is not None
    if has_fixed_root:
        return item.nodeid
    # else the root, to which ids are relative, follows the arguments: take the working folder
    working_folder = item.config.invocation_params.dir
    if not item.path.is_relative_to(working_folder):
        return item.nodeid
    _, separator, name = item.nodeid.partition("::")
    return f"{item.path.relative_to(working_folder).as_posix()}{separator}{name}"


def _fail(text: str) -> NoReturn:
    pytest.fail(f"steptime: {text}", pytrace=False)


def _model_text(model: Any, inputs: Any) -> str:
    """Return the MODEL that a test names: a text, a path, a class or function of a file, a module.

    Raises:
        InputError: for a class or function that is not at the top of a file, and for a module
            without `inputs`.
    """
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if inspect.isclass(model) or inspect.isfunction(model):
        name = model.__qualname__  # has dots where it lies in a class or a function
        if not name.isidentifier():
            raise InputError(f"{name}: give a class or function at the top of a file")
        file = inspect.getsourcefile(model) or ""
        return f"{os.path.relpath(file)}:{name}"
    if inputs is None:
        kind = type(model).__name__
        raise InputError(f"a module {kind} needs inputs=, a list of tensors or (shape, type)")
    from steptime.questions.module_file import from_module

    return from_module(model, inputs)


def _refuse_records(folder: Path) -> None:
    """Raise `InputError` for a folder with records of an earlier session, which would be pooled."""
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: holds records; name a new folder with --steptime-out")


def _is_device(device: str, platform: str) -> bool:
    from steptime.hardware import catalog, device_words

    return device_words.platform_of(platform) == catalog.device(device).name


def _describe_change(comparison: CompareAnswer) -> str:
    """Return `12 % slower than the baseline (10 % to 14 %)`, `unsure ...`, or why there is none."""
    if not comparison.rows:
        return "; ".join(comparison.notes[:1]) or "not comparable with the baseline"
    row = comparison.rows[0]
    change = f"{format_percent(row.ratio - 1, '+')} against the baseline"
    ratio_ends = [ratio for ratio in (row.ratio_low, row.ratio_high) if ratio is not None]
    if not ratio_ends:
        return f"unsure: {change}"
    interval = " to ".join(format_percent(ratio - 1, "+") for ratio in ratio_ends)
    return f"{row.verdict or 'unsure'}: {change} ({interval})"
