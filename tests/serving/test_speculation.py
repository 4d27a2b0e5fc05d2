"""Guessed tokens: their time, their memory, and what is assumed of them."""

import pytest

import steptime
from steptime.core.errors import InputError

MODEL, DEVICE = "llama3_1_8b", "h100"
LAYER = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336 + 2 * 4096  # parameters
LAYER_TOKEN_BYTES = 2 * 8 * 128 * 2  # keys and values of 8 heads of 128, 16 bits


def serve(**options):
    return steptime.serve(MODEL, DEVICE, stack="vllm", **options)


@pytest.fixture(scope="module")
def plain():
    return serve()


@pytest.mark.parametrize("draft", ["mtp", "eagle3"])
def test_a_layer_that_guesses_has_its_weights_and_its_cache(plain, draft):
    answer = serve(draft=draft)
    more_bytes = answer.weights_bytes - plain.weights_bytes
    assert more_bytes == 2 * (LAYER + 2 * 4096 * 4096)
    assert answer.cache_bytes_per_token == plain.cache_bytes_per_token + LAYER_TOKEN_BYTES
    assert answer.cache_tokens < plain.cache_tokens
    assert plain.ttft_s < answer.ttft_s < 1.1 * plain.ttft_s


def test_a_step_makes_as_many_tokens_as_are_right_in_the_mean():
    """1 + w + w^2 + w^3 tokens of a step, whatever the chance w; its time is the same."""
    step_s = [
        serve(draft="eagle", speculate=3, accept=w).tpot_s * (1 + w + w**2 + w**3)
        for w in (0.5, 0.9)
    ]
    assert step_s[0] == pytest.approx(step_s[1])


def test_guesses_of_the_prompt_take_no_memory(plain):
    answer = serve(draft="ngram", accept=1.0)
    assert answer.weights_bytes == plain.weights_bytes
    assert answer.tpot_s < plain.tpot_s / 3


def test_a_network_that_guesses_is_read_once_a_guess(plain):
    draft = steptime.serve("llama3_2_1b", DEVICE, stack="vllm")
    answer = serve(draft="llama3_2_1b", speculate=2, accept=0.6)
    assert answer.weights_bytes == pytest.approx(plain.weights_bytes + draft.weights_bytes)
    guess_s = draft.tpot_s - draft.decode.host_s
    step_s = answer.tpot_s * (1 + 0.6 + 0.36)
    assert step_s - 2 * guess_s == pytest.approx(plain.tpot_s, rel=0.1)


def test_what_is_assumed_of_guesses_is_said():
    answer = serve(draft="eagle3")
    assert answer.assumed["accept"] == "0.75"
    assert answer.assumed["speculate"] == "3"
    note = next(note for note in answer.notes if note.startswith("guesses: 3 tokens a step"))
    assert "(--accept) is assumed" in note
    known = serve(draft="eagle3", speculate=3, accept=0.6)
    assert "accept" not in known.assumed
    assert not any("assumed" in note for note in known.notes if note.startswith("guesses"))


def test_guesses_count_under_load():
    load = {"concurrency": 4, "count": 8, "input": 512, "output": 64}
    slow, fast = serve(**load), serve(**load, draft="eagle3", accept=0.8)
    assert fast.tpot_s < slow.tpot_s


@pytest.mark.parametrize("tool", ["vllm", "sglang"])
@pytest.mark.parametrize("draft", ["mtp", "ngram", "llama3_2_1b"])
def test_guesses_are_emitted_and_read_back(tool, draft):
    options = {"draft": draft, "speculate": 2, "input": 500, "output": 100}
    server = steptime.serve(MODEL, DEVICE, stack=tool, emit=tool, **options)
    again = steptime.serve(server.emitted, DEVICE, input=500, output=100)
    assert (again.tpot_s, again.cache_tokens) == (server.tpot_s, server.cache_tokens)


def test_the_head_of_eagle_is_named_by_its_checkpoint():
    with pytest.raises(InputError, match="the checkpoint of the eagle3 head"):
        serve(draft="eagle3", emit="vllm")
