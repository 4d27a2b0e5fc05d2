"""A network of one's own: `steptime count unet.py:UNet --batch 8`."""

import torch
from torch import nn

INPUTS = {"x": ((2, 3, 64, 64), "float32")}  # what `forward` is given; the batch comes first


class UNet(nn.Module):
    """Two levels down and up again, with what was there beside what comes back."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.down = self._block(3, width)
        self.middle = self._block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join = self._block(2 * width, width)
        self.out = nn.Conv2d(width, classes, 1)

    def _block(self, channels: int, width: int) -> nn.Sequential:
        layer = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the classes of each pixel of `x [n, 3, h, w]`."""
        fine = self.down(x)
        coarse = self.middle(nn.functional.max_pool2d(fine, 2))
        return self.out(self.join(torch.cat([self.up(coarse), fine], 1)))
