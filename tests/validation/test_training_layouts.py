"""Layouts of published trainings: what their columns ask."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from places import ROOT
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
        "Llama-2-7b,train,lora,pytorch,bf16-true,1,1,A100-SXM4-40GB,1304,,memory_only,,21.3e9,",
    )
    training, decoding, part = asked(tmp_path / "a.csv", MEASURED, *rows)
    reply = training.reply("calibrated")
    assert (training.set, reply.stack, reply.devices) == ("MaxText, tpu-v6e", "maxtext-2025", 256)
    assert 0.5 < reply.values["step_s"].value / 4.5 < 1.5
    assert decoding.measured == {"tpot_s": 0.03}
    assert "tpot_s" in decoding.reply("calibrated").values
    assert part.measured == {"memory_bytes": 21.3e9}
    found = part.reply("calibrated")
    assert (found.stack, found.fits) == ("litgpt-2024", True)
    assert found.values["memory_bytes"].value == pytest.approx(21.3e9, rel=0.02)  # LitGPT's page


def test_peaks_of_memory_of_fine_tuning_are_those_that_were_published() -> None:
    """Rows of LitGPT's tables (2023 and 2024), by hand: bytes of torch's max_memory_allocated."""
    one = "Llama-2-7b,train,lora,pytorch,{},{},1,A100-SXM4-40GB,1304,,memory_only,,{},{}"
    rows = [
        (one.format("bf16-true", 2, 29.07e9, ""), 0.02, True),
        (one.format("bf16-true + bnb.nf4", 1, 14.14e9, ""), 0.05, True),
        (one.format("bf16-true + bnb.nf4-dq", 1, 13.84e9, ""), 0.05, True),
        (one.format("bf16-true", 4, "", "yes"), 0, False),
    ]
    for row, within, fits in rows:
        with TemporaryDirectory() as folder:
            [question] = asked(Path(folder) / "a.csv", MEASURED, row)
        reply = question.reply("calibrated")
        assert reply.fits == question.ran == fits
        if within:
            measured = question.measured["memory_bytes"]
            assert reply.values["memory_bytes"].value == pytest.approx(measured, rel=within)
            assert reply.values["memory_bytes"].value < measured  # as all of them, by a little


def test_a_training_of_less_than_its_weights_and_states_is_not_asked(tmp_path: Path) -> None:
    row = "llama-3.2-3b,train,full,pytorch,bf16-true,4,1,A10G 24GB,512,,memory_only,,16.51e9,"
    [question] = asked(tmp_path / "a.csv", MEASURED, row)
    with pytest.raises(InputError, match="how they are shared is unsaid"):
        question.reply("calibrated")


def test_figures_of_torchtune_are_predicted_as_far_as_they_can_be() -> None:
    """Both ways: no row is nearer or farther than the page of predictions says."""
    path = ROOT / "docs/examples/fine-tuning.csv"
    found = answer(options([str(path), "--json"])).document
    off = {row["quantity"]: row for row in found["rows"]}
    assert len(found["cases"]) == 2 * 6
    assert 0.06 < off["memory_bytes"]["mape"] < 0.12
    assert 0.15 < off["step_s"]["mape"] < 0.25
    others = [
        abs(one["ratio"] - 1)
        for one in found["cases"]
        if one["quantity"] == "step_s" and one["device"] != "rtx-a6000"
    ]
    assert 0.10 < sum(others) / len(others) < 0.16
    assert len(found["unasked"]) == 2


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
