"""What a method assumes: Paleo's rules or their corrections, each with a name, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph import Graph
from steptime.core.hardware import Cluster
from steptime.core.record import Record
from steptime.core.workload import Workload
from steptime.paleo.rules import ALGORITHMS, Algorithm
from steptime.predict.work import Overlap

CORRECTIONS = {  # name: what is right; switched off, it is as in Paleo. In the order of `explain`
    "gigabyte": "a GB/s of memory is 1e9 bytes a second, not 2^30",
    "cycle": "a kernel may take less than one clock cycle for each of its terms",
    "padding": "a convolution does not read its padding",
    "backward": "a gradient of a convolution is as much work as the convolution, without holes",
    "first": "data gradients are made where a weight asks for them, for every kind of layer",
    "update": "the optimizer of the workload, with its states, on the weights that there are",
    "dtype": "elements of the size, and arithmetic at the peak, of the workload's dtype",
    "ops": "every op has FLOP and bytes: bias, activation, norm, concatenation, loss, pooling, ...",
    "overlap": "a kernel computes while it moves its bytes",
    "dispatch": "a step takes at least the time the host needs to issue it, where that is known",
}
EXACT, PALEO = "exact", "paleo"


@dataclass(frozen=True)
class Settings:
    """Every assumption of a prediction; the defaults are those of `analytic`.

    The corrections are named in `CORRECTIONS`. `overlap` says what runs at the same time
    (`work.timed`); `dispatch` whether the host's time to issue an op is `added` to each, hidden
    behind the device's work as far as that lasts (`behind`), or left out (`no`). `views` counts
    bytes for ops that only look at a tensor in another way. `fuse` lets elementwise ops run in the
    kernel that makes their input. `ppp` are the shares of the peak that are reached, in computing
    and in communicating (Paleo's platform percent of peak).
    """

    gigabyte: bool = True
    cycle: bool = True
    padding: bool = True
    backward: bool = True
    first: bool = True
    update: bool = True
    dtype: bool = True
    ops: bool = True
    overlap: Overlap = "op"
    dispatch: Literal["behind", "added", "no"] = "behind"
    views: bool = False
    fuse: bool = False
    tf32: bool = False
    conv: Algorithm = "gemm"
    ppp_comp: float = 1.0
    ppp_comm: float = 1.0


_LIKE_PALEO: dict[str, Any] = {"overlap": "none", "dispatch": "no"}


def switched_off(settings: Settings, correction: str) -> Settings:
    """Give `settings` with one correction replaced by what Paleo does."""
    return replace(settings, **{correction: _LIKE_PALEO.get(correction, False)})


@dataclass(frozen=True)
class Option:
    """An option of a method: its meaning, its default as text, and how a text changes settings.

    `read` gives the changed settings and raises `ValueError`, saying what is allowed.
    """

    meaning: str
    default: str
    read: Callable[[Settings, str], Settings]


def choice(meaning: str, field: str, values: Mapping[str, Any], default: str) -> Option:
    """Give an option whose texts stand for values of one field."""

    def read(settings: Settings, text: str) -> Settings:
        if text not in values:
            raise ValueError(f"is {' or '.join(values)}, not {shorten(text)}")
        return replace(settings, **{field: values[text]})

    return Option(meaning, default, read)


def share(meaning: str, field: str) -> Option:
    """Give an option that is a share of a peak: above 0, at most 1."""

    def read(settings: Settings, text: str) -> Settings:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not (isfinite(value) and 0 < value <= 1):
            raise ValueError(f"is a number above 0 and at most 1, not {shorten(text)}")
        changed: dict[str, Any] = {field: value}
        return replace(settings, **changed)

    return Option(meaning, "1", read)


def correction(name: str) -> Option:
    """Give the option that switches a correction off: `exact` or `paleo`."""

    def read(settings: Settings, text: str) -> Settings:
        if text not in (EXACT, PALEO):
            raise ValueError(f"is {EXACT} or {PALEO}, not {shorten(text)}")
        return switched_off(settings, name) if text == PALEO else settings

    return Option(CORRECTIONS[name], EXACT, read)


YES_NO = {"yes": True, "no": False}
PPP = {
    "ppp_comp": share("share of the device's peaks that is reached", "ppp_comp"),
    "ppp_comm": share("share of a link's rate that is reached", "ppp_comm"),
}
ALGORITHM = choice("algorithm of convolutions", "conv", {name: name for name in ALGORITHMS}, "gemm")
TF32 = choice("use the TF32 peak for float32", "tf32", YES_NO, "no")


@dataclass(frozen=True)
class CostModel:
    """A method of prediction: its settings, which of them a user may change, its usual collective.

    `as_published` keeps Paleo's rules for workers too: messages without latency, faults and all.
    Called with the graph of a whole step, its workload, a cluster and options as texts, it gives
    records: of the step first, then one for each row.
    """

    name: str
    version: str
    settings: Settings
    options: Mapping[str, Option]
    collective: str = "ring"
    as_published: bool = False

    def __call__(
        self, graph: Graph, workload: Workload, cluster: Cluster, options: Mapping[str, str]
    ) -> Sequence[Record]:
        """Give the record of the step, then one for each row."""
        from steptime.predict.records import predict  # which needs what is above

        return predict(self, graph, workload, cluster, options)

    def chosen(self, given: Mapping[str, str]) -> Settings:
        """Give the settings under options as texts; raises `InputError`, naming the option."""
        settings = self.settings
        for name, text in given.items():
            if name not in self.options:
                raise unknown("option", name, self.options, self.name)
            try:
                settings = self.options[name].read(settings, text)
            except ValueError as error:
                raise InputError(f"{self.name}: option {name} {error}") from None
        return settings

    def changed(self, given: Mapping[str, str]) -> dict[str, str]:
        """Give the options as texts that depart from their defaults."""
        return {name: text for name, text in given.items() if text != self.options[name].default}
