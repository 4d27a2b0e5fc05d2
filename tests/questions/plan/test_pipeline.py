"""Schedules of pipelines: closed forms equal the simulation where stages are equal."""

import itertools

import pytest

from steptime.core.errors import InputError
from steptime.questions.plan.pipeline import Flow, Stage, pace, simulate
from steptime.questions.plan.step import most_held

SAME = Stage(1.0, 2.0, 1.0)


def _end_s(flow: Flow) -> float:
    return max(flow.ends_s)


@pytest.mark.parametrize(
    ("schedule", "devices", "virtual", "micro_batches"),
    [
        *(("gpipe", p, 1, m) for p, m in ((2, 2), (4, 8), (8, 3))),
        *(("1f1b", p, 1, m) for p, m in ((2, 2), (4, 8), (8, 9))),
        *(("interleaved", p, v, m) for p, v, m in ((2, 2, 4), (4, 3, 8), (8, 12, 16))),
        *(("zero-bubble", p, 1, m) for p, m in ((2, 4), (4, 8), (8, 32))),
    ],
)
def test_the_closed_form_is_the_simulation(
    schedule: str, devices: int, virtual: int, micro_batches: int
) -> None:
    stages = [SAME] * (devices * virtual)
    flow = simulate(schedule, stages, devices, micro_batches)
    spared = 2 * SAME.weight_s if schedule == "zero-bubble" else 0.0
    waits = (devices - 1) * (SAME.forward_s + SAME.backward_s - spared)  # B makes W's, too
    assert _end_s(flow) == pytest.approx(micro_batches * virtual * 3.0 + waits)
    assert pace(schedule, stages, devices).length_s(micro_batches) == pytest.approx(_end_s(flow))
    assert flow.most_held == most_held(schedule, devices, virtual, micro_batches)


@pytest.mark.parametrize("micro_batches", range(1, 30))
@pytest.mark.parametrize("schedule", ["interleaved", "1f1b", "gpipe", "zero-bubble"])
def test_any_number_of_micro_batches(schedule: str, micro_batches: int) -> None:
    virtual = 3 if schedule == "interleaved" else 1
    stages = [SAME] * (4 * virtual)
    flow = simulate(schedule, stages, 4, micro_batches)
    assert len(flow.events) == (3 if schedule == "zero-bubble" else 2 * virtual) * 4 * micro_batches
    assert pace(schedule, stages, 4).length_s(micro_batches) == pytest.approx(_end_s(flow))


def test_gpipe_goes_back_in_the_reverse_order() -> None:
    flow = simulate("gpipe", [SAME] * 2, 2, 3)
    first = [(one.direction, one.micro_batch) for one in flow.events if one.device == 0]
    forward, backward = ([(way, i) for i in range(3)] for way in ("forward", "backward"))
    assert first == [*forward, *reversed(backward)]  # what was made last is dropped first


@pytest.mark.parametrize("micro_batches", [2, 4, 8, 16])
def test_sends_between_stages(micro_batches: int) -> None:
    for schedule, virtual, sends in (("interleaved", 3, 11), ("gpipe", 1, 3)):
        stages = [SAME] * (4 * virtual)
        flow = simulate(schedule, stages, 4, micro_batches, 0.1)
        dry = _end_s(simulate(schedule, stages, 4, micro_batches))
        assert _end_s(flow) == pytest.approx(dry + 2 * sends * 0.1)  # from the first to the last
        assert pace(schedule, stages, 4, 0.1).length_s(micro_batches) == pytest.approx(_end_s(flow))
    waits = _end_s(simulate("1f1b", [SAME] * 4, 4, micro_batches, 0.1)) - 3 * (micro_batches + 3)
    rounds = micro_batches / 4  # of equal stages, each waits for a way there and back
    assert 2 * 3 * 0.1 <= waits + 1e-9 <= 2 * 3 * 0.1 * (1 + rounds)


def test_what_the_page_says_of_bubbles() -> None:
    ideal = 8 * 3.0  # 8 micro-batches, forward 1 and backward 2
    assert _end_s(simulate("1f1b", [SAME] * 4, 4, 8)) / ideal - 1 == pytest.approx(3 / 8)
    small = Stage(0.5, 1.0)
    found = simulate("interleaved", [small] * 8, 4, 8)
    assert _end_s(found) / ideal - 1 == pytest.approx(3 / (2 * 8))
    assert found.most_held[0] + found.most_held[4] == 4 * 2 + 3  # layers / (p v): p v + p - 1
    assert _end_s(simulate("zero-bubble", [SAME] * 4, 4, 8)) == 24 + 3 * (1 + 2 - 2 * 1)


def test_stages_that_differ_wait_for_the_slowest() -> None:
    stages = [Stage(1, 2), Stage(1, 2), Stage(1, 2), Stage(2, 4)]
    flow = simulate("1f1b", stages, 4, 8)
    assert _end_s(flow) == pytest.approx(3 * 3 + 8 * 6)  # all once, then 7 more of the slowest
    assert pace("1f1b", stages, 4).length_s(8) == pytest.approx(_end_s(flow))
    waits = sum(57 - end for end in flow.ends_s) + sum(flow.idle_s)
    assert waits == pytest.approx(4 * 57 - (3 * 8 * 3 + 8 * 6))


def test_sending_fills_and_drains() -> None:
    flow = simulate("gpipe", [SAME] * 4, 4, 8, send_s=0.1)
    assert _end_s(flow) == pytest.approx(33 + 2 * 3 * 0.1)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_a_device_does_one_thing_at_a_time_and_all_of_it(schedule: str) -> None:
    flow = simulate(schedule, [Stage(1, 2.5, 1.1), Stage(1.5, 2, 0.7), Stage(0.7, 3, 1)], 3, 5, 0.2)
    for device in range(3):
        own = sorted(e for e in flow.events if e.device == device)
        own.sort(key=lambda event: event.start_s)
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(own))
    parts = 3 if schedule == "zero-bubble" else 2
    assert len(flow.events) == 3 * 5 * parts


def test_an_unknown_schedule_is_said() -> None:
    with pytest.raises(InputError, match="did you mean '1f1b'"):
        simulate("1f2b", [SAME], 1, 1)
