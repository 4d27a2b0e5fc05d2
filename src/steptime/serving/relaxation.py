"""The least change of a demand with which some server holds its targets, where none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, floor, inf, log10, sqrt
from typing import NamedTuple

from steptime.serving.demand import Demand, poisson_arrivals
from steptime.serving.load import LoadRun, run_requests
from steptime.serving.queueing import Load
from steptime.serving.search import MAX_EXCESS, MAX_SEARCHED_DEVICES, ServerSearch, ServiceKind

MAX_KINDS = 6  # of all devices: the fastest alone, and those of the fewest devices
LOWEST_RATE_SHARE = 1e-3  # of the rate that was asked for
RATE_TRIALS = 10  # until the highest rate is known to a hundredth
LOADED_FACTOR = 1.5  # of the times of a request alone: a server under load has no shorter ones
DEVICE_FACTOR = 8  # times the devices of the search, at most
DIGITS = 2  # significant ones of a value, rounded to the side that holds


class Relaxation(NamedTuple):
    """A changed limit with which a server holds the targets.

    Args:
        option: the option to change, by its parameter.
        value: its new value; seconds, requests a second, or devices.
        kind: the server.
        replicas: their number.
        is_joint: whether all changes of the answer are needed together.
    """

    option: str
    value: float
    kind: ServiceKind
    replicas: int
    is_joint: bool = False


def find_relaxations(search: ServerSearch, kinds: Sequence[ServiceKind]) -> list[Relaxation]:
    """Return for each limit the least change that lets a server hold the others.

    Args:
        search: a search that found no server.
        kinds: its servers with room for a request, of all devices.
    """
    trials = [_Trial(search, kind) for kind in _choose_kinds(search, kinds)]
    finders: tuple[Callable[[_Trial], Relaxation | None], ...] = (
        _relax_ttft,
        _relax_tpot,
        _relax_rate,
        _relax_devices,
    )
    relaxations = []
    for find in finders:
        candidates = [find(trial) for trial in trials]
        possible = [relaxation for relaxation in candidates if relaxation is not None]
        best = min(possible, key=_change_order, default=None)
        if best is not None:
            relaxations.append(best)
    # Where no limit helps by itself, all are changed together.
    return relaxations or _relax_all(trials)


def _change_order(relaxation: Relaxation) -> float:
    """Return the order of changes of one option, the least one first."""
    return -relaxation.value if relaxation.option == "rate" else relaxation.value


def _choose_kinds(search: ServerSearch, kinds: Sequence[ServiceKind]) -> list[ServiceKind]:
    """Return the kinds that are fastest alone, and those that need the fewest devices."""

    def estimate_devices(kind: ServiceKind) -> int:
        return search.estimate_replicas(kind, reads=True, decodes=True) * kind.device_count

    by_ttft = sorted(kinds, key=lambda kind: kind.ttft_s)
    by_tpot = sorted(kinds, key=lambda kind: kind.tpot_s)
    by_devices = sorted(kinds, key=estimate_devices)
    leading: dict[int, ServiceKind] = {}  # by identity: a kind can lead in several respects
    # First the best of each order, then the second of each, until there are enough.
    for leaders in zip(by_ttft, by_tpot, by_devices, strict=True):
        leading |= {id(kind): kind for kind in leaders}
    return [*leading.values()][:MAX_KINDS]


class _Trial:
    """A kind with as many replicas as the search allows, and its run under the load."""

    def __init__(self, search: ServerSearch, kind: ServiceKind) -> None:
        self.search = search
        self.kind = kind
        self.replicas = max(1, search.max_device_count // kind.device_count)
        self.run = self.run_load(search.load)

    def run_load(self, load: Load) -> LoadRun:
        """Run a load on the replicas, and count the run."""
        self.search.run_count += 1
        return self.run_replicas(load, self.replicas)

    def run_replicas(self, load: Load, replicas: int) -> LoadRun:
        """Return the run of a load on so many replicas, which the caller counts."""
        pool = self.kind.pool._replace(replicas=replicas)
        return run_requests(self.search.demand, load, [pool])

    def relax(self, option: str, value: float) -> Relaxation:
        """Return a change of an option for this server."""
        return Relaxation(option, value, self.kind, self.replicas)

    @property
    def tpot_p90_s(self) -> float:
        """The 90th percentile of the time per output token, 0 where requests have one token."""
        return 0.0 if self.run.tpot is None else self.run.tpot.p90_s


def _relax_ttft(trial: _Trial) -> Relaxation | None:
    """Return the TTFT that a server holds, None where the other limits fail as well."""
    demand, run = trial.search.demand, trial.run
    if demand.ttft == inf or trial.tpot_p90_s > demand.tpot or run.queue_grows:
        return None
    return trial.relax("ttft", round_up(run.ttft.p90_s))


def _relax_tpot(trial: _Trial) -> Relaxation | None:
    """Return the TPOT that a server holds, None where the other limits fail as well."""
    demand, run = trial.search.demand, trial.run
    if demand.tpot == inf or run.ttft.p90_s > demand.ttft or run.queue_grows:
        return None
    return trial.relax("tpot", round_up(trial.tpot_p90_s))


def _relax_rate(trial: _Trial) -> Relaxation | None:
    """Return the rate at which a server holds the targets; None where at none."""
    demand = trial.search.demand
    if not demand.rate or not _holds_targets_unloaded(trial):
        return None
    rate = _find_rate(trial, demand.ttft, demand.tpot)
    return trial.relax("rate", round_down(rate)) if rate else None


def _find_rate(trial: _Trial, ttft_s: float, tpot_s: float) -> float:
    """Return the highest rate below that of the demand at which targets hold, 0 where at none.

    Bisection over the logarithm of the rate.
    """
    search = trial.search
    demand = search.demand

    def holds(rate: float) -> bool:
        # Else a search at that rate would leave this kind out.
        if not _is_searched(trial, replace(demand, rate=rate, tpot=tpot_s)):
            return False
        arrivals_s = poisson_arrivals(rate, len(search.load.inputs), demand.seed)
        run = trial.run_load(search.load._replace(arrivals_s=arrivals_s))
        tpot_p90_s = 0.0 if run.tpot is None else run.tpot.p90_s
        return not run.queue_grows and run.ttft.p90_s <= ttft_s and tpot_p90_s <= tpot_s

    low = demand.rate * LOWEST_RATE_SHARE
    high = demand.rate
    if not holds(low):
        return 0.0
    for _ in range(RATE_TRIALS):
        # The geometric mean: rates are searched over orders of magnitude.
        rate = sqrt(low * high)
        if holds(rate):
            low = rate
        else:
            high = rate
    return low


def _is_searched(trial: _Trial, demand: Demand) -> bool:
    """Return whether a search with another demand would try the server.

    One that is expected to need many more devices is left out, though a short load may fit it.
    """
    search, kind = trial.search, trial.kind
    service = replace(search.service, demand=demand)
    changed = ServerSearch(service, search.sites, search.max_device_count)
    replicas = changed.estimate_replicas(kind, reads=True, decodes=True)
    devices = replicas * kind.device_count
    return devices <= MAX_EXCESS * search.max_device_count


def _relax_devices(trial: _Trial) -> Relaxation | None:
    """Return the devices with which a server holds the targets, None where not with many more."""
    search, kind = trial.search, trial.kind
    max_devices = min(MAX_SEARCHED_DEVICES, DEVICE_FACTOR * search.max_device_count)
    max_replicas = max_devices // kind.device_count
    # More servers do not help a request that is too slow alone.
    if not _holds_targets_unloaded(trial) or max_replicas <= trial.replicas:
        return None

    def run_replicas(count: int) -> LoadRun:
        return trial.run_replicas(search.load, count)

    fewest = search.find_fewest_replicas(trial.replicas + 1, max_replicas, run_replicas)
    if fewest is None:
        return None
    wide_search = ServerSearch(search.service, search.sites, max_devices)
    estimate = wide_search.estimate_replicas(kind, reads=True, decodes=True)
    # With fewer devices a search would leave the kind out.
    min_searched_devices = ceil(estimate * kind.device_count / MAX_EXCESS)
    devices = max(kind.device_count * fewest.replicas, min_searched_devices)
    return Relaxation(
        "max_device_count", value=devices, kind=kind, replicas=devices // kind.device_count
    )


def _relax_all(trials: Sequence[_Trial]) -> list[Relaxation]:
    """Return changes that let one server hold the targets together, where no single one helps.

    Where it serves the rate, its targets change. Else they change to what a request alone allows,
    and the rate to what the server holds then.
    """
    if not trials:
        return []
    best = min(trials, key=_excess)
    demand, kind = best.search.demand, best.kind
    ttft_s, tpot_s = best.run.ttft.p90_s, best.tpot_p90_s
    if best.run.queue_grows:
        # The queue has no end, and its times mean nothing: start from those of a request alone.
        ttft_s, tpot_s = LOADED_FACTOR * kind.ttft_s, LOADED_FACTOR * kind.tpot_s
    changes: dict[str, float] = {}
    if ttft_s > demand.ttft:
        changes["ttft"] = round_up(ttft_s)
    if tpot_s > demand.tpot:
        changes["tpot"] = round_up(tpot_s)
    if best.run.queue_grows and demand.rate:
        relaxed_ttft_s = changes.get("ttft", demand.ttft)
        relaxed_tpot_s = changes.get("tpot", demand.tpot)
        rate = _find_rate(best, relaxed_ttft_s, relaxed_tpot_s)
        if not rate:
            return []
        changes["rate"] = round_down(rate)
    return [best.relax(name, value)._replace(is_joint=True) for name, value in changes.items()]


def _excess(trial: _Trial) -> tuple[bool, float]:
    """Return whether a queue grows, and by how much a server misses its targets."""
    demand, run, kind = trial.search.demand, trial.run, trial.kind
    if run.queue_grows:
        return True, max(kind.ttft_s / demand.ttft, kind.tpot_s / demand.tpot)
    return False, max(run.ttft.p90_s / demand.ttft, trial.tpot_p90_s / demand.tpot)


def _holds_targets_unloaded(trial: _Trial) -> bool:
    """Return whether a request alone holds the targets."""
    demand = trial.search.demand
    return trial.kind.ttft_s <= demand.ttft and trial.kind.tpot_s <= demand.tpot


def round_up(value: float) -> float:
    """Return a value rounded up to two significant digits: 0.1234 is 0.13."""
    return _round(value, ceil)


def round_down(value: float) -> float:
    """Return a value rounded down to two significant digits: 0.1234 is 0.12."""
    return _round(value, floor)


def _round(value: float, rounding: Callable[[float], int]) -> float:
    if value <= 0:
        return value
    places = DIGITS - 1 - floor(log10(value))
    return rounding(round(value * 10.0**places, 9)) / 10.0**places
