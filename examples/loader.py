"""Batches of one's own for `steptime run --input examples/loader.py:make_loader`."""

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset[Any]):
    """Images of 28 x 28 and their labels; one of yours reads and decodes files here."""

    def __init__(self, seed: int) -> None:
        self.draws = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.rand(1, 28, 28, generator=self.draws), number % 10


def make_loader(batch: int, seed: int = 0) -> DataLoader[Any]:
    """Return a DataLoader with two processes that read ahead."""
    return DataLoader(Digits(seed), batch_size=batch, num_workers=2, drop_last=True)
