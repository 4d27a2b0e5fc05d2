"""Speculative decoding: tokens that are guessed for a step, and verified in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from steptime.core.errors import InputError
from steptime.core.units import format_count
from steptime.core.workload import Plan
from steptime.planning.problem import PlanProblem
from steptime.prediction.training import FIRST, LAST
from steptime.serving.engine import Engine
from steptime.serving.kernels import HALF_BYTES
from steptime.serving.phases import Phases
from steptime.serving.step_cost import StepCost

MAX_GUESSED = 64  # tokens of a step
PROMPT_LOOKUP = "ngram"
LAYER_METHODS = ("mtp", "eagle", "eagle3")  # one layer that reads the model's hidden state
ACCEPTED_SHARES: Mapping[str, float] = {
    "mtp": 0.85,  # DeepSeek-V3 (2024), section 5.4.3: 85 to 90 % of second tokens
    "eagle": 0.7,  # Li et al. 2024, EAGLE, table 2: 0.66 to 0.79 for Vicuna and LLaMA2-Chat
    "eagle3": 0.75,  # Li et al. 2025, EAGLE-3, figure 7: 0.7 to 0.8, alike at each place
    PROMPT_LOOKUP: 0.4,  # judged: of texts that repeat their prompt
}
ACCEPTED_OF_NETWORK = 0.7  # judged: Leviathan et al. 2023, table 3, have 0.5 to 0.9
GUESSED_TOKENS: Mapping[str, int] = {"mtp": 1}
DEFAULT_GUESSED = 3


@dataclass(frozen=True)
class Speculation:
    """Who guesses how many tokens of a step, and how often they are right.

    Args:
        draft: `mtp`, `eagle`, `eagle3`, `ngram`, or a network.
        tokens: tokens that are guessed for a step.
        accept: chance of each to be right if those before it are.
        assumed: what nobody said, by the name of its option.
    """

    draft: str
    tokens: int
    accept: float
    assumed: tuple[str, ...] = ()

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step makes in the mean: 1 + w + ... + w^q.

        Source: Leviathan, Kalman, Matias 2023, equation 1.
        """
        return sum(self.accept**place for place in range(self.tokens + 1))


def speculation_of(draft: str, tokens: int | None, accept: float | None) -> Speculation:
    """Return a speculation, with usual values of what is None.

    Raises:
        InputError: for no tokens, or too many, and for a chance that is none.
    """
    method = draft.lower()
    # A method of guessing in any case, else the name of a network.
    name = method if method in ACCEPTED_SHARES else draft
    if tokens is not None and tokens > MAX_GUESSED:
        raise InputError(f"serve: --speculate: at most {MAX_GUESSED} tokens, not {tokens:,}")
    if accept is not None and not 0 < accept <= 1:
        raise InputError(f"serve: --accept: is a share above 0, such as 0.7, not {accept:g}")
    values = {"speculate": tokens, "accept": accept}
    assumed_options = tuple(option for option, value in values.items() if value is None)
    usual_tokens = GUESSED_TOKENS.get(name, DEFAULT_GUESSED)
    usual_share = ACCEPTED_SHARES.get(name, ACCEPTED_OF_NETWORK)
    return Speculation(
        name,
        tokens=usual_tokens if tokens is None else tokens,
        accept=usual_share if accept is None else accept,
        assumed=assumed_options,
    )


class DraftHead(Phases):
    """One layer that guesses with the embedding and the head of its network: MTP, EAGLE.

    It reads the hidden state beside the embedding of the last token, by a product of twice the
    width. The layer is the last of the network.
    """

    @property
    def layer(self) -> str:
        """The kind of the layer."""
        return self.problem.shape.kinds[-1]

    @cached_property
    def piece_counts(self) -> Mapping[str, int]:
        """Number of copies of each piece: the ends, and the layer."""
        return {FIRST: 1, self.layer: 1, LAST: 1}

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the layer and of its first product on a device."""
        width = int(self.problem.shape.kind_settings["width"])
        return self.piece_bytes[self.layer] + HALF_BYTES * 2 * width * width / self.plan.tensor

    def kv_bytes(self, tokens: int) -> float:
        """Return the bytes of the layer's cache of a sequence on a device."""
        return self.layer_kv_bytes(self.layer, tokens)


@dataclass(frozen=True)
class Guesses:
    """A speculation with the phases of who guesses; None where that is a look into the prompt."""

    speculation: Speculation
    drafter: Phases | None

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights of who guesses on a device."""
        return 0.0 if self.drafter is None else self.drafter.weight_bytes

    def kv_bytes(self, tokens: int) -> float:
        """Return the bytes of who guesses in the cache of a sequence, on a device."""
        return 0.0 if self.drafter is None else self.drafter.kv_bytes(tokens)

    def price_prefill(self, sequences: int, tokens: int, cached_tokens: int = 0) -> StepCost:
        """Return the time in which who guesses reads prompts."""
        if self.drafter is None:
            return StepCost()
        return self.drafter.price_prefill(sequences, tokens, cached_tokens)

    def price_decode(self, sequences: int, context: float) -> StepCost:
        """Return the time of one guess, without the server's, which is that of the whole step."""
        if self.drafter is None:
            return StepCost()
        return self.drafter.price_decode(sequences, context)._replace(host_s=0.0)


def draft_head(
    problem: PlanProblem,
    plan: Plan,
    weight_format: str,
    cache_format: str,
    engine: Engine,
    quantised_part: str,
) -> DraftHead:
    """Return the layer that guesses for a network; all ranks of a pipeline's last stage have it."""
    single_stage_plan = replace(plan, pipeline=1)  # it lies on the last stage alone
    return DraftHead(
        problem,
        single_stage_plan,
        weight_format,
        cache_format,
        engine,
        quantised_part=quantised_part,
    )


def price_token(
    phases: Phases, guesses: Guesses | None, sequences: int, context: float
) -> StepCost:
    """Return the mean time of a token of each sequence, of steps that verify guesses.

    A step decodes as many tokens as of more sequences, which share the caches that are read.
    """
    if guesses is None:
        return phases.price_decode(sequences, context)
    speculation = guesses.speculation
    # A step verifies the guesses and makes one token more. It costs as much as that many more
    # sequences with as much cache in all, since tokens of a sequence share its cache.
    verified_tokens = speculation.tokens + 1  # of each sequence
    verification = phases.price_decode(sequences * verified_tokens, context / verified_tokens)
    guess = guesses.price_decode(sequences, context)
    step = verification.add(guess, times=speculation.tokens)
    # Per token that is accepted in the mean.
    return step.multiply(1 / speculation.tokens_per_step)


def describe_speculation(speculation: Speculation) -> list[str]:
    """Describe what is assumed of guesses.

    For example `guesses: 3 tokens a step by eagle3, each right with the chance 0.75: 2.7 tokens a
    step; that chance (--accept) is assumed, and decides the speed`.
    """
    guessed_tokens = format_count(speculation.tokens, "token")
    text = f"guesses: {guessed_tokens} a step by {speculation.draft}, each right with "
    text += f"the chance {speculation.accept:g}: {speculation.tokens_per_step:.2g} tokens a step"
    if "accept" in speculation.assumed:
        text += "; that chance (--accept) is assumed, and decides the speed"
    notes = [text]
    if speculation.draft in LAYER_METHODS:
        notes.append(f"{speculation.draft}: its layer is counted as the last one of the model")
    return notes
