import itertools
import time
from pathlib import Path

import pytest

from every import every
from steptime.measure.disturbance import AbsentError, CounterWatch, counter_changes
from steptime.measure.timing import median_half_width, medians_agree, take_samples


class FakeMachine:
    """A clock, and a step that takes the next of the given times; the last goes on for ever."""

    def __init__(self, *times_s):
        self.now_s = 0.0
        self.steps = 0
        self.syncs = 0
        self._times_s = itertools.chain(times_s[:-1], itertools.repeat(times_s[-1]))

    def clock(self):
        return self.now_s

    def step(self):
        self.steps += 1
        self.now_s += next(self._times_s)

    def sync(self):
        self.syncs += 1


def sampled(machine, **options):
    return take_samples(machine.step, machine.sync, clock=machine.clock, **options)


def test_a_sample_holds_as_many_steps_as_fill_ten_milliseconds():
    samples = sampled(FakeMachine(0.001))
    assert samples.steps_per_sample == 11  # 1.1 * 10 ms / 1 ms
    assert len(samples.step_s) == 20
    assert samples.step_s[0] == pytest.approx(0.001)
    assert samples.columns["steps"] == (11,) * 20
    assert samples.steady
    assert not samples.few_samples


def test_the_first_step_is_apart_and_outside_the_budget():
    samples = sampled(FakeMachine(30.0, 0.02), budget_s=1.0)
    assert samples.first_step_s == 30.0
    assert len(samples.step_s) == 20
    assert max(samples.warmup_s + samples.step_s) == pytest.approx(0.02)


def test_warm_up_goes_on_until_two_windows_agree():
    machine = FakeMachine(1.0, *(0.05 - 0.002 * i for i in range(12)), 0.02)
    samples = sampled(machine, budget_s=10.0)
    assert max(samples.step_s) == pytest.approx(0.02)  # no slow step is left in
    assert len(samples.warmup_s) >= 12 + 5
    assert samples.warmup_s[0] == pytest.approx(0.05)
    assert samples.steady


def test_warm_up_takes_at_most_a_third_of_the_budget():
    machine = FakeMachine(*(0.1 * 0.99**i for i in range(1000)), 0.01)
    samples = sampled(machine, budget_s=3.0)
    assert sum(samples.warmup_s) <= 1.0
    assert not samples.steady


def test_at_least_three_samples_even_over_the_budget():
    machine = FakeMachine(5.0)
    samples = sampled(machine, budget_s=3.0)
    assert samples.step_s == (5.0, 5.0, 5.0)
    assert samples.few_samples
    assert machine.steps == 1 + 3  # the first, and three samples: none is spent on warm-up
    assert samples.warmup_s == ()


def test_how_long_the_rest_may_take_is_told_after_the_second_step():
    told = []
    sampled(FakeMachine(5.0), budget_s=3.0, report_start=lambda *found: told.append(found))
    sampled(FakeMachine(0.1), budget_s=3.0, report_start=lambda *found: told.append(found))
    sampled(FakeMachine(20.0, 0.1), budget_s=3.0, report_start=lambda *found: told.append(found))
    # three samples at the least, of which one is there, else the budget; the third compiled
    assert told == [(5.0, 10.0), (0.1, pytest.approx(2.9)), (20.0, pytest.approx(2.9))]


def test_the_budget_ends_sampling():
    samples = sampled(FakeMachine(0.1), budget_s=2.0)
    assert samples.few_samples
    assert 0.1 * (len(samples.warmup_s) + len(samples.step_s)) <= 2.0 + 1e-9
    assert len(samples.step_s) >= 13  # two thirds of the budget


def test_noise_asks_for_more_samples_than_twenty():
    noisy = FakeMachine(*(0.02 + 0.004 * (i * 7 % 11 - 5) / 5 for i in range(1000)), 0.02)
    samples = sampled(noisy, budget_s=2.0)
    assert len(samples.step_s) > 20
    assert len(sampled(FakeMachine(0.02), budget_s=2.0).step_s) == 20


def test_a_sample_that_turns_out_too_short_is_warm_up():
    machine = FakeMachine(*[0.004] * 60, 0.001)
    samples = sampled(machine)
    assert all(
        n * t >= 0.010 for n, t in zip(samples.columns["steps"], samples.step_s, strict=True)
    )
    assert samples.step_s[-1] == pytest.approx(0.001)


