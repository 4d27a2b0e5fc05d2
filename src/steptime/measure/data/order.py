"""Which images make a batch: shuffled anew in each epoch, the same for all who know the seed."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """Batches of `batch` out of `count` images, for replica `rank` of `replicas`.

    In each epoch every replica has its own images, as many as the others; what is left over at the
    end of an epoch, less than a batch, is left out of it.
    """

    count: int
    batch: int
    seed: int = 0
    rank: int = 0
    replicas: int = 1

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch; 0 where a replica has less than a batch."""
        return self.count // self.replicas // self.batch

    def indices(self, step: int) -> Indices:
        """Return the images of a step, counted from 0."""
        epoch, within = divmod(step, self.per_epoch)
        shard = _shuffled(self.count, self.seed, epoch)[self.rank :: self.replicas]
        return shard[within * self.batch : (within + 1) * self.batch]


@lru_cache(maxsize=2)
def _shuffled(count: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(count)
