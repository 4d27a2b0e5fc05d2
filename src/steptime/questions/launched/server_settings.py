"""Ranks, guessed tokens and checkpoints of a launched server as options of `serve`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steptime.launch.job import Facts, LaunchJob
from steptime.questions.launched.checkpoints import find_checkpoint_option_and_type
from steptime.questions.launched.job_model import find_network
from steptime.questions.launched.question_settings import QuestionSettings

GUESSER_BY_WORD = {  # words of engines, the longest first, and who guesses
    "eagle3": "eagle3",
    "eagle": "eagle",
    "nextn": "mtp",
    "mtp": "mtp",
    "ngram": "ngram",
}
UNPRICED_GUESSERS = ("medusa", "mlp_speculator", "suffix", "lookahead", "dflash", "dspark")


def set_rank_options(settings: QuestionSettings, facts: Facts) -> None:
    """Set the ranks of data-parallel attention, and those that share out experts.

    Without expert parallelism, engines split the experts of a mixture over the ranks of data
    parallelism as they do over those of tensor parallelism; a rank then has as many bytes as with
    whole experts.
    """
    tensor_ranks = facts.get("tensor", 1)
    # Data-parallel attention: the tensor-parallel ranks form replicas of the attention alone, so
    # many as the fact says, or one of each rank where it is True.
    attention_data = facts.get("attention_data")
    if attention_data and isinstance(tensor_ranks, int):
        is_replica_per_rank = attention_data is True
        attention_replicas = tensor_ranks if is_replica_per_rank else int(str(attention_data))
        ranks_per_replica = max(1, tensor_ranks // attention_replicas)
        settings.options.update(tensor=ranks_per_replica, data=attention_replicas)
    data_ranks = settings.options.get("data", 1)
    expert_ranks = facts.get("expert")
    if not isinstance(expert_ranks, int) or expert_ranks == 1:  # no expert parallelism
        # The data-parallel ranks then split the experts: as many bytes as with whole ones.
        if data_ranks > 1:
            settings.options["expert"] = data_ranks
        return
    # Only data-parallel ranks share out whole experts.
    settings.options["expert"] = min(expert_ranks, data_ranks)
    if expert_ranks > data_ranks:
        settings.notes.append(
            f"expert {expert_ranks}: experts on the tensor-parallel devices are priced as split "
            "products"
        )


def replace_data_ranks_by_replicas(settings: QuestionSettings, model: object) -> None:
    """Turn data-parallel ranks of a network without experts into replicas, which they are."""
    from steptime.planning.ranks.language_model import read_language_model

    data_ranks = settings.options.get("data", 1)
    if data_ranks == 1:
        return
    # Data-parallel ranks share the experts; without any, each is a server by itself. The user
    # gave the network or the job, so that it may be code (trusted).
    if read_language_model(str(model), trusted=True).experts:
        return
    for name in ("data", "expert"):
        settings.options.pop(name, None)
    settings.options["replicas"] = data_ranks
    settings.notes.append(
        f"data {data_ranks}: replicas, since the network has no experts to share out"
    )


def set_speculation_options(settings: QuestionSettings, facts: Facts) -> None:
    """Set who guesses tokens for a step, and how many."""
    guessed_tokens = facts.get("speculative")
    if guessed_tokens is None:
        return
    draft = str(facts.get("draft") or "")
    lower_draft = draft.lower()
    if any(name in lower_draft for name in UNPRICED_GUESSERS):
        settings.notes.append(f"speculative {guessed_tokens}: guesses by {draft} are not priced")
        return
    # A method, such as ngram or eagle, is in the name; else the draft is a network of its own.
    guesser = next((name for word, name in GUESSER_BY_WORD.items() if word in lower_draft), None)
    if guesser is None and draft:
        guesser = find_network(draft, Path())
    if guesser is None:
        settings.notes.append(
            f"speculative {guessed_tokens}: {draft or 'who guesses'} is not among the networks; "
            "--draft names one, or mtp, eagle, eagle3, ngram"
        )
        return
    settings.options.update(draft=guesser, speculate=guessed_tokens)


def set_checkpoint_type_option(
    settings: QuestionSettings, job: LaunchJob, user_options: Mapping[str, Any]
) -> None:
    """Set the type of the weights that the id of a checkpoint says, unless an option does."""
    option_and_type = find_checkpoint_option_and_type(job.model) if job.model else None
    is_type_typed = not {"weights", "dtype"}.isdisjoint(user_options)
    is_type_in_job = "weights" in settings.options
    if option_and_type is None or is_type_typed or is_type_in_job:
        return
    option, published_type = option_and_type
    settings.options[option] = published_type
    settings.notes.append(
        f"{job.model}: its weights are published as {published_type} (--{option})"
    )
