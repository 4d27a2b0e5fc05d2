"""`steptime.watch`: the steps of the user's own training loop, timed while it runs.

Nothing that fails here reaches the loop: it is one warning of the logger `steptime`, and the loop
goes on unwatched. Exceptions of the loop, Ctrl-C among them, pass through, and the record of the
steps before is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from steptime.integrations.watch_clock import SampleList, StepClock, choose_clock

if TYPE_CHECKING:
    from steptime.integrations.watch_answer import WatchAnswer
    from steptime.integrations.watch_report import LoopReport
    from steptime.integrations.watch_sinks import SinkGuard

logger = logging.getLogger("steptime")

FIRST_JUDGED = 32  # steps before the first verdict; then at each double number of steps
NEVER = -1  # in place of the number of a step
DEFAULT_LOG_STEPS = 100


class Watch:
    """A watched training loop: a context manager around it, made by `steptime.watch`."""

    def __init__(
        self,
        model: Any,
        batch: int | None,
        device: str | None,
        out: str | Path | None,
        log_every: int,
        log_to: str | None = None,
    ) -> None:
        """Remember what is watched; nothing happens before the first step.

        Raises:
            InputError: for an unknown tracker, and one whose library is not installed.
        """
        self.answer: WatchAnswer | None = None
        self._model = model
        self._batch = batch
        self._device = device
        self._out = None if out is None else Path(out)
        self._log_every = log_every
        self._sink: SinkGuard | None = None
        if log_to is not None:
            from steptime.integrations.watch_sinks import SinkGuard, find_sink

            self._sink = SinkGuard(log_to, find_sink(log_to, self._out))
        self._has_failed = False
        self._is_finished = False
        self._clock: StepClock | None = None
        self._report: LoopReport | None = None
        self._samples = SampleList()
        self._first_step_s: float | None = None
        self._examples = 0  # of the first step
        self._wait_s = 0.0  # for input, since the last step or microbatch
        self._wait_before_step_s = 0.0
        self._wait_within_step_s = 0.0  # between microbatches
        self._is_accumulating = False  # within a step of several microbatches
        self._has_loader = False
        self._cpu_s = 0.0  # spent by the watch itself
        self._prepare_s = 0.0  # spent on the prediction after the first step
        self._next_judged_step = FIRST_JUDGED
        self._step = _StepContext(self)

    def __enter__(self) -> Self:
        """Begin to watch."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write the record and log the verdict; an exception of the loop passes on."""
        self.finish("" if kind is None else kind.__name__)

    def wrap(self, loader: Iterable[Any]) -> WatchedLoader:
        """Return a loader whose batches are those of `loader`, with the wait for each timed."""
        self._has_loader = True
        return WatchedLoader(loader, self)

    def step(self) -> _StepContext:
        """Return a context manager around one step."""
        return self._step

    def add_wait(self, wait_s: float, examples: int | None = None) -> None:
        """Add seconds that the next step has waited for its input, and the examples that came."""
        self._has_loader = True
        self._wait_s += wait_s
        self._examples += examples or 0

    def begin_step(self) -> None:
        """Begin a step, or go on with one whose gradients are accumulated; `step` does this."""
        if self._is_accumulating:  # a further microbatch of the step: its wait is part of the step
            self._wait_within_step_s += self._wait_s
            self._wait_s = 0.0
            return
        self._run_guarded(self._begin)
        if self._clock is not None:
            self._run_guarded(self._clock.begin)

    def end_step(self, is_complete: bool = True) -> None:
        """End the step; `step` does this.

        Args:
            is_complete: false after a microbatch whose gradients are accumulated: the step goes on
                with the next one.
        """
        if self._clock is None or self._has_failed:
            return
        is_first_microbatch = not self._is_accumulating
        if is_first_microbatch:
            self._wait_before_step_s = self._wait_s  # before the step
            self._wait_s = 0.0
        self._is_accumulating = not is_complete
        if self._is_accumulating:
            return
        wait_before_step_s = self._wait_before_step_s
        wait_within_step_s = self._wait_within_step_s
        self._wait_before_step_s = 0.0
        self._wait_within_step_s = 0.0
        clock = self._clock
        self._run_guarded(lambda: clock.end(wait_before_step_s, wait_within_step_s))
        self._run_guarded(self._count_steps)

    def drop_step(self) -> None:
        """Leave out a step that an exception ended, which the loop may catch."""
        self._wait_s = 0.0
        self._wait_before_step_s = 0.0
        self._wait_within_step_s = 0.0
        self._is_accumulating = False
        if self._report is not None and self._report.trace is not None:
            self._run_guarded(self._report.trace.drop)
        if self._first_step_s is None:  # the next step is the first one: its examples count anew
            self._examples = 0

    def finish(self, interrupted_by: str = "") -> None:
        """End watching: write the record and log the verdict; a second call does nothing.

        Args:
            interrupted_by: the name of the exception that ended the loop; "" for none.
        """
        if self._is_finished:
            return
        self._is_finished = True
        if not self._has_failed:
            self._run_guarded(lambda: self._finish(interrupted_by))

    def _run_guarded(self, work: Callable[[], None]) -> None:
        """Do work of ours; a failure is one warning and ends watching, not the loop."""
        if self._has_failed:
            return
        start_cpu_s = time.thread_time()  # what others take from the CPU is no cost of ours
        try:
            work()
        except Exception as error:  # noqa: BLE001  # nothing may reach the user's loop
            self._has_failed = True
            logger.warning("steptime no longer watches: %s: %s", type(error).__name__, error)
        finally:
            self._cpu_s += time.thread_time() - start_cpu_s

    def _begin(self) -> None:
        """Set the first step up, and the record of one that is traced."""
        if self._report is None:
            from steptime.integrations.watch_report import LoopReport

            self._clock = choose_clock(self._model)
            self._report = LoopReport(self._model, self._device)
            self._report.start()
        elif self._report.trace is not None and self._report.trace.needs_step:
            self._report.trace.begin()

    def _count_steps(self) -> None:
        """Take the finished steps into the list, and log what is due."""
        if self._clock is None:
            return
        if self._first_step_s is None:  # it compiles and allocates: no sample
            self._end_first_step(self._clock)
            return
        trace = None if self._report is None else self._report.trace
        if self._report is not None and trace is not None and trace.is_recording:
            self._end_traced_step(self._clock, self._report)
            return
        for sample in self._clock.read():
            self._samples.add(sample)
            step_count = self._samples.step_count
            if step_count % self._log_every == 0:
                self._log_step()
            if step_count == self._next_judged_step:
                self._judge()

    def _end_first_step(self, clock: StepClock) -> None:
        """Take the time of the first step, then export the network and predict its step."""
        start_s = time.perf_counter()
        start_cpu_s = time.thread_time()
        clock.sync()
        self._first_step_s = sum(sample.step_s for sample in clock.read())
        if self._report is not None:
            if self._batch is None:
                self._batch = self._examples or self._report.examples
            self._report.predict(self._batch, self._has_loader)
        self._prepare_s = time.perf_counter() - start_s
        # Preparation is no cost of a step: `_run_guarded`, which runs this, adds its CPU time, so
        # it is subtracted beforehand.
        self._cpu_s = -(time.thread_time() - start_cpu_s)

    def _end_traced_step(self, clock: StepClock, report: LoopReport) -> None:
        """Leave out the time of a step that a profiler slowed, and predict the step from it."""
        start_s = time.perf_counter()
        start_cpu_s = time.thread_time()
        clock.sync()
        clock.read()  # not kept: the profiler makes this step slower than the others
        report.predict_traced()
        self._prepare_s += time.perf_counter() - start_s
        self._cpu_s -= time.thread_time() - start_cpu_s  # which `_run_guarded` adds

    def _log_step(self) -> None:
        if self._report is None:
            return
        # Samples are single steps until a long training joins them: then there are fewer of them.
        samples = self._samples.samples[-self._log_every :]
        step_s = median(sample.step_s for sample in samples)
        line = self._report.describe(step_s, samples, self._samples.step_count)
        logger.info("%s", line)
        if self._sink is not None and self._report.is_first_rank:
            self._sink.log(self._samples.step_count, self._report.log_values(step_s, samples))

    def _judge(self) -> None:
        """Log the verdict where there is one; else look again after twice the steps."""
        self._next_judged_step *= 2
        verdict = "" if self._report is None else self._report.judge(self._samples.samples)
        if verdict:  # one is enough
            self._next_judged_step = NEVER
            logger.info("%s", verdict)

    def _finish(self, interrupted_by: str) -> None:
        if self._clock is None or self._report is None:
            return
        self._clock.sync()
        for sample in self._clock.read():
            self._samples.add(sample)
        step_count = max(1, self._samples.step_count)
        watch_s = max(0.0, self._cpu_s) / step_count
        self.answer = self._report.finish(
            self._samples,
            first_step_s=self._first_step_s,
            folder=self._out,
            interrupted_by=interrupted_by,
            watch_s=watch_s,
            prepare_s=self._prepare_s,
            input_clock=self._clock.name,
        )
        if self.answer is None:
            return
        for line in self.answer.headline:
            logger.info("%s", line)
        if self._sink is not None and self._report.is_first_rank:
            self._log_end(self._sink, self._report)

    def _log_end(self, sink: SinkGuard, report: LoopReport) -> None:
        """Log the median of all steps and the verdict to a tracker."""
        answer = self.answer
        if answer is None or answer.step_s is None:
            return
        sink.log(answer.step_count, report.log_values(answer.step_s, self._samples.samples))
        sink.finish({"verdict": answer.verdict or "none", "summary": "; ".join(answer.headline)})