def test_a_drift_is_not_steady():
    machine = FakeMachine(*(0.02 * 1.002**i for i in range(200)), 0.02)
    assert not sampled(machine).steady


def test_the_device_is_synchronised_before_and_after_each_sample():
    machine = FakeMachine(0.02)
    samples = sampled(machine)
    assert machine.syncs == 2 * (1 + len(samples.warmup_s) + len(samples.step_s))


def test_a_backend_may_bring_its_own_timer():
    machine = FakeMachine(0.02)

    def events(step, steps):
        for _ in range(steps):
            step()
        return 0.015 * steps

    samples = sampled(machine, timer=events)
    assert set(samples.step_s) == {0.015}
    assert samples.first_step_s == 0.02  # by the clock: compiling is work of the host


def test_a_clock_that_stands_still_at_first_does_no_harm():
    assert sampled(FakeMachine(0.0, 0.0, 0.0, 1e-7)).steps_per_sample == pytest.approx(
        110_000, 0.01
    )


def test_what_the_step_raises_passes_through():
    def step():
        raise MemoryError("full")

    with pytest.raises(MemoryError, match="full"):
        take_samples(step, lambda: None)


def test_windows_agree_within_one_percent_or_their_noise():
    assert medians_agree([1.0] * 5, [1.009] * 5)
    assert not medians_agree([1.0] * 5, [1.011] * 5)
    noisy = [0.9, 0.95, 1.0, 1.05, 1.1]  # deviations 0.05: sigma 0.074, error of a difference 0.059
    assert medians_agree(noisy, [t + 0.11 for t in noisy])
    assert not medians_agree(noisy, [t + 0.13 for t in noisy])


def test_the_half_width_of_a_median():
    # n = 20: ranks (20 - 8.77) / 2 = 5.6 down to 5, and 1 + 14.4 = 15.4 up to 16
    assert median_half_width(range(101, 121)) == pytest.approx((116 - 105) / 2 / 110.5)
    assert median_half_width([2.0, 2.0, 2.0]) == 0.0


class Counters:
    """Readers that give the given numbers one after another."""

    def __init__(self, **values):
        self.table = {name: self._opened(list(numbers)) for name, numbers in values.items()}

    @staticmethod
    def _opened(numbers):
        return lambda: lambda: numbers.pop(0) if len(numbers) > 1 else numbers[0]


def test_samples_carry_what_the_watch_saw():
    readings = [*[0.0] * 4, 0.009, 0.009]  # two of the step that is tried first
    watch = CounterWatch(Counters(waited_s=readings).table)
    samples = sampled(FakeMachine(0.02), watch=watch)
    assert samples.columns["waited_s"][:3] == (0.0, 0.009, 0.0)
    assert samples.columns["disturbed"][:3] == (False, True, False)
    assert len(samples.columns["disturbed"]) == len(samples.step_s)


def test_an_absent_counter_is_none_with_its_reason():
    def missing():
        raise AbsentError("no such file")

    watch = CounterWatch({"throttles": missing})
    assert watch.absent == {"throttles": "no such file"}
    assert watch.read() == {"throttles": None}
    seen = counter_changes(watch.read(), watch.read(), 0.01)
    assert seen == {"throttles": None, "disturbed": False}


@every(
    ("counter", "quiet", "disturbed"),
    [
        ("throttles", 0, 1),
        ("waited_s", 0.0004, 0.0006),  # 5 % of 10 ms
        ("involuntary_switches", 1, 10_000),
    ],
)
def test_what_marks_a_sample_as_disturbed(counter, quiet, disturbed):
    assert not counter_changes({counter: 5.0}, {counter: 5.0 + quiet}, 0.01)["disturbed"]
    assert counter_changes({counter: 5.0}, {counter: 5.0 + disturbed}, 0.01)["disturbed"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
def test_a_watch_closes_its_files():
    def files():
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    CounterWatch().read()
    before = files()
    for _ in range(20):
        CounterWatch().read()
    assert files() == before


def test_watching_this_machine_costs_little():
    watch = CounterWatch()
    first = watch.read()
    assert set(first) == {"involuntary_switches", "waited_s", "steal_s", "throttles"}
    assert all((first[name] is None) == (name in watch.absent) for name in first)
    times_s = []
    for _ in range(200):
        start_s = time.perf_counter()
        watch.read()
        times_s.append(time.perf_counter() - start_s)
    assert min(times_s) < 0.01 * 0.010  # a hundredth of a sample, however slow the kernel is
