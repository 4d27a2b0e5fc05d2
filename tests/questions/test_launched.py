"""`fit`, `plan` and `serve` of launch commands and recipes, beside the same question by options."""

import json

import pytest

import steptime
from steptime.cli.main import run
from steptime.core.errors import InputError

SERVING = "vllm serve Qwen/Qwen3-8B -tp 2 --kv-cache-dtype fp8 --max-model-len 4096 --port 80"
TRAINING = (
    "accelerate launch --num_processes 8 --use_fsdp train.py --model_name_or_path Qwen/Qwen3-8B "
    "--bf16 --per_device_train_batch_size 1 --gradient_checkpointing true --max_length 4096"
)
ADAPTER = (
    "trl sft --model_name_or_path meta-llama/Llama-3.2-1B --use_peft --lora_r 8 "
    "--lora_target_modules q_proj v_proj --load_in_4bit --max_length 512 --bf16"
)


def test_a_serving_command_is_the_same_server():
    launched = steptime.serve(SERVING, "h100")
    server = steptime.serve("qwen3_8b", "h100", tensor=2, kv="float8", stack="vllm")
    names = ("tpot_s", "ttft_low_s", "ttft_high_s", "output_tokens_per_s", "needed_bytes")
    assert [getattr(launched, name) for name in names] == [getattr(server, name) for name in names]
    assert launched.understood["tensor"] == 2
    assert launched.not_used == ("--port 80",)
    assert server.understood is None


def test_a_training_command_is_the_same_plan():
    launched = steptime.plan(TRAINING, "h100")
    plan = steptime.plan(
        "qwen3_8b",
        "h100",
        8,
        length=4096,
        data=8,
        zero=3,
        microbatch=1,
        dtype="bfloat16-mixed",
        optimizer="adamw",
        recompute="full",
        inside="nvlink-4",
    )
    names = ("step_s", "low_s", "high_s", "tokens_per_s", "global_batch", "device_count")
    assert [getattr(launched, name) for name in names] == [getattr(plan, name) for name in names]
    assert launched.understood["global_batch"] == 8


@pytest.mark.slow
def test_an_adapter_is_the_same_fit():
    launched = steptime.fit(ADAPTER, "rtx-4090")
    fit = steptime.fit(
        "llama3_2_1b:length=512",
        "rtx-4090",
        8,
        dtype="bfloat16-mixed",
        optimizer="adamw",
        lora="r=8,on=q+v",
        weights="nf4",
    )
    assert launched.needed_bytes == fit.needed_bytes
    assert launched.rows == fit.rows
    assert "trl's defaults, not in the job: micro_batch, accumulation, optimizer" in launched.notes


def test_an_option_that_does_not_go_with_a_launched_fit_is_refused():
    with pytest.raises(InputError, match="fit: --max-context goes with weights of GGUF or"):
        steptime.fit(TRAINING, "h100", max_context=True)


@pytest.mark.rare  # the emitted step has DoRA, an adapter its own test
def test_a_recipe_with_dora_and_saved_modules_is_the_same_fit(tmp_path):
    recipe = tmp_path / "dora.yaml"
    recipe.write_text(
        "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 512\nmicro_batch_size: 2\n"
        "adapter: lora\nlora_r: 8\nlora_target_linear: true\npeft_use_dora: true\nbf16: full\n"
        "optimizer: adamw_torch\nlora_modules_to_save: [embed_tokens, score]\n"
    )
    launched = steptime.fit(str(recipe), "rtx-4090")
    fit = steptime.fit(
        "llama3_2_1b:length=512",
        "rtx-4090",
        2,
        dtype="bfloat16",
        optimizer="adamw",
        adapter="dora,r=8,on=linear",
        modules_to_save="embed_tokens",
    )
    assert (launched.needed_bytes, launched.rows) == (fit.needed_bytes, fit.rows)
    assert "modules_to_save score: these are trained whole, which is not priced" in launched.notes


@pytest.mark.parametrize(
    ("adapter", "says"), [("ia3", "it has no (IA)3"), ("prefix", "it has no prefix tuning")]
)
def test_an_adapter_that_a_tool_cannot_say_is_not_emitted(adapter, says):
    with pytest.raises(InputError) as error:
        steptime.fit("qwen3_4b", "rtx-4090", 1, length=64, adapter=adapter, emit="trl")
    assert says in str(error.value)


def test_what_the_user_says_wins():
    answer = steptime.fit(ADAPTER, "rtx-4090", 2, length=256)
    assert (answer.batch, answer.understood["micro_batch"]) == (2, 8)
    assert steptime.plan(TRAINING, "h100", device_count=16).device_count == 16


def test_a_job_beside_its_model(tmp_path):
    recipe = tmp_path / "accelerate.yaml"
    recipe.write_text("distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\n")
    answer = steptime.plan("llama3_8b", "h100", 4, from_=recipe)
    assert (answer.device_count, answer.understood["zero"]) == (4, 3)


def test_links_that_no_job_says_are_assumed_and_said():
    line = "torchrun --nproc_per_node 2 t.py --model_name_or_path Qwen/Qwen3-8B --bf16"
    notes = steptime.plan(line, "rtx-3090").notes
    assert "links are assumed: --inside pcie-4-x16-host" in notes


