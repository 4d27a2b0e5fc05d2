"""The training of `--tokens` in the cells of a grid: its time and its cost on each device."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from steptime.core.signatures.kinds import File
from steptime.core.workload import Workload
from steptime.grids.grid import GridCell
from steptime.hardware.prices import Offer, Training, cheapest, read_offers
from steptime.questions.options import refuse
from steptime.questions.training import StepInterval, price_training, training_of_tokens

TRAINING_FIELDS = (
    "train_s",
    "train_low_s",
    "train_high_s",
    "cost_total",
    "cost_per_hour",
    "currency",
    "offer",
    "price_date",
)
"""The fields of a row of a grid that are of a training; they are fields of `TrainingTime`, too."""
NO_TRAINING = (None,) * len(TRAINING_FIELDS)
_fields_of = attrgetter(*TRAINING_FIELDS)


@dataclass(frozen=True)
class GridTraining:
    """The training of each network of a grid; without networks none is asked for.

    Attributes:
        trainings: the training by the label of its network.
        offers: the cheapest offer of each device.
    """

    trainings: Mapping[str, Training] = field(default_factory=dict)
    offers: Mapping[str, Offer] = field(default_factory=dict)

    def values(self, cell: GridCell) -> tuple[Any, ...]:
        """Return the fields of a cell's training, in the order of `TRAINING_FIELDS`.

        Each of the replicas has a device, and all of them are paid for.
        """
        if not self.trainings or cell.step_s is None:
            return NO_TRAINING
        times = price_training(
            self.trainings[cell.model],
            self.offers.get(cell.device),
            cell.batch * cell.replicas,
            StepInterval(cell.step_s, cell.low_s, cell.high_s),
            device_count=cell.replicas,
        )
        values: tuple[Any, ...] = _fields_of(times)  # of `TRAINING_FIELDS`, in this order
        return values


def read_training(tokens: Any, prices: File | None, workloads: Iterable[Workload]) -> GridTraining:
    """Read `--tokens` and `--prices` for the networks of a grid.

    Raises:
        InputError: for `--prices` without `--tokens`, and for a network that reads no tokens.
    """
    if tokens is None:
        refuse({"--prices": prices}, "{} needs --tokens N, the tokens of a training")
        return GridTraining()
    training_by_model = {
        workload.label: training_of_tokens(tokens, workload, nearest="leave it out")
        for workload in workloads
    }
    price_path = None if prices is None else Path(prices)
    return GridTraining(training_by_model, cheapest(read_offers(price_path)))
