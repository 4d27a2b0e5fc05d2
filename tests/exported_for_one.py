"""Small networks whose exports have their batch in constants: ids, tables, queries, states."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

LENGTH, WIDTH = 5, 32
NETWORKS = (
    *("ids", "positions", "buffer", "cut", "picked", "largest", "flat", "state", "zeros"),
    *("second", "detr", "sequence_first", "class_token"),
)


@functools.cache
def _class() -> Any:  # as many methods as networks
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self, name: str, batch: int) -> None:
            super().__init__()
            self.way = getattr(self, name)
            self.table = nn.Embedding(64, WIDTH)
            self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
            self.learnt = nn.Parameter(torch.zeros(64, LENGTH, WIDTH))
            self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
            self.register_buffer("ids_of_all", torch.arange(LENGTH)[None].repeat(batch, 1))
            self.decoder = nn.TransformerDecoderLayer(WIDTH, 4, 64)
            self.attention = nn.MultiheadAttention(WIDTH, 4)
            self.image = nn.Conv2d(1, WIDTH, 1)
            self.column = nn.Parameter(torch.zeros(8, WIDTH // 2))

        def forward(self, x: Any) -> Any:
            return self.way(x)

        def hidden(self, x: Any) -> Any:
            return torch.relu(self.inner(x))

        def ids(self, x: Any) -> Any:
            return self.outer(self.hidden(self.table(torch.arange(x.shape[0])))[:, None] + x)

        def positions(self, x: Any) -> Any:
            ids = torch.arange(LENGTH).expand(x.shape[0], LENGTH)
            return self.outer(self.hidden(self.table(ids)) + x)

        def buffer(self, x: Any) -> Any:
            return self.outer(self.hidden(self.table(self.ids_of_all)) + x)

        def cut(self, x: Any) -> Any:
            return self.outer(self.hidden(self.learnt[: x.shape[0]]) + x)

        def picked(self, x: Any) -> Any:
            n = x.shape[0]
            return self.outer(self.hidden(x[torch.arange(n), torch.full((n,), 2)]))

        def largest(self, x: Any) -> Any:
            return self.outer(self.hidden(x[torch.arange(x.shape[0]), x.sum(-1).argmax(-1)]))

        def flat(self, x: Any) -> Any:
            ids = torch.arange(x.shape[0]) * LENGTH + 1
            return self.outer(self.hidden(x.reshape(-1, WIDTH)[ids]))

        def state(self, x: Any) -> Any:
            ids = torch.arange(LENGTH)[:, None].expand(LENGTH, x.shape[0])
            return self.outer(self.hidden(self.table(ids)) + x.transpose(0, 1)).transpose(0, 1)

        def zeros(self, x: Any) -> Any:
            first = self.hidden(torch.zeros(x.shape[0], 2, WIDTH))
            return self.outer(torch.cat([first, x], 1))

        def second(self, x: Any) -> Any:
            queries = self.table.weight[:7].unsqueeze(1).repeat(1, x.shape[0], 1)
            return self.outer(self.decoder(queries, x.transpose(0, 1))).transpose(0, 1)

        def detr(self, x: Any) -> Any:
            x = self.image(x.reshape(x.shape[0], 1, LENGTH, WIDTH)[..., :8])
            n, _, height, width = x.shape
            columns = self.column[:width].unsqueeze(0).repeat(height, 1, 1)
            rows = self.column[:height].unsqueeze(1).repeat(1, width, 1)
            places = torch.cat([columns, rows], -1).permute(2, 0, 1).unsqueeze(0)
            places = places.repeat(n, 1, 1, 1).flatten(2).permute(2, 0, 1)
            memory = x.flatten(2).permute(2, 0, 1)
            queries = self.table.weight[:7].unsqueeze(1).repeat(1, n, 1)
            target = torch.zeros_like(queries)
            target = target + self.attention(target + queries, target + queries, target)[0]
            target = target + self.attention(target + queries, memory + places, memory)[0]
            return self.outer(target).transpose(0, 1)

        def sequence_first(self, x: Any) -> Any:
            x = x.transpose(0, 1)
            return self.outer(self.attention(x, x, x)[0] + self.hidden(x)).transpose(0, 1)

        def class_token(self, x: Any) -> Any:
            x = x.transpose(0, 1)
            x = torch.cat([self.token.expand(-1, x.shape[1], -1), x], 0)
            return self.outer(self.attention(x, x, x)[0])[0]

    return Network


def network_of(name: str, batch: int) -> Any:
    """A network, and what it is given for a batch."""
    import torch

    return _class()(name, batch).eval(), (torch.zeros(batch, LENGTH, WIDTH),)


def exported(folder: Path, name: str, batch: int, form: str) -> str:
    """The file of a network that torch exported for a batch."""
    import torch

    network, given = network_of(name, batch)
    path = str(folder / f"{name}{batch}.{form}")
    if form == "pt2":
        torch.export.save(torch.export.export(network, given), path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch: another exporter, which needs onnxscript
            torch.onnx.export(network, given, path, dynamo=False, opset_version=17)
    return path
