"""Launched servers: their ranks, checkpoints and guessed tokens as options of `serve`."""

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.questions.launched.checkpoints import find_checkpoint_option_and_type

DEVICE = "h200"
VLLM = "vllm serve meta-llama/Llama-3.1-8B -tp 2 "
SGLANG = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp 2 "


@pytest.mark.parametrize(
    ("model", "option"),
    [
        ("Qwen/Qwen3-32B-AWQ", ("weights", "int4")),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", ("weights", "int4")),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", ("dtype", "float8")),
        ("nvidia/DeepSeek-R1-0528-NVFP4", ("dtype", "float4")),
        ("deepseek-ai/DeepSeek-V3.1", ("dtype", "float8")),
        ("moonshotai/Kimi-K2-Thinking", ("weights", "int4")),
        ("openai/gpt-oss-20b", ("weights", "mxfp4")),
        ("unsloth/gpt-oss-20b-BF16", None),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", None),
        ("Qwen/Qwen3-8B", None),
    ],
)
def test_the_id_of_a_checkpoint_says_how_its_weights_are_kept(model, option):
    assert find_checkpoint_option_and_type(model) == option


def test_a_checkpoint_of_8_bits_is_served_so():
    answer = steptime.serve("vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 4", "h100")
    assert answer.weights_bytes == pytest.approx(59.1e9, rel=0.01)
    assert any("published as float8" in note for note in answer.notes)
    whole = steptime.serve("vllm serve Qwen/Qwen3-8B-FP8", "h100", dtype="bfloat16")
    assert whole.weights_bytes == pytest.approx(2 * 8.19e9, rel=0.01)


def test_data_parallel_ranks_of_a_dense_network_are_replicas():
    answer = steptime.serve(VLLM + "--data-parallel-size 3", DEVICE)
    assert (answer.tensor, answer.replicas, answer.device_count) == (2, 3, 6)
    assert any(note.startswith("data 3: replicas") for note in answer.notes)


def test_data_parallel_attention_shares_out_experts():
    line = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 "
    answer = steptime.serve(line + "--dp 8 --enable-dp-attention", DEVICE)
    assert (answer.tensor, answer.data, answer.expert) == (1, 8, 8)
    assert answer.weights_bytes < 0.2 * 671e9
    inside = steptime.serve(line + "--ep-size 8", DEVICE)
    split = steptime.serve(line, DEVICE)
    assert (inside.tensor, inside.weights_bytes) == (8, split.weights_bytes)
    assert any(note.startswith("expert 8: experts on the tensor-parallel") for note in inside.notes)


@pytest.mark.parametrize(
    ("line", "draft", "tokens"),
    [
        (
            VLLM + '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'',
            "mtp",
            2,
        ),
        (
            VLLM + "--speculative-config.method eagle3 --speculative-config.model x/EAGLE3-head "
            "--speculative-config.num_speculative_tokens 4",
            "eagle3",
            4,
        ),
        (
            VLLM + '--speculative-config \'{"model": "meta-llama/Llama-3.2-1B", '
            '"num_speculative_tokens": 5}\'',
            "llama3_2_1b",
            5,
        ),
        (SGLANG + "--speculative-algorithm NEXTN --speculative-num-steps 1", "mtp", 1),
        (
            SGLANG + "--speculative-algorithm EAGLE --speculative-draft-model-path x/EAGLE-head "
            "--speculative-num-steps 3 --speculative-eagle-topk 1",
            "eagle",
            3,
        ),
    ],
)
def test_guessed_tokens_of_a_line_are_priced(line, draft, tokens):
    answer = steptime.serve(line, DEVICE)
    note = next(note for note in answer.notes if note.startswith("guesses: "))
    word = "token" if tokens == 1 else "tokens"
    assert f"{tokens} {word} a step by {draft}," in note
    assert answer.tpot_s < steptime.serve(line.partition("--spec")[0], DEVICE).tpot_s


def test_who_guesses_and_is_not_known_is_said():
    line = VLLM + '--speculative-config \'{"method": "%s", "num_speculative_tokens": 2}\''
    for method, text in (("medusa", "medusa are not priced"), ("x/y", "x/y is not among")):
        answer = steptime.serve(line % method, DEVICE)
        assert any(text in note for note in answer.notes)


@pytest.mark.parametrize("model", ["qwen3_8b", "llama3_1_8b", "qwen3_30b_a3b"])
def test_a_server_on_ones_own_machine_is_emitted_and_read_back(model):
    options = {"stack": "llama.cpp", "weights": "q4_k_m", "kv": "q8_0"}
    answer = steptime.serve(model, "rtx-4090", 1, 2000, 300, emit="llama-server", **options)
    assert "-Q4_K_M.gguf" in answer.emitted
    again = steptime.serve(answer.emitted, "rtx-4090", 1, 2000, 300)
    assert (again.tpot_s, again.needed_bytes) == (answer.tpot_s, answer.needed_bytes)
    with pytest.raises(InputError, match=r"nearest: --stack llama\.cpp --emit llama-server"):
        steptime.serve(model, "rtx-4090", emit="vllm", **options)
