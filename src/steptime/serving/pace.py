"""Seconds of a server's steps at any sizes, interpolated between sizes that are priced."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from steptime.serving.phases import Phases
from steptime.serving.speculation import Guesses, price_token

CONTEXTS = (1, 512, 2048, 4096, 8192, 16384)  # at which prefill beside decoding is priced
_KNOTS = {0, 1, *(factor << power for power in range(40) for factor in (2, 3))}


class _BilinearSurface:
    """A function of two numbers, bilinear between knots, to which `exact_knots` add first ones."""

    def __init__(
        self, function: Callable[[int, int], float], exact_knots: Sequence[int] = ()
    ) -> None:
        self._knots = sorted({*_KNOTS, *exact_knots})
        self._knot_value = lru_cache(maxsize=None)(function)
        self._edge = lru_cache(maxsize=100_000)(self._interpolate_edge)

    def _interval_of(self, x: float) -> tuple[int, int]:
        """Return the two knots around a number."""
        i = bisect_right(self._knots, x)
        return self._knots[i - 1], self._knots[i]

    def _interpolate_edge(self, x: float, low_y: int, high_y: int) -> tuple[float, float]:
        """Return the values at `x` on two knots of the second number."""
        left, right = self._interval_of(x)
        weight = (x - left) / (right - left)
        low = self._knot_value(left, low_y) * (1 - weight)
        high = self._knot_value(left, high_y) * (1 - weight)
        if weight:  # else the right knot need not be priced
            low += self._knot_value(right, low_y) * weight
            high += self._knot_value(right, high_y) * weight
        return low, high

    def value_with_slope(self, x: float, y: float) -> tuple[float, float, int]:
        """Return the value, its slope in `y`, and the `y` up to which the slope holds."""
        low_y, high_y = self._interval_of(y)
        low, high = self._edge(x, low_y, high_y)
        slope = (high - low) / (high_y - low_y)
        return low + slope * (y - low_y), slope, high_y

    def value(self, x: float, y: float) -> float:
        """Return the value at two numbers."""
        return self.value_with_slope(x, y)[0]


class ServerPace:
    """Seconds of the steps of a server.

    Args:
        phases: prices of the steps.
        lengths: usual lengths of prompts, which are priced exactly.
        guesses: speculation; a decode step then is the mean time of a token of each sequence.
        ranks: ranks that share out the sequences.
    """

    def __init__(
        self,
        phases: Phases,
        lengths: Sequence[int] = (),
        guesses: Guesses | None = None,
        ranks: int = 1,
    ) -> None:
        def decode_s(sequences: int, context: float) -> float:
            return price_token(phases, guesses, sequences, context).seconds

        def prefill_s(sequences: int, tokens: int, cached_tokens: int = 0) -> float:
            prompts_s = phases.price_prefill(sequences, tokens, cached_tokens).seconds
            if guesses is None:
                return prompts_s
            return prompts_s + guesses.price_prefill(sequences, tokens, cached_tokens).seconds

        # The attention of a chunk to the tokens of its prompt that lie in the cache already.
        def past_s(tokens: int, cached_tokens: int) -> float:
            return prefill_s(1, tokens, cached_tokens) - prefill_s(1, tokens)

        # What one step for both saves against a step for each: weights are read once.
        def mixing_s(context: int, sequences: int, tokens: int) -> float:
            decoding_s = phases.price_decode(sequences, context).seconds
            prompt_s = phases.price_prefill(1, tokens).seconds
            mixed = phases.price_mixed_step(sequences, context, prompts=1, tokens=tokens)
            return mixed.seconds - (decoding_s + prompt_s)

        self._ranks = ranks
        self._decode_s = _BilinearSurface(decode_s)
        self._prefill_s = _BilinearSurface(prefill_s, lengths)
        self._past_s = _BilinearSurface(past_s, lengths)
        # One surface, of sequences and tokens, for each of the contexts.
        self._mixing_s = [
            _BilinearSurface(partial(mixing_s, context), lengths) for context in CONTEXTS
        ]

    def decode_steps(self, sequences: int, tokens: int) -> tuple[float, float, int]:
        """Return the seconds of a decode step, the growth per step, and the steps that it holds.

        Args:
            sequences: running sequences.
            tokens: tokens of all of them in the cache.
        """
        context = tokens / sequences
        first_s, growth_s, slope_end = self._decode_s.value_with_slope(sequences, context)
        # Each step adds a token to the context; the slope holds up to the next knot.
        step_count = int(slope_end - context) + 1
        return first_s, growth_s, step_count

    def prefill_s(self, sequences: int, tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of a step that reads chunks of prompts, and decodes beside that.

        Args:
            sequences: running sequences that get a token in this step.
            tokens: tokens of all of them in the cache.
            chunks: tokens of each chunk, and tokens of its prompt before it.
        """
        chunk_tokens = sum(size for size, _ in chunks)
        # The chunks are priced as prompts of their mean size; then the attention to the tokens that
        # lie before each chunk is added.
        step_s = self._prefill_s.value(len(chunks), chunk_tokens / len(chunks))
        past_s = sum(
            self._past_s.value(size, cached_tokens)
            for size, cached_tokens in chunks
            if cached_tokens
        )
        # The seconds of all chunks are summed up, but each rank reads its own sequences.
        step_s += past_s / self._ranks
        if sequences:
            context = tokens / sequences
            mixing_s = self._interpolate_mixing(context, sequences, chunk_tokens)
            decode_s, _growth_s, _count = self.decode_steps(sequences, tokens)
            step_s += mixing_s + decode_s
        return step_s

    def _interpolate_mixing(self, context: float, sequences: int, chunk_tokens: int) -> float:
        """Return the seconds (negative) by which one mixed step differs from two steps."""
        high = min(bisect_right(CONTEXTS, context), len(CONTEXTS) - 1)
        low = high - 1
        low_s = self._mixing_s[low].value(sequences, chunk_tokens)
        high_s = self._mixing_s[high].value(sequences, chunk_tokens)
        share = (context - CONTEXTS[low]) / (CONTEXTS[high] - CONTEXTS[low])
        # Beyond the longest context the value stays as it is there.
        return low_s + (high_s - low_s) * min(1.0, share)
