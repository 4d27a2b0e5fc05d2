"""The same question, every way: the bytes that a step needs, and those that a device has.

A plan of a language model is not among them: its stack trains with 32-bit gradients and states
beside 16-bit weights, which `predict` has under another type.
"""

from __future__ import annotations

import pytest

import steptime
from printed import answer
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.device import Device

NETWORKS = {"fc": 64, "cnn": 8, "rnn": 64, "bert_base": 2, "llama3_8b": 1}
DEVICES = ("a100-sxm4-80gb", "h100-sxm5", "mi300x", "tpu-v4", "trainium2", "epyc-7763")
NO_PEAK = {("tpu-v4", "float32"), ("epyc-7763", "bfloat16")}
PLANNED = ("fc", "cnn", "rnn")  # as what they are, not as language models


def _make_marks(model: str, number: int) -> list[pytest.MarkDecorator]:
    """Return the group of a case: of each network a sixth are quick or slow, the others rare.

    The largest network is slow.
    """
    if number % 6 == 0 and model != "llama3_8b":
        return []
    is_slow = number % 6 == 2 and model == "llama3_8b"
    return [pytest.mark.slow if is_slow else pytest.mark.rare]


CASES = [
    pytest.param(model, device, dtype, marks=_make_marks(model, i + j + k))
    for i, model in enumerate(NETWORKS)
    for j, device in enumerate(DEVICES)
    for k, dtype in enumerate(("float32", "bfloat16"))
]


@pytest.mark.parametrize(("model", "device", "dtype"), CASES)
def test_every_way_says_the_same_bytes(capsys, model, device, dtype):
    place: Device = catalog.device(device)
    if dtype not in place.datasheet.peak_flop_per_s:
        assert (device, dtype) in NO_PEAK
        with pytest.raises(InputError, match="no peak is known"):
            steptime.predict(model, device, batch=NETWORKS[model], dtype=dtype)
        return
    of = ("--dtype", dtype, "--batch", str(NETWORKS[model]))
    ways = {
        "predict": answer(capsys, "predict", model, "--device", device, *of),
        "fit": answer(capsys, "fit", model, "--device", device, *of),
        "choose": answer(capsys, "choose", model, "--device", device, *of)["rows"][0],
    }
    if model in PLANNED:
        plan_options = ("--dtype", dtype, "--global-batch", str(NETWORKS[model]))
        plan = answer(capsys, "plan", model, "--device", device, *plan_options)
        ways["plan"] = {**plan, "needed_bytes": plan["memory"]["needed_bytes"]}
    fit, chosen = ways["fit"], ways["choose"]
    if (chosen["status"], chosen["microbatch"]) != ("ok", NETWORKS[model]):
        assert not fit["fits"]  # so that it answers for what does fit, or not at all
        assert (
            any("out of memory by" in note for note in chosen["notes"])
            or chosen["accumulation"] > 1
        )
        del ways["choose"]
        usable = {chosen["usable_bytes"]}
    else:
        usable = set()
    assert {one["needed_bytes"] for one in ways.values()} == {fit["needed_bytes"]}
    assert sum(fit["parts"].values()) == fit["needed_bytes"]
    assert usable | {one["usable_bytes"] for one in ways.values()} == {place.datasheet.usable_bytes}
    assert fit["usable_bytes"] == place.datasheet.usable_bytes
    made = steptime.predict(model, device, batch=NETWORKS[model], dtype=dtype)
    assert made.peak_bytes == fit["peak_bytes"]
    grid = answer(capsys, "predict", model, "--device", device, "--grid", *of)
    assert grid["rows"][0]["peak_bytes"] == fit["peak_bytes"]


def test_what_no_device_holds_is_said_where_no_time_is(capsys):
    """`choose` prices no training that cannot run; `predict` says its step, and that it is none."""
    of = ("llama3_8b", "--batch", "1")
    (chosen,) = answer(capsys, "choose", *of, "--device", "rtx-4090")["rows"]
    made = answer(capsys, "predict", *of, "--device", "rtx-4090")
    assert (chosen["status"], made["status"]) == ("oom", "oom")
    assert chosen["step_s"] is None
    notes = chosen["notes"] if "notes" in chosen else [chosen["note"]]
    assert made["notes"][0] in "; ".join(notes)
    assert "out of memory by" in made["notes"][0]
    assert chosen["needed_bytes"] == made["needed_bytes"]
