"""One row of `analyse results`: a measured step beside its prediction."""

from __future__ import annotations

from collections.abc import Mapping

from steptime.core.answer import AnswerRow
from steptime.core.json_types import Scalar


class ResultRow(AnswerRow, frozen=True, kw_only=True):
    """A step of a network on a platform, by one software that ran it and one cost model.

    Numbers are in SI; None is unknown.

    Attributes:
        name: name of the network, with the settings in which rows differ.
        hyperparameters: the hyperparameters of the network, by name.
        model: the network as text.
        family: the family of the network.
        batch: examples of one replica in a step.
        replicas: data-parallel copies.
        strategy: the strategy that reduces gradients across replicas; None for one replica.
        overlap: whether communication overlaps the backward pass.
        dtype: data type.
        phase: train or infer.
        optimizer: the optimizer.
        platform: the device or machine.
        workload_key: key of the workload: equal for equal steps.
        method: the software that ran the step, such as `torch-eager`.
        status: ok; oom, timeout, unsupported or failed if there is no measured time; None if
            nothing was run.
        cause: the kind of failure: a word of the table of causes in docs/sweeps.md.
        note: the failure in words.
        gpu: the GPU that was asked for.
        input: the place that examples come from.
        staging: the disk that a data set was copied to.
        loaders: processes that load examples.
        prefetch: batches that a loader prepares in advance.
        threads: threads of the step.
        origin: `measured` here, `published` by others, or `predicted` where no measurement is
            known.
        host: the host that ran the step.
        predicted_by: the cost model of the prediction, such as `calibrated`.
        stack: the software that the prediction assumes.
        measured_s: median time of a step.
        measured_low_s: low end of the 95 % interval of `measured_s`.
        measured_high_s: high end of the 95 % interval of `measured_s`.
        measured_min_s: the shortest time of a step.
        interval: what the interval of `measured_s` is over: `between-runs`, or `within-run` with a
            single run.
        examples_per_s: examples of all replicas in a second.
        steady: whether the samples reached a steady state.
        runs: number of runs; 0 if nothing was run, None of a number without samples.
        samples_n: number of samples.
        disturbed_share: share of the samples that other work disturbed.
        measured_memory_bytes: measured peak of the memory.
        predicted_s: predicted time of a step.
        predicted_low_s: low end of the 80 % interval of `predicted_s`.
        predicted_high_s: high end of the 80 % interval of `predicted_s`.
        flop: predicted FLOP of a replica's step.
        traffic_bytes: predicted memory traffic of a replica's step.
        predicted_memory_bytes: predicted peak of the memory.
        peak_flop_per_s: peak of the device in this data type.
        memory_bytes_per_s: bandwidth of the device's memory.
        ratio: measured / predicted time.
        ratio_low: low end of the 95 % interval of `ratio`: that of `measured_s`, over
            `predicted_s`.
        ratio_high: high end of the 95 % interval of `ratio`.
        intensity: FLOP per byte of traffic.
        flop_per_s: predicted FLOP over measured time.
        predicted_flop_per_s: predicted FLOP over predicted time.
        roof_flop_per_s: the roofline's bound: the lower of `peak_flop_per_s` and `intensity` x
            `memory_bytes_per_s`.
        peak_fraction: `flop_per_s` over `peak_flop_per_s`.
        roof_fraction: `flop_per_s` over `roof_flop_per_s`.
    """

    name: str
    hyperparameters: Mapping[str, Scalar]
    model: str | None
    family: str | None
    batch: int | None
    replicas: int | None
    strategy: str | None
    overlap: bool | None
    dtype: str | None
    phase: str | None
    optimizer: str | None
    platform: str | None
    workload_key: str
    method: str | None
    status: str | None
    cause: str | None
    note: str | None
    gpu: str | None
    input: str | None
    staging: str | None
    loaders: int | None
    prefetch: int | None
    threads: int | None
    origin: str | None
    host: str | None
    predicted_by: str | None
    stack: str | None
    measured_s: float | None
    measured_low_s: float | None
    measured_high_s: float | None
    measured_min_s: float | None
    interval: str | None
    examples_per_s: float | None
    steady: bool | None
    runs: int | None
    samples_n: int | None
    disturbed_share: float | None
    measured_memory_bytes: float | None
    predicted_s: float | None
    predicted_low_s: float | None
    predicted_high_s: float | None
    flop: float | None
    traffic_bytes: float | None
    predicted_memory_bytes: float | None
    peak_flop_per_s: float | None
    memory_bytes_per_s: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    intensity: float | None
    flop_per_s: float | None
    predicted_flop_per_s: float | None
    roof_flop_per_s: float | None
    peak_fraction: float | None
    roof_fraction: float | None


RESULT_FIELDS = tuple(name for name in ResultRow.__struct_fields__ if name != "hyperparameters")
