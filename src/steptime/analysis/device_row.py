"""One row of `analyse table`: a measured or published step, in the words of the seed's table."""

import msgspec

from steptime.core.answer import AnswerRow


class DeviceTableRow(AnswerRow, frozen=True, kw_only=True):
    """A measured or published record of a whole step; None is unknown.

    Attributes:
        mean_speed: examples per second: as a published log states; of a measurement here the batch
            of all replicas over the mean time.
        mean_time_s: mean seconds of a step.
        speed_uncertainty: standard error of the speed.
        speed_jitter: 1.4826 times the median absolute deviation of the speeds.
        gpu_type: the GPU, or else the platform.
        num_gpu: devices that the job had.
        staged_from: the disk that the data set was read from.
        batch: examples of one replica in a step.
        strategy: the strategy that reduces gradients across replicas.
        dtype: data type.
        phase: train or infer.
        optimizer: the optimizer.
        input: the place that examples come from.
        loaders: processes that load examples.
        status: ok; oom, timeout, unsupported or failed if there is no number.
        mean_speed_corrected: `global_batch` over `Mean_Time_Per_Step`.
        global_batch: examples of all replicas in a step.
        replicas: devices that worked.
        accuracy: test accuracy.
        model: the network.
        platform: the device or machine.
        cause: the kind of failure.
        origin: measured or published.
        method: the software that ran the step.
        batch_source: the place in which the batch stands.
        date: the date of the source.
        source_file: the file of the source.
        duplicate_of: the file with the same content.
        prefetch: batches that a loader prepares in advance.
        threads: threads of the step.
        host: the host that ran the step.
    """

    mean_speed: float | None
    mean_time_s: float | None = msgspec.field(name="Mean_Time_Per_Step")
    speed_uncertainty: float | None
    speed_jitter: float | None = msgspec.field(name="Speed_Jitter")
    gpu_type: str | None
    num_gpu: int | None
    staged_from: str | None
    batch: int | None
    strategy: str | None
    dtype: str | None
    phase: str | None
    optimizer: str | None
    input: str | None
    loaders: int | None
    status: str
    mean_speed_corrected: float | None
    global_batch: int | None
    replicas: int | None
    accuracy: float | None
    model: str
    platform: str | None
    cause: str | None
    origin: str
    method: str | None
    batch_source: str | None
    date: str | None
    source_file: str | None
    duplicate_of: str | None
    prefetch: int | None
    threads: int | None
    host: str | None


DEVICE_COLUMNS = DeviceTableRow.__struct_encode_fields__
