"""The table that the collector of the PSC logs writes, one row a log.

It has no batch and no strategy. The batch is speed x time, because the logs divide the one by the
other; whether several GPUs shared a step cannot be seen.
"""

from steptime.build import make_workload, read_model
from steptime.core.errors import InputError, one_of
from steptime.records.readers.csv_rows import Row, first_line, number, positive, read_rows, whole
from steptime.records.readers.sources import Reading, RecordSource, platform_of
from steptime.records.record import Quantity, Record, RecordMethod

SOURCE = "asakhare/Tensoflow-Benchmarking-with-CNN_DL_MNIST, PSC Bridges, 2018"
QUANTITIES = {
    "Mean_Time_Per_Step": "step_s",
    "mean_speed": "published_speed_per_s",
    "speed_uncertainty": "published_speed_uncertainty_per_s",
    "Speed_Jitter": "published_speed_jitter_per_s",
}
STAGED = {"$LOCAL": "local", "$SCRATCH": "shared"}
COLUMNS = (*QUANTITIES, "gpu_type", "num_gpu", "staged_from")
INDEX = ("", "Unnamed: 0")  # what pandas writes before the columns
NOTE = "the batch is speed x time; whether the GPUs shared a step is not said"


def recognises(source: RecordSource) -> bool:
    """Whether the first line names the columns of the collector, and no others."""
    return set(COLUMNS) <= first_line(source) <= {*COLUMNS, *INDEX}


def read(source: RecordSource) -> Reading:
    """Return a record for each row."""
    return read_rows(source, _record)


def _record(row: Row, line: int) -> Record:
    one_of("staged_from", row["staged_from"], STAGED)
    batch = positive(row, "mean_speed") * positive(row, "Mean_Time_Per_Step")
    if batch < 0.5 or abs(batch - round(batch)) > 1e-3:
        raise InputError(f"mean_speed x Mean_Time_Per_Step is no batch: {batch:.6g}")
    positive(row, "num_gpu")
    options = {
        "gpu": row["gpu_type"],
        "devices": whole(row, "num_gpu"),
        "staging": STAGED[row["staged_from"]],
    }
    return Record(
        origin="published",
        method=RecordMethod("psc-collector", "unknown", options),
        workload=make_workload(read_model("deep_mnist"), batch=round(batch), optimizer="adam"),
        platform=platform_of(row["gpu_type"]),
        quantities={ours: Quantity(number(row, name)) for name, ours in QUANTITIES.items()},
        note=NOTE,
        env={"source_entry": line, "batch_source": "implied"},
    )
