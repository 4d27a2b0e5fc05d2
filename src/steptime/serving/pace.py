"""Seconds of a server's steps at any numbers, from phases that are priced at some of them."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from steptime.serving.phases import Phases
from steptime.serving.speculation import Guesses, decode_token

CONTEXTS = (1, 512, 2048, 4096, 8192, 16384)  # at which prompts beside decoding are priced
_KNOTS = {0, 1, *(k << n for n in range(40) for k in (2, 3))}


class _Surface:
    """A function of two numbers, known at knots (and at `exact` ones) and straight between them."""

    def __init__(self, function: Callable[[int, int], float], exact: Sequence[int] = ()) -> None:
        self._knots = sorted({*_KNOTS, *exact})
        self._at = lru_cache(maxsize=None)(function)
        self._edge = lru_cache(maxsize=100_000)(self._between)

    def _between(self, x: float, low: int, high: int) -> tuple[float, float]:
        i = bisect_right(self._knots, x)
        left, right = self._knots[i - 1 : i + 1]
        part = (x - left) / (right - left)
        ends = [self._at(left, y) * (1 - part) for y in (low, high)]
        beyond = [self._at(right, y) * part for y in (low, high)] if part else [0.0, 0.0]
        return ends[0] + beyond[0], ends[1] + beyond[1]

    def __call__(self, x: float, y: float) -> tuple[float, float, int]:
        """Return the value, by how much it grows with y, and up to which y it does."""
        i = bisect_right(self._knots, y)
        low, high = self._knots[i - 1 : i + 1]
        first, last = self._edge(x, low, high)
        slope = (last - first) / (high - low)
        return first + slope * (y - low), slope, high


class Paced:
    """The steps of a server whose phases are known, its prompts mostly of some `lengths`.

    With `guesses` a step is what a token of each sequence takes in the mean. So many `ranks` share
    out the sequences.
    """

    def __init__(
        self,
        phases: Phases,
        lengths: Sequence[int] = (),
        guesses: Guesses | None = None,
        ranks: int = 1,
    ) -> None:
        def decode_s(sequences: int, context: float) -> float:
            return decode_token(phases, guesses, sequences, context).seconds

        def prefill_s(sequences: int, tokens: int, past: int = 0) -> float:
            prompts_s = phases.prefill(sequences, tokens, past).seconds
            if guesses is None:
                return prompts_s
            return prompts_s + guesses.prefill(sequences, tokens, past).seconds

        def shared_s(context: int, sequences: int, tokens: int) -> float:
            alone = phases.decode(sequences, context).seconds + phases.prefill(1, tokens).seconds
            return phases.mixed(sequences, context, 1, tokens).seconds - alone

        self._ranks = ranks
        self._decode = _Surface(decode_s)
        self._prefill = _Surface(prefill_s, lengths)
        self._after = _Surface(lambda n, past: prefill_s(1, n, past) - prefill_s(1, n), lengths)
        # what one step takes less than two: negative
        self._shared = [_Surface(partial(shared_s, context), lengths) for context in CONTEXTS]

    def decode(self, sequences: int, tokens: int) -> tuple[float, float, int]:
        """Return seconds of a step, by how much the next ones grow, and how many of them do.

        The sequences hold so many tokens together.
        """
        first, slope, up_to = self._decode(sequences, tokens / sequences)
        return first, slope, int(up_to - tokens / sequences) + 1

    def prompts(self, sequences: int, tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Return seconds of a step that reads chunks of prompts beside decoding.

        A chunk is its tokens, and those of its prompt before them.
        """
        new = sum(n for n, _ in chunks)
        took = self._prefill(len(chunks), new / len(chunks))[0]
        took += sum(self._after(n, before)[0] for n, before in chunks if before) / self._ranks
        if sequences:
            context = tokens / sequences
            i = min(bisect_right(CONTEXTS, context), len(CONTEXTS) - 1)
            low, high = (self._shared[k](sequences, new)[0] for k in (i - 1, i))
            part = min(1.0, (context - CONTEXTS[i - 1]) / (CONTEXTS[i] - CONTEXTS[i - 1]))
            took += low + (high - low) * part + self.decode(sequences, tokens)[0]
        return took
