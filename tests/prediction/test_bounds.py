"""Between which seconds a step lies: around its value, by one sum, exchanges included."""

from __future__ import annotations

import random

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.device import Cluster, Device, Link
from steptime.network.ops.ranks import rank_graph
from steptime.prediction import METHODS, cost_model
from steptime.prediction.calibrated.recurrent import recurrent
from steptime.prediction.host import Host, bound_step
from steptime.prediction.kernel import Kernel
from steptime.prediction.steps.step_model import StepModel

MODELS = (
    "fc:layers={n},nodes=128,inputs=32,outputs=8",
    "cnn:block=bottleneck,blocks={n},filters=8,image=32,classes=5",
    "rnn:cell=lstm,layers={n},embedding=32,length=4,vocabulary=50",
    "transformer:kind=decoder,layers={n},width=64,heads=4,length=16,vocabulary=90",
    "transformer:kind=encoder,layers={n},width=128,heads=8,length=32,vocabulary=90",
)
DEVICES = tuple(catalog.devices())
STACKS = ("torch-eager", "torch-compile", "jax")
DTYPES = ("float32", "bfloat16", "float16-mixed")


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (1, 200),
        pytest.param(2, 10_000, marks=pytest.mark.rare),
    ],
)
def test_bounds_enclose_every_drawn_question(seed, count):
    draw = random.Random(seed)  # noqa: S311  # no secret
    answered = 0
    while answered < count:
        text = draw.choice(MODELS).format(n=draw.choice((1, 2, 3)))
        phase, batch = draw.choice(("train", "infer")), draw.choice((1, 3, 16, 64))
        work = make_workload(read_model(text), batch, draw.choice(DTYPES), phase)
        method = draw.choice(tuple(METHODS))
        stacks = "stack" in cost_model(method).options
        options = {"stack": draw.choice(STACKS)} if stacks else {}
        for device in draw.sample(DEVICES, 30):
            try:
                made = StepModel(work, device, method=method, options=options).timeline()
            except InputError:  # no peak of the type
                continue
            low, high = made.low_s, made.high_s
            assert low is not None
            assert (high is None) == (method != "calibrated")  # others are lower bounds
            most = made.step_s if high is None else high
            assert 0 <= low <= made.step_s <= most, (work.label, device, method, options)
            answered += 1


def test_bounds_hold_the_exchanges_of_ops():
    work = make_workload(read_model(MODELS[3].format(n=2)), 4, "bfloat16")
    graph = rank_graph(build_step(work), 2)
    device = catalog.device("a100-sxm4-80gb")
    quick, made = (
        StepModel(work, device, Cluster(device, ((2, link),)), graph=graph).timeline()
        for link in (Link("quick", 0.0, 1e15, "by hand"), catalog.link("ethernet-1"))
    )
    assert made.exposed_s > 0.4 * made.step_s > 10 * quick.exposed_s  # which is started, too
    assert made.low_s is not None
    assert made.high_s is not None
    assert quick.low_s is not None
    alone_s = quick.low_s - quick.exposed_s
    assert quick.low_s < made.low_s < alone_s + made.exposed_s  # the link may be quicker, too
    assert made.low_s < made.step_s < made.high_s


def test_what_constants_leave_over_keeps_the_ends_apart():
    """Of one host that is like the fastest end of a step: that end alone would be prolonged."""
    host = Host(
        (4.0, 4.0, 4.0), waits=False, end_factors=(0.5, 2.0), measured_steps=((2.0, 5.0, 5.0),)
    )
    passes, low, high = bound_step((8.0, 0.0, 0.0), (0.9, 1.1), host)
    assert 0 < low <= sum(passes) <= high


def test_recurrent_weights_are_as_large_as_their_type():
    device: Device = catalog.device("v100-sxm2-16gb").with_figures(l2_bytes=1.0)
    seen = StepModel("fc", device, dtype="float16").effective_device

    def again(dtype: str) -> float:
        kernel = Kernel(
            "a", "lstm", "forward", dtype, "matrix", 1e9, 1.0,
            ((1, 64, 4096, 1024), (8, 8, 4096, 1024)), 8, 8,
        )  # fmt: skip
        return float(recurrent(kernel, seen, seen.constants).memory_s)

    assert again("float32") == pytest.approx(2 * again("float16"))
