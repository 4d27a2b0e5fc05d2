"""Causes that may stand behind a slow run, with judged prior weights and the steps they explain."""

from collections.abc import Iterator
from dataclasses import replace

from steptime.core.dtypes import HALVES
from steptime.core.errors import InputError
from steptime.grids.batches import find_knee
from steptime.grids.replicas import exchange_s
from steptime.questions.why.causes import FASTER_SHARE, Finder, SlowRun, Suspicion
from steptime.questions.why.setup import Setup

SLOWER_LINKS = (1.5, 100.0)  # TCP for RDMA, or the host's memory for NVLink
# The shortest and the longest step that a cause explains, over the predicted one:
SLOWER_CLOCKS = (1.15, 3.0)
SLOWER_HOSTS = (1.5, 6.0)
WAITING_FACTOR = 2.0  # of a step: stalls that people removed had made it 1.05 to 2 times as long
LARGE_SHARE = 0.2  # of a step: so much of it the model explains by this cause itself
LOADER_FACTORS = (1.1, 50.0)
SPILL_FACTORS = (1.5, 100.0)
ACCUMULATION_FACTORS = (2.0, 64.0)
OFFLOAD_FACTORS = (1.5, 20.0)
HOST_ARITHMETIC_FACTORS = (10.0, 300.0)
OLD_SOFTWARE_FACTORS = (1.2, 4.0)
OTHER_WORK_FACTORS = (1.2, 4.0)
FIRST_STEPS_FACTORS = (1.05, 3.0)
PADDING_FACTORS = (1.1, 4.0)
ADDED_WAIT = 1.1  # times a predicted wait that may come on top of it
BATCH_FACTORS = (1, 2, 4, 8)
GAIN_OF_BATCH = 1.3  # examples a second at the best batch over those at this one
NEARLY_FULL = 0.9  # share of the memory
COOLED_BADLY = ("laptop", "max-q", "-gpu")  # in names of devices: laptops, and systems on a chip


def suspect_input(run: SlowRun) -> Iterator[Suspicion]:
    """Suspect the loader, which images need most."""
    # The user said how fast input comes: the model itself tells how long the step waits.
    if run.setup.feed.period_s:
        yield from _suspect_share("loader", bound="input", run=run)
        return
    # Decoding images takes the most of a CPU, reading tokens the least.
    if _reads_images(run.setup):
        prior = 0.3
    elif _reads_tokens(run.setup):
        prior = 0.06
    else:
        prior = 0.15
    if run.setup.workload.phase == "infer":
        # Judged, as all priors: an inference waits for its loader less often than a training.
        prior /= 2
    yield _suspect_factors("loader", run, LOADER_FACTORS, prior)


def suspect_links(run: SlowRun) -> Iterator[Suspicion]:
    """Suspect the exchange of gradients by a slower way, and a throughput of one replica."""
    setup = run.setup
    if setup.replicas == 1:
        return
    if setup.path.shares["communication"] >= LARGE_SHARE:
        yield from _suspect_share("communication", bound="communication", run=run)
    else:
        seconds_by_collective = exchange_s(setup.model, setup.model.gradient_bytes, setup.replicas)
        all_reduce_s = 0.0
        if seconds_by_collective:
            all_reduce_s = seconds_by_collective[setup.model.collective()]
        single_replica_s = run.predicted_s - setup.path.seconds_by_bound["communication"]
        # The collective over a slower link, with nothing of it hidden.
        low_s, high_s = (single_replica_s + factor * all_reduce_s for factor in SLOWER_LINKS)
        yield Suspicion("communication", prior=0.4, low_s=low_s, high_s=high_s)
    if run.speed.is_throughput:
        # The user may have stated the examples a second of a single replica.
        step_s = run.predicted_s * setup.replicas
        yield Suspicion("one replica", prior=0.05, low_s=step_s, high_s=step_s)


def suspect_types(run: SlowRun) -> Iterator[Suspicion]:
    """Suspect float32 products: least where the question names a mixed type."""
    setup = run.setup
    peaks = setup.device.datasheet.peak_flop_per_s
    has_half_precision = any(name in peaks for name in HALVES)
    # Without a faster half precision there is nothing to lose.
    if setup.device.kind == "cpu" or not has_half_precision:
        return
    is_float32 = setup.workload.dtype == "float32"
    float32_s = _step_s(setup if is_float32 else _change_dtype(setup, dtype="float32"))
    if float32_s is None:
        return
    half_dtype = next(name for name in HALVES if name in peaks)
    if setup.workload.phase == "train":
        half_dtype = f"{half_dtype}-mixed"
    half_s = _step_s(_change_dtype(setup, dtype=half_dtype))
    if half_s is not None and half_s > FASTER_SHARE * float32_s:
        return  # float32 costs hardly more, so that it explains nothing
    # Who names a shorter type is less likely to run in float32 by mistake.
    names_mixed_type = "dtype" in run.options and not is_float32
    prior = 0.08 if names_mixed_type else 0.2
    yield Suspicion("precision", prior, low_s=float32_s, high_s=float32_s)


