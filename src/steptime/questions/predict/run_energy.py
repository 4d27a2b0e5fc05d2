"""The energy of a run of many steps, its price and its CO2."""

from dataclasses import dataclass
from typing import Any

from steptime.core.answer import AnswerRow
from steptime.core.units import format_value
from steptime.prediction.power import KWH_J, StepEnergy


class RunEnergy(AnswerRow, frozen=True, kw_only=True):
    """The energy of a run of many steps.

    Attributes:
        steps: number of steps.
        run_s: seconds of the run.
        energy_kwh: energy; null where the power of the device is unknown.
        energy_max_kwh: energy at the highest power of the device.
        cost_total: price of the energy (of `energy_max_kwh` where the energy is unknown); null
            without the price of a kWh.
        co2_g: grams of CO2 (of `energy_max_kwh` where the energy is unknown); null without the
            grams of a kWh.
    """

    steps: int
    run_s: float
    energy_kwh: float | None
    energy_max_kwh: float | None
    cost_total: float | None
    co2_g: float | None


@dataclass(frozen=True)
class EnergyRequest:
    """The run whose energy is asked for.

    Args:
        steps: number of steps, 0 where no run is asked for.
        kwh_price: price of a kWh.
        kwh_co2_g: grams of CO2 of a kWh.
    """

    steps: int = 0
    kwh_price: float | None = None
    kwh_co2_g: float | None = None

    def of_run(self, step_s: float, energy: StepEnergy) -> RunEnergy | None:
        """Return the energy of the run: 36,000 steps of 100 J are 1 kWh."""
        if not self.steps:
            return None
        energy_kwh = None if energy.energy_j is None else self.steps * energy.energy_j / KWH_J
        energy_max_kwh = None if energy.max_j is None else self.steps * energy.max_j / KWH_J
        # Where only an upper bound of the energy is known, cost and CO2 are upper bounds as well.
        billed_kwh = energy_max_kwh if energy_kwh is None else energy_kwh
        cost_total = None
        co2_g = None
        if billed_kwh is not None:
            cost_total = None if self.kwh_price is None else self.kwh_price * billed_kwh
            co2_g = None if self.kwh_co2_g is None else self.kwh_co2_g * billed_kwh
        return RunEnergy(
            steps=self.steps,
            run_s=self.steps * step_s,
            energy_kwh=energy_kwh,
            energy_max_kwh=energy_max_kwh,
            cost_total=cost_total,
            co2_g=co2_g,
        )


NO_RUN = EnergyRequest()


def run_rows(run: RunEnergy | None) -> list[tuple[str, Any]]:
    """Return the rows of a run for people: its hours, energy, cost and CO2."""
    if run is None:
        return []
    hours = (f"{run.steps:,} steps", format_value("h", run.run_s / 3600))
    is_upper_bound = run.energy_kwh is None
    energy_kwh = run.energy_max_kwh if is_upper_bound else run.energy_kwh
    if energy_kwh is None:
        return [hours, ("  energy", "unknown")]
    prefix = "at most " if is_upper_bound else ""
    values = (
        ("energy", "kwh", energy_kwh),
        ("cost of it", "cost", run.cost_total),
        ("CO2", "co2_g", run.co2_g),
    )
    rows = [
        (f"  {name}", prefix + format_value(key, value))
        for name, key, value in values
        if value is not None
    ]
    return [hours, *rows]
