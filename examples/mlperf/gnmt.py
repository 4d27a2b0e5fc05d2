"""MLPerf Training's recurrent translation, v0.5 to v0.7: GNMT (Wu et al. 2016).

steptime count examples/mlperf/gnmt.py:GNMT:2x25:int64,2x26:int64
"""

import torch
from torch import Tensor, nn


class GNMT(nn.Module):
    """Four layers that read, the first in both directions, and four that write and look back."""

    def __init__(self, words: int = 32_320, width: int = 1024) -> None:
        """Take the number of words and the width of all layers."""
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.both = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.reader = nn.ModuleList(
            [nn.LSTM(2 * width if i == 0 else width, width, batch_first=True) for i in range(3)]
        )
        self.first = nn.LSTM(width, width, batch_first=True)
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.score = nn.Linear(width, 1)
        self.writer = nn.ModuleList([nn.LSTM(2 * width, width, batch_first=True) for _ in range(3)])
        self.output = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scores of the words that follow each word of the target."""
        x = self.both(self.words(source))[0]
        for i, layer in enumerate(self.reader):
            y = layer(x)[0]
            x = y if i == 0 else x + y
        y = self.first(self.words(target))[0]
        seen = self.query(y).unsqueeze(2) + self.key(x).unsqueeze(1)
        shares = self.score(seen.tanh()).squeeze(3).softmax(dim=-1)
        context = shares @ x
        for i, layer in enumerate(self.writer):
            z = layer(torch.cat([y, context], dim=-1))[0]
            y = z if i == 0 else y + z
        return self.output(y)
