"""Networks as their authors write them: code that tests copy, convert and run."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional


class Tagger(nn.Module):
    """A tag for each word, by an LSTM both ways."""

    INPUTS: ClassVar[Any] = {"words": ((2, 12), "int64")}

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.tags = nn.Linear(12, 5)

    def forward(self, words: Any) -> Any:
        return self.tags(self.lstm(self.table(words))[0])


class Residual(nn.Module):
    """Two convolutions of a ResNet beside their input."""

    INPUTS: ClassVar[Any] = {"x": ((2, 3, 16, 16), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.first, self.norm1 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.second, self.norm2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.classes = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(self.norm0(self.stem(x)).relu(), 3, 2, 1)
        y = self.norm2(self.second(self.norm1(self.first(x)).relu()))
        return self.classes((x + y).relu().mean((2, 3)))


class Inverted(nn.Module):
    """A block of an EfficientNet: wide, depthwise, squeezed, narrow."""

    INPUTS: ClassVar[Any] = {"x": ((2, 8, 12, 12), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 8, 1)
        self.depthwise, self.norm = nn.Conv2d(24, 24, 5, 1, 2, groups=24), nn.BatchNorm2d(24)
        self.squeeze, self.excite = nn.Conv2d(24, 4, 1), nn.Conv2d(4, 24, 1)
        self.classes = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = functional.silu(self.norm(self.depthwise(functional.silu(self.wide(x)))))
        share = self.excite(functional.silu(self.squeeze(functional.adaptive_avg_pool2d(y, 1))))
        y = self.narrow(y * share.sigmoid()) + x
        return self.classes(functional.adaptive_avg_pool2d(y, 1).flatten(1))


class Step(nn.Module):
    """A residual block of a diffusion network, which is told the time."""

    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.norm1, self.first = nn.GroupNorm(2, inside), nn.Conv2d(inside, outside, 3, 1, 1)
        self.norm2, self.second = nn.GroupNorm(2, outside), nn.Conv2d(outside, outside, 3, 1, 1)
        self.time, self.beside = nn.Linear(time, outside), nn.Conv2d(inside, outside, 1)

    def forward(self, x: Any, time: Any) -> Any:
        y = self.first(functional.silu(self.norm1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.second(functional.silu(self.norm2(y))) + self.beside(x)


class Diffusion(nn.Module):
    """A U-Net of two levels with attention in the lower one."""

    INPUTS: ClassVar[Any] = {"x": ((2, 3, 8, 8), "float32"), "time": ((2,), "int64")}

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Sequential(nn.Linear(width, 8), nn.SiLU(), nn.Linear(8, 8))
        self.stem, self.end = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        self.upper, self.lower = Step(width, width, 8), Step(width, 2 * width, 8)
        self.qkv, self.out = nn.Conv2d(2 * width, 6 * width, 1), nn.Conv2d(2 * width, 2 * width, 1)
        self.down, self.join = nn.Conv2d(width, width, 3, 2, 1), Step(3 * width, width, 8)

    def attended(self, x: Any) -> Any:
        n, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(n, 3, 2, c // 2, h * w).transpose(3, 4).unbind(1)
        y = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(2, 3).reshape(n, c, h, w))

    def forward(self, x: Any, time: Any) -> Any:
        half = self.width // 2
        rates = torch.exp(-math.log(1e4) * torch.arange(half, device=time.device) / half)
        angles = time[:, None].float() * rates[None]
        told = self.embed(torch.cat((angles.sin(), angles.cos()), -1))
        fine = self.upper(self.stem(x), told)
        coarse = self.attended(self.lower(self.down(fine), told))
        wide = functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return self.end(self.join(torch.cat((wide, fine), 1), told))
