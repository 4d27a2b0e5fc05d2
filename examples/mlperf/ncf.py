"""MLPerf Training's recommendation of v0.5: neural collaborative filtering (He et al. 2017).

    steptime count examples/mlperf/ncf.py:NCF:4:int64,4:int64

The users and items are those of MovieLens-20M. MLPerf is a trademark of MLCommons; this is no
result of theirs.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn


class NCF(nn.Module):
    """A score of each pair of a user and an item, by factors and by a perceptron."""

    def __init__(self, users: int = 138_493, items: int = 26_744, factors: int = 64) -> None:
        """Take the number of users, of items and the width of their factors."""
        super().__init__()
        widths = (256, 256, 128, 64)
        self.users, self.items = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_words = nn.Embedding(users, widths[0] // 2)
        self.item_words = nn.Embedding(items, widths[0] // 2)
        pairs = pairwise(widths)
        layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
        self.perceptron = nn.Sequential(*layers)
        self.score = nn.Linear(factors + widths[-1], 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return a score for each pair."""
        product = self.users(user) * self.items(item)
        both = torch.cat([self.user_words(user), self.item_words(item)], dim=-1)
        return self.score(torch.cat([product, self.perceptron(both)], dim=-1))
