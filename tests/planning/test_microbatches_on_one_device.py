"""One device pays its host in every microbatch, and computes again what `predict` says."""

import pytest

import steptime
from every import every
from steptime.prediction.host import Host

MODEL = "llama3_2_1b"


def plan(microbatches=1, length=128, **options):
    return steptime.plan(
        MODEL, device="h100", length=length, microbatch=1, global_batch=microbatches, **options
    )


def test_rounds_of_a_host():
    """A base of 1 s, then 2, 3 and 4 s of forward, backward and update: 1 + 3 x (2 + 3) + 4."""
    host = Host((3.0, 6.0, 10.0), base_s=1.0)
    assert host.repeat_passes(3).issued_s == (7.0, 16.0, 20.0)
    assert host.repeat_passes(1) == host


def test_no_update_hides_a_host_that_is_late_in_each_microbatch():
    alone = steptime.predict(f"{MODEL}:length=128", "h100", batch=1)
    steps = {count: plan(count).step_s for count in (1, 8, 16)}
    each_s = (steps[16] - steps[8]) / 8
    assert steps[1] == pytest.approx(alone.step_s)
    assert 0.85 * alone.host_s < each_s < alone.host_s  # the host of an update comes once
    assert steps[8] > 7 * each_s


def test_what_trains_more_takes_no_less():
    lora = plan(8, lora="r=16").step_s
    with_embeddings = plan(8, lora="r=16", train="embedding*").step_s
    assert lora <= with_embeddings


@pytest.mark.slow
@every(("length", "recompute"), [(128, "full"), (1024, "full"), (4096, "full"), (1024, "none")])
def test_a_plan_of_one_device_is_the_prediction(length, recompute):
    one = plan(length=length, recompute=recompute)
    step = steptime.predict(f"{MODEL}:length={length}", "h100", batch=1, recompute=recompute)
    assert one.step_s == pytest.approx(step.step_s, rel=1e-9)
    assert one.low_s == pytest.approx(step.low_s, rel=1e-9)
    assert one.high_s == pytest.approx(step.high_s, rel=1e-9)


@pytest.mark.slow
def test_recomputation_takes_longer_as_sequences_grow():
    more = []
    for length in (512, 1024, 2048):
        kept, again = (plan(length=length, recompute=how) for how in ("none", "full"))
        more.append(again.step_s - kept.step_s)
    assert more == sorted(more)
