"""Schedules of pipelines: ends are those of the simulation, and none is before the least."""

import itertools
from random import Random

import pytest

from every import every
from steptime.core.errors import InputError
from steptime.planning.pipelines.pipeline import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    PipelineRun,
    Stage,
    simulate,
)
from steptime.planning.pipelines.pipeline_bound import lower_bound, microbatches_in_flight
from steptime.planning.pipelines.pipeline_end import PipelineTimes, end_times

SAME = Stage(1.0, 2.0, 1.0)


def _end_s(flow: PipelineRun) -> float:
    return max(flow.ends_s)


def held_in(flow: PipelineRun, stages: int) -> tuple[int, ...]:
    """Return how many microbatches each stage holds when its device first holds most."""
    devices = len(flow.ends_s)
    most, held, fullest = [0] * devices, [0] * stages, [0] * stages
    ending = WEIGHT if any(event.direction == WEIGHT for event in flow.events) else BACKWARD
    for device, stage, _, direction, _, _ in sorted(flow.events, key=lambda one: one.start_s):
        held[stage] += {FORWARD: 1, ending: -1}.get(direction, 0)
        if sum(held[device::devices]) > most[device]:
            fullest[device::devices] = held[device::devices]
            most[device] = sum(held[device::devices])
    return tuple(fullest)


def _least_s(schedule: str, stages: list[Stage], p: int, m: int, send_s: float = 0.0) -> float:
    return lower_bound(PipelineTimes(schedule, tuple(stages), p, send_s), [0.0] * p).end_s(m)


def _unlike(random: Random, how: int, number: int) -> list[Stage]:
    """Return equal stages, some that have a layer more, or any."""
    if how == 0:
        return [Stage(1.0, 2.1, 0.9)] * number
    if how == 1:
        more = [random.choice((0.0, 0.1)) for _ in range(number)]
        return [Stage(1 + own, 2.1 + 2 * own, 0.9) for own in more]
    return [Stage(random.random(), 1 + 2 * random.random(), random.random()) for _ in range(number)]


@every("seed", range(8))
def test_ends_are_those_of_the_simulation(seed):
    """Fifty pipelines a seed: what each device holds, when it ends, and what it takes at least."""
    random = Random(seed)  # noqa: S311
    for _ in range(50):
        schedule = random.choice(("1f1b", "interleaved", "zero-bubble", "gpipe"))
        p, send_s = random.choice((1, 2, 3, 4, 5, 8)), random.choice((0.0, 0.01, 0.3, 2.0))
        virtual = random.randint(2, 5) if schedule == "interleaved" and p > 1 else 1
        m = random.choice((random.randint(1, 60), p * random.randint(1, 20)))
        stages = _unlike(random, random.randrange(3), p * virtual)
        flow = simulate(schedule, stages, p, m, send_s)
        pipeline = PipelineTimes(schedule, tuple(stages), p, send_s)
        ends = end_times(pipeline, m)
        assert ends == pytest.approx(flow.ends_s, rel=1e-10)
        assert microbatches_in_flight(schedule, p, virtual, m) == held_in(flow, len(stages))
        tails = [random.random() for _ in range(p)]
        whole = max(end + tail for end, tail in zip(ends, tails, strict=True))
        assert lower_bound(PipelineTimes(schedule, tuple(stages), p, send_s), tails).end_s(
            m
        ) <= whole * (1 + 1e-12)


def test_what_repeats_is_skipped():
    """100,000 microbatches are no more work than some hundreds."""
    stages = (
        Stage(1.0, 2.0, 1.0),
        Stage(1.5, 2.5, 1.0),
        Stage(0.5, 1.0, 0.5),
        Stage(1.0, 2.0, 1.0),
    )
    for schedule, virtual in (("1f1b", 1), ("zero-bubble", 1), ("interleaved", 3)):
        pipeline = PipelineTimes(schedule, stages * virtual, 4, 0.25)
        few, some, many = (max(end_times(pipeline, m)) for m in (200, 400, 100_000))
        assert many == pytest.approx(some + (100_000 - 400) * (some - few) / 200)


@every(
    ("schedule", "devices", "virtual", "microbatches"),
    [
        *(("gpipe", p, 1, m) for p, m in ((2, 2), (4, 8), (8, 3))),
        *(("1f1b", p, 1, m) for p, m in ((2, 2), (4, 8), (8, 9))),
        *(("interleaved", p, v, m) for p, v, m in ((2, 2, 4), (4, 3, 8), (8, 12, 16))),
        *(("zero-bubble", p, 1, m) for p, m in ((2, 4), (4, 8), (8, 32))),
    ],
)
def test_the_closed_form_is_the_simulation(schedule, devices, virtual, microbatches):
    stages = [SAME] * (devices * virtual)
    flow = simulate(schedule, stages, devices, microbatches)
    spared = 2 * SAME.weight_s if schedule == "zero-bubble" else 0.0
    waits = (devices - 1) * (SAME.forward_s + SAME.backward_s - spared)  # B makes W's, too
    assert _end_s(flow) == pytest.approx(microbatches * virtual * 3.0 + waits)
    assert _least_s(schedule, stages, devices, microbatches) == pytest.approx(_end_s(flow))


