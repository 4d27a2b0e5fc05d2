"""MLPerf's speech recognition: RNN-T (Graves 2012), without the loss over alignments.

steptime count examples/mlperf/rnnt.py:RNNT:2x200x240,2x20:int64
"""

import torch
from torch import Tensor, nn


class RNNT(nn.Module):
    """Scores of the next word piece at each time and place of a transcript."""

    def __init__(self, bands: int = 240, pieces: int = 1024) -> None:
        """Take the bands of sound, three frames of 80 at once, and the number of word pieces."""
        super().__init__()
        self.before = nn.LSTM(bands, 1024, 2, batch_first=True)
        self.behind = nn.LSTM(2048, 1024, 3, batch_first=True)
        self.words = nn.Embedding(pieces - 1, 512)
        self.text = nn.LSTM(512, 512, 2, batch_first=True)
        self.of_sound, self.of_text = nn.Linear(1024, 512), nn.Linear(512, 512)
        self.output = nn.Linear(512, pieces)

    def forward(self, sound: Tensor, transcript: Tensor) -> Tensor:
        """Return the scores `[n, times, places, pieces]`; two times are joined on the way."""
        x = self.before(sound)[0]
        x = self.behind(x.reshape(x.shape[0], x.shape[1] // 2, 2 * x.shape[2]))[0]
        y = self.text(self.words(transcript))[0]
        both = self.of_sound(x).unsqueeze(2) + self.of_text(y).unsqueeze(1)
        return self.output(torch.relu(both))
