"""The CSV of pytorch-paradnn: fully connected networks, seconds for 100 steps of training.

`layers` are square layers beside the input layer, so our `fc` has one more. Its columns `#params`
(one square layer too few) and `tflops` (which follows from that) are not taken. A pair that was
measured twice stays two records.
"""

from steptime.build import make_workload, read_model
from steptime.core.errors import InputError, one_of, shorten
from steptime.records.readers.csv_rows import Row, first_line, number, read_rows, whole
from steptime.records.readers.sources import Reading, RecordSource, platform_of
from steptime.records.record import Quantity, Record, RecordMethod

SOURCE = "cissieAB/pytorch-paradnn; Jefferson Lab, CHEP 2023"
STACK = "torch-eager-1"  # its optimizer goes from weight to weight, as before PyTorch 2
STEPS = 100  # that a duration is of, after 30 of warm-up
COLUMNS = ("device", "input_type", "layers", "nodes", "batch_size", "input_size", "output_size")
DERIVED = ("#params", "tflops")
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


def recognises(source: RecordSource) -> bool:
    """Whether the first line names the columns of the data set."""
    return {*COLUMNS, "duration"} <= first_line(source)


def read(source: RecordSource) -> Reading:
    """Return a record for each row; a duration of 0 is a network that did not fit."""
    return read_rows(source, _record, known={*COLUMNS, *DERIVED, "duration"})


def _record(row: Row, line: int) -> Record:
    one_of("input_type", row["input_type"], DTYPES)
    duration = number(row, "duration")
    if duration < 0:
        raise InputError(f"duration: seconds, not {shorten(row['duration'])}")
    widths = f"nodes={row['nodes']},inputs={row['input_size']},outputs={row['output_size']}"
    workload = make_workload(
        read_model(f"fc:layers={whole(row, 'layers') + 1},{widths}"),
        batch=row["batch_size"],
        dtype=DTYPES[row["input_type"]],
        optimizer="adam",
    )
    return Record(
        origin="published",
        method=RecordMethod("pytorch-paradnn", "unknown", {"steps": STEPS}),
        workload=workload,
        platform=platform_of(row["device"]),
        quantities={"step_s": Quantity(duration / STEPS)} if duration else {},
        status="ok" if duration else "oom",
        cause="" if duration else "duration 0",
        env={"source_entry": line, "device": row["device"], "stack": STACK},
    )
