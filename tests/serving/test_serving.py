"""Inference: what phases are made of, by hand; memory and largest batch; options and answers."""

import pytest

import steptime
from every import every
from printed import answer
from steptime.core.errors import InputError
from steptime.network.families import language
from steptime.network.ops.expert_loads import experts_read, find_rank_load
from steptime.network.ops.experts import load_of_op
from steptime.planning.ranks.site import Site
from steptime.prediction.kernel import Kernel
from steptime.questions.serve.options import ServeOptions
from steptime.questions.serve.server import answer_server
from steptime.questions.serve.server_answer import ServerAnswer
from steptime.serving.kernels import SequenceGroup, attention_kernels
from steptime.serving.memory import largest_running_sequences, round_up_to_pages
from steptime.serving.phases import Phases
from steptime.serving.service import Service

H100 = Site("h100-sxm5", 8, "nvlink-4")
LLAMA = 8_030_261_248


def answered(service: Service) -> ServerAnswer:
    return answer_server(service, ServeOptions())


def phases(model: str = "llama3_8b", **how: object) -> Phases:
    return Service(model, H100, **how).phases()  # type: ignore[arg-type]


def test_the_cache_of_a_token():
    """2 x key heads x width x layers x 2 bytes; published of DeepSeek-V3: 70 KB."""
    assert phases().kv_token_bytes == 2 * 8 * 128 * 32 * 2 == 131_072
    assert phases(kv="int8").kv_token_bytes == 65_536
    assert phases("llama3_70b", tensor=8).kv_token_bytes == 2 * 1 * 128 * 80 * 2
    assert phases("qwen3_30b_a3b", tensor=8).kv_token_bytes == 2 * 1 * 128 * 48 * 2  # 4 heads
    assert phases("deepseek_v3", tensor=8).kv_token_bytes == (512 + 64) * 61 * 2


def test_weights_on_a_device():
    assert phases().weight_bytes == 2 * LLAMA
    tables = 2 * 128256 * 4096
    norms = (2 * 32 + 1) * 4096
    in_layers = LLAMA - tables - norms
    assert phases(weights="float8").weight_bytes == 2 * (tables + norms) + in_layers
    assert phases(tensor=8).weight_bytes == pytest.approx(2 * LLAMA / 8, rel=2e-3)


def test_a_step_reads_weights_and_cache():
    """16 GB of weights and 16 x 1,100 tokens of cache at 3.36 TB/s: 5.2 ms at least."""
    found = phases().price_decode(16, 1100)
    least = (2 * LLAMA - 2 * 128256 * 4096 + 16 * 1100 * 131_072) / 3.36e12
    assert least < found.seconds < 2 * least
    more = phases().price_decode(16, 2100).seconds - found.seconds
    assert more == pytest.approx(16 * 1000 * 131_072 / 3.36e12, rel=0.15)


def test_weights_of_4_bit_are_read_faster_and_multiply_no_faster():
    whole, four = phases(), phases(weights="int4")
    in_layers, read = LLAMA - 2 * 128256 * 4096, whole.price_decode(1, 1000).products_s
    saved = read - four.price_decode(1, 1000).products_s
    assert saved == pytest.approx((2 - 0.516) * in_layers / 3.36e12 / 0.916, rel=0.12)
    assert four.price_prefill(1, 4096).products_s == pytest.approx(
        whole.price_prefill(1, 4096).products_s, rel=0.02
    )
    eight = phases(dtype="float8")
    assert eight.price_prefill(1, 4096).products_s < 0.7 * whole.price_prefill(1, 4096).products_s


def test_nine_tenths_of_what_is_no_product_hide_beside_products_in_4_bit():
    site = Site("b200-sxm", 8, "nvlink-5")
    four, eight = (
        Service("llama3_8b", site, dtype=one, stack="trt-llm-2025").phases().price_decode(4, 1000)
        for one in ("float4", "float8")
    )
    assert four.other_s == pytest.approx(0.1 * eight.other_s)


def test_a_server_of_2026_schedules_ahead():
    """A step takes 1.3 ms, and each of 64 sequences 29 us more, or 11 us."""
    for stack, each in (("vllm-2025", 29e-6), ("vllm-2026", 11e-6), ("sglang-2025", 11e-6)):
        took = phases(stack=stack).price_decode(64, 100).host_s
        assert took == pytest.approx(1.3e-3 + 64 * each)


