"""MLPerf Training's reinforcement learning: the network of MiniGo (after Silver et al. 2017).

steptime count examples/mlperf/minigo.py:MiniGo:2x13x19x19
"""

import torch
from torch import Tensor, nn


def convolution(inputs: int, filters: int, kernel: int = 3) -> nn.Sequential:
    """Return a convolution that keeps the board, and a batch norm."""
    layer = nn.Conv2d(inputs, filters, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(filters))


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, filters: int) -> None:
        """Take the number of filters."""
        super().__init__()
        self.first, self.second = convolution(filters, filters), convolution(filters, filters)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many channels as come in."""
        return (x + self.second(self.first(x).relu())).relu()


class MiniGo(nn.Module):
    """The moves that are likely on a board, and who is likely to win."""

    def __init__(
        self, size: int = 19, planes: int = 13, filters: int = 256, blocks: int = 19
    ) -> None:
        """Take the size of the board, the planes that describe it, and the sizes of the trunk."""
        super().__init__()
        self.stem = convolution(planes, filters)
        self.trunk = nn.Sequential(*[Block(filters) for _ in range(blocks)])
        self.policy, self.value = convolution(filters, 2, 1), convolution(filters, 1, 1)
        self.moves = nn.Linear(2 * size**2, size**2 + 1)
        self.hidden, self.winner = nn.Linear(size**2, filters), nn.Linear(filters, 1)

    def forward(self, board: Tensor) -> Tensor:
        """Return the scores of all moves and of passing, and behind them the winner, -1 to 1."""
        x = self.trunk(self.stem(board).relu())
        moves = self.moves(self.policy(x).relu().flatten(1))
        winner = self.winner(self.hidden(self.value(x).relu().flatten(1)).relu())
        return torch.cat([moves, winner.tanh()], 1)
