"""Continuous batching at a constant number of requests, in closed form."""

from steptime.serving.phases import Phases

BUNCHED = 3.0  # prompts that are read while one waits, because answers end together
ROUNDS = 8  # of requests, of which the first comes all at once


def served(phases: Phases, requests: int, tokens: int, output: int) -> tuple[float, float]:
    """Return seconds to the first token and per token after it, of `requests` at any time.

    Each has `tokens` to read and `output` to make. While a request is there, all the others begin
    once, so that it takes the time of their prompts and that of its own steps; what of it goes by
    before the first token, depends on how requests bunch. Where a stack reads prompts first they
    all begin together, and one waits for half of them. Where it mixes prompts with the others'
    tokens they drift apart after a first round. Who does not find room in the cache waits until
    others have left: requests = rate x time (Little 1961).
    """
    context, ranks = tokens + output / 2, phases.plan.data
    running = min(float(requests), max(1.0, phases.most_tokens / (tokens + output)))
    sequences, own = max(1, round(running)), running / min(ranks, requests)
    step_s = phases.decode(sequences, context).seconds
    each_s = alone_s = phases.prefill(ranks, tokens).seconds  # of one prompt on each rank
    mixes = phases.constant("mixes") == 1
    if mixes:
        together = max(1, round(own / output))
        both_s = phases.mixed(sequences, context, together * ranks, tokens).seconds
        each_s = (both_s - step_s) / together
    half = (own + 1) / 2
    waits = min(half, BUNCHED + own / 2 / ROUNDS) if mixes else half
    request_s = own * each_s + (output - 1) * step_s
    ttft_s = waits * each_s + (alone_s - each_s)
    tpot_s = (request_s - waits * each_s) / max(1, output - 1)
    queue_s = request_s * (requests / running - 1)
    return ttft_s + queue_s + phases.constant("prompt_s"), tpot_s
