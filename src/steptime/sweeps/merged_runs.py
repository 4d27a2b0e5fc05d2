"""One record of the runs of a cell: the samples of all, numbered by run."""

from collections.abc import Sequence
from itertools import chain, repeat

from steptime.core.copying import replace
from steptime.records.record import Quantity, Record


def merge_runs(records: list[Record]) -> Record:
    """Return one record with the samples of all runs; single values are the largest of the runs."""
    first_record = records[0]
    quantities = {}
    for name in first_record.quantities:
        quantity_of_runs = [record.quantities.get(name, Quantity()) for record in records]
        quantities[name] = _merge_quantity(quantity_of_runs)
    env = dict(first_record.env)
    if len(records) > 1:
        is_steady = [record.env.get("steady") for record in records]
        env |= {
            "steady": all(is_steady),
            "few_samples": any(record.env.get("few_samples") for record in records),
            "steady_of_run": is_steady,
            "warmup_s": [record.env.get("warmup_s") for record in records],
        }
    return replace(first_record, quantities=quantities, env=env)


def _merge_quantity(runs: Sequence[Quantity]) -> Quantity:
    """Return the quantity of several runs; its column `run` numbers them."""
    first_run = runs[0]
    if not first_run.samples:
        # A single number, such as a peak of memory: the largest covers all runs.
        numbers = [run.value for run in runs if run.value is not None]
        return Quantity(max(numbers)) if numbers else first_run
    columns = {}
    for name in first_run.columns:
        columns[name] = tuple(chain.from_iterable(run.columns.get(name, ()) for run in runs))
    run_of_samples = (repeat(number, len(run.samples)) for number, run in enumerate(runs))
    columns["run"] = tuple(chain.from_iterable(run_of_samples))
    samples = tuple(chain.from_iterable(run.samples for run in runs))
    return Quantity(samples=samples, columns=columns)