def test_every_surface_says_what_was_understood(capsys):
    assert run(["serve", SERVING, "--device", "h100"]) == 0
    text = capsys.readouterr().err
    assert "understood: tool vllm, model Qwen/Qwen3-8B, tensor 2, max_model_len 4096" in text
    assert "not used: --port 80" in text
    assert run(["serve", SERVING, "--device", "h100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["understood"]["max_model_len"] == 4096
    assert document["not_used"] == ["--port 80"]


@pytest.mark.parametrize(
    ("question", "arguments", "message"),
    [
        (steptime.plan, (SERVING, "h100"), "nearest: steptime serve"),
        (steptime.serve, (TRAINING, "h100"), "nearest: steptime fit, steptime plan"),
        (steptime.fit, ("trl sft --model_name_or_path a/b --bf16", "h100"), "loads a/b"),
        (steptime.fit, ("trl sft --bf16", "h100"), "names no model"),
    ],
)
def test_a_job_that_cannot_be_asked_is_refused(question, arguments, message):
    with pytest.raises(InputError, match=message):
        question(*arguments)


def test_a_missing_job_is_named():
    with pytest.raises(InputError, match=r"--from absent\.yaml: there is no such file"):
        steptime.fit("llama3_8b", "h100", from_="absent.yaml")


TRAININGS = {
    "axolotl": {"data": 8, "zero": 3, "recompute": "full"},
    "accelerate": {"data": 8, "zero": 2, "recompute": "full"},
    "deepspeed": {"data": 8, "zero": 1, "recompute": "full"},
    "megatron": {"data": 2, "tensor": 4, "stack": "megatron", "sequence_parallel": True},
}


@pytest.mark.parametrize("tool", TRAININGS)
def test_an_emitted_plan_is_the_same_plan(tool, tmp_path):
    plan = steptime.plan(
        "qwen3_8b",
        "h100",
        16,
        length=2048,
        optimizer="adam" if tool == "megatron" else "adamw",
        emit=tool,
        **TRAININGS[tool],
    )
    path = tmp_path / ("job.yaml" if tool == "axolotl" else "job.sh")
    path.write_text(plan.emitted)
    again = steptime.plan(str(path), "h100")
    names = ("step_s", "low_s", "high_s", "global_batch", "device_count", "microbatch", "plan")
    assert [getattr(again, name) for name in names] == [getattr(plan, name) for name in names]


@pytest.mark.rare
def test_an_emitted_step_is_the_same_step(tmp_path):
    options = {"adapter": "dora,r=16,on=linear", "weights": "nf4", "optimizer": "adamw"}
    fit = steptime.fit("llama3_2_1b", "rtx-4090", 2, length=512, emit="trl", **options)
    path = tmp_path / "sft.yaml"
    path.write_text(fit.emitted)
    again = steptime.fit(str(path), "rtx-4090")
    assert (again.needed_bytes, again.rows) == (fit.needed_bytes, fit.rows)


@pytest.mark.parametrize("tool", ["vllm", "sglang"])
def test_an_emitted_server_is_the_same_server(tool):
    options = {"tensor": 2, "kv": "float8", "stack": tool}
    server = steptime.serve("qwen3_8b", "h100", input=2000, output=200, emit=tool, **options)
    again = steptime.serve(server.emitted, "h100", input=2000, output=200)
    names = ("tpot_s", "ttft_s", "needed_bytes", "largest_running_sequences")
    assert [getattr(again, name) for name in names] == [getattr(server, name) for name in names]
    assert again.understood["max_model_len"] == 2304


def test_what_is_emitted_stands_alone_on_stdout(capsys):
    assert run(["serve", "qwen3_8b", "--device", "h100", "--emit", "vllm"]) == 0
    assert capsys.readouterr().out.startswith("vllm serve Qwen/Qwen3-8B")


def test_a_network_without_an_id_is_not_emitted():
    with pytest.raises(InputError, match="no id on the Hugging Face Hub is known for mpt_7b"):
        steptime.serve("mpt_7b", "h100", emit="vllm")


UNKNOWN = "vllm serve nobody/strange-model-9B -tp 4 --max-model-len 4096 --port 80"


def test_a_job_of_an_unknown_network_says_what_was_understood(capsys):
    assert run(["serve", UNKNOWN, "--device", "h100", "--json"]) == 2
    printed = capsys.readouterr()
    assert len(printed.err.strip().splitlines()) == 1
    assert "not among the networks" in printed.err
    assert "understood: tool vllm, model nobody/strange-model-9B, tensor 4" in printed.err
    document = json.loads(printed.out)
    assert document["understood"]["max_model_len"] == 4096
    assert document["not_used"] == ["--port 80"]
    assert document["error"] in printed.err
    assert run(["serve", UNKNOWN, "--device", "h100"]) == 2
    assert capsys.readouterr().out == ""
    with pytest.raises(InputError) as error:
        steptime.serve(UNKNOWN, "h100")
    assert error.value.details["understood"]["tensor"] == 4


def test_a_job_without_a_network_says_what_was_understood(capsys):
    assert run(["fit", "trl sft --bf16 --max_length 512", "--device", "h100", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["understood"]["length"] == 512


def test_a_megatron_command_of_another_stack_says_which_one_it_runs():
    note = "--emit megatron: --stack megatron prices the step as that command runs it"
    plain, same = (
        steptime.plan("qwen3_8b", "h100", data=8, zero=1, emit="megatron", **options)
        for options in ({}, {"stack": "megatron"})
    )
    assert note in plain.notes
    assert note not in same.notes
