"""Blocks that differ from each other: what a block of a network has in place of the usual parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from steptime.core.workload import Value
from steptime.network.ops.builder import Builder


class ScoresOfPlaces(Protocol):
    """Attention that reads a table of distances, which all blocks share."""

    def table(self, b: Builder, width: int, name: str) -> str:
        """Return the table."""

    def attention(self, b: Builder, x: str, p: Mapping[str, Any], name: str, table: str) -> str:
        """Return the attention of `x [n, l, width]` to itself."""


class AddedInput(Protocol):
    """What a network's embeddings add to the output of a block."""

    def build(self, b: Builder, x: str, embeddings: str, kind: str) -> str:
        """Return `x` with what is made of the embeddings added, after a norm of a `kind`."""


class Mixer(Protocol):
    """What stands in place of attention: it mixes the tokens of a sequence."""

    def build(self, b: Builder, x: str, width: int, name: str) -> str:
        """Return the mixed tokens of `x [n, l, width]`."""


class AlternatingStreams(Protocol):
    """Residual streams of which a block computes one."""

    def expand(self, b: Builder, x: str) -> str:
        """Return the streams that are made of `x [n, l, width]`."""

    def collapse(self, b: Builder, x: str) -> str:
        """Return streams as one."""

    def build(
        self,
        b: Builder,
        x: str,
        p: Mapping[str, Any],
        parts: Sequence[Callable[[str], str]],
        add_tokens: Callable[[str], str],
    ) -> str:
        """Return the streams after a block of these parts, with its own embeddings added."""


@dataclass(frozen=True)
class Indexer:
    """Chooses the tokens that each token attends to (DeepSeek Sparse Attention, 2025).

    Attributes:
        heads: heads of the queries that score tokens; all share one key.
        width: width of a query and a key.
        selected: tokens that a token attends to.
        has_weights: a learned weight of each head and token sums the scores.
        norms: norms of the queries and keys: a layer norm of the `key`, RMS norms of `both`.
        is_reused: the choice of an earlier block is taken over; there are no weights.
    """

    heads: int
    width: int
    selected: int
    has_weights: bool = True
    norms: str = "key"
    is_reused: bool = False


@dataclass(frozen=True)
class BlockDesign:
    """One block of a network whose blocks differ.

    Attributes:
        changes: hyperparameters of this block, sorted by name, where they are not the network's.
        mixer: what stands in place of attention; None for attention.
        mixes: False for a block that has a feed-forward part alone.
        feeds: False for a block that has no feed-forward part.
        parallel: a mixer whose result is added to that of attention (Falcon-H1).
        indexer: chooses the tokens that attention sees.
        source: the number from 0 of an earlier block whose keys and values are read.
        keys_are_values: values are the keys before they are normed and turned.
        value_norm: values are normed, head by head, without weights.
        gate_per_head: one gate for each head of attention, where it is gated.
        expert_width: width that tokens are brought to before experts read them, 0 for the model's.
        expert_norm: what experts make together is normed before it is brought back.
        is_dense_with_experts: a dense feed-forward part stands beside the experts (Gemma 4).
        streams: residual streams beside each other that every part mixes, 0 for a plain residual.
        places: attention with scores of places in place of the usual one (DeBERTa).
        added_input: adds something of the network's embeddings to the block's output.
        token_width: width of an embedding of the block's own for each token, 0 for none (Gemma 4).
        token_rows: rows of the table of these embeddings, 0 for those of the vocabulary.
        alternating: residual streams of which the block computes one (Gemma 3n).
        keeps_largest: the gate of the feed-forward part is zero but for its largest numbers.
    """

    changes: tuple[tuple[str, Value], ...] = ()
    mixer: Mixer | None = None
    mixes: bool = True
    feeds: bool = True
    parallel: Mixer | None = None
    indexer: Indexer | None = None
    source: int | None = None
    keys_are_values: bool = False
    value_norm: bool = False
    gate_per_head: bool = False
    expert_width: int = 0
    expert_norm: bool = False
    is_dense_with_experts: bool = False
    streams: int = 0
    places: ScoresOfPlaces | None = None
    added_input: AddedInput | None = None
    token_width: int = 0
    token_rows: int = 0
    alternating: AlternatingStreams | None = None
    keeps_largest: bool = False


USUAL = BlockDesign()


def design_of(parameters: Mapping[str, Any]) -> BlockDesign:
    """Return the design of the block whose parameters these are."""
    design = parameters.get("design", USUAL)
    return design if isinstance(design, BlockDesign) else USUAL


def block_design(parameters: Mapping[str, Any], number: int) -> BlockDesign:
    """Return the design of a block by its number from 0, the usual one where blocks are alike."""
    designs = parameters.get("designs")
    design = designs[number] if isinstance(designs, tuple) else USUAL
    return design if isinstance(design, BlockDesign) else USUAL


def block_parameters(parameters: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the parameters of a block by its number from 0, with its design under `design`."""
    design = block_design(parameters, number)
    return {**parameters, **dict(design.changes), "design": design}