def suspect_layouts(run: SlowRun) -> Iterator[Suspicion]:
    """Suspect channels that do not lie last, where convolutions would be faster by them."""
    setup = run.setup
    knows_layouts = "channels_last" in setup.model.method.options
    if not knows_layouts or not _reads_images(setup):
        return
    channels_first_s = _step_s(setup.with_options(channels_last="no"))
    channels_last_s = _step_s(setup.with_options(channels_last="yes"))
    if channels_first_s is None or channels_last_s is None:
        return
    if channels_last_s > FASTER_SHARE * channels_first_s:
        return  # the layout hardly matters, so that it explains nothing
    # Who names a layout is less likely to run in another one by mistake.
    prior = 0.05 if "channels_last" in run.options else 0.15
    yield Suspicion("layout", prior, channels_first_s, channels_first_s)


def suspect_hosts(run: SlowRun) -> Iterator[Suspicion]:
    """Suspect a host that waits for the device, a slow host, and too small a batch."""
    setup = run.setup
    host = setup.model.host(setup.model.lower_step())
    if host is None or setup.device.kind == "cpu":
        return
    device_s = setup.path.device_s
    # The time by which each pass is issued, counted from the start: the last one is the step's.
    host_s = host.issued_s[-1]
    host_share = host_s / (host_s + device_s)
    # Where each op is waited for, host, device and communication overlap no more.
    serial_s = device_s + host_s + setup.path.seconds_by_bound["communication"]
    longest_s = max(serial_s, WAITING_FACTOR * run.predicted_s)
    waiting_prior = 0.05 + 0.1 * host_share
    yield Suspicion("synchronising", waiting_prior, low_s=run.predicted_s, high_s=longest_s)
    # A slow host shows only once it takes longer than the predicted step.
    low_s, high_s = (max(run.predicted_s, factor * host_s) for factor in SLOWER_HOSTS)
    slow_host_prior = 0.02 + 0.15 * host_share**2
    yield Suspicion("slow host", slow_host_prior, low_s, high_s)
    yield from _suspect_small_batch(setup)


def _suspect_small_batch(setup: Setup) -> Iterator[Suspicion]:
    """Suspect the batch if a larger one would give many more examples a second."""
    batch = setup.workload.batch_per_replica
    step_s_by_batch: dict[int, float] = {}
    for factor in BATCH_FACTORS:
        larger_step_s = _step_s(setup.with_batch(factor * batch))
        if larger_step_s is not None:
            step_s_by_batch[factor * batch] = larger_step_s
    if batch not in step_s_by_batch:
        return
    best_batch = find_knee(list(step_s_by_batch), list(step_s_by_batch.values()))
    if best_batch == batch:
        return
    step_s = step_s_by_batch[batch]
    best_examples_per_s = max(size / size_s for size, size_s in step_s_by_batch.items())
    if best_examples_per_s >= GAIN_OF_BATCH * batch / step_s:
        yield Suspicion("small batch", prior=0.1, low_s=step_s, high_s=step_s)


def suspect_devices(run: SlowRun) -> Iterator[Suspicion]:
    """Suspect clocks, full memory, other work, old software, and arithmetic on the CPU."""
    setup = run.setup
    name = setup.device.name
    if setup.device.kind != "cpu":
        is_warm = any(word in name for word in COOLED_BADLY)
        clock_prior = 0.16 if is_warm else 0.08
        yield _suspect_factors("clocks", run, SLOWER_CLOCKS, clock_prior)
        yield _suspect_factors("software", run, OLD_SOFTWARE_FACTORS, prior=0.05)
        yield _suspect_factors("not on the device", run, HOST_ARITHMETIC_FACTORS, prior=0.03)
    yield _suspect_factors("other work", run, OTHER_WORK_FACTORS, prior=0.05)
    needs = setup.model.needs()
    usable_bytes = setup.device.datasheet.usable_bytes
    if usable_bytes is None:
        return
    if not needs.fit(setup.device):
        # It runs although the model says that it cannot: most likely memory spills to the host.
        memory_prior = 0.8
    elif needs.total_bytes > NEARLY_FULL * usable_bytes:
        memory_prior = 0.15
    else:
        memory_prior = 0.02
    yield _suspect_factors("memory", run, SPILL_FACTORS, memory_prior)


