"""Trackers of experiments to which a watched loop is logged, by their own libraries.

A library is imported when `steptime.watch` is asked for it, before the loop begins.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol

from steptime.core.errors import InputError, check_choice

logger = logging.getLogger("steptime")

PREFIX = "steptime/"
PROJECT = "steptime"  # of a run that the loop has not begun itself


class Sink(Protocol):
    """A tracker of experiments."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of the last steps."""

    def finish(self, texts: Mapping[str, str]) -> None:
        """Log what is said at the end, and close what was opened here."""


class WandbSink:
    """Weights & Biases: the loop's run, or one of its own.

    Steps have an axis of their own, so that they do not disturb that of the run.
    """

    def __init__(self, wandb: Any, _folder: Path | None) -> None:
        """Take the active run, or begin one."""
        self._is_own_run = wandb.run is None
        self._run: Any = wandb.init(project=PROJECT) if self._is_own_run else wandb.run
        self._run.define_metric(f"{PREFIX}step")
        self._run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of the last steps."""
        self._run.log({f"{PREFIX}step": step, **_prefix_names(values)})

    def finish(self, texts: Mapping[str, str]) -> None:
        """Log the texts as the run's summary, and finish a run that was begun here."""
        self._run.summary.update(_prefix_names(texts))
        if self._is_own_run:
            self._run.finish()


class MlflowSink:
    """MLflow: the active run, or one of its own."""

    def __init__(self, mlflow: Any, _folder: Path | None) -> None:
        """Take the active run, or start one."""
        self._mlflow = mlflow
        self._is_own_run = mlflow.active_run() is None
        run = mlflow.start_run() if self._is_own_run else mlflow.active_run()
        self._run_id = run.info.run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of the last steps."""
        self._mlflow.log_metrics(_prefix_names(values), step=step, run_id=self._run_id)

    def finish(self, texts: Mapping[str, str]) -> None:
        """Log the texts as tags, and end a run that was started here."""
        client = self._mlflow.MlflowClient()
        for name, text in texts.items():
            client.set_tag(self._run_id, f"{PROJECT}.{name}", text)
        if self._is_own_run:
            self._mlflow.end_run()


class TensorboardSink:
    """TensorBoard: an event file in the folder of the record, or in `runs`."""

    def __init__(self, tensorboard: Any, folder: Path | None) -> None:
        """Open an event file."""
        log_folder = None if folder is None else str(folder / "tensorboard")
        self._writer = tensorboard.SummaryWriter(log_folder)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of the last steps."""
        for name, value in values.items():
            self._writer.add_scalar(f"{PREFIX}{name}", value, step)

    def finish(self, texts: Mapping[str, str]) -> None:
        """Log the texts, and close the file."""
        for name, text in texts.items():
            self._writer.add_text(f"{PREFIX}{name}", text)
        self._writer.close()


class PrometheusSink:
    """Prometheus: gauges of the default registry, which the loop's own exporter serves."""

    _gauges: MutableMapping[str, Any] = {}  # noqa: RUF012  # a registry takes each name once, of all loops

    def __init__(self, prometheus_client: Any, _folder: Path | None) -> None:
        """Remember the library."""
        self._client = prometheus_client

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Set the gauges."""
        for name, value in {"step": float(step), **values}.items():
            gauge = f"{PROJECT}_{_prometheus_name(name)}"
            if gauge not in self._gauges:
                text = f"steptime.watch: {name} of the last steps"
                self._gauges[gauge] = self._client.Gauge(gauge, text)
            self._gauges[gauge].set(value)

    def finish(self, texts: Mapping[str, str]) -> None:
        """Leave the gauges as they are: they are numbers, and these are texts."""


SINKS: Mapping[str, tuple[str, str, Callable[[Any, Path | None], Sink]]] = {
    "wandb": ("wandb", "wandb", WandbSink),
    "mlflow": ("mlflow", "mlflow", MlflowSink),
    "tensorboard": ("torch.utils.tensorboard", "tensorboard", TensorboardSink),
    "prometheus": ("prometheus_client", "prometheus", PrometheusSink),
}
"""Module, extra and class of each tracker, by its name."""


def find_sink(name: str, folder: Path | None) -> Callable[[], Sink]:
    """Import the library of a tracker, and return the function that opens the tracker.

    Args:
        name: a name of `SINKS`.
        folder: the folder of the record; None where none is written.

    Raises:
        InputError: for another name, and for a library that is not installed.
    """
    module_name, extra, make_sink = SINKS[check_choice("tracker", name, SINKS, "log_to")]
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        package = "prometheus-client" if extra == "prometheus" else extra
        text = f"log_to: {name} needs the package {package} ({error})"
        raise InputError(f"{text}; nearest: pip install 'steptime[{extra}]'") from None
    return lambda: make_sink(module, folder)


class SinkGuard:
    """A tracker whose first failure is one warning, after which nothing is logged to it."""

    def __init__(self, name: str, open_sink: Callable[[], Sink]) -> None:
        """Remember how the tracker is opened, which happens at the first log."""
        self._name = name
        self._open_sink: Callable[[], Sink] | None = open_sink
        self._sink: Sink | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of the last steps."""
        self._run_or_stop_logging(lambda sink: sink.log(step, values))

    def finish(self, texts: Mapping[str, str]) -> None:
        """Log what is said at the end; a tracker that was never used stays closed."""
        if self._sink is not None:
            self._run_or_stop_logging(lambda sink: sink.finish(texts))

    def _run_or_stop_logging(self, work: Callable[[Sink], None]) -> None:
        if self._open_sink is None:  # it has failed before
            return
        try:
            if self._sink is None:
                self._sink = self._open_sink()
            work(self._sink)
        except Exception as error:  # noqa: BLE001  # nothing may reach the user's loop
            self._open_sink = None
            logger.warning("steptime no longer logs to %s: %s", self._name, error)


def _prefix_names(values: Mapping[str, object]) -> dict[str, object]:
    return {f"{PREFIX}{name}": value for name, value in values.items()}


def _prometheus_name(name: str) -> str:
    """Return a name with its unit in full, as Prometheus has them: `step_seconds`."""
    for short, unit in (("_per_s", "_per_second"), ("_s", "_seconds")):
        if name.endswith(short):
            return name.removesuffix(short) + unit
    return name
