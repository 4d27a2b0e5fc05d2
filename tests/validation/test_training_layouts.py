"""Layouts of published trainings: what their columns ask."""

import json
from pathlib import Path
from typing import Any

import pytest

from steptime.core.errors import InputError
from steptime.hardware import catalog
from validation.__main__ import answer, options
from validation.answers import planned
from validation.layouts import layout_of, questions

TITAN = (
    "model,devices,fsdp,tp,pp,cp,local_batch,sequence,precision,compile,async_tp,schedule,"
    "recompute,tokens_per_s_per_device,memory_GiB,device"
)
MEASURED = (
    "model,phase,method,framework,dtype,batch,devices,device,length,plan,what,seconds,"
    "memory_bytes,oom"
)


def asked(path: Path, head: str, *rows: str) -> list[Any]:
    path.write_text("\n".join([head, *rows]) + "\n", "utf-8")
    layout = layout_of(path)
    assert layout is not None
    return [one for _, _, one in questions(path, layout)]


def test_a_pipeline_of_torchtitan_has_as_many_micro_batches_as_devices(tmp_path: Path) -> None:
    """Its states alone are shared out: weights stay, and 32 sequences are 8 times 4."""
    row = "llama3_1_405b,512,8,8,8,1,32,8192,float8,yes,yes,{},full,100,80,h100"
    rows = [row.format(way) for way in ("1F1B", "Interleaved 1F1B")]
    plain, interleaved = asked(tmp_path / "a.csv", TITAN, *rows)
    for question, virtual in ((plain, 1), (interleaved, 2)):
        planner, one = planned(question, "calibrated")
        plan = one.plan
        assert (plan.data, plan.tensor, plan.pipeline, plan.virtual) == (8, 8, 8, virtual)
        assert (plan.zero, one.micro_batch, one.rounds, one.batch) == (1, 4, 8, 256)
        assert planner.stack.name == "fsdp-async-tp-2025"
    assert plain.measured["step_s"] == pytest.approx(256 * 8192 / 100 / 512)


def test_stacks_of_torchtitan_hide_exchanges_of_tensor_ranks_where_they_say_so(
    tmp_path: Path,
) -> None:
    row = "llama3_1_8b,64,8,8,1,1,12,8192,bf16,yes,{},,selective,4000,,h100"
    rows = [row.format(way) for way in ("no", "yes")]
    waits, hides = asked(tmp_path / "a.csv", TITAN, *rows)
    assert [one.texts["stack"] for one in (waits, hides)] == [
        "fsdp-compile-2025",
        "fsdp-async-tp-2025",
    ]
    exposed = [one.reply("calibrated").parts["exposed_s"] for one in (waits, hides)]
    assert 0.4 * exposed[0] < exposed[1] < 0.6 * exposed[0]  # half of it, and little of the data's


def test_a_row_says_whether_it_is_a_training_or_decoding(tmp_path: Path) -> None:
    chip = "bf16,4,256,TPU v6e (Trillium),8192,remat_policy=full,step,4.5,,"
    rows = (
        f"Llama3.1-8B,train,pretrain,maxtext (jax),{chip}",
        "Llama-2-7b,infer,generate,pytorch,bf16-true,1,1,A100-SXM4-40GB,,,token,0.03,,",
        "Llama-2-7b,train,lora,pytorch,bf16-true,1,1,A100-SXM4-40GB,1044,,memory_only,,9e9,",
    )
    training, decoding, part = asked(tmp_path / "a.csv", MEASURED, *rows)
    reply = training.reply("calibrated")
    assert (training.set, reply.stack, reply.devices) == ("MaxText, tpu-v6e", "maxtext-2025", 256)
    assert 0.5 < reply.values["step_s"].value / 4.5 < 1.5
    assert decoding.measured == {"tpot_s": 0.03}
    assert "tpot_s" in decoding.reply("calibrated").values
    assert isinstance(part, InputError)
    assert "trainings of a part of the weights are not asked" in str(part)


def test_whether_a_plan_fits_is_said_of_the_plan_as_it_was_published(tmp_path: Path) -> None:
    """JAX-Toolbox does not say what is recomputed: a step that has no room is asked with it."""
    path = tmp_path / "a.csv"
    head = "model,device,devices,dp,fsdp,tp,batch_per_device,sequence,precision,sequences_per_s"
    row = "gpt-175b,a100-80gb,256,1,256,1,2,2048,te bf16,20,paxml"
    path.write_text(f"{head},framework\n{row}\n", "utf-8")
    found = answer(options([str(path), "--json"])).document
    assert [one["fits"] for one in found["cases"]] == [False]
    assert found["cases"][0]["parts"]["recompute_s"] > 0
    json.dumps(found)


def test_links_of_tpus_are_those_of_their_chips() -> None:
    for name, links in (("tpu-v5p", 6), ("tpu-v6e", 4)):
        each = float(catalog.device(name).details["link_GB_per_s"])
        assert catalog.link(f"ici-{name}").bytes_per_s == links * each * 1e9
