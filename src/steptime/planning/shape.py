"""A language model as plans need it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steptime.core.tuning import state_weights
from steptime.core.workload import Tuning
from steptime.network.families.family import Family
from steptime.prediction.routing import reached


@dataclass(frozen=True)
class Shape:
    """A language model as plans need it: its layers' kinds, in order, and its parameters.

    `whole` are its hyperparameters, `one` those of the same network with one layer of each kind;
    `length` are the tokens of a sequence, `tied` whether first and last stage share a table; a
    token reaches the share `reached` of the routed `experts`.
    """

    family: Family
    whole: Mapping[str, Any]
    one: Mapping[str, Any]
    kinds: tuple[str, ...]
    length: int
    vocabulary: int
    tied: bool
    experts: int
    reached: float
    label: str
    unit: str = "tokens"
    batch: int | None = None  # usual, of networks that are no language models

    def text_length(self, tuning: Tuning) -> int:
        """Return the tokens of a sequence that are text, without those that pad it."""
        return min(self.length, tuning.padded or self.length)

    def state_weights(self, tuning: Tuning) -> Tuning:
        """Return a fine-tuning on the quantised weights that the network's file states.

        Raises:
            InputError: for a training of all weights, where whole numbers store them.
        """
        stated = self.family.weights, self.family.stored
        return state_weights(tuning, *stated, "train", "plan", alternatives="--lora 16")

    @property
    def per_token(self) -> int:
        """The experts that a token chooses."""
        return int(self.whole["experts_per_token"])

    def reaches(self, parts: int) -> float:
        """Return how many of equal parts, among which experts lie, a token is expected to reach."""
        groups = (self.whole[name] for name in ("expert_groups", "groups_per_token"))
        return reached(parts, self.experts, self.per_token, *groups)
