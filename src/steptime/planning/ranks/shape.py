"""The properties of a network that plans depend on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steptime.core.tuning import state_weights
from steptime.core.workload import Tuning
from steptime.network.families.family import Family
from steptime.prediction.routing import expected_parts


@dataclass(frozen=True)
class Shape:
    """A language model as a plan sees it.

    Attributes:
        family: the family of the network.
        settings: the hyperparameters of the network.
        kind_settings: the hyperparameters of the same network with one layer of each kind.
        kinds: the kind of each layer, in order.
        length: the tokens of a sequence.
        vocabulary: the words of the vocabulary.
        tied: whether the first and the last stage share the embedding.
        experts: the routed experts of a layer.
        expert_share: the share of the routed experts that a token reaches.
        label: the text by which the user named the network.
        unit: what a batch consists of, "tokens" or "examples".
        batch: the usual batch of a network that is no language model; None for language models.
    """

    family: Family
    settings: Mapping[str, Any]
    kind_settings: Mapping[str, Any]
    kinds: tuple[str, ...]
    length: int
    vocabulary: int
    tied: bool
    experts: int
    expert_share: float
    label: str
    unit: str = "tokens"
    batch: int | None = None

    @property
    def is_language_model(self) -> bool:
        """Whether it is a language model, whose layers are priced one of each kind."""
        return self.batch is None

    def text_length(self, tuning: Tuning) -> int:
        """Return the tokens of a sequence without its padding."""
        return min(self.length, tuning.padded or self.length)

    def state_weights(self, tuning: Tuning) -> Tuning:
        """Return a fine-tuning on the quantised weights that the network's file states.

        Raises:
            InputError: for a training of all weights, where whole numbers store them.
        """
        stated = self.family.weights, self.family.stored
        return state_weights(tuning, *stated, "train", "plan", alternatives="--lora 16")

    @property
    def experts_per_token(self) -> int:
        """The experts that a token chooses."""
        return int(self.settings["experts_per_token"])

    def expected_expert_groups(self, group_count: int) -> float:
        """Return the expected number of equal groups of experts that a token reaches."""
        expert_groups = self.settings["expert_groups"]
        groups_per_token = self.settings["groups_per_token"]
        return expected_parts(
            group_count, self.experts, self.experts_per_token, expert_groups, groups_per_token
        )
