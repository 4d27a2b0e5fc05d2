"""The commands `fit` and `choose`: their documents, what they print, and wrong command lines."""

from __future__ import annotations

import json
import shlex

import pytest

import steptime
from printed import answer
from steptime.cli.main import run
from steptime.core.tables.text_table import text
from steptime.core.toml_files import DATA
from steptime.hardware import catalog
from steptime.hardware.device import KINDS

EIGHT = """
name = "mine"
kind = "gpu"
source = "me"
memory_GB = 1
memory_GB_per_s = 300
tdp_W = 70
[peak_TFLOP_per_s]
float32 = 8
float16 = 65
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(EIGHT)
    return str(path)


def test_fit(capsys, mine):
    words = ("fit", "resnet18", "--device", mine, "--batch", "4", "--method", "analytic")
    found = answer(capsys, *words)
    assert found["fits"] is True
    rows = {row["batch"]: row for row in found["rows"]}
    largest, best = found["largest_batch"], found["best_batch"]
    assert {1, 2, 4, 8, best, largest} <= set(rows)
    assert rows[largest]["peak_bytes"] <= 1e9
    again = answer(capsys, *words[:-3], str(largest + 1), *words[-2:])
    assert (again["fits"], again["largest_batch"]) == (False, largest)
    assert rows[best]["examples_per_s"] >= 0.9 * max(r["examples_per_s"] for r in rows.values())
    parts = ("weights", "state", "inputs", "gradients", "activations", "temporaries", "copies")
    assert sum(found[f"{part}_bytes"] for part in parts) == found["peak_bytes"]
    assert sum(found["parts"].values()) == found["needed_bytes"]
    assert found["usable_bytes"] == 1e9
    assert found["worst_moment"].startswith("in the backward pass, at ")
    assert next(one for one in found["helps"] if one["change"] == "batch 2")["saves_bytes"] > 0
    assert found["context_bytes"] is None
    assert any(note.startswith("memory is at least what is said") for note in found["notes"])
    assert run([*words]) == 0
    said = capsys.readouterr().out
    assert "yes: batch 4 needs" in said
    assert "largest" in said.splitlines()[-1]


def test_the_cap_of_the_search_is_not_called_the_largest_batch(capsys):
    words = ("fit", "fc:layers=1,nodes=8,inputs=8,outputs=8", "--device", "h100")
    words += ("--batch", "4194304")
    found = answer(capsys, *words)
    assert (found["largest_batch"], found["capped_batch"]) == (None, 4194304)
    assert run([*words]) == 0
    printed = capsys.readouterr().out
    assert "fits at least  batch 4,194,304; no larger one was tried" in printed
    assert "largest" not in printed


def test_what_fits_an_a100_is_not_refused(capsys):
    """8.03e9 parameters: 2 of weight, 2 of gradient, 4 of moments, 2 of Adam's temporaries."""
    words = ("fit", "llama3_8b", "--device", "a100", "--dtype", "bf16", "--optimizer", "adam")
    found = answer(capsys, *words)
    assert found["peak_bytes"] == pytest.approx(10 * 8.0303e9, rel=1e-3)
    assert found["usable_bytes"] == pytest.approx(0.99 * 80 * 2**30)
    assert (found["fits"], found["worst_moment"]) == (True, "at the optimizer step")


def test_every_command_names_the_same_memory_of_a_card(capsys):
    device = ("--device", "a100-sxm4-80gb")
    found = [answer(capsys, command, "gpt2", *device) for command in ("predict", "plan")]
    found.append(answer(capsys, "serve", "gpt2", *device, "--input", "512"))
    fitted = answer(capsys, "fit", "gpt2", *device)
    has = {one["usable_bytes"] for one in (*found, fitted)}
    assert has == {catalog.device("a100").datasheet.usable_bytes}


@pytest.mark.slow
def test_fit_says_no_and_unknown(capsys):
    found = answer(capsys, "fit", "llama_7b", "--device", "t4", "--optimizer", "adam")
    assert (found["fits"], found["largest_batch"], found["best_batch"]) == (False, 0, None)
    assert any(note.startswith("out of memory by ") for note in found["notes"])
    assert run(["fit", "llama_7b", "--device", "t4", "--optimizer", "adam"]) == 0
    printed = capsys.readouterr()
    assert "out of memory by " in printed.out
    assert "out of memory" not in printed.err
    assert not any("at least" in note for note in found["notes"])
    cpu = answer(capsys, "fit", "fc", "--device", "epyc-7763")
    assert (cpu["fits"], cpu["largest_batch"]) == (None, None)
    assert any("memory of epyc-7763 is unknown" in note for note in cpu["notes"])


@pytest.mark.slow
def test_gpus_of_phones_are_chosen_where_they_are_asked_for(capsys):
    phones = {
        one.name for one in catalog.devices() if one.datasheet.details.get("used_in") == "phones"
    }
    assert "adreno-640" in phones
    for words, are in (("all", False), ("gpu", True), ("t4,adreno-640", True)):
        line = ("choose", "fc", "--method", "analytic", "--device", words)
        found = {row["device"] for row in answer(capsys, *line)["rows"]}
        assert (phones <= found, bool(phones & found)) == (are, are)


