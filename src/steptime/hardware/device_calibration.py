"""The calibration of one device: constants, residuals and intervals from its measured rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from msgspec import Meta

from steptime.core.signatures.typed import Above0, NonNegativeInt, Text
from steptime.core.workload import PHASES

Factor = Annotated[float, Meta(gt=1e-15, lt=1e15, description="a number from 1e-15 to 1e15")]
LogRatio = Annotated[float, Meta(gt=-100, lt=100, description="a log of a ratio of seconds")]
StepResidual = tuple[Above0, Above0, LogRatio]
ProductResidual = tuple[Above0, Above0, Above0, Above0, LogRatio]


@dataclass(frozen=True)
class DeviceCalibration:
    """What `steptime calibrate` wrote for one device; empty for a device without a calibration.

    Attributes:
        constants: the constants that moved from their priors, by full name.
        steps: residuals of measured steps: seconds of the device, seconds of the host, and
            ln(measured / predicted).
        intervals: 80 % intervals of ln(measured / predicted), by form.
        alone: constants of single ops, where steps have constants of their own; None without.
        products: residuals of matrix products by kind and type: batch, rows, columns, contraction,
            and the weight of the residual.
        stack: the stack of the steps; "" of a calibration with single ops.
        date: when it was made.
        backend: the backend that measured it.
        version: the version of the backend.
        driver: the version of the GPU's driver.
        threads: the threads that a CPU ran.
        measured_points: the number of points that were measured for it; None of published rows.
        source: the file of rows that it was made from.
        phases: by phase, the calibration with what was fitted on steps of this phase alone.
        table: the whole table of the device's file, with the facts that no prediction reads.
    """

    constants: Mapping[str, Factor] = field(default_factory=dict)
    steps: Sequence[StepResidual] = ()
    intervals: Mapping[str, tuple[LogRatio, LogRatio]] = field(default_factory=dict)
    alone: Mapping[str, Factor] | None = None
    products: Mapping[str, Sequence[ProductResidual]] = field(default_factory=dict)
    stack: Text = ""
    date: Text = ""
    backend: Text = ""
    version: Text = ""
    driver: Text = ""
    threads: NonNegativeInt | None = None
    measured_points: NonNegativeInt | None = None
    source: str = ""
    phases: Mapping[str, Self] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the calibration of a table, as `calibrate` makes it or a device's file holds it.

        Args:
            table: fields of this class, tables of a phase (`train`, `infer`), and further facts.
        """
        values = {name: table[name] for name in FIELDS if name in table}
        # A phase has the values of all phases but for those that it states itself.
        common = {name: value for name, value in table.items() if name not in PHASES}
        phases = {
            phase: cls.from_table({**common, **table[phase]}) for phase in PHASES if phase in table
        }
        return cls(**values, phases=phases, table=table)

    def with_constants(self, constants: Mapping[str, float]) -> Self:
        """Return the calibration with some constants replaced."""
        return self.from_table({**self.table, "constants": {**self.constants, **constants}})

    @property
    def is_of_single_ops(self) -> bool:
        """Whether single ops alone tell it, and no steps."""
        return self.alone is not None and not self.stack


FIELDS = tuple(DeviceCalibration.__dataclass_fields__.keys() - {"phases", "table"})
