"""Replicas take the same seconds, between the same bounds, in `scale` and in a plan of data alone.

A plan of a language model waits for the slowest of its devices besides, by a share that its stack
says (`straggling`), as 0.04 % of 16 devices.
"""

from math import log1p
from typing import Any

import pytest

import steptime
from steptime.build import make_workload, read_model
from steptime.grids.replicas import ScalingRow, Sync, data_parallel
from steptime.hardware import catalog
from steptime.prediction.fabric import Fabric
from steptime.prediction.steps.step_model import StepModel

DECODER = "transformer:kind=decoder,layers=2,width=64,heads=4,length=16,vocabulary=90"
MODERN = f"{DECODER},kv_heads=2,norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no"
WORDS = {"gpt": DECODER.replace("=64", "=512"), "llama": MODERN, "experts": f"{MODERN},experts=8"}
OTHERS = {
    "resnet50": "resnet50",
    "cnn": "cnn:block=bottleneck,blocks=1,filters=8,image=32,classes=5",
    "fc": "fc",
}
STACKS = ("torch-eager", "torch-compile", "jax", "fsdp-2025", "megatron-2025", "megatron-2021")
INSIDE, BETWEEN, BATCH = "nvlink-3", "infiniband-ndr", 4


def scaled(network: str, device: str, dtype: str, stack: str, replicas: int) -> ScalingRow:
    """Return what `scale` says; a stack that hides no exchange waits for all of it."""
    workload = make_workload(read_model(network), BATCH, dtype, "train", "adam")
    inside = catalog.link(INSIDE)
    fabric = Fabric(catalog.link(BETWEEN), inside, 8, 8) if replicas > 8 else Fabric(inside)
    model = StepModel(workload, device, fabric, options={"stack": stack})
    beside = network in OTHERS.values() or said(stack, "data_hidden") > 0
    (row,) = data_parallel(model, [replicas], BATCH, exchange=Sync("ring", overlap=beside))
    return row


def said(stack: str, name: str) -> float:
    """Return what a stack says of trainings."""
    one = catalog.priors("gpu", stack).get(f"training.{name}")
    return one.value if one else 0.0


def hold(network: str, device: str, dtype: str, stack: str, replicas: int) -> None:
    how: Any = {"dtype": dtype, "stack": stack, "optimizer": "adam"}
    links: Any = {"inside": INSIDE, "link": BETWEEN, "data": replicas}
    told = steptime.plan(
        network, device, BATCH * replicas, microbatch=BATCH, **how, **links
    ).to_dict()
    row = scaled(network, device, dtype, stack, replicas)
    late, after_s = 0.0, 0.0
    if network not in OTHERS.values():
        late = said(stack, "straggling") * log1p((replicas - 1) / said(stack, "straggling_devices"))
        after_s = said(stack, "step_s")
    step_s = (row.step_s - after_s) * (1 + late) + after_s
    assert told["step_s"] == pytest.approx(step_s, rel=1e-9), (device, dtype, replicas)
    assert row.low_s is not None
    assert row.high_s is not None
    assert told["low_s"] == pytest.approx(row.low_s, rel=2 * late + 1e-9)
    assert told["high_s"] == pytest.approx(row.high_s, rel=2 * late + 1e-9)
    exposed = sum(one["exposed_communication_s"] for one in told["exposed_communication"])
    assert exposed == pytest.approx(row.exposed_communication_s, rel=1e-9)


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.rare)])
@pytest.mark.parametrize("name", [*WORDS, "cnn", "fc"])
def test_replicas_take_what_scale_says(name, half):
    """Each network with each stack; the quick half has either place with either number of both."""
    network, at = {**WORDS, **OTHERS}[name], [*WORDS, "cnn", "fc"].index(name)
    for number, stack in enumerate(STACKS):
        for replicas in (2, 16):
            turn = (at + number + half + (replicas == 16)) % 2
            hold(network, *(("a100", "bfloat16-mixed"), ("h100", "float32"))[turn], stack, replicas)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "bert_base", "resnet50"])
def test_it_is_so_of_networks_that_people_have(model):
    for device in ("v100", "mi300x"):
        hold(model, device, "float32", "torch-eager", 16)