def test_choose(capsys, mine):
    words = ["choose", "resnet18", "--device", f"t4,h100,K40,{mine}", "--examples", "1000"]
    found = answer(capsys, *words, "--method", "analytic")
    assert found["rows"][0]["device"] == "h100-sxm5"
    times = [row["train_s"] for row in found["rows"]]
    assert times == sorted(times)
    row = found["rows"][0]
    assert row["train_s"] == pytest.approx(1000 / row["batch"] * row["step_s"])
    assert row["cost_total"] == pytest.approx(row["cost_per_hour"] * row["train_s"] / 3600)
    assert any(note.startswith("prices are of a date") for note in found["notes"])
    by_cost = answer(capsys, *words, "--sort", "cost", "--batch", "8")
    assert {row["batch"] for row in by_cost["rows"]} == {8}
    needs = answer(capsys, "fit", "resnet18", "--device", "t4", "--batch", "8")["needed_bytes"]
    assert next(r for r in by_cost["rows"] if r["device"] == "t4")["needed_bytes"] == needs
    costs = [row["cost_total"] for row in by_cost["rows"]]
    known = [cost for cost in costs if cost is not None]
    assert costs == [*sorted(known), *[None] * (len(costs) - len(known))]
    assert run(words) == 0
    said = capsys.readouterr().out
    assert "cost in USD" in said
    assert "step, at least" not in said
    assert run([*words, "--method", "roofline"]) == 0
    assert "step, at least" in capsys.readouterr().out


def test_choose_names_the_next_command_where_no_device_holds_the_step(capsys, mine):
    words = ("choose", "llama_7b", "--device", mine, "--method", "analytic", "--lora", "r=8")
    found = answer(capsys, *words)
    assert [row["status"] for row in found["rows"]] == ["oom"]
    command = found["notes"][-1].partition("for changed steps that fit: ")[2]
    program, *words_of_fit = shlex.split(command)
    assert program == "steptime"
    assert words_of_fit[:4] == ["fit", "llama_7b", "--device", "mine"]
    assert words_of_fit[words_of_fit.index("--lora") + 1] == "r=8"
    assert run(["choose", "bert_base", "--device", mine, "--method", "analytic"]) == 0
    assert "1 device too small for the step: mine" in capsys.readouterr().err


def test_choose_shows_cost_and_best_batch_in_80_columns():
    """The first columns are the device, its cost and its best batch; devices are typed rows."""
    compared = steptime.choose(
        "llama3_8b", "t4,h100,a100", batch=8, dtype="bfloat16", optimizer="adam"
    )
    lines = text(compared.tables()[0], 80).splitlines()
    (head,) = [line for line in lines if line.lstrip().startswith("device")]
    assert head.split()[:4] == ["device", "cost", "best", "batch"]
    unfit = compared.rows[-1]
    assert (unfit.device, unfit.status, unfit.cost_total) == ("t4", "oom", None)
    assert unfit.notes[0].startswith("one example: out of memory")


def test_choose_of_intervals_and_kinds(capsys):
    words = ["choose", "resnet18", "--device", "t4,v100", "--batch", "64"]
    for row in answer(capsys, *words, "--method", "calibrated")["rows"]:
        assert row["low_s"] < row["step_s"] < row["high_s"]
    tpus = answer(capsys, "choose", "fc", "--device", "tpu", "--dtype", "bfloat16")["rows"]
    assert {row["device"] for row in tpus} >= {"tpu-v3", "tpu-v5e"}
    assert next(row for row in tpus if row["device"] == "tpu-v1")["status"] == "unsupported"


def test_predict_says_what_is_doubted(capsys, mine):
    words = ("predict", "fc", "--device", "rtx-3080-laptop", "--method", "analytic")
    found = answer(capsys, *words)
    assert found["device_unverified"] == ["clock_MHz", "tdp_W"]
    assert "one setting of several" in found["device_note"]
    assert run(words) == 0
    assert "Tensor peaks are arithmetic" not in "".join(capsys.readouterr())
    assert run([*words, "--sources"]) == 0
    told = capsys.readouterr()
    assert "Tensor peaks are arithmetic" in told.out
    said = told.err
    assert "not verified: clock_MHz, tdp_W of rtx-3080-laptop\n" in said
    assert run(["predict", "fc", "--device", mine, "--method", "analytic"]) == 0
    assert capsys.readouterr().err == ""


def test_the_speed_of_a_language_model_is_in_tokens_too(capsys):
    words = ("predict", "gpt2:length=128", "--device", "a100", "--batch", "4")
    found = answer(capsys, *words)
    assert found["tokens"] == 4 * 128
    assert run(words) == 0
    per_s = f"{512 / found['step_s']:,.0f} tokens/s (128 tokens each)"
    assert per_s in capsys.readouterr().out