@every("microbatches", range(1, 30))
@every("schedule", ["interleaved", "1f1b", "gpipe", "zero-bubble"])
def test_any_number_of_microbatches(schedule, microbatches):
    virtual = 3 if schedule == "interleaved" else 1
    stages = [SAME] * (4 * virtual)
    flow = simulate(schedule, stages, 4, microbatches)
    assert len(flow.events) == (3 if schedule == "zero-bubble" else 2 * virtual) * 4 * microbatches
    found = _least_s(schedule, stages, 4, microbatches)
    if schedule == "zero-bubble" and microbatches < 7:  # W fills less of the time of draining
        assert 0.9 * _end_s(flow) < found <= _end_s(flow)
    else:
        assert found == pytest.approx(_end_s(flow))


def test_gpipe_goes_back_in_the_reverse_order():
    flow = simulate("gpipe", [SAME] * 2, 2, 3)
    first = [(one.direction, one.microbatch) for one in flow.events if one.device == 0]
    forward, backward = ([(way, i) for i in range(3)] for way in ("forward", "backward"))
    assert first == [*forward, *reversed(backward)]  # what was made last is dropped first


@every("microbatches", [2, 4, 8, 16])
def test_sends_between_stages(microbatches):
    for schedule, virtual, sends in (("interleaved", 3, 11), ("gpipe", 1, 3)):
        stages = [SAME] * (4 * virtual)
        flow = simulate(schedule, stages, 4, microbatches, 0.1)
        dry = _end_s(simulate(schedule, stages, 4, microbatches))
        assert _end_s(flow) == pytest.approx(dry + 2 * sends * 0.1)  # from the first to the last
        pipeline = PipelineTimes(schedule, tuple(stages), 4, 0.1)
        assert end_times(pipeline, microbatches) == flow.ends_s
    waits = _end_s(simulate("1f1b", [SAME] * 4, 4, microbatches, 0.1)) - 3 * (microbatches + 3)
    rounds = microbatches / 4  # of equal stages, each waits for a way there and back
    assert 2 * 3 * 0.1 <= waits + 1e-9 <= 2 * 3 * 0.1 * (1 + rounds)


def test_what_the_page_says_of_bubbles():
    ideal = 8 * 3.0  # 8 microbatches, forward 1 and backward 2
    assert _end_s(simulate("1f1b", [SAME] * 4, 4, 8)) / ideal - 1 == pytest.approx(3 / 8)
    small = Stage(0.5, 1.0)
    found = simulate("interleaved", [small] * 8, 4, 8)
    assert _end_s(found) / ideal - 1 == pytest.approx(3 / (2 * 8))
    held = held_in(found, 8)
    assert held[0] + held[4] == 4 * 2 + 3  # layers / (p v): p v + p - 1
    assert _end_s(simulate("zero-bubble", [SAME] * 4, 4, 8)) == 24 + 3 * (1 + 2 - 2 * 1)


def test_stages_that_differ_wait_for_the_slowest():
    stages = [Stage(1, 2), Stage(1, 2), Stage(1, 2), Stage(2, 4)]
    flow = simulate("1f1b", stages, 4, 8)
    assert _end_s(flow) == pytest.approx(3 * 3 + 8 * 6)  # all once, then 7 more of the slowest
    assert _least_s("1f1b", stages, 4, 8) == pytest.approx(_end_s(flow))
    assert sum(one.end_s - one.start_s for one in flow.events) == 3 * 8 * 3 + 8 * 6


@every("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_a_device_does_one_thing_at_a_time_and_all_of_it(schedule):
    flow = simulate(schedule, [Stage(1, 2.5, 1.1), Stage(1.5, 2, 0.7), Stage(0.7, 3, 1)], 3, 5, 0.2)
    for device in range(3):
        own = sorted(e for e in flow.events if e.device == device)
        own.sort(key=lambda event: event.start_s)
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(own))
    parts = 3 if schedule == "zero-bubble" else 2
    assert len(flow.events) == 3 * 5 * parts


def test_an_unknown_schedule_is_said():
    with pytest.raises(InputError, match="known: gpipe, 1f1b, "):
        simulate("1f2b", [SAME], 1, 1)
