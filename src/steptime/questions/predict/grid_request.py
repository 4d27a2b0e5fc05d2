"""The axes of a grid, and the grid that is asked for."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from steptime.build import build, make_workload, read_model, set_length
from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError
from steptime.core.signatures.kinds import File
from steptime.core.values import check_names, parse_counts, parse_devices, parse_models
from steptime.core.workload import Workload
from steptime.grids.grid import GridCell, grid
from steptime.grids.step_records import Place, place_of
from steptime.hardware import catalog
from steptime.hardware.device import Link
from steptime.prediction.method import Method
from steptime.questions.networks import networks
from steptime.questions.options import set_reading
from steptime.questions.predict.grid_training import GridTraining, read_training
from steptime.questions.step_options import StepOptions

MAX_CELLS = 1_000_000  # of a grid; JSON of so many takes


@dataclass(frozen=True)
class Grid:
    """The axes of a grid, checked; `batches` is None where each model has a batch of its own."""

    models: tuple[str, ...]
    places: tuple[Place, ...]
    batches: tuple[int, ...] | None
    replicas: tuple[int, ...]
    link: Link | None

    @property
    def cells(self) -> int:
        """The number of cells."""
        of_network = len(self.places) * len(self.batches or (1,)) * len(self.replicas)
        return len(self.models) * of_network


def read_axes(
    models: Any, devices: Any, batches: Any, replicas: Any, link: Any, method: str = ""
) -> Grid:
    """Read and check the axes of a grid from texts of the command line; raises `InputError`."""
    grid_axes = Grid(
        models=tuple(network for text in parse_models(models) for network in networks(text)),
        # A place is a device, or a device and a data type: `h100:float16`.
        places=tuple(place_of(name, method) for name in parse_devices(devices, "--device")),
        batches=None if batches is None else tuple(parse_counts(batches, "--batch")),
        replicas=(1,) if replicas is None else tuple(parse_counts(replicas, "--replicas")),
        link=None if link is None else catalog.link(link, "--link"),
    )
    place_names = [
        device.name if dtype is None else f"{device.name}:{dtype}"
        for device, dtype in grid_axes.places
    ]
    check_names(place_names, "--device")
    if max(grid_axes.replicas) > 1 and grid_axes.link is None:
        raise InputError("several replicas all-reduce gradients: name a link with --link")
    if grid_axes.cells > MAX_CELLS:
        raise InputError(
            f"a grid of {grid_axes.cells} cells; at most {MAX_CELLS}: a range has steps, 8..4096 +8"
        )
    return grid_axes


WorkloadMaker = Callable[[Any, int | None], Workload]
"""Makes the workload of a model at a batch, or at the model's own for None."""


@dataclass(frozen=True)
class GridRequest:
    """A grid to predict.

    Args:
        axes: its axes.
        make_workload: makes the workload of a model at a batch.
        method: the cost model.
        settings: options of the method.
        training: the training whose time and cost are asked for.
    """

    axes: Grid
    make_workload: WorkloadMaker
    method: Method
    settings: Mapping[str, str]
    training: GridTraining = field(default_factory=GridTraining)

    def cells(self) -> Iterator[GridCell]:
        """Yield the cells, computed anew at each call."""
        axes = self.axes
        # `grid` prices one data type, a place may name its own: `h100:float16`.
        dtypes = dict.fromkeys(dtype for _device, dtype in axes.places)  # each once
        for dtype in dtypes:
            devices = [device for device, place_dtype in axes.places if place_dtype == dtype]
            makers = [partial(self._make, name, dtype) for name in axes.models]
            yield from grid(
                makers,
                devices,
                axes.batches,
                axes.replicas,
                axes.link,
                self.method,
                self.settings,
            )

    def _make(self, name: str, dtype: str | None, batch: int | None) -> Workload:
        workload = self.make_workload(name, batch)
        return workload.with_dtype(find_dtype(dtype)) if dtype else workload

    def unmodelled(self) -> tuple[str, ...]:
        """Return the layers of unknown type, with their model where there are several models."""
        batch = self.axes.batches[0] if self.axes.batches else None
        layers: list[str] = []
        for model in self.axes.models:
            workload = self.make_workload(model, batch)
            prefix = "" if len(self.axes.models) == 1 else f"{model}: "
            # Only layers of files can be unknown.
            if workload.file:
                layers += [f"{prefix}{layer}" for layer in build(workload).unmodelled]
        return tuple(layers)


def request_grid(
    step: StepOptions,
    axes: Grid,
    method: Method,
    settings: Mapping[str, str],
    tokens: float | str | None,
    prices: File | None,
) -> GridRequest:
    """Return the grid of the axes, and of the training of `--tokens` where it is asked for.

    Raises:
        InputError: for a file of prices without a training, and for a network that reads no tokens.
    """
    make_workload_of = _workload_maker(step)
    # None: at the batch of the model itself.
    workloads = (make_workload_of(name, None) for name in axes.models)
    training = read_training(tokens, prices, workloads)
    return GridRequest(axes, make_workload_of, method, settings, training)


def _workload_maker(step: StepOptions) -> WorkloadMaker:
    """Return a function that makes the workload of a model at a batch, or at the model's own."""
    read = cache(read_model)  # a file is read once
    tuning = step.tuning

    def make(name: Any, batch: int | None) -> Workload:
        if isinstance(name, Workload):
            return name
        text = set_reading(name, step.strict, step.batch_axis)
        # Trusted: the user typed the model, so it may be the user's own code.
        choice = read(text, step.allow_unknown, trusted=True)
        if step.sequence_length is not None:
            choice = set_length(choice, step.sequence_length)
        return make_workload(choice, batch, step.dtype, step.phase, step.optimizer, tuning=tuning)

    return make
