"""Causes of a slow run to check, ordered by what was said of it.

A cause has a range of steps that it can explain: the prediction under that cause where the model
can make one (float32, another layout, a slower link), else factors over the prediction that such
faults have. The weight of a cause is its prior times the likelihood of the measured step in that
range, under the spread of the model. Priors are judgements: how often a cause stands behind a slow
run of such a network, by what the question says and what it leaves open.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import erf, exp, log, pi, sqrt

from steptime.core.answer import AnswerRow
from steptime.questions.why.measured_speed import MeasuredSpeed
from steptime.questions.why.setup import Setup

INTERVAL_SDS = 2 * 1.2816  # standard deviations from end to end of an interval of 80 %
NARROWEST_SPREAD, USUAL_SPREAD = 0.15, 0.3  # of the logarithm of a step
FASTER_SHARE = 0.95  # a change is worth a cause if a step takes at most so much of it
MAX_LISTED = 6  # causes that a table shows
LIGHTEST_WEIGHT = 0.005  # share of the weight of all causes


class LikelyCause(AnswerRow, frozen=True, kw_only=True):
    """A possible cause of a slow run, and the test that confirms or excludes it.

    Attributes:
        cause: the cause, in a word.
        description: what the cause means.
        check: how to check it.
        weight: how likely the cause is, as a share over all listed causes, which it orders.
        low_s: shortest step that the cause explains.
        high_s: longest step that the cause explains.
    """

    cause: str
    description: str
    check: str
    weight: float
    low_s: float
    high_s: float


CHECKS = {
    "loader": (
        "the step waits for input",
        (
            "feed the same batch again and again; if that is faster, more loader processes, faster "
            "storage or smaller files help"
        ),
    ),
    "synchronising": (
        "the host waits for the device within a step (.item(), .cpu(), print of a loss, copies)",
        "profile a few steps and look for cudaStreamSynchronize and copies; log each 100th step",
    ),
    "layout": (
        "images do not lie with their channels last, so convolutions miss the fast kernels",
        "model and input .to(memory_format=torch.channels_last); in a profile look for nchwToNhwc",
    ),
    "precision": (
        "products run in float32: no autocast, or it does not reach them",
        "print the dtype of a layer's output inside of the step; turn on AMP (bfloat16, float16)",
    ),
    "clocks": (
        "clocks are low: power cap, heat, power saving, a laptop on battery",
        "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER while it runs; compare its power to the limit",
    ),
    "small batch": (
        "the batch is too small for the device",
        "double the batch: if a step takes hardly longer, it was too small",
    ),
    "communication": (
        "gradients take a slower way than the link allows (TCP, PCIe, the host's memory)",
        "run one replica alone; nvidia-smi topo -m; NCCL_DEBUG=INFO says the way; all_reduce_perf",
    ),
    "slow host": (
        "a slow or busy CPU issues kernels later than the device could run them",
        "look for gaps between kernels in a profile; torch.compile or CUDA graphs close them",
    ),
    "memory": (
        "memory is full: the driver or allocator moves pages to the host, or frees and allocates",
        (
            "halve the batch: if a step takes far less than half, memory was full; look at shared "
            "memory of the GPU and num_alloc_retries"
        ),
    ),
    "accumulation": (
        "an iteration holds several microbatches (gradient accumulation)",
        "divide by the number of microbatches, and ask again",
    ),
    "one replica": (
        "the throughput is of one replica, not of all",
        "multiply by the number of replicas, and ask again",
    ),
    "recomputation": (
        "the backward pass computes layers again (gradient checkpointing)",
        "turn gradient checkpointing off if memory allows, or ask with --recompute full",
    ),
    "attention": (
        "attention runs without a fused kernel and writes its scores",
        "look for flash or efficient attention in a profile; attn_implementation='sdpa'",
    ),
    "not compiled": (
        "elementwise ops run one by one",
        "torch.compile the network",
    ),
    "offload": (
        "weights or states of the optimizer lie in the host's memory",
        "turn offload off if memory allows, or ask with --offload optimizer",
    ),
    "padding": (
        "sequences are padded, so counted tokens are less than computed ones",
        "count the tokens that are no padding; pack sequences, or ask with --padded N",
    ),
    "other work": (
        "something else uses the device",
        "nvidia-smi lists processes; compare with an empty device",
    ),
    "first steps": (
        "the mean holds compilation, warm-up, evaluation or checkpoints",
        "time steps 20 to 120 alone, after torch.cuda.synchronize()",
    ),
    "software": (
        "an old or unfit build lacks kernels for this device",
        "compare versions of CUDA, cuDNN and the framework to the first that know the device",
    ),
    "not on the device": (
        "some of the step runs on the CPU",
        "print the device of parameters and inputs; look at the device's use",
    ),
}
"""What is the case under a cause, and the test for it, by the cause."""


@dataclass(frozen=True)
class SlowRun:
    """A measured step, its question, and which options the person gave.

    Args:
        setup: the step that was asked for.
        speed: the measured step.
        options: names of options that were given, whose values are no guess.
        busy: share of the time in which the device was busy; None where nobody says.
    """

    setup: Setup
    speed: MeasuredSpeed
    options: frozenset[str] = field(default_factory=frozenset)
    busy: float | None = None

    @property
    def predicted_s(self) -> float:
        """Seconds of the step by the model."""
        return self.setup.path.step_s

    @cached_property
    def log_sd(self) -> float:
        """Standard deviation of the logarithm of a prediction."""
        low_s, high_s = self.setup.path.low_s, self.setup.path.high_s
        if low_s is None or high_s is None:
            return USUAL_SPREAD
        return max(NARROWEST_SPREAD, log(high_s / low_s) / INTERVAL_SDS)

    def likelihood(self, low_s: float, high_s: float) -> float:
        """Return the density of the measured step, if the true one lies anywhere in a range.

        The range is even in the logarithm, each step in it is measured with the model's spread.
        """
        step_s = self.speed.step_s
        log_sd = self.log_sd
        # A range below 1 % of the spread counts as one time: the difference below would round to 0.
        is_single_time = high_s <= low_s * exp(log_sd / 100)
        if is_single_time:
            deviation = log(step_s / low_s) / log_sd
            return exp(-deviation * deviation / 2) / (log_sd * sqrt(2 * pi))
        # The mean density over the range, whose logarithm is spread evenly.
        share_above_low = _normal_share(log(step_s / low_s) / log_sd)
        share_above_high = _normal_share(log(step_s / high_s) / log_sd)
        log_width = log(high_s / low_s)
        return (share_above_low - share_above_high) / log_width


def _normal_share(deviation: float) -> float:
    """Return the share of a normal distribution below so many standard deviations."""
    return (1 + erf(deviation / sqrt(2))) / 2


@dataclass(frozen=True)
class Suspicion:
    """A cause that may stand behind a slow run.

    Args:
        cause: its name.
        prior: its weight before the measured step is looked at.
        low_s: shortest step that it explains.
        high_s: longest step that it explains.
    """

    cause: str
    prior: float
    low_s: float
    high_s: float


Finder = Callable[[SlowRun], Iterator[Suspicion]]


def order_causes(run: SlowRun, finders: tuple[Finder, ...]) -> tuple[LikelyCause, ...]:
    """Return the causes that may explain a measured step, the weightiest first."""
    suspicions = [suspicion for find in finders for suspicion in find(run)]
    weights = []
    for suspicion in suspicions:
        # Bayes: the weight before is multiplied by how likely the measured step is under the cause.
        likelihood = run.likelihood(suspicion.low_s, suspicion.high_s)
        weights.append(suspicion.prior * likelihood * _busy_factor(suspicion.cause, run.busy))
    total_weight = sum(weights)
    if not total_weight:
        return ()
    causes = [
        _make_cause(suspicion, weight / total_weight)
        for suspicion, weight in zip(suspicions, weights, strict=True)
        if weight / total_weight >= LIGHTEST_WEIGHT
    ]
    return tuple(sorted(causes, key=lambda cause: -cause.weight))


def _make_cause(suspicion: Suspicion, weight: float) -> LikelyCause:
    description, check = CHECKS[suspicion.cause]
    return LikelyCause(
        cause=suspicion.cause,
        description=description,
        check=check,
        weight=weight,
        low_s=suspicion.low_s,
        high_s=suspicion.high_s,
    )


IDLE_CAUSES = frozenset(
    ("loader", "synchronising", "slow host", "small batch", "not on the device", "offload")
)
NEUTRAL_CAUSES = frozenset(
    ("communication", "memory", "accumulation", "one replica", "first steps", "padding")
)
IDLE_SHARE, BUSY_SHARE = 0.6, 0.9  # of the time: below, a device waits; above, it works
STRONG_FACTOR = 4.0  # between a cause that fits to how busy a device is and one that does not


def _busy_factor(cause: str, busy_share: float | None) -> float:
    """Return the factor of a cause's weight, by the share in which the device was busy.

    Kernels of collectives and copies count as work, so these causes go with both.
    """
    if busy_share is None or cause in NEUTRAL_CAUSES:
        return 1.0
    is_idle = busy_share < IDLE_SHARE
    is_busy = busy_share >= BUSY_SHARE
    if not is_idle and not is_busy:
        return 1.0
    makes_device_idle = cause in IDLE_CAUSES
    # An idle device speaks for causes that make it wait, a busy one for the others.
    does_explain = makes_device_idle == is_idle
    return STRONG_FACTOR if does_explain else 1 / STRONG_FACTOR
