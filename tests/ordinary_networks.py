"""Modules as users bring them: graphs, mixtures, codes, scans, diffusion; each with its inputs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional


class GraphAttention(nn.Module):
    """Attention over the edges of a graph, by scatters."""

    INPUTS: ClassVar[Any] = {"x": ((10, 16), "float32"), "edges": ((2, 30), "int64")}

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(16, 32, bias=False)
        self.scores = nn.Parameter(torch.randn(4, 16))
        self.classes = nn.Linear(32, 5)

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges[0], edges[1]
        h = self.features(x).view(-1, 4, 8)
        score = (torch.cat([h[source], h[target]], -1) * self.scores).sum(-1)
        score = functional.leaky_relu(score, 0.2)
        places = target[:, None].expand(-1, 4)
        highest = torch.full((x.shape[0], 4), -1e9).scatter_reduce(0, places, score, "amax")
        weight = (score - highest[target]).exp()
        total = torch.zeros(x.shape[0], 4).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-9)
        places = target[:, None, None].expand(-1, 4, 8)
        y = torch.zeros_like(h).scatter_add(0, places, weight[..., None] * h[source])
        return self.classes(functional.elu(y.flatten(1)))


class CodedImage(nn.Module):
    """A VQ-VAE: the nearest code of each place, with straight-through gradients and its losses."""

    INPUTS: ClassVar[Any] = {"x": ((2, 3, 16, 16), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 8, 4, 2, 1)
        self.codes = nn.Embedding(32, 8)
        self.decoder = nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x: Any) -> Any:
        z = self.encoder(x)
        rows = z.permute(0, 2, 3, 1).reshape(-1, 8)
        table = self.codes.weight
        distance = rows.pow(2).sum(1, keepdim=True) - 2 * rows @ table.t() + table.pow(2).sum(1)
        code = self.codes(distance.argmin(1)).view(z.shape[0], 8, 8, 8).permute(0, 3, 1, 2)
        loss = functional.mse_loss(code.detach(), z) + functional.mse_loss(code, z.detach())
        code = z + (code - z).detach()
        return functional.mse_loss(self.decoder(code), x) + loss


class ExpertsInPlaces(nn.Module):
    """A mixture whose experts compute the tokens that chose them, found by `torch.where`."""

    INPUTS: ClassVar[Any] = {"x": ((2, 12, 16), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def forward(self, x: Any) -> Any:
        h = x.reshape(-1, 16)
        weights, choices = torch.topk(functional.softmax(self.router(h), -1), 2, -1)
        y = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(choices == number)
            y.index_add_(0, token, expert(h[token]) * weights[token, slot, None])
        return y.view(x.shape)


class ExpertsByCode(ExpertsInPlaces):
    """The same by one-hot codes of the choices, as in transformers' earlier mixtures."""

    def forward(self, x: Any) -> Any:
        h = x.reshape(-1, 16)
        weights, choices = torch.topk(functional.softmax(self.router(h), -1), 2, -1)
        codes = functional.one_hot(choices, num_classes=4).permute(2, 1, 0)
        y = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            slot, token = torch.where(codes[number])
            y.index_add_(0, token, expert(h[token]) * weights[token, slot, None])
        return y.view(x.shape)


class DeltaRule(nn.Module):
    """A state that the delta rule corrects, token by token."""

    INPUTS: ClassVar[Any] = {"x": ((2, 6, 16), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gate, self.out = nn.Linear(16, 48), nn.Linear(16, 2), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).view(x.shape[0], 6, 3, 2, 8).unbind(2)
        gate = self.gate(x).sigmoid()
        state = x.new_zeros(x.shape[0], 2, 8, 8)
        outputs = []
        for i in range(6):
            stored = torch.einsum("bhkv,bhk->bhv", state, k[:, i])
            change = gate[:, i, :, None] * (v[:, i] - stored)
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, i], change)
            outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, i]))
        return self.out(torch.stack(outputs, 1).flatten(2))


class Modulated(nn.Module):
    """A block of a diffusion transformer: a condition scales and shifts (adaLN)."""

    INPUTS: ClassVar[Any] = {"x": ((2, 9, 32), "float32"), "time": ((2,), "int64")}

    def __init__(self) -> None:
        super().__init__()
        self.times, self.condition = nn.Embedding(100, 32), nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Any, time: Any) -> Any:
        condition = self.condition(functional.silu(self.times(time)))[:, None]
        shift, scale, gate = condition.chunk(3, -1)
        h = self.norm(x) * (1 + scale) + shift
        return x + gate * self.attention(h, h, h, need_weights=False)[0]


class Indexed(nn.Module):
    """Attention to the places that an indexer of its own products chooses."""

    INPUTS: ClassVar[Any] = {"x": ((2, 9, 32), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.index = nn.Linear(32, 96), nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        with torch.no_grad():
            asking, asked = self.index(x).chunk(2, -1)
            places = (asking @ asked.mT).topk(4, -1)[1]
            hidden = torch.ones(x.shape[0], 9, 9, dtype=torch.bool).scatter(-1, places, False)
        mask = ~hidden[:, None]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Flow(nn.Module):
    """A neural differential equation, solved in three steps of Runge and Kutta's rule."""

    INPUTS: ClassVar[Any] = {"x": ((2, 8), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            first = self.field(x)
            second = self.field(x + 0.05 * first)
            third = self.field(x + 0.05 * second)
            x = x + (first + 2 * second + 2 * third + self.field(x + 0.1 * third)) / 60
        return x


class Upscaled(nn.Module):
    """Super-resolution by pixels that channels hold, beside a bicubic image."""

    INPUTS: ClassVar[Any] = {"x": ((2, 3, 8, 8), "float32")}

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, padding_mode="reflect")
        self.up = nn.Sequential(nn.PReLU(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Any) -> Any:
        return self.up(self.first(x)) + functional.interpolate(x, scale_factor=2, mode="bicubic")


class Triplet(nn.Module):
    """An encoder of three images, trained by the loss of a triplet."""

    INPUTS: ClassVar[Any] = dict.fromkeys("apn", ((2, 1, 12, 12), "float32"))

    def __init__(self) -> None:
        super().__init__()
        pooled = nn.AdaptiveAvgPool2d(2)
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 5), pooled, nn.Flatten(), nn.Linear(32, 8))

    def forward(self, a: Any, p: Any, n: Any) -> Any:
        vectors = [functional.normalize(self.encoder(image), dim=1) for image in (a, p, n)]
        return functional.triplet_margin_loss(*vectors)


NETWORKS = {
    network.__name__: network
    for network in (
        *(GraphAttention, CodedImage, ExpertsInPlaces, ExpertsByCode, DeltaRule),
        *(Modulated, Indexed, Flow, Upscaled, Triplet),
    )
}
