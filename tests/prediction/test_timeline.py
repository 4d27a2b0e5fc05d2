"""The predicted timeline as a trace: it is as long as the step, and no track holds two at once."""

from itertools import pairwise

from every import every
from steptime.prediction.steps.step_model import StepModel
from steptime.prediction.timeline import DEVICE, TRACKS, make_document, trace_events


@every("method", ["roofline", "analytic", "calibrated", "paleo"])
@every("network", ["fc:layers=2,nodes=64", "resnet18"])
def test_the_timeline_is_as_long_as_the_step(network, method):
    model = StepModel(network, "v100", method=method)
    events = make_document(trace_events(model))["traceEvents"]
    named = [event for event in events if event["ph"] == "M"]
    assert {event["name"] for event in named} == {"process_name", "thread_name"}
    assert {event["args"]["name"] for event in named} > set(TRACKS.values())
    complete = [event for event in events if event["ph"] == "X"]
    assert {frozenset(event) for event in complete} == {
        frozenset({"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"})
    }
    step_us = model.timeline().step_s * 1e6
    assert max(e["ts"] + e["dur"] for e in complete) <= step_us * (1 + 1e-9)
    on_device = sorted((e["ts"], e["dur"]) for e in complete if e["tid"] == DEVICE)
    assert sum(dur for _, dur in on_device) > 0
    for (ts, dur), (after, _) in pairwise(on_device):
        assert ts + dur <= after * (1 + 1e-9)
