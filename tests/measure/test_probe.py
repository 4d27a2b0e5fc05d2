"""Probing: what is sampled in a budget, what becomes of it, and real probes that are tiny."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.device_file import device_from_table
from steptime.measure import machine
from steptime.measure.contract import Options
from steptime.measure.launch import Worker
from steptime.measure.probe import ceilings, files, sampling

MEGA = 1 << 20

ANSWER: dict[str, Any] = {
    "backend": "torch",
    "version": "2.13.0",
    "device": "cpu",
    "kind": "cpu",
    "product": "AMD EPYC 9R14",
    "threads": 2,
    "memory_bytes": 24_000_000_000,
    "cache_bytes": 32_000_000,
    "load": 0.25,
    "budget_s": 20.0,
    "wall_s": 18.5,
    "taken_at": "2026-11-21T04:09:27+00:00",
    "curves": {
        "gemm.float32": {
            "m": [512, 1024],
            "k": [512, 1024],
            "n": [512, 1024],
            "work": [2 * 512**3, 2 * 1024**3],
            "min_s": [0.002, 0.01],
            "median_s": [0.0021, 0.011],
            "samples": [9, 8],
        },
        "gemm.float16": {},
        "memory.copy": {
            "array_bytes": [1_000_000, 64_000_000],
            "work": [2_000_000, 128_000_000],  # 4 caches
            "min_s": [2e-5, 4e-3],
            "median_s": [2e-5, 4e-3],
            "samples": [9, 9],
        },
        "memory.add": {
            "array_bytes": [1_000_000, 16_000_000],
            "work": [3_000_000, 48_000_000],  # 1.5 caches: too few
            "min_s": [2e-5, 1e-3],
            "median_s": [2e-5, 1e-3],
            "samples": [9, 9],
        },
        "dispatch": {
            "op": ["add", "matmul"],
            "work": [1, 1],
            "min_s": [8e-7, 1e-6],
            "median_s": [9e-7, 1e-6],
            "samples": [60, 60],
        },
    },
    "skipped": {"gemm.float16": ["m=64 k=64 n=64 and larger: not implemented for 'Half'"]},
}


class Machine:
    """A fake clock, and cases whose calls move it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.order: list[str] = []

    def clock(self) -> float:
        return self.now_s

    def case(
        self, group: str, work: float, per_s: float, prepare_s: float = 0.0
    ) -> sampling.ProbeCase:
        def timer(calls: int) -> float:
            self.order.append(f"{group} {work:g}")
            spent_s = calls * work / per_s
            self.now_s += spent_s
            return spent_s

        def prepare() -> sampling.Timer:
            self.now_s += prepare_s
            return timer

        return sampling.ProbeCase(group, {"size": int(work)}, work, int(work), prepare)


def best_per_s(curve: Any) -> float:
    return max(work / least for work, least in zip(curve["work"], curve["min_s"], strict=True))


def test_samples_are_taken_in_turns_within_the_budget():
    fake = Machine()
    cases = [fake.case("gemm.float32", 10.0**n, 1e9, prepare_s=1e-4) for n in range(4, 12)]
    cases += [fake.case("memory.copy", 10.0**n, 1e9) for n in range(5, 11)]
    curves, skipped = sampling.sample(cases, 10.0, fake.clock)
    assert fake.now_s <= 10.0
    gemm = curves["gemm.float32"]
    assert gemm["size"] == [10**4, 10**5, 10**6, 10**7, 10**8]  # 1 s * 5 visits fills its 5 s
    (why,) = skipped["gemm.float32"]
    assert why.startswith("size=1000000000 and larger: no time, it needs 5")
    assert min(gemm["samples"]) >= sampling.MIN_SAMPLES
    assert best_per_s(gemm) == pytest.approx(1e9)
    last = fake.order[-200:]
    assert sum(a.split()[0] != b.split()[0] for a, b in itertools.pairwise(last)) > 10


def test_a_slow_type_costs_no_more_than_its_share():
    fake = Machine()
    cases = [
        fake.case(f"gemm.{dtype}", float(ceilings.gemm_flop(m, k, n)), per_s)
        for dtype, per_s in (("float32", 2e11), ("float16", 1e8))
        for m, k, n in ceilings.GEMM_SHAPES
    ]
    curves, _ = sampling.sample(cases, 8.0, fake.clock)
    assert fake.now_s <= 8.0
    # 2 s: 512^3 takes 2.7 s at 1e8 FLOP/s, 256^3 a third of a second
    assert curves["gemm.float16"]["size"][-1] == 2 * 256**3
    assert curves["gemm.float32"]["size"][-1] >= 2 * 2048**3


