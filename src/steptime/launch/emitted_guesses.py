"""Guessed (speculative) tokens of a server as options of vLLM and SGLang; `draft` guesses them."""

from __future__ import annotations

import json

from steptime.core.errors import InputError
from steptime.launch.job import Facts


def vllm_speculation(facts: Facts) -> list[str]:
    """Return the option of guessed tokens; raises `InputError` for the head of EAGLE."""
    if facts.get("speculative") is None:
        return []
    draft = str(facts["draft"])
    _check_guesser("vllm", draft)
    # Tokens are guessed by a method without a network of its own, or by a small network (an id).
    key = "method" if draft in {"mtp", "ngram"} else "model"
    config = {key: draft, "num_speculative_tokens": facts["speculative"]}
    return ["--speculative-config", json.dumps(config)]


def sglang_speculation(facts: Facts) -> list[str]:
    """Return the options of a chain of guesses; raises `InputError` for the head of EAGLE."""
    tokens = facts.get("speculative")
    if not isinstance(tokens, int):
        return []
    draft = str(facts["draft"])
    _check_guesser("sglang", draft)
    algorithm = {"mtp": "NEXTN", "ngram": "NGRAM"}.get(draft, "STANDALONE")
    words = ["--speculative-algorithm", algorithm, "--speculative-num-steps", str(tokens)]
    # A chain of guesses (top-k of 1): the tokens that are checked are the guesses and the last one.
    words += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(tokens + 1)]
    has_network = algorithm == "STANDALONE"
    return [*words, *(["--speculative-draft-model-path", draft] if has_network else [])]


def _check_guesser(tool: str, draft: str) -> None:
    """Raise `InputError` for a head of EAGLE, whose checkpoint a command names."""
    if draft in {"eagle", "eagle3"}:
        text = f"--emit {tool}: the command names the checkpoint of the {draft} head, which is "
        raise InputError(f"{text}not known; nearest: leave out --draft, and add it to the command")
