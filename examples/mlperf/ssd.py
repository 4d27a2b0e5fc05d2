"""MLPerf's light detection, v0.5 to v1.1: SSD (Liu et al. 2016) on ResNet-34, images of 300.

steptime count examples/mlperf/ssd.py:SSD:2x3x300x300
"""

import torch
from torch import Tensor, nn


def convolution(inputs: int, filters: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the size but for its stride, and a batch norm."""
    layer = nn.Conv2d(inputs, filters, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(filters))


class Block(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution where the shape changes."""

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        """Take the channels that come in and go out, and the stride of the first convolution."""
        super().__init__()
        self.first = convolution(inputs, filters, 3, stride)
        self.second = convolution(filters, filters, 3)
        same = inputs == filters and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, filters, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both ways."""
        return (self.shortcut(x) + self.second(self.first(x).relu())).relu()


class SSD(nn.Module):
    """Places and classes of 8,732 boxes, from maps of 38, 19, 10, 5, 3 and 1."""

    def __init__(self, classes: int = 81) -> None:
        """Take the number of classes, that of nothing included."""
        super().__init__()
        self.classes = classes
        trunk = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for filters, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 1)):
            for i in range(count):
                trunk.append(Block(inputs, filters, stride if i == 0 else 1))
                inputs = filters
        self.trunk = nn.Sequential(*trunk)
        maps, self.further = [inputs], nn.ModuleList()
        for middle, filters, stride in (
            (256, 512, 2),
            (256, 512, 2),
            (128, 256, 2),
            *[(128, 256, 1)] * 2,
        ):
            narrow = nn.Conv2d(maps[-1], middle, 1)
            wide = nn.Conv2d(middle, filters, 3, stride, 1 if stride == 2 else 0)
            self.further.append(nn.Sequential(narrow, nn.ReLU(), wide, nn.ReLU()))
            maps.append(filters)
        boxes = (4, 6, 6, 6, 4, 4)
        heads = list(zip(maps, boxes, strict=True))
        self.places = nn.ModuleList([nn.Conv2d(n, 4 * k, 3, padding=1) for n, k in heads])
        self.scores = nn.ModuleList([nn.Conv2d(n, classes * k, 3, padding=1) for n, k in heads])

    def forward(self, image: Tensor) -> Tensor:
        """Return the scores of all boxes and their places, `[n, classes + 4, 8732]`."""
        maps = [self.trunk(image)]
        for layer in self.further:
            maps.append(layer(maps[-1]))
        pairs = list(zip(maps, self.places, self.scores, strict=True))
        scores = [score(x).flatten(1).unflatten(1, (self.classes, -1)) for x, _, score in pairs]
        places = [place(x).flatten(1).unflatten(1, (4, -1)) for x, place, _ in pairs]
        return torch.cat([torch.cat(scores, 2), torch.cat(places, 2)], 1)
