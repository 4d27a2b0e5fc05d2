"""Seconds and energy of a server's step, by kind of work."""

from __future__ import annotations

from typing import NamedTuple


class StepCost(NamedTuple):
    """Seconds of a step by kind of work, and its energy.

    Attributes:
        products_s: matrix products.
        attention_s: attention with the cache.
        other_s: kernels that only move bytes.
        exchange_s: exposed communication.
        host_s: waiting for the host.
        joules: energy of a rank beyond its idle power.
        issue_s: seconds in which the host issues the kernels, most of them hidden.
    """

    products_s: float = 0.0
    attention_s: float = 0.0
    other_s: float = 0.0
    exchange_s: float = 0.0
    host_s: float = 0.0
    joules: float = 0.0
    issue_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.products_s + self.attention_s + self.other_s + self.exchange_s + self.host_s

    @property
    def exchange_share(self) -> float:
        """Share of the seconds that is exposed communication."""
        return self.exchange_s / self.seconds if self.seconds else 0.0

    def add(self, cost: StepCost, times: float = 1.0) -> StepCost:
        """Return the sum with `times` times another cost."""
        return StepCost(*[term + times * summand for term, summand in zip(self, cost, strict=True)])

    def multiply(self, times: float) -> StepCost:
        """Return the cost of `times` such steps."""
        return StepCost(*[times * term for term in self])

    def scale_device(self, factor: float) -> StepCost:
        """Return the cost on a device that takes `factor` times as long; the host does not."""
        return self._replace(
            products_s=factor * self.products_s,
            attention_s=factor * self.attention_s,
            other_s=factor * self.other_s,
            exchange_s=factor * self.exchange_s,
        )