def suspect_loops(run: SlowRun) -> Iterator[Suspicion]:
    """Suspect what an iteration holds beside one step, or counts as a token."""
    reads_tokens = _reads_tokens(run.setup)
    is_training = run.setup.workload.phase == "train"
    yield _suspect_factors("first steps", run, FIRST_STEPS_FACTORS, prior=0.06)
    if is_training and run.speed.is_iteration:
        accumulation_prior = 0.15 if reads_tokens else 0.03
        yield _suspect_factors("accumulation", run, ACCUMULATION_FACTORS, accumulation_prior)
    is_padding_counted = bool(run.setup.workload.tuning.padded)
    is_speed_of_tokens = run.speed.unit in {"tokens", "mfu"}
    if reads_tokens and is_speed_of_tokens and not is_padding_counted:
        yield _suspect_factors("padding", run, PADDING_FACTORS, prior=0.06)


def suspect_training(run: SlowRun) -> Iterator[Suspicion]:
    """Suspect settings of a training that the question leaves open, by what each would take."""
    setup = run.setup
    tuning = setup.workload.tuning
    is_eager = setup.model.stack.name == "torch-eager"
    knows_stacks = "stack" in setup.model.method.options
    is_stack_assumed = knows_stacks and "stack" not in run.options
    if is_eager and is_stack_assumed:
        eager_s = run.predicted_s
        compiled_s = _step_s(setup.with_options(stack="torch-compile"))
        if compiled_s is not None and compiled_s < FASTER_SHARE * eager_s:
            yield Suspicion("not compiled", prior=0.05, low_s=eager_s, high_s=eager_s)
        if _reads_tokens(setup):  # `torch-eager-1` runs attention without a fused kernel
            yield from _suspect_step("attention", 0.07, setup.with_options(stack="torch-eager-1"))
    if setup.workload.phase != "train" or not _reads_tokens(setup):
        return
    if tuning.recompute == "none":
        recomputed = replace(tuning, recompute="full")
        workload = replace(setup.workload, tuning=recomputed)
        yield from _suspect_step("recomputation", 0.08, replace(setup, workload=workload))
    if "offload" not in run.options:
        yield _suspect_factors("offload", run, OFFLOAD_FACTORS, prior=0.05)


FINDERS: tuple[Finder, ...] = (
    suspect_input,
    suspect_links,
    suspect_types,
    suspect_layouts,
    suspect_hosts,
    suspect_devices,
    suspect_loops,
    suspect_training,
)


def _suspect_factors(
    cause: str, run: SlowRun, factors: tuple[float, float], prior: float
) -> Suspicion:
    """Return a cause that makes a step so many times as long as predicted."""
    low_s, high_s = (factor * run.predicted_s for factor in factors)
    return Suspicion(cause, prior, low_s, high_s)


def _suspect_share(cause: str, bound: str, run: SlowRun) -> Iterator[Suspicion]:
    """Suspect what the model itself has the step wait for, as predicted or for longer."""
    share = run.setup.path.shares[bound]
    if share >= LARGE_SHARE:
        high_s = run.predicted_s * (1 + share * ADDED_WAIT)
        yield Suspicion(cause, 0.4 + 0.4 * share, run.predicted_s, high_s)


def _suspect_step(cause: str, prior: float, setup: Setup) -> Iterator[Suspicion]:
    """Suspect that another step ran than was asked for."""
    step_s = _step_s(setup)
    if step_s is not None:
        yield Suspicion(cause, prior, step_s, step_s)


def _step_s(setup: Setup) -> float | None:
    """Return the seconds of a step by the model, None where it has no answer."""
    try:
        return setup.path.step_s
    except InputError:
        return None


def _change_dtype(setup: Setup, dtype: str) -> Setup:
    """Return the step in another data type."""
    return replace(setup, workload=setup.workload.with_dtype(dtype))


def _reads_images(setup: Setup) -> bool:
    """Return whether the network convolves images."""
    return any(op.kind.startswith("conv2d") for op in setup.model.graph().ops)


def _reads_tokens(setup: Setup) -> bool:
    """Return whether the network reads tokens."""
    return setup.model.graph().tokens is not None
