"""What is made of the samples of a watched loop: prediction, log lines, verdict and record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, OutsideError
from steptime.core.json_types import JsonObject
from steptime.core.units import format_percent, format_seconds
from steptime.core.workload import Workload
from steptime.integrations import watch_answer, watch_record
from steptime.integrations.watch_answer import MIN_JUDGED, WatchAnswer
from steptime.integrations.watch_clock import SampleList, StepSample
from steptime.integrations.watch_model import FirstStep, ModelWatcher, export_model
from steptime.integrations.watch_prediction import (
    WatchPrediction,
    ask_question,
    find_device,
    predict_step,
)
from steptime.integrations.watch_record import Runtime
from steptime.integrations.watch_trace import MAX_REASON, LoopTrace, describe_fault

EXPORT, TRACE = "export", "trace"  # what a prediction was made from
EXPORT_LIMIT_S = 60.0
QUESTION_LIMIT_S = 60.0


class LoopReport:
    """What is known of a loop beside its samples."""

    def __init__(self, model: Any, device: str | None) -> None:
        """Remember the model, and the device of the prediction.

        `trace` is there where the network cannot be exported.
        """
        self._model = model
        self._device = device
        self._watcher: ModelWatcher | None = None
        self._first_step = FirstStep()
        self._model_path: str | None = None
        self._prediction: WatchPrediction | None = None
        self._predicted_from: str | None = None
        self.trace: LoopTrace | None = None
        self._runtime: Runtime | None = None
        self._batch: int | None = None
        self._has_loader = False
        self._notes: list[str] = []

    @property
    def examples(self) -> int | None:
        """The examples of the first step, by the inputs of its forward passes."""
        if self._watcher is None:
            return None
        first_step = self._watcher.first_step
        if first_step.batch is None:
            return None
        return first_step.batch * first_step.forward_passes  # a pass is a microbatch

    @property
    def is_first_rank(self) -> bool:
        """Whether this process is the one that writes and logs."""
        return watch_record.rank_and_size()[0] == 0

    def start(self) -> None:
        """Watch the first step of the model."""
        if self._model is None:
            return
        try:
            self._watcher = ModelWatcher(self._model)
        except (ImportError, TypeError) as error:
            self._notes.append(f"no prediction: {error}")

    def predict(self, batch: int | None, has_loader: bool) -> None:
        """Export the network as the first step showed it, and predict its step.

        Args:
            batch: examples of a step; None where unknown.
            has_loader: whether waiting for input is timed.
        """
        self._batch = batch
        self._has_loader = has_loader
        self._runtime = watch_record.find_runtime(self._model, has_loader)
        watch_answer.load_statistics()
        if self._watcher is None:  # without a model there is no prediction
            return
        self._first_step = self._watcher.stop()
        if not self.is_first_rank:  # one process of a training reports for all
            return
        self._device = self._device or find_device(self._runtime.platform)
        export_fault = self._export_network()
        if self._device is None:
            self._note_unknown_device(self._runtime.platform)
            return
        if export_fault is not None:  # then it is predicted from a trace of its next step
            self.trace = LoopTrace(export_fault, self._device)
            return
        try:
            self._prediction = predict_step(
                self._question_arguments(), self._first_step.forward_passes, QUESTION_LIMIT_S
            )
            self._predicted_from = EXPORT
        except (InputError, OutsideError) as error:
            self._notes.append(f"no prediction: {describe_fault(error)}")

    def _export_network(self) -> str | None:
        """Export the network to a file, and return the fault that was in the way."""
        try:
            self._model_path, remarks = export_model(self._model, self._first_step, EXPORT_LIMIT_S)
        except Exception as error:  # noqa: BLE001  # torch raises anything for what it cannot read
            return describe_fault(error)
        self._notes += [remark[:MAX_REASON] for remark in remarks]
        return None

    def _note_unknown_device(self, platform: str) -> None:
        self._notes.append(
            f"no prediction: {platform} is no known device; name one with "
            "device=, or run steptime calibrate"
        )

    def predict_traced(self) -> None:
        """End the record of a step, and predict the step from the shapes of its ops."""
        if self.trace is not None:
            self._prediction = self.trace.predict(QUESTION_LIMIT_S)
            self._predicted_from = None if self._prediction is None else TRACE

    def describe(self, step_s: float, samples: Sequence[StepSample], count: int) -> str:
        """Return the log line of the last steps."""
        texts = [f"step {count:,}: {format_seconds(step_s)}"]
        if self._batch is not None and step_s:
            texts.append(f"{self._batch / step_s:,.4g} examples/s")
        wait_share = watch_answer.input_share(samples)
        if self._has_loader and wait_share is not None:
            texts.append(f"{format_percent(wait_share)} waits for the loader")
        if self._prediction is not None:
            texts.append(_describe_prediction(self._prediction))
        texts.append(watch_answer.describe_utilisation(step_s, self._prediction))
        if self._runtime is not None:
            memory = watch_record.read_memory(self._runtime)
            texts.append(watch_answer.describe_memory(memory, self._prediction))
        return ", ".join(filter(None, texts))

    def log_values(self, step_s: float, samples: Sequence[StepSample]) -> dict[str, float]:
        """Return the numbers of the last steps by their names, those that are known."""
        prediction = self._prediction
        wait_share = watch_answer.input_share(samples) if self._has_loader else None
        memory = watch_answer.MemoryUse()
        if self._runtime is not None:
            memory = watch_record.read_memory(self._runtime)
        values = {
            "step_s": step_s,
            "examples_per_s": self._batch / step_s if self._batch and step_s else None,
            "input_share": wait_share,
            "predicted_s": None if prediction is None else prediction.step_s,
            "utilisation": None if prediction is None else prediction.utilisation(step_s),
            "peak_bytes": memory.peak_bytes,
            "process_bytes": memory.process_bytes,
            "predicted_peak_bytes": None if prediction is None else prediction.peak_bytes,
        }
        return {name: float(value) for name, value in values.items() if value is not None}

    def judge(self, samples: Sequence[StepSample]) -> str:
        """Return the verdict on the steps in a line; "" while they leave it open."""
        step_s, low_s, high_s = watch_answer.estimate_step(samples)
        wait_share = _wait_share_after_warm_up(samples)
        if self._prediction is None:
            # Without a prediction the only verdict is that the loop waits for its input.
            waits_long = wait_share is not None and wait_share >= watch_answer.MIN_WAIT
            if not waits_long:
                return ""
            return watch_answer.describe_verdict(
                step_s, verdict=None, predicted=None, share=wait_share
            )
        verdict = watch_answer.judge_step(low_s, high_s, self._prediction)
        if verdict == "unsure":
            return ""
        return watch_answer.describe_verdict(step_s, verdict, self._prediction, wait_share)

    def finish(
        self,
        samples: SampleList,
        first_step_s: float | None,
        folder: Path | None,
        interrupted_by: str,
        watch_s: float,
        prepare_s: float,
        input_clock: str,
    ) -> WatchAnswer | None:
        """Write the record, and return the answer; None without a step after the first.

        Args:
            samples: the steps after the first.
            first_step_s: seconds of the first step; None where it did not end.
            folder: the folder of the record; None for none.
            interrupted_by: the exception that ended the loop; "" for none.
            watch_s: seconds of a step that watching took.
            prepare_s: seconds that export and prediction took.
            input_clock: the clock of the steps.
        """
        if self._watcher is not None:
            self._watcher.stop()
        if self.trace is not None:
            self._notes += self.trace.finish()
        if first_step_s is None or not samples.samples or self._runtime is None:
            return None  # the loop ended before its second step
        workload = self._make_workload()
        record_folder = folder if self.is_first_rank else None
        if record_folder is not None:
            record = watch_record.make_record(
                self._runtime,
                workload,
                samples,
                first_step_s,
                self._has_loader,
                input_clock=input_clock,
                watch_cpu_s=watch_s,
                watch_prepare_s=prepare_s,
                interrupted_by=interrupted_by,
                batch_source="stated" if self._batch else "unknown",
                **self._predicted_facts(samples),
            )
            watch_record.write_record(record, record_folder)
        # Finding causes takes seconds, for which an interrupted program does not wait.
        answer = self._make_answer(samples, workload.label, with_causes=not interrupted_by)
        folder_text = None if record_folder is None else str(record_folder)
        return add_watch_costs(answer, watch_s, prepare_s, folder_text)

    def _predicted_facts(self, samples: SampleList) -> dict[str, float | None]:
        """Return the facts of the prediction for the record."""
        if self._prediction is None:
            return {}
        step_s, _, _ = watch_answer.estimate_step(samples.samples)
        return {
            "predicted_s": self._prediction.step_s,
            "predicted_low_s": self._prediction.low_s,
            "predicted_high_s": self._prediction.high_s,
            "predicted_peak_bytes": self._prediction.peak_bytes,
            "utilisation": self._prediction.utilisation(step_s),
        }

    def _make_workload(self) -> Workload:
        """Return the workload of the loop, by its name alone where the exported file is refused."""
        model, step, batch = self._model, self._first_step, self._batch
        try:
            return watch_record.make_workload(model, self._model_path, step, batch)
        except InputError as error:
            self._notes.append(f"the record names the network alone: {error}")
            return watch_record.make_workload(model, path=None, first_step=step, batch=batch)

    def _make_answer(self, samples: SampleList, model: str, with_causes: bool) -> WatchAnswer:
        """Return the answer of the samples."""
        step_s, low_s, high_s = watch_answer.estimate_step(samples.samples)
        wait_share = _wait_share_after_warm_up(samples.samples) if self._has_loader else None
        verdict, causes = self._judge_with_causes(samples, wait_share, with_causes)
        memory = watch_answer.MemoryUse()
        if self._runtime is not None:
            memory = watch_record.read_memory(self._runtime)
        return WatchAnswer(
            model=model,
            batch=self._batch,
            platform="" if self._runtime is None else self._runtime.platform,
            step_count=samples.step_count,
            step_s=step_s,
            low_s=low_s,
            high_s=high_s,
            input_share=wait_share,
            examples_per_s=self._batch / step_s if self._batch and step_s else None,
            verdict=verdict,
            causes=causes,
            peak_bytes=memory.peak_bytes,
            process_bytes=memory.process_bytes,
            headline=self._make_headline(samples, verdict, causes, memory),
            notes=tuple(self._notes),
            **self._predicted_fields(step_s),
        )

    def _judge_with_causes(
        self, samples: SampleList, wait_share: float | None, with_causes: bool
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return the verdict on all steps, and the causes of one that is slower."""
        if self._prediction is None:
            return None, ()
        step_s, low_s, high_s = watch_answer.estimate_step(samples.samples)
        verdict = "unsure"
        if samples.step_count >= MIN_JUDGED:
            verdict = watch_answer.judge_step(low_s, high_s, self._prediction)
        if with_causes and verdict == "slower":
            return verdict, self._find_causes(step_s, wait_share)
        return verdict, ()

    def _predicted_fields(self, step_s: float) -> Any:
        """Return the fields of the answer that a prediction fills."""
        prediction = self._prediction
        if prediction is None:
            return {}
        return {
            "predicted_s": prediction.step_s,
            "predicted_low_s": prediction.low_s,
            "predicted_high_s": prediction.high_s,
            "predicted_from": self._predicted_from,
            "ratio": step_s / prediction.step_s,
            "utilisation": prediction.utilisation(step_s),
            "predicted_utilisation": prediction.utilisation(prediction.step_s),
            "predicted_peak_bytes": prediction.peak_bytes,
        }

    def _make_headline(
        self,
        samples: SampleList,
        verdict: str | None,
        causes: tuple[str, ...],
        memory: watch_answer.MemoryUse,
    ) -> tuple[str, ...]:
        """Return the answer in words: speed, verdict, use of the device, causes."""
        prediction = self._prediction
        step_s, _, _ = watch_answer.estimate_step(samples.samples)
        wait_share = _wait_share_after_warm_up(samples.samples) if self._has_loader else None
        utilisation_and_memory = (
            watch_answer.describe_utilisation(step_s, prediction),
            watch_answer.describe_memory(memory, prediction),
        )
        headline = [
            watch_answer.describe_speed(step_s, self._batch, samples.step_count),
            watch_answer.describe_verdict(step_s, verdict, prediction, wait_share),
            "; ".join(filter(None, utilisation_and_memory)),
        ]
        if causes:
            headline.append(f"check first: {', '.join(causes[: watch_answer.MAX_CAUSES])}")
        return tuple(filter(None, headline))

    def _find_causes(self, step_s: float, wait_share: float | None) -> tuple[str, ...]:
        """Return the causes that `why --measured` gives for the step without its wait.

        A measured wait for the loader comes first.
        """
        waits_long = wait_share is not None and wait_share >= watch_answer.MIN_WAIT
        wait_cause = ("loader",) if waits_long else ()
        if self._model_path is None:  # the question `why` needs the exported network
            return wait_cause
        # `why` explains one microbatch without its wait for input.
        compute_s = step_s * (1 - (wait_share or 0.0))
        pass_s = compute_s / max(1, self._first_step.forward_passes)
        try:
            answer = ask_question(
                "why",
                {**self._question_arguments(), "measured": f"{pass_s:.9f} s"},
                QUESTION_LIMIT_S,
            )
        except (InputError, OutsideError) as error:
            self._notes.append(f"no causes: {error}")
            return wait_cause
        causes = [cause["cause"] for cause in answer["causes"]]
        return (*wait_cause, *(cause for cause in causes if cause not in wait_cause))

    def _question_arguments(self) -> JsonObject:
        """Return the parameters of `predict` and `why` that name the step."""
        step = self._first_step
        arguments: JsonObject = {
            "model": self._model_path,
            "device": self._device,
            "batch": step.batch,
            "dtype": step.dtype,
            "phase": step.phase,
        }
        if step.optimizer and step.phase == "train":
            arguments["optimizer"] = step.optimizer
        if hasattr(self._model, "_orig_mod"):
            arguments["stack"] = "torch-compile"
        return arguments


def _describe_prediction(prediction: WatchPrediction) -> str:
    """Return `predicted 8.1 ms, 7 ms to 12 ms`."""
    text = f"predicted {format_seconds(prediction.step_s)}"
    if prediction.low_s is None or prediction.high_s is None:
        return text
    return f"{text}, {format_seconds(prediction.low_s)} to {format_seconds(prediction.high_s)}"


def _wait_share_after_warm_up(samples: Sequence[StepSample]) -> float | None:
    """Return the share of the time that waits for input, after the warm-up."""
    _, steady, _ = watch_answer.split_warm_up(samples)
    return watch_answer.input_share(steady)


def add_watch_costs(
    answer: WatchAnswer, watch_s: float, prepare_s: float, folder: str | None
) -> WatchAnswer:
    """Return an answer with the time of watching itself, and the folder of the record."""
    import msgspec

    return msgspec.structs.replace(answer, watch_s=watch_s, prepare_s=prepare_s, folder=folder)
