"""Serving of networks whose blocks keep a state, and of experts in blocks of 4 bit, by hand."""

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.core.graph import TensorSpec
from steptime.planning.ranks.site import Site
from steptime.serving.kernels import stored_bytes
from steptime.serving.phases import Phases
from steptime.serving.service import Service

QWEN = "qwen3_next_80b_a3b"


def phases(tensor: int = 4) -> Phases:
    return Service(QWEN, Site("h100-sxm5", 8, "nvlink-4"), tensor=tensor, stack="vllm").phases()


def test_a_sequence_has_states_and_the_tokens_of_every_fourth_block():
    one = phases()
    # 36 blocks with 32 states of 128 x 128 in float32, a fourth on each device
    assert one.kv_bytes(0) == 36 * 32 / 4 * 128 * 128 * 4
    # 12 blocks with two heads of keys and of values, of 256 in 16 bit: one of each on a device
    assert one.kv_token_bytes == 12 * 2 * 256 * 2
    assert one.kv_bytes(1000) == one.kv_bytes(0) + 1000 * one.kv_token_bytes


def test_decoding_reads_and_writes_a_state_whatever_the_context():
    one = phases()
    block = next(name for name, heads in one.attention.items() if heads[0].kind == "delta_rule")
    both = [one.price_decode(64, context).attention_s for context in (1024, 2048)]
    grows = both[1] - both[0]
    # attention of 12 blocks alone grows: 64 x 1,024 tokens of keys and values
    read_s = 64 * 1024 * one.kv_token_bytes / one.device.datasheet.memory_bytes_per_s
    assert read_s < grows < 1.7 * read_s
    assert one.attention[block][0].state_bytes == 8 * 128 * 128 * 4


def test_a_selective_state_reads_a_rate_of_each_number_and_no_past(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mamba", "hidden_size": 256, "num_hidden_layers": 2}')
    served = Service(str(path), Site("h100-sxm5"), stack="vllm").phases()
    state_bytes = 2 * (2 * 256) * 16 * 4  # of 2 blocks: 512 channels of 16 numbers in float32
    assert served.kv_bytes(0) == served.kv_bytes(4096) == state_bytes
    assert served.price_decode(4, 64).attention_s == served.price_decode(4, 4096).attention_s > 0


def test_a_sequence_does_not_divide_into_context_ranks_of_states():
    split = {"tensor": 2, "context": 2, "data": 4}
    with pytest.raises(InputError, match="do not divide a sequence into context ranks"):
        steptime.plan(
            QWEN, "h100", global_batch=64, inside="nvlink-4", link="infiniband-ndr", **split
        ).to_dict()


def test_experts_of_odd_sides_are_padded_in_blocks_of_4_bit():
    experts = TensorSpec((32, 5760, 2880), "bfloat16")
    # 5,760 -> 5,888 and 2,880 -> 3,072: multiples of 256; 4 bit, and 8 for each 32 numbers
    assert stored_bytes(experts, "mxfp4") == 32 * 5888 * 3072 * (4 + 8 / 32) / 8
    assert stored_bytes(experts, "float4") == 32 * 5760 * 2880 * (4 + 8 / 16) / 8
    assert stored_bytes(TensorSpec((2880, 4096), "bfloat16"), "mxfp4") == 2880 * 4096 * 4.25 / 8
