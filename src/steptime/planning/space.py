"""The plans among which a search chooses: what is tried of each part, and what is left out."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from steptime.core.workload import OFFLOADS, Plan
from steptime.planning.faults import Asked, divisors, fault
from steptime.planning.planner import Planner

MOST_VIRTUAL = 8
LEAST_TOKENS = 2048  # of a sequence's part: shorter ones are not shared out
LEFT_OUT = {  # what is not tried, by the field with which a user asks for it
    "zero": "ZeRO 2",
    "schedule": "gpipe, dualpipe",
    "sequence": "tensor without sequence parallel",
    "context_method": "context by ring or all-to-all",
    "stages": "stages of chosen layers",
}


class Way(NamedTuple):
    """A plan, and the sequences of a microbatch that it may have, ascending."""

    plan: Plan
    sizes: tuple[int, ...]


class Space(NamedTuple):
    """What a search tries: on so many devices, for a batch, with what a user has `fixed`.

    `fixed` are fields of `Plan`, and `microbatch`.
    """

    planner: Planner
    device_count: int
    global_batch: int
    per_node: int
    fixed: Mapping[str, Any]

    @property
    def is_network(self) -> bool:
        """Whether the network is no language model: its stages are pieces, one a device."""
        return self.planner.shape.batch is not None

    def choices(self) -> dict[str, Iterable[Any]]:
        """Return what is tried of each part by itself, most of which hang on others, too."""
        shape, device_count = self.planner.shape, self.device_count
        some = {
            "tensor": [t for t in powers(min(device_count, self.per_node)) if self.divides(t)],
            "context": [
                c
                for c in powers(device_count)
                if not shape.length % c and (c == 1 or shape.length // c >= LEAST_TOKENS)
            ],
            "pipeline": [p for p in divisors(device_count) if p <= len(shape.kinds)],
            "virtual": range(1, MOST_VIRTUAL + 1),
            "expert": [e for e in powers(device_count) if shape.experts and not shape.experts % e]
            or [1],
            "zero": (0, 1, 3),
            "recompute": ("none", "selective", "full"),
            "offload": ("none",) if self.planner.host is None else OFFLOADS,
        }
        if self.is_network:
            some |= {"virtual": (1,), "recompute": ("none", "full"), "offload": ("none",)}
        return {
            name: [self.fixed.get(name)] if name in self.fixed else own
            for name, own in some.items()
        }

    def divides(self, tensor: int) -> bool:
        """Whether so many tensor ranks divide the network."""
        return fault(self.planner.shape, Asked(Plan(tensor=tensor), 1, self.global_batch)) is None

    def ways(self) -> Iterator[Way]:
        """Yield the plans that these devices, the network and the batch allow."""
        shape, choices, each = self.planner.shape, self.choices(), self.fixed.get("microbatch")
        more = {name: value for name, value in self.fixed.items() if name in _ALONE}
        checks = self.fixed.keys() & {"shard", "recompute_layers"}
        names = ("tensor", "context", "pipeline", "virtual", "expert")
        for t, c, p, v, e in product(*(choices[name] for name in names)):
            data, left = divmod(self.device_count, t * c * p)
            if left or data < 1 or self.global_batch % data:
                continue
            sizes = self.sizes(self.global_batch // data)
            if each is not None:
                sizes = (each,) if each in sizes else ()
            wide = t > 1 and self.fixed.get("sequence", True) and not shape.length // c % t
            for schedule in self.schedules(p, v) if sizes else ():
                plan = Plan(data, t, p, e, wide, c, schedule=schedule, virtual=v, **more)
                base = vars(plan)
                if fault(shape, Asked(plan, sizes[0], self.global_batch)) is not None:
                    continue
                for zero, recompute, offload in product(
                    choices["zero"] if data * c > 1 else {0}.intersection(choices["zero"]),
                    choices["recompute"],
                    choices["offload"],
                ):
                    for shard in self.shards(t, data * c, e, zero):
                        parts = {"zero": zero, "recompute": recompute, "offload": offload}
                        way = Plan(**{**base, **parts, "shard": shard, **self.again()})
                        if checks and fault(shape, Asked(way, sizes[0], self.global_batch)):
                            continue
                        yield Way(way, sizes)

    def sizes(self, share: int) -> tuple[int, ...]:
        """Return the microbatches that are tried of what a replica has of a batch.

        They, or how many of them there are, are powers of 2.
        """
        every = divisors(share)
        if self.is_network or "microbatch" in self.fixed:
            return every
        return tuple([b for b in every if not (b & (b - 1) and share // b & (share // b - 1))])

    def again(self) -> dict[str, int]:
        """Return the layers that a user has chosen to be computed again."""
        return {name: n for name, n in self.fixed.items() if name == "recompute_layers"}

    def schedules(self, pipeline: int, virtual: int) -> tuple[str, ...]:
        """Return the schedules that are tried with so many stages."""
        if virtual > 1 and pipeline == 1:
            return ()
        if (asked := self.fixed.get("schedule")) is not None:
            fits = virtual > 1 if asked == "interleaved" else asked != "zero-bubble" or virtual == 1
            return (asked,) if fits else ()
        splits = pipeline > 1 and virtual == 1 and not self.is_network
        return ("1f1b", "zero-bubble") if splits else ("1f1b",)

    def shards(self, tensor: int, replicas: int, expert: int, zero: int) -> list[int]:
        """Return over how many replicas states are shared out: all (0), or those inside a level."""
        if "shard" in self.fixed:
            return [self.fixed["shard"]]
        result, inside = [0], 1
        for level in self.planner.cluster.ladder if zero else ():
            inside *= level.size
            own = inside // tensor
            divides = not (inside % tensor or own < 2 or own >= replicas or replicas % own)
            if divides and (not own % expert or not expert % own):
                result.append(own)
        return result

    def in_words(self) -> str:
        """Return in a line what is tried, and what is left out."""
        choices = self.choices()
        words = [
            f"{name} {_words(choices[name])}"
            for name in ("tensor", "context", "pipeline", "virtual", "expert")
            if [*choices[name]] != [1]
        ]
        zeros = ", ".join(map(str, choices["zero"]))
        words += [f"ZeRO {zeros} over all replicas or those of a node"]
        if "schedule" not in self.fixed and not self.is_network:
            words += ["1F1B, interleaved or zero bubble"]
        words += (
            [] if "microbatch" in self.fixed else ["microbatches of 2^k sequences, or 2^k of them"]
        )
        left = [word for name, word in LEFT_OUT.items() if name not in self.fixed]
        if self.planner.host is None and "offload" not in self.fixed:
            left.append("offload without --host-link")
        left = ["ZeRO 2", "chosen stages"] if self.is_network else left
        return f"searched: {'; '.join(words)}. Not searched: {', '.join(left)}"


_ALONE = ("stages", "context_method")  # what a user may choose that fits only some splits


def _words(values: Iterable[int]) -> str:
    some = sorted(values)
    return str(some[0]) if len(some) == 1 else f"{some[0]} to {some[-1]}"


def powers(most: int) -> list[int]:
    """Return the powers of 2 up to a number."""
    return [2**k for k in range(most.bit_length())]