@pytest.mark.parametrize("method", ["analytic", "roofline", "calibrated"])
def test_a_device_of_eight_numbers_works(capsys, mine, method):
    for dtype in ("float32", "float16-mixed"):
        said = ("--dtype", dtype, "--method", method)
        predicted = answer(capsys, "predict", "resnet18", "--device", mine, "--batch", "4", *said)
        assert predicted["step_s"] > 0
        (row,) = answer(capsys, "choose", "resnet18", "--device", mine, "--batch", "4", *said)[
            "rows"
        ]
        assert row["step_s"] == pytest.approx(predicted["step_s"])
        assert row["energy_max_j"] == pytest.approx(70 * row["train_s"])


def test_why_from_paleo_ends_with_the_calibrated_step_and_its_ops(capsys):
    """Bounds have no upper end; the step and the ops are those that `predict` says."""
    device = str(DATA / "devices/titan_x.toml")
    asked = ["alexnet_v2", "--device", device, "--batch", "16", "--json"]
    assert run(["why", *asked, "--from", "paleo"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert run(["predict", *asked]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert document["calibrated_s"] == predicted["step_s"]
    assert (document["low_s"], document["high_s"]) == (predicted["low_s"], predicted["high_s"])
    assert all(row["high_s"] is None for row in document["rows"])
    own = [
        {key: one[key] for key in ("name", "step_s", "low_s", "high_s")} for one in document["ops"]
    ]
    assert own == [{key: one[key] for key in own[0]} for one in predicted["ops"]]
    assert all(one["low_s"] <= one["step_s"] <= one["high_s"] for one in own)


@pytest.mark.rare  # test_adapter_advice.py asks a command that is named again
def test_where_a_step_does_not_fit_each_command_that_is_named_does(capsys):
    words = "fit llama3_8b --device rtx-4090 --dtype bfloat16 --optimizer adam --batch 1 --json"
    assert run(words.split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is False
    assert any("--lora r=16 --weights nf4" in one for one in told["would_fit"])
    for command in told["would_fit"]:
        assert answer(capsys, *shlex.split(command)[1:])["fits"] is True
    assert answer(capsys, *shlex.split(told["would_fit"][0])[1:])["would_fit"] == []


def test_the_largest_batch_that_fits_comes_first(capsys):
    told = answer(capsys, "fit", "resnet50", "--device", "t4", "--batch", "1024")
    assert told["would_fit"][0].split()[-2:] == ["--batch", str(told["largest_batch"])]


@pytest.mark.rare  # test_adapter_advice.py asks a command that is named again
def test_what_would_fit_is_asked_with_the_same_options(capsys):
    words = (
        "fit llama3_8b:length=4096 --device rtx-4090 --dtype bfloat16 --optimizer adam --batch 1 "
        "--lora 8 --option stack=hf-2025 --json"
    )
    assert run(words.split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["would_fit"]
    for command in told["would_fit"]:
        said = shlex.split(command)[1:]
        assert {"--lora", "stack=hf-2025", "llama3_8b:length=4096"} <= {*said}
        assert answer(capsys, *said)["fits"] is True


@pytest.mark.slow
def test_what_helps_names_recompute_where_layers_can_be_computed_again(capsys):
    words = ("fit", "gpt2", "--device", "t4", "--batch", "64")
    found = answer(capsys, *words)
    assert found["fits"] is False
    (again,) = [one for one in found["helps"] if one["change"] == "full recompute"]
    less = answer(capsys, *words, "--recompute", "full")
    assert again["saves_bytes"] == found["needed_bytes"] - less["needed_bytes"] > 0
    assert run(words) == 0
    assert "full recompute saves" in capsys.readouterr().out
    assert run([*words[:-1], "1"]) == 0
    assert "what helps" not in capsys.readouterr().out
    for model in ("rnn", "resnet18"):  # which have no layers that could be
        found = answer(capsys, "fit", model, "--device", "t4", "--batch", "100000")
        assert found["fits"] is False
        assert "full recompute" not in [one["change"] for one in found["helps"]]


@pytest.mark.slow
def test_commands_that_would_fit_keep_the_settings_that_were_given(capsys):
    """`fit` names commands with the stack, the layout, TF32 and the host that were asked for."""
    settings = ["--host", "slow", "--tf32", "off", "--stack", "torch-compile"]
    model = ["llama3_8b", "--device", "rtx-4090", "--dtype", "bfloat16"]
    found = answer(capsys, "fit", *model, *settings)
    commands = found["would_fit"]
    for line in (command for command in commands if command.startswith("steptime fit")):
        for option in ("--host slow", "--tf32 off", "--stack torch-compile"):
            assert option in line
    plans = [command for command in commands if command.startswith("steptime plan")]
    assert plans
    for line in plans:
        for option in ("host=slow", "tf32=off", "stack=torch-compile"):
            assert f"--option {option}" in line


def test_the_help_of_choose_names_every_kind_of_device():
    assert f"a kind ({', '.join(KINDS)})" in " ".join(str(steptime.choose.__doc__).split())
    assert {row.device for row in steptime.choose("fc", "asic").rows} >= {"gaudi3", "trainium2"}