class _StepContext:
    """A step as a context manager, the same for all steps of a loop."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.begin_step()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._watch.end_step()
        else:
            self._watch.drop_step()


class WatchedLoader:
    """A loader with a clock: its length and attributes are those of the loader inside."""

    def __init__(self, loader: Iterable[Any], watch: Watch) -> None:
        """Wrap a loader for a watched loop."""
        self._loader = loader
        self._watch = watch

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches, and time the wait for each."""
        start_s = time.perf_counter()
        iterator = iter(self._loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._watch.add_wait(time.perf_counter() - start_s, _count_examples(batch))
            yield batch
            start_s = time.perf_counter()

    def __len__(self) -> int:
        """Return the number of batches; raises `TypeError` where the loader has none."""
        return len(self._loader)  # type: ignore[arg-type]  # as the user's own loader does

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader inside, such as `sampler`."""
        return getattr(self._loader, name)


def _count_examples(batch: Any) -> int | None:
    from steptime.integrations.watch_model import first_size

    try:
        return first_size(batch)
    except Exception:  # noqa: BLE001  # objects of the user may raise anything
        return None


def watch(
    model: Any = None,
    batch: int | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    log_every: int = DEFAULT_LOG_STEPS,
    log_to: str | None = None,
) -> Watch:
    """Watch the steps of a training loop: their time, their wait for input, and a verdict.

    The first step is timed apart. After it the network is exported, on shapes alone, and its step
    is predicted; the loop waits for that, at most two minutes. Of a network that cannot be exported
    the second step is recorded by PyTorch's profiler, and predicted as `predict --trace` does. Log
    lines go to the logger `steptime` at level INFO.

    Args:
        model: the `torch.nn.Module` that is trained; None for times without a prediction.
        batch: examples of a step. Default: those that the loader gives.
        device: the device of the prediction. Default: the one that runs the steps.
        out: the folder of the record. Default: none is written.
        log_every: steps between two log lines.
        log_to: wandb, mlflow, tensorboard or prometheus: a tracker for the numbers of the log
            lines. Default: none.

    Returns:
        A context manager with `wrap(loader)` and `step()`; after the loop `answer` has the result.

    Raises:
        InputError: for a batch or a number of steps that is no whole number of at least 1, an
            unknown tracker, and one whose library is not installed.
    """
    from steptime.core.signatures.kinds import text_of
    from steptime.core.values import parse_count

    step_count = parse_count(text_of(log_every), "log_every")
    example_count = None if batch is None else parse_count(text_of(batch), "batch")
    return Watch(model, example_count, device, out, step_count, log_to)