def test_a_hiccup_does_not_end_a_curve():
    fake = Machine()
    tiny = fake.case("gemm.float32", 1e4, 1e9)
    small, large = fake.case("gemm.float32", 1e5, 1e9), fake.case("gemm.float32", 1e8, 1e9)

    hiccups: list[float] = []

    def prepare() -> sampling.Timer:
        steady = small.prepare()

        def timer(calls: int) -> float:
            hiccup_s = 0.2 if len(hiccups) < 6 else 0.0
            hiccups.append(hiccup_s)
            fake.now_s += hiccup_s
            return steady(calls) + hiccup_s

        return timer

    smaller = sampling.ProbeCase("gemm.float32", {"size": 0}, 1e4, 1, tiny.prepare)
    first = sampling.ProbeCase("gemm.float32", {"size": 1}, 1e5, 1, prepare)
    second = sampling.ProbeCase("gemm.float32", {"size": 2}, 1e8, 1000, large.prepare)
    curves, skipped = sampling.sample([smaller, first, second], 10.0, fake.clock)
    assert skipped == {}
    assert best_per_s(curves["gemm.float32"]) == pytest.approx(1e9)


def test_every_op_is_issued_however_slow_the_machine_is():
    fake = Machine()
    one = fake.case("dispatch", 1, per_s=0.5)  # a call takes 2 s, all of them have 0.1 s
    ops = [replace(one, columns={"op": op}) for op in ("add", "matmul", "mul_and_gradient")]
    curves, skipped = sampling.sample(ops, 1.0, fake.clock)
    assert skipped == {}
    curve = curves["dispatch"]
    assert curve["op"] == ["add", "matmul", "mul_and_gradient"]
    assert (curve["samples"], curve["min_s"]) == ([1, 1, 1], [2.0, 2.0, 2.0])


def test_what_a_device_cannot_do_is_said():
    def refuse() -> sampling.Timer:
        raise sampling.RefusedError("no such kernel")

    curves, skipped = sampling.sample(
        [sampling.ProbeCase("gemm.float16", {"m": 64}, 1, 1, refuse)], 1.0
    )
    assert curves == {"gemm.float16": {}}
    assert skipped == {"gemm.float16": ["m=64 and larger: no such kernel"]}


def test_array_sizes_reach_out_of_the_cache_and_stay_in_the_room():
    sizes = ceilings.array_sizes_bytes(32 * MEGA, None)
    assert sizes[0] == 1 << 16
    assert sizes[-1] == 64 * MEGA  # two arrays are 4 caches
    assert all(a < b for a, b in itertools.pairwise(sizes))
    narrow = ceilings.array_sizes_bytes(32 * MEGA, 240 * MEGA)
    assert narrow[-1] == 10 * MEGA  # 240 / (2 * 12)
    assert sum(1 + reads for _, reads, _ in ceilings.STREAMS.values()) * sum(narrow) <= 120 * MEGA
    assert ceilings.array_sizes_bytes(None, None)[-1] > 100 * MEGA


def test_gemm_work():
    assert ceilings.gemm_flop(2, 4, 5) == 2 * 2 * 4 * 5
    works = [ceilings.gemm_flop(*shape) for shape in ceilings.GEMM_SHAPES]
    assert works == sorted(works)


def test_device_table_of_a_recorded_answer():
    table = files.device_table(ANSWER)
    device = device_from_table(table, "here")
    assert device.name == "cpu-amd-epyc-9r14-2t"
    assert device.datasheet.peak_flop_per_s == {"float32": pytest.approx(2 * 1024**3 / 0.01)}
    assert device.datasheet.memory_bytes_per_s == pytest.approx(
        128e6 / 4e-3
    )  # not the 48e9 of 1.5 caches
    assert device.datasheet.memory_bytes == 24e9
    assert device.datasheet.launch_s == pytest.approx(8e-7)
    assert device.datasheet.source == (
        "measured by steptime calibrate --only ceilings on 2026-11-21 with torch 2.13.0, 2 threads"
    )
    assert "gemm.float16 not measured: m=64" in device.datasheet.note
    assert device.datasheet.products == ()  # one thread of this CPU is another platform
    assert device.measured["gemm"]["float32"]["min_s"] == [0.002, 0.01]
    assert device.measured["memory"]["add"]["samples"] == [9, 9]
    assert device.measured["dispatch"]["op"] == ["add", "matmul"]


def test_device_table_is_written_and_found_as_local():
    table = files.device_table(ANSWER)
    catalog.write_user_device(table, table["name"])
    assert catalog.device("local") == device_from_table(table, "here")


def test_a_probed_shipped_device_keeps_the_shipped_name_free():
    facts = {"device": "cuda:0", "kind": "gpu", "product": "NVIDIA H200", "cache_bytes": None}
    table = files.device_table(ANSWER | facts)
    assert table["name"] == "h200-sxm-probed"
    assert table["measured"]["platform"] == "h200-sxm"
    assert table["products"] == ["NVIDIA H200"]
    assert "threads" not in table["source"]
    assert "the last cache is unknown" in table["note"]
    catalog.write_user_device(table, table["name"])