@pytest.mark.parametrize(("stack", "replays"), [("vllm-2025", False), ("trt-llm-2025", True)])
def test_steps_of_decoding_wait_for_the_host_beyond_the_tokens_of_graphs(stack, replays):
    """vLLM captures CUDA graphs of up to 512 tokens."""
    small = phases("tinyllama_1_1b", stack=stack)
    assert small.price_decode(512, 10).host_s == small.server_s(512)
    assert (small.price_decode(513, 10).host_s == small.server_s(513)) is replays


def test_few_sequences_reach_few_experts():
    """One token reads 8 of 128 experts, 16 tokens 128 x (1 - (15/16)^16) = 82."""
    few = phases("qwen3_30b_a3b")
    experts = 3 * 2048 * 768 * 48 * 2 / 3.36e12
    took = few.price_decode(16, 10).products_s - few.price_decode(1, 10).products_s
    assert took == pytest.approx((82.4 - 8) * experts / 0.78, rel=0.1)  # of the bandwidth


def test_the_largest_batch_fits_and_one_more_does_not():
    one = phases()
    most = largest_running_sequences(one, 1152, 1024)
    room = 0.9 * 80e9 * (2**30 / 1e9) * 0.99 - 16_060_522_496 - 0.6e9
    room -= 1024 * 128_256 * 50  # more than 8192 tokens of a layer: 1.1 GB
    assert most == int(room // (131_072 * 1152))
    assert answered(Service("llama3_8b", H100, most)).fits
    assert not answered(Service("llama3_8b", H100, most + 1)).fits
    assert round_up_to_pages(1153) == 1168


def test_what_does_not_fit_says_what_does():
    told = answered(Service("llama3_70b", H100, 8))
    assert told.over_bytes > 60e9
    assert told.fitting_change == "--tensor 4"  # two hold the weights, and logits of few sequences


def test_a_request_is_the_first_token_and_the_steps_after_it():
    told = answered(Service("llama3_8b", H100, 4, 512, 32, replicas=2))
    assert told.request_s == pytest.approx(told.ttft_s + 31 * told.tpot_s)
    assert told.output_tokens_per_s == pytest.approx(2 * 4 * 32 / told.request_s)
    assert told.tpot_low_s < told.tpot_s < told.tpot_high_s
    assert told.tpot_s == pytest.approx(told.decode.total_s)


def test_parts_of_a_phase_add_up_to_it():
    told = steptime.serve("llama3_8b", "h100", running_sequences=4, stack="vllm-2025")
    assert told.prefill.total_s == pytest.approx(told.ttft_s)
    assert told.decode.total_s == pytest.approx(told.tpot_s)


def test_methods_without_an_interval(capsys):
    for method in ("roofline", "analytic"):
        told = answer(capsys, "serve", "llama3_8b", "--device", "h100", "--method", method)
        assert told["tpot_low_s"] is None
        assert told["tpot_s"] > 2 * (LLAMA - 128256 * 4096) / 3.36e12


def test_requests_at_once_take_their_own_steps_and_the_prompts_of_all():
    """Eight of 1,024 tokens fill a step of 8,192: one waits for all eight, then 127 steps."""
    how: dict[str, object] = {"stack": "sglang-2025", "concurrency": 8, "inside": "nvlink-4"}
    told = steptime.serve("llama3_8b", "h100-sxm5", input=1024, output=128, **how)
    one = phases(stack="sglang-2025")
    prompts_s, step_s = one.price_prefill(8, 1024).seconds, one.price_decode(8, 1024 + 64).seconds
    assert told.ttft_s == pytest.approx(prompts_s + one.constant("prompt_s"), rel=0.01)
    assert told.request_s == pytest.approx(told.ttft_s + 127 * step_s, rel=0.01)
    mixed = steptime.serve("llama3_8b", "h100-sxm5", input=1024, output=128, concurrency=8)
    assert mixed.tpot_s > told.tpot_s


@every("stack", ["vllm-2025", "sglang-2025", "trt-llm-2025"])
def test_an_answer_has_one_first_token_time(stack):
    """Where the cache is too small too: 160 users of 8,256 tokens are 1.3 million."""
    for users in (4, 160):
        told = steptime.serve(
            "llama3_70b", "h100", input=8192, output=64, tensor=4, concurrency=users,
            count=users + 8, stack=stack,
        )  # fmt: skip
        for name in ("ttft", "tpot", "request"):
            value, mean_s = getattr(told, f"{name}_s"), getattr(told.load, f"{name}_mean_s")
            assert value == pytest.approx(mean_s, rel=1e-9)
            assert getattr(told, f"{name}_low_s") < value < getattr(told, f"{name}_high_s")


def test_a_first_token_of_one_user_is_that_of_one_prompt():
    alone = steptime.serve("llama3_8b", "h100", 1, 1024, 32)
    user = steptime.serve("llama3_8b", "h100", input=1024, output=32, concurrency=1)
    assert user.ttft_s == pytest.approx(alone.ttft_s, rel=1e-9)


def test_a_planner_serves_as_before_after_others_asked_it():
    """Two services of one problem in 8 bit: each product reaches 0.7 of the peak, once."""
    one = phases(dtype="float8")
    peaks = dict(one.problem.rank.calibrated_device.datasheet.peak_flop_per_s)
    again = Phases(one.problem, one.plan)
    assert dict(one.problem.rank.calibrated_device.datasheet.peak_flop_per_s) == peaks
    assert again.device.datasheet.peak_flop_per_s["float8"] == 0.7 * peaks["float8"]
    assert again.price_prefill(1, 4096) == one.price_prefill(1, 4096)


def test_a_constant_that_there_is_not_is_said():
    with pytest.raises(InputError, match="unknown constant 'promt_s'; did you mean 'prompt_s'"):
        phases().constant("promt_s")
    assert phases().constant("vectors") == 1.0
    assert phases(method="analytic").constant("memory_share") == 1.0


def test_a_share_of_what_weights_leave():
    """TensorRT-LLM's cache has 0.9 of the rest; vLLM's all but weights of 0.9 of the whole."""
    for stack, of, software in (("trt-llm-2025", 1.0, 2e9), ("vllm-2025", 0.0, 0.6e9)):
        one = phases(stack=stack)
        fixed = one.weight_bytes + software + one.fixed_bytes["activations_bytes"]
        whole = one.problem.rank.room_bytes
        assert one.room_bytes == pytest.approx(0.9 * whole - fixed * (1 - of * 0.1))
    assert phases("llama3_70b", stack="trt-llm-2025").room_bytes < -60e9


def test_the_cache_of_8_bit_checkpoints():
    """TensorRT-LLM keeps it in 8 bit with them, vLLM of 2026 where there is arithmetic of 4 bit."""
    assert phases(dtype="float8", stack="trt-llm-2025").cache_format == "float8"
    assert phases(dtype="float8").cache_format == "bfloat16"
    assert phases(dtype="float8", stack="vllm-2026").cache_format == "bfloat16"
    for dtype, kv in (("float8", "float8"), ("float4", "float8"), ("bfloat16", "bfloat16")):
        one = Service("llama3_8b", Site("b200-sxm"), dtype=dtype, stack="vllm-2026").phases()
        assert one.cache_format == kv


def core(one: Phases, name: str, group: SequenceGroup) -> Kernel:
    return attention_kernels(one.problem, one.attention[name][0], group, one.cache_format)[0]


def test_a_window_is_all_that_a_prompt_and_a_token_see():
    """Of 8,192 tokens all but the first 127 see 128 places, the last of 1,024 that follow too."""
    one = phases("gpt_oss_20b")
    assert [one.attention[name][0].window for name in ("block2", "block1")] == [0, 128]
    seen = 128 * 129 // 2 + (8192 - 128) * 128
    assert core(one, "block1", SequenceGroup(1, 8192, 0)).flop == 4 * 64 * 64 * seen
    assert core(one, "block1", SequenceGroup(1, 1024, 9000)).flop == 4 * 64 * 64 * 1024 * 128
    keys = 128 * 2 * 8 * 64 * 2
    assert core(one, "block1", SequenceGroup(1, 1, 8192)).bytes == pytest.approx(keys, rel=0.1)


def test_a_stack_that_skips_no_window_multiplies_all_that_the_mask_leaves(tmp_path):
    own = tmp_path / "own.toml"
    kinds = '[kinds]\nattention = { causal_flop = 0.5, source = "as vllm-2025" }\n'
    own.write_text(f'name = "own"\nlike = "vllm-2025"\nsource = "me"\n{kinds}')
    one = phases("gpt_oss_20b", stack=str(own))
    assert core(one, "block1", SequenceGroup(1, 8192, 0)).flop == 4 * 64 * 64 * 8192 * 4096
    keys = 128 * 2 * 8 * 64 * 2  # the cache keeps no more than the window
    assert core(one, "block1", SequenceGroup(1, 1, 8192)).bytes == pytest.approx(keys, rel=0.1)


def test_a_part_of_a_prompt_sees_what_is_before_it():
    """A square of 1,024 queries and keys is half seen, the 3,072 keys before it all."""
    one = phases()
    flop = core(one, "block1", SequenceGroup(1, 1024, 3072)).flop
    assert flop == 4 * 32 * 128 * 1024 * (3072 + 512)
    assert core(one, "block1", SequenceGroup(1, 4096, 0)).flop == 4 * 32 * 128 * 4096 * 2048


def test_energy_of_a_token():
    """A device draws at most 700 W, and more than while it waits."""
    told = answered(Service("llama3_8b", H100, 16))
    watts = told.device_w
    assert 150 < watts < 700
    request_s = told.request_s - phases().prompt_overhead_s(1024)
    assert told.energy_per_token_j == pytest.approx(watts * request_s / (16 * 128))


def test_stages_work_at_a_part_of_the_sequences_each():
    """A step of two stages is that of half of the sequences through all layers, and a send."""
    two = phases("llama3_8b", pipeline=2)
    sends = two.price_decode(16, 1000).exchange_s
    half = phases("llama3_8b").price_decode(8, 1000)
    assert two.price_decode(16, 1000).seconds == pytest.approx(half.seconds + sends, rel=1e-6)
    assert two.weight_bytes < 0.6 * phases("llama3_8b").weight_bytes


def test_a_name_on_hugging_face():
    assert phases("meta-llama/Llama-3.1-8B-Instruct").weight_bytes == 2 * LLAMA
    with pytest.raises(InputError, match="no such file"):
        phases("meta-llama/Llama-9")


def test_experts_on_many_ranks_are_shared_out():
    told = answered(Service("mixtral_8x7b", H100, 8, data=4))
    assert told.fitting_change == "--expert 4"
    shared = phases("mixtral_8x7b", data=4, expert=4)
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    whole = phases("mixtral_8x7b").weight_bytes
    assert shared.weight_bytes == pytest.approx(whole - 0.75 * experts)


def test_ranks_that_share_experts_read_a_prompt_each():
    """Eight ranks with a prompt each take less than two prompts of one rank, exchanges included."""
    eight = phases("mixtral_8x7b", data=8, expert=8, stack="sglang-2025")
    prompt_s = eight.price_prefill(8, 1024).seconds
    assert prompt_s < 2 * phases("mixtral_8x7b", stack="sglang-2025").price_prefill(1, 1024).seconds


def test_a_rank_of_a_server_multiplies_the_rows_of_a_single_layer_of_experts():
    for ranks in (2, 8):
        graph = phases("mixtral_8x7b", data=ranks, expert=ranks).build_graph(4096)
        op = next(op for op in graph.ops if op.kind == "experts")
        load = find_rank_load(4096 * ranks, 8, 2, ranks)  # each rank has 4,096 tokens
        assert load_of_op(op, graph)[:2] == load[:2] == (8 // ranks, 4096 * 2)


def test_tokens_beyond_the_length_of_a_model_are_noted():
    """Gemma and Llama 3 have 8,192 tokens; what a network without `max_length` can read is open."""
    own = "transformer:kind=decoder,positions=rotary"
    for model, tokens, is_noted in (
        ("gemma_7b", 200_000, True),
        ("gemma_7b", 8064, False),
        ("llama3_8b", 200_000, True),
        ("llama3_8b", 8064, False),
        ("llama_7b", 4000, True),
        (own, 200_000, False),
    ):
        notes = steptime.serve(model, "h100", input=tokens).notes
        assert any("beyond the length of" in note for note in notes) == is_noted, (model, tokens)
    assert "200,128 tokens are beyond the length of llama3_8b, 8,192" in notes_of("llama3_8b")


def notes_of(model: str) -> str:
    return " ".join(steptime.serve(model, "h100", input=200_000).notes)


def test_every_decoder_of_the_catalogue_says_its_trained_length():
    decoders = [row for row in language.rows().values() if row.get("kind", "decoder") == "decoder"]
    assert len(decoders) > 60
    assert all(row["max_length"] >= row.get("length", 1) for row in decoders)


def test_ranks_of_experts_need_not_divide_the_tokens():
    """2,100 tokens on 8 ranks are between 2,096 and 2,104, which 8 divides."""
    split = {"data": 8, "expert": 8}
    ends = [
        steptime.serve("deepseek_v3", "h200", input=2000, output=tokens, **split)
        for tokens in (96, 100, 104)
    ]
    assert ends[0].tpot_s <= ends[1].tpot_s <= ends[2].tpot_s
    assert ends[0].request_s < ends[1].request_s < ends[2].request_s


def test_experts_that_tokens_reach_are_expected():
    """One token reaches k; two of 1 of 2 reach 2 (1 - 1/4); many reach all."""
    assert experts_read(128, 8, 1) == pytest.approx(8)
    assert experts_read(2, 1, 2) == 1.5
    assert experts_read(128, 8, 10_000) == pytest.approx(128)


@pytest.mark.slow
@every(
    "options",
    [
        {"output": 8},
        {"output": 8, "tensor": 2, "running_sequences": 4},
        {"output": 8, "rate": 4.0, "ttft": 0.5},
        {"output": 8, "concurrency": 4, "method": "analytic"},
    ],
)
def test_assumed_options_that_are_given_change_no_number(options):
    answer = steptime.serve("llama3_8b", "h100", **options)
    assert answer.assumed
    same = steptime.serve("llama3_8b", "h100", **options, **answer.assumed)
    assert same.assumed == {}
    before, after = (_without_other_stacks(server.to_dict()) for server in (answer, same))
    assert after == before | {"assumed": {}, "notes": list(same.notes)}


def _without_other_stacks(server):
    """Return an answer without the stacks that could be meant, of which a named one leaves none."""
    others = ("any_stack_", "other_stacks", "nearest_stack")
    return {key: value for key, value in server.items() if not key.startswith(others)}


@every("apart", [{}, {"prefill_replicas": 2}])
def test_an_assumed_stack_is_assumed_and_any_stack_widens_its_interval(apart):
    """Replicas that only read prompts are under the other stack too."""
    load = {"input": 512, "output": 8, "rate": 4.0, "count": 20, **apart}
    server = steptime.serve("llama3_8b", "h100", **load)
    assert server.assumed["stack"] == server.stack
    assert server.ttft_low_s < server.ttft_s < server.ttft_high_s
    ends = server.ttft_low_s, server.ttft_high_s
    assert (server.any_stack_ttft_low_s, server.any_stack_ttft_high_s) != ends
    assert server.other_stacks
    for other in server.other_stacks:
        under = steptime.serve("llama3_8b", "h100", **load, stack=other.stack)
        times = (under.ttft_s, under.tpot_s, under.request_s)
        assert (other.ttft_s, other.tpot_s, other.request_s) == pytest.approx(times, rel=1e-12)


def test_an_answer_says_whether_targets_hold():
    server = steptime.serve("llama3_8b", "h100", output=8, ttft=1.0, tpot="1ms")
    assert server.holds_targets is False
    assert server.headline == ("misses TTFT 1 s and TPOT 1 ms",)
    loaded = steptime.serve("llama3_8b", "h100", output=8, rate=2.0, count=20, ttft="1s")
    assert (loaded.holds_targets, loaded.headline) == (True, ("100 % of requests hold TTFT 1 s",))


def test_graphs_replay_steps_of_few_tokens():
    """vLLM's graphs hold steps with prompts up to 512 tokens: there nobody waits for the host."""
    server = phases("llama3_8b")
    waiting_s = [server.price_prefill(1, tokens).host_s for tokens in (512, 520)]
    assert waiting_s[0] == pytest.approx(server.price_decode(1, 512).host_s)
    assert waiting_s[1] > 2 * waiting_s[0]
    assert server.prompt_overhead_s(520) > server.prompt_overhead_s(512)
