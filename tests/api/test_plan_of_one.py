"""A plan of one device is what `predict` says: its seconds, bounds and bytes, under any stack."""

from collections.abc import Iterator
from typing import Any

import pytest

import steptime
from every import every
from steptime.core.errors import InputError

DECODER = "transformer:kind=decoder,layers=2,width=64,heads=4,length=16,vocabulary=90"
MODERN = f"{DECODER},kv_heads=2,norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no"
NETWORKS = {
    "gpt": f"{DECODER},dropout=0.1",
    "llama": MODERN,
    "windows": f"{MODERN.replace('layers=2', 'layers=4')},window=8,windows=wa,sinks=yes",
    "experts": f"{MODERN},experts=8,experts_per_token=2,dense_layers=1",
    "bert": "transformer:kind=encoder,layers=1,width=64,heads=4,length=16,vocabulary=90",
    "fc": "fc:layers=3,nodes=64,inputs=32,outputs=8",
    "cnn": "cnn:block=bottleneck,blocks=1,filters=8,image=32,classes=5",
    "lstm": "rnn:cell=lstm,layers=1,embedding=32,length=4,vocabulary=50",
}
DEVICES = ("a100-sxm4-80gb", "h100-sxm5", "mi300x", "tpu-v4", "core-i9-9900k")
DTYPES = ("float32", "bfloat16", "bfloat16-mixed")
PLAIN = ("torch-eager", "torch-compile", "jax")
SHARDED = ("fsdp-2022", "fsdp-2025", "fsdp-compile-2025", "megatron-2021", "megatron-2025")


def both(model: str, device: str, dtype: str, stack: str | None, batch: int = 4) -> Iterator[Any]:
    """Yield what `predict` and `plan` say: numbers, or why there are none."""
    how: Any = {"dtype": dtype, "optimizer": "adam"}
    try:
        made = steptime.predict(model, device, batch=batch, stack=stack, **how).to_dict()
        yield [made[name] for name in ("step_s", "low_s", "high_s", "needed_bytes")]
    except InputError as error:
        yield str(error)
    try:
        told = steptime.plan(
            model, device, global_batch=batch, microbatch=batch, stack=stack, **how
        ).to_dict()
        yield [told[name] for name in ("step_s", "low_s", "high_s")] + [
            told["memory"]["needed_bytes"]
        ]
    except InputError as error:
        yield str(error)


def hold(model: str, device: str, dtype: str, stack: str | None, batch: int = 4) -> None:
    first, second = both(model, device, dtype, stack, batch)
    if isinstance(first, str):
        assert "no peak is known" in first
        assert "no peak is known" in second
        return
    assert second == pytest.approx(first, rel=1e-9), (device, dtype)


STACKS = (None, *PLAIN, *SHARDED)


THIRDS = (
    0,
    pytest.param(1, marks=pytest.mark.rare),
    pytest.param(2, marks=pytest.mark.rare),
)


@pytest.mark.parametrize("third", THIRDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_plan_of_one_device_is_what_predict_says(name, third):
    """Each network with each stack; the quick third has every type with every of both."""
    at = [*NETWORKS].index(name)
    for number, stack in enumerate(STACKS):
        hold(NETWORKS[name], "h100-sxm5", DTYPES[(at + number + third) % 3], stack)


@pytest.mark.rare
@every("device", DEVICES)
@every("name", ["llama", "experts", "cnn"])
def test_it_is_so_on_any_device(name, device):
    for dtype in DTYPES:
        hold(NETWORKS[name], device, dtype, "megatron-2025" if name == "llama" else None)


@pytest.mark.slow  # each network with one stack; the quick networks have all stacks
@pytest.mark.parametrize(
    ("model", "stack"),
    [
        ("gpt2", "fsdp-2025"),
        ("bert_base", "megatron-2025"),
        ("resnet50", None),
        ("llama3_8b", "megatron-2025"),
    ],
)
def test_it_is_so_of_networks_that_people_have(model, stack):
    for batch in (1, 8):
        hold(model, "h100-sxm5", "bfloat16-mixed", stack, batch)
