"""MLPerf's segmentation of volumes, v1.0 to v3.1: U-Net 3D (Cicek et al. 2016, six levels deep).

steptime count examples/mlperf/unet3d.py:UNet3D:2x1x128x128x128
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

LEVELS = (32, 64, 128, 256, 320, 320)  # filters, each level of half the size


def level(inputs: int, filters: int, stride: int = 1) -> nn.Sequential:
    """Return two convolutions, each normed by itself; the first may halve the size."""
    layers: list[nn.Module] = []
    for channels, step in ((inputs, stride), (filters, 1)):
        layers.append(nn.Conv3d(channels, filters, 3, step, 1, bias=False))
        layers += [nn.InstanceNorm3d(filters, affine=True), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet3D(nn.Module):
    """Down to a thirty-second of the size and up again, beside what was there on the way."""

    def __init__(self, classes: int = 3) -> None:
        """Take the number of classes: of nothing, of a kidney, of a tumour."""
        super().__init__()
        pairs = list(pairwise(LEVELS))
        self.first = level(1, LEVELS[0])
        self.down = nn.ModuleList([level(wide, deep, 2) for wide, deep in pairs])
        self.wider = nn.ModuleList([nn.ConvTranspose3d(deep, wide, 2, 2) for wide, deep in pairs])
        self.up = nn.ModuleList([level(2 * wide, wide) for wide in LEVELS[:-1]])
        self.out = nn.Conv3d(LEVELS[0], classes, 1)

    def forward(self, volume: Tensor) -> Tensor:
        """Return the scores of each place of `volume [n, 1, d, h, w]`."""
        maps = [self.first(volume)]
        for layer in self.down:
            maps.append(layer(maps[-1]))
        x = maps.pop()
        for wider, layer in zip(self.wider[::-1], self.up[::-1], strict=True):
            x = layer(torch.cat([wider(x), maps.pop()], 1))
        scores: Tensor = self.out(x)
        return scores
