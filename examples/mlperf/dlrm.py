"""MLPerf's recommendation of v0.7 to v2.1: DLRM (Naumov et al. 2019), its tables cut short.

    steptime count examples/mlperf/dlrm.py:DLRM:4x13,4x26:int64

The layers are those for Criteo's terabyte. Its 26 tables have up to 40 million rows of 128, which
are memory and no work of a step: here they have `rows` rows each.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn


def perceptron(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths with ReLU behind each."""
    pairs = pairwise(widths)
    return nn.Sequential(*[layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())])


class DLRM(nn.Module):
    """A score of 13 numbers and 26 categories, by the products of each two of their vectors."""

    def __init__(self, rows: int = 1000, tables: int = 26, width: int = 128) -> None:
        """Take the rows of a table, the number of tables and the width of a row."""
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        self.bottom = perceptron(13, 512, 256, width)
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(perceptron(width + pairs, 1024, 1024, 512, 256), nn.Linear(256, 1))
        places = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("places", places[0] * (tables + 1) + places[1])

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Return a score for each example."""
        x = self.bottom(numbers)
        rows = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([x, *rows], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products[:, self.places]], dim=1))
