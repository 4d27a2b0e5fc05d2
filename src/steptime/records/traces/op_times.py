"""The times of the ops of a profiled step as quantities of records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steptime.core.graph import PASSES
from steptime.records.record import NO_OP, UNATTRIBUTED, Quantity, single_run
from steptime.records.traces.trace import Profile


@dataclass(frozen=True)
class OpTimes:
    """The times of one op in each profiled step, or of work that belongs to no op."""

    scope: str
    kind: str
    quantities: Mapping[str, Quantity]


def list_op_times(profile: Profile, kinds: Mapping[str, str], first_step: int = 1) -> list[OpTimes]:
    """Return the times of ops from a step on; the profiler slows the very first step.

    Args:
        profile: the times of all parts.
        kinds: the kind of each op by name. A part of any other name is unattributed, except the
            optimizer.
        first_step: number of steps that are left out.
    """
    kind_of_scope = {**kinds, "optimizer": "optimizer"}
    times_s = _sum_passes(profile, [*kind_of_scope], first_step)
    scope_order = [*kind_of_scope, UNATTRIBUTED]  # ops in the order of the network
    ops = []
    steps_s = profile.step_s[first_step:]
    busy_s = [0.0] * len(steps_s)
    for scope in sorted(times_s, key=scope_order.index):
        pass_times_s = times_s[scope]
        op_s = [sum(pass_seconds) for pass_seconds in zip(*pass_times_s.values(), strict=True)]
        busy_s = _add_steps(busy_s, op_s)
        samples = {f"{name}_s": steps for name, steps in pass_times_s.items()} | {"step_s": op_s}
        kind = kind_of_scope.get(scope, UNATTRIBUTED)
        ops.append(OpTimes(scope, kind, _make_quantities(samples)))
    # Rounding may leave less than nothing of a step that is busy throughout.
    idle_s = [max(0.0, step - busy) for step, busy in zip(steps_s, busy_s, strict=True)]
    return [*ops, OpTimes(NO_OP, NO_OP, _make_quantities({"step_s": idle_s}))]


def _sum_passes(
    profile: Profile, scopes: Sequence[str], first_step: int
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each step from `first_step` on, by scope and pass.

    A part that is of none of the scopes is unattributed.
    """
    step_count = len(profile.step_s[first_step:])
    times_s: dict[str, dict[str, list[float]]] = {}
    for part, part_steps_s in profile.seconds_by_part.items():
        scope = part.scope if part.scope in scopes else UNATTRIBUTED
        pass_times_s = times_s.setdefault(scope, {name: [0.0] * step_count for name in PASSES})
        pass_times_s[part.pass_] = _add_steps(pass_times_s[part.pass_], part_steps_s[first_step:])
    return times_s


def _add_steps(steps_s: Sequence[float], added_s: Sequence[float]) -> list[float]:
    return [step_s + extra_s for step_s, extra_s in zip(steps_s, added_s, strict=True)]


def _make_quantities(samples: Mapping[str, list[float]]) -> dict[str, Quantity]:
    return {name: single_run(samples_s) for name, samples_s in samples.items()}