def test_a_busy_machine_and_small_matrices_are_doubted():
    few = {"m": [64], "k": [64], "n": [64], "work": [2 * 64**3]}
    times = {"min_s": [1e-3], "median_s": [1e-3], "samples": [3]}
    curves = ANSWER["curves"] | {"gemm.float16": few | times}
    table = files.device_table(ANSWER | {"load": 0.8, "curves": curves})
    assert "its load was 80 % of its CPUs" in table["note"]
    assert "gemm.float16 is of small matrices only" in table["note"]
    assert "busy" not in files.device_table(ANSWER)["note"]


def test_arrays_that_stay_in_the_cache_are_doubted():
    table = files.device_table(ANSWER | {"cache_bytes": 100_000_000})
    assert "arrays of 1.3 last-level caches" in table["note"]
    assert table["memory_GB_per_s"] == pytest.approx(32.0)  # the largest arrays


def test_one_slow_sample_of_arrays_in_the_cache_is_no_bandwidth():
    """Of the largest arrays the best kernel tells, where none is far beyond the cache."""
    slow = {"array_bytes": [64_000_000], "work": [192_000_000], "samples": [1]}
    slow |= {"min_s": [0.5], "median_s": [0.5]}
    curves = ANSWER["curves"] | {"memory.add": slow}
    table = files.device_table(ANSWER | {"cache_bytes": 500_000_000, "curves": curves})
    assert table["memory_GB_per_s"] == pytest.approx(32.0)


@pytest.mark.parametrize("group", ["gemm.float32", "memory"])
def test_no_roof_without_a_measurement(group):
    curves = {name: {} if name.startswith(group) else c for name, c in ANSWER["curves"].items()}
    with pytest.raises(InputError, match="more --minutes"):
        files.device_table(ANSWER | {"curves": curves})


def check_real(answer: Mapping[str, Any], dtypes: Sequence[str]) -> None:
    device = device_from_table(files.device_table(answer), "here")
    assert set(device.datasheet.peak_flop_per_s) == set(dtypes)
    assert all(1e7 < peak < 1e15 for peak in device.datasheet.peak_flop_per_s.values())
    assert 1e8 < device.datasheet.memory_bytes_per_s < 1e13
    assert device.datasheet.launch_s is not None
    assert 1e-8 < device.datasheet.launch_s < 1e-3
    for curve in answer["curves"].values():
        pairs = zip(curve["min_s"], curve["median_s"], strict=True)
        assert all(0 < least <= median < math.inf for least, median in pairs)


def probe(backend: str, device: str = "cpu", **how: Any) -> dict[str, Any]:
    """A probe by a worker, as the command asks for it; one thread on a CPU."""
    with Worker(backend, Options(device=device, threads=1)) as worker:
        return worker.ask({"do": "probe", "arguments": how}, 600)


@pytest.mark.slow
def test_every_backend_has_a_probe():
    """Each op of the null backend takes its share of a step of 1 ms: its clock is made up."""
    answer = probe("null", dtypes=["float32", "bfloat16"], budget_s=1.0)
    assert answer["product"] == machine.cpu_model()
    assert answer["threads"] == 1
    assert answer["skipped"]["gemm.bfloat16"] == [
        "m=64 k=64 n=64 and larger: null has no 'bfloat16'"
    ]
    gemm = answer["curves"]["gemm.float32"]
    ops = {64: 190, 128: 23, 256: 2}  # 1e8 / (2 * 64^3) = 190.7, 23.8, 2.98
    for n, count in ops.items():
        row = gemm["m"].index(n)
        assert (gemm["k"][row], gemm["n"][row], gemm["work"][row]) == (n, n, 2 * n**3)
        assert gemm["min_s"][row] == pytest.approx(1e-3 / count)
    dispatch = answer["curves"]["dispatch"]
    assert dispatch["op"] == ["add"]
    assert dispatch["min_s"][0] > 0


def test_an_unknown_type_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="float32"):
        ceilings.probe("null", None, Options(), dtypes=["float31"])


@pytest.mark.slow
@pytest.mark.framework
def test_a_real_probe_by_torch():
    answer = probe("torch", dtypes=["float32", "float16"], budget_s=2.0)
    check_real(answer, ("float32", "float16"))
    assert answer["curves"]["dispatch"]["op"] == ["add"]


@pytest.mark.gpu
def test_a_real_probe_of_a_gpu():
    import torch

    answer = probe("torch", "cuda", budget_s=5.0)
    dtypes = [group[5:] for group, c in answer["curves"].items() if group.startswith("gemm.") and c]
    check_real(answer, dtypes)
    assert answer["product"] == torch.cuda.get_device_name(0)
    tf32 = torch.cuda.get_device_capability(0) >= (8, 0) and torch.version.hip is None
    assert ("tf32" in dtypes) == tf32
