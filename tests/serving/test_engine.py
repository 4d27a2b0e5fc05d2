"""Settings of an engine: what they make of memory, steps and requests."""

import pytest

import steptime
from steptime.core.errors import InputError

MODEL, DEVICE = "llama3_1_8b", "h100"
TOKEN_BYTES = 2 * 8 * 128 * 32 * 2  # keys and values of 8 heads of 128 in 32 layers, 16 bits


@pytest.fixture(scope="module")
def usual():
    return steptime.serve(MODEL, DEVICE, stack="vllm")


def _room_bytes(answer) -> float:
    fixed = answer.weights_bytes + answer.activations_bytes
    return fixed + answer.buffers_bytes + answer.context_bytes


def test_the_cache_holds_what_the_share_of_the_memory_leaves(usual):
    assert usual.cache_bytes_per_token == TOKEN_BYTES
    for share in (0.5, 0.95):
        answer = steptime.serve(MODEL, DEVICE, stack="vllm", gpu_memory_utilization=share)
        room = share * answer.usable_bytes - _room_bytes(answer)
        assert answer.cache_tokens == int(room // TOKEN_BYTES // 16) * 16
        assert answer.longest_context == answer.cache_tokens
    assert (
        usual.cache_tokens
        == steptime.serve(MODEL, DEVICE, stack="vllm", gpu_memory_utilization="90%").cache_tokens
    )


def test_a_static_share_is_of_weights_and_cache_alone():
    answer = steptime.serve(MODEL, DEVICE, stack="sglang", gpu_memory_utilization=0.8)
    room = 0.8 * answer.usable_bytes - answer.weights_bytes
    assert answer.cache_tokens == int(room // TOKEN_BYTES // 16) * 16


def test_a_cache_of_fewer_bits_holds_as_many_more_tokens(usual):
    bits = {"float8": 8, "int4": 4.128, "float4": 4.5}
    for name, size in bits.items():
        answer = steptime.serve(MODEL, DEVICE, stack="vllm", kv=name)
        assert answer.cache_tokens == pytest.approx(16 / size * usual.cache_tokens, rel=1e-3)
        assert answer.decode.attention_s <= usual.decode.attention_s


def test_the_longest_context_and_the_users_are_one_command():
    answer = steptime.serve(
        MODEL, DEVICE, 8, 7000, 1000, stack="vllm", max_context=True, max_users=True
    )
    tokens = answer.cache_tokens
    assert answer.longest_context == tokens // 8 // 16 * 16
    longest = f"longest context: {answer.longest_context:,} tokens"
    assert answer.headline[0] == f"{longest}, with 8 sequences at once"
    assert (
        f"users at most: {tokens // 8000:,} with 7,000 tokens in and 1,000 out"
        in (answer.headline[1])
    )
    longer = steptime.serve(MODEL, DEVICE, 8, answer.longest_context - 1, 1, stack="vllm")
    assert longer.fits
    assert not steptime.serve(MODEL, DEVICE, 8, answer.longest_context + 16, 1, stack="vllm").fits


def test_a_limit_of_sequences_limits_the_users():
    answer = steptime.serve(MODEL, DEVICE, max_running_sequences=5, replicas=2, max_users=True)
    assert answer.headline[0].startswith("users at most: 10 with")


def test_layers_with_windows_hold_more_long_sequences():
    plain, windows = (
        steptime.serve(name, "h200-sxm", 1, 65_000, 100, stack="vllm")
        for name in ("qwen3_14b", "gemma3_12b")
    )
    naive = windows.cache_tokens * windows.cache_bytes_per_token
    assert naive > 1.5 * (plain.cache_tokens * plain.cache_bytes_per_token)


def test_a_request_beyond_the_longest_sequence_is_one_line():
    with pytest.raises(InputError, match="--max-model-len is 1,000; nearest: --input 872"):
        steptime.serve(MODEL, DEVICE, max_model_len=1000)
    with pytest.raises(InputError, match="gpu-memory-utilization: is a share above 0"):
        steptime.serve(MODEL, DEVICE, gpu_memory_utilization=0)


def test_a_longest_sequence_without_room_does_not_start():
    answer = steptime.serve(MODEL, "rtx-4090", stack="vllm", kv="bfloat16", max_model_len=131_072)
    line = answer.headline[0]
    assert line.startswith(f"the cache has room for {answer.cache_tokens:,} tokens")
    assert line.endswith(f"vLLM does not start; nearest: --max-model-len {answer.cache_tokens}")


def test_tokens_of_a_step_decide_its_memory_and_the_prompts_that_it_reads():
    small_bytes, large_bytes = (
        steptime.serve(
            MODEL, DEVICE, stack="vllm", max_num_batched_tokens=tokens, max_running_sequences=1
        ).activations_bytes
        for tokens in (8192, 65_536)
    )
    assert large_bytes == pytest.approx(8 * small_bytes)
    load = {"stack": "vllm", "concurrency": 8, "count": 16, "input": 8192, "output": 32}
    small, large = (
        steptime.serve(MODEL, DEVICE, max_num_batched_tokens=tokens, **load)
        for tokens in (512, 16_384)
    )
    assert small.load.ttft_p50_s != large.load.ttft_p50_s
    whole = steptime.serve(MODEL, DEVICE, chunked_prefill="no", max_model_len=16_384, **load)
    assert whole.load.tpot_p99_s > small.load.tpot_p99_s / 2


LINE = (
    "vllm serve meta-llama/Llama-3.1-8B --gpu-memory-utilization 0.5 --max-model-len 900 "
    "--max-num-batched-tokens 4096 --max-num-seqs 16 --kv-cache-dtype fp8"
)


def test_a_launch_line_is_priced_with_its_settings():
    launched = steptime.serve(LINE, DEVICE)
    same = steptime.serve(
        MODEL,
        DEVICE,
        1,
        800,
        100,
        stack="vllm",
        kv="float8",
        gpu_memory_utilization=0.5,
        max_model_len=900,
        max_num_batched_tokens=4096,
        max_running_sequences=16,
    )
    for name in ("cache_tokens", "needed_bytes", "ttft_s", "tpot_s", "input_tokens"):
        assert getattr(launched, name) == getattr(same, name)
    unpriced = ("gpu_memory_utilization 0.5:", "max_num_batched_tokens 4096:", "max_num_seqs 16:")
    assert not any(note.startswith(unpriced) for note in launched.notes)


def test_settings_are_emitted_and_read_back():
    emitted = steptime.serve(LINE, DEVICE, emit="vllm").emitted
    again = steptime.serve(emitted.replace("\\\n", " "), DEVICE)
    assert again.cache_tokens == steptime.serve(LINE, DEVICE).cache_tokens
    static = steptime.serve(MODEL, DEVICE, stack="sglang", gpu_memory_utilization=0.8)
    command = steptime.serve(
        MODEL, DEVICE, stack="sglang", gpu_memory_utilization=0.8, emit="sglang"
    ).emitted
    assert "--mem-fraction-static 0.8" in command
    read = steptime.serve(command.replace("\\\n", " "), DEVICE)
    assert read.cache_tokens == static.cache_tokens


def test_fit_says_the_longest_context_by_the_rules_of_an_engine():
    answer = steptime.fit("qwen3_8b", "rtx-4090", 2, stack="vllm", max_context=True)
    same = steptime.serve("qwen3_8b", "rtx-4090", 2, stack="vllm", max_context=True)
    assert answer.headline[0] == same.headline[0]
    assert answer.longest_context == same.longest_context
    assert answer.headline[0].startswith(f"longest context: {answer.longest_context:,} tokens")
    fewer_bits = steptime.fit(
        "qwen3_8b", "rtx-4090", stack="vllm", weights="int8", max_context=True
    )
    assert fewer_bits.longest_context > 2 * answer.longest_context
    with pytest.raises(InputError, match="--lora is of a training"):
        steptime.fit("qwen3_8b", "rtx-4090", stack="vllm", lora=8, max_context=True)
    with pytest.raises(InputError, match="nearest: --stack vllm"):
        steptime.fit("qwen3_8b", "rtx-4090", max_context=True)


def _casts_s(model: str, stack: str) -> float:
    """Return the seconds in which kernels of their own quantise the inputs of products."""
    in_8_bit, in_16_bit = (
        steptime.serve(model, DEVICE, 4, stack=stack, dtype=dtype).decode.other_s
        for dtype in ("float8", "bfloat16")
    )
    return in_8_bit - in_16_bit


def test_norms_and_activations_of_vllm_write_8_bit_and_attention_does_not():
    """Of four products in a dense layer, one reads attention; mixtures have scales of blocks."""
    every_input_s = _casts_s(MODEL, "trt-llm-2025")
    assert every_input_s > 0
    assert _casts_s(MODEL, "vllm-2026") == pytest.approx(every_input_s / 4, rel=0.05)
    assert _casts_s(MODEL, "vllm-2024") == pytest.approx(every_input_s, rel=0.05)
    mixture = "qwen3_30b_a3b"
    assert _casts_s(mixture, "vllm-2026") == pytest.approx(_casts_s(mixture, "trt-llm-2025"))
