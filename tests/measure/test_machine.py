"""What is read from a machine's /proc and /sys, from recorded trees and from this machine."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import machine_tree
from every import every
from steptime.core.errors import InputError
from steptime.measure import cpus, drivers, machine
from steptime.measure.procfs import number_list
from steptime.questions.doctor.answer import DoctorAnswer
from steptime.questions.doctor.question import examine_machine

MEGA = 1 << 20


SYSTEM = machine_tree.CPUS


@pytest.fixture
def epyc(tmp_path):
    """Two sockets of two cores of two threads, CPUs 0-3 first threads, 4-7 second ones.

    The process may use CPUs 1-7; its group (version 2) has 2.5 CPUs and 3 GiB, 1 GiB of it used.
    """
    changes = {
        "proc/cpuinfo": "processor : 0\nmodel name : AMD EPYC 9R14\nflags : fpu hypervisor",
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t1-7\nVmRSS:\t100 kB",
        "proc/self/cgroup": "0::/jobs/seven",
        "proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB",
        f"{SYSTEM}/online": "0-7",
        "sys/fs/cgroup/jobs/cpu.max": "250000 100000",
        "sys/fs/cgroup/jobs/seven/cpu.max": "max 100000",
        "sys/fs/cgroup/jobs/seven/memory.max": str(3 << 30),
        "sys/fs/cgroup/jobs/seven/memory.current": str(1 << 30),
    }
    for cpu in range(8):
        folder = f"{SYSTEM}/cpu{cpu}"
        core, package = cpu % 4, cpu % 4 // 2
        core_cpus = f"{core},{core + 4}"
        first = 2 * package
        package_cpus = f"{first}-{first + 1},{first + 4}-{first + 5}"
        changes[f"{folder}/topology/thread_siblings_list"] = core_cpus
        changes[f"{folder}/topology/physical_package_id"] = str(package)
        for index, (level, kind, size, shared) in enumerate(
            (
                (1, "Data", "32K", core_cpus),
                (1, "Instruction", "32K", core_cpus),
                (2, "Unified", "1024K", core_cpus),
                (3, "Unified", "32M", package_cpus),
            )
        ):
            cache = f"{folder}/cache/index{index}"
            changes[f"{cache}/level"] = str(level)
            changes[f"{cache}/type"] = kind
            changes[f"{cache}/size"] = size
            changes[f"{cache}/shared_cpu_list"] = shared
    files = machine_tree.captured("amd-epyc-2cpu")
    return machine_tree.write(tmp_path / "epyc", machine_tree.changed(files, changes))


@pytest.fixture
def small(tmp_path):
    """A captured machine as it was: 2 CPUs, an L2 for each and one L3 of 32 MiB for both."""
    return machine_tree.write(tmp_path / "small", machine_tree.captured("amd-epyc-2cpu"))


def test_a_cache_that_cpus_share_is_counted_once(small):
    assert cpus.caches(small) == (
        cpus.Cache(1, "data", 48 << 10, 1),
        cpus.Cache(1, "instruction", 32 << 10, 1),
        cpus.Cache(2, "unified", MEGA, 1),
        cpus.Cache(3, "unified", 32 * MEGA, 2),
    )
    assert cpus.last_cache_bytes((0, 1), small) == 32 * MEGA
    assert cpus.cores(small).physical == 2


def test_a_fake_tree_has_no_file_that_no_kernel_has():
    files = machine_tree.captured("amd-epyc-2cpu")
    with pytest.raises(KeyError, match="shared_number_list"):
        machine_tree.changed(files, {f"{SYSTEM}/cpu3/cache/index3/shared_number_list": "0-1"})


def test_cores_are_those_behind_the_allowed_cpus(epyc):
    found = cpus.cores(epyc)
    assert found.logical == 8
    assert found.allowed == (1, 2, 3, 4, 5, 6, 7)
    assert found.physical == 4  # CPU 4 still shows the core of CPU 0
    assert found.quota == 2.5  # the outer group's: the inner one has none
    assert cpus.default_threads(epyc) == 2  # whole CPUs of the quota


def test_caches_and_who_shares_them(epyc):
    assert cpus.caches(epyc) == (
        cpus.Cache(1, "data", 32 << 10, 2),
        cpus.Cache(1, "instruction", 32 << 10, 2),
        cpus.Cache(2, "unified", MEGA, 2),
        cpus.Cache(3, "unified", 32 * MEGA, 4),
    )
    assert cpus.last_cache_bytes((0, 1), epyc) == 32 * MEGA  # one socket
    assert cpus.last_cache_bytes((0, 2), epyc) == 64 * MEGA  # both


def test_memory_is_what_the_group_leaves(epyc):
    found = machine.memory(epyc)
    assert found.total_bytes == 8 << 30
    assert found.available_bytes == 4 << 30
    assert found.limit_bytes == 3 << 30
    assert found.usable_bytes == 2 << 30  # 3 - 1 used


def test_control_groups_of_version_1(tmp_path):
    root = machine_tree.write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box",
            "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",  # no limit
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(1 << 30),
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(1 << 28),
        },
    )
    assert cpus.cores(root).quota == 1.5
    assert machine.memory(root).limit_bytes == 1 << 30
    assert machine.memory(root).usable_bytes == (1 << 30) - (1 << 28)


def test_threads_take_different_cores_and_one_socket_first(epyc):
    assert cpus.choose_cpus(1, epyc) == (1,)
    assert cpus.choose_cpus(2, epyc) == (1, 4)  # 4 is alone on the core of CPU 0: socket 0
    assert cpus.choose_cpus(4, epyc) == (1, 2, 3, 4)
    assert cpus.choose_cpus(7, epyc) == (1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("threads", [-1, 0, 8])
def test_more_threads_than_cpus_are_refused(epyc, threads):
    with pytest.raises(InputError, match=r"not in 1\.\.7"):
        cpus.choose_cpus(threads, epyc)


@given(st.integers(-5, 10_000))
def test_chosen_cpus_are_allowed_and_as_many(threads):
    allowed = cpus.cores().allowed
    if 1 <= threads <= len(allowed):
        assert set(cpus.choose_cpus(threads)) <= set(allowed)
        assert len(cpus.choose_cpus(threads)) == threads
    else:
        with pytest.raises(InputError, match="threads"):
            cpus.choose_cpus(threads)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_number_list_reads_what_the_kernel_writes(cpus):
    assert number_list(",".join(map(str, sorted(cpus)))) == tuple(sorted(cpus))
    low, high = min(cpus), max(cpus)
    assert number_list(f"{low}-{high}\n") == tuple(range(low, high + 1))


@pytest.mark.slow
def test_an_empty_tree_gives_unknowns_with_a_reason(tmp_path):
    assert cpus.caches(tmp_path) is None
    assert cpus.last_cache_bytes((0,), tmp_path) is None
    assert cpus.cores(tmp_path).physical is None
    assert cpus.cores(tmp_path).reason
    assert machine.memory(tmp_path).usable_bytes is None
    assert machine.memory(tmp_path).reason
    assert machine.cpu_model(tmp_path)
    peak_bytes, why = machine.resident_memory_meter(tmp_path)()
    assert peak_bytes is None
    assert "cannot be set back" in why


def test_a_hidden_model_is_told_apart_by_its_numbers(tmp_path):
    lines = "cpu family : 6\nmodel : 143\nmodel name : Intel(R) Xeon(R) Processor\nstepping : 8"
    root = machine_tree.write(tmp_path, {"proc/cpuinfo": lines})
    assert machine.cpu_model(root) == "Intel(R) Xeon(R) Processor f6m143s8"


@every(
    ("product", "slug"),
    [
        ("AMD EPYC 9R14", "amd-epyc-9r14"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "intel-xeon-platinum-8375c"),
        ("Intel(R) Xeon(R) Processor f6m143s8", "intel-xeon-f6m143s8"),
        ("NVIDIA GeForce RTX 3060", "nvidia-geforce-rtx-3060"),
    ],
)
def test_slug(product, slug):
    assert machine.slug(product) == slug


def test_platform_is_the_shipped_device_of_the_product_or_a_name_made_of_it():
    assert machine.platform_name("cuda:0", "NVIDIA H200", None) == "h200-sxm"
    assert machine.platform_name("cpu", "AMD EPYC 9R14", 2) == "cpu-amd-epyc-9r14-2t"
    assert machine.platform_name("cuda:1", "NVIDIA Nothing 1", 2) == "nvidia-nothing-1"


def test_environment_says_why_it_does_not_know():
    facts = machine.environment()
    assert facts["host"]
    assert facts["cpu_model"]
    unknown = {key for key, value in facts.items() if value is None}
    assert set(facts["unknown"]) == unknown


BIND = """
import os
from steptime.measure import cpus
bound = cpus.bind_threads(1)
assert len(bound) == 1 and os.sched_getaffinity(0) == set(bound)
assert {os.environ[name] for name in cpus.THREAD_VARIABLES} == {"1"}
import numpy
try:
    cpus.bind_threads(1)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_threads_are_bound_before_a_framework_only():
    done = subprocess.run([sys.executable, "-c", BIND], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "threads must be bound before numpy is imported"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_peak_memory_counts_this_network_and_not_the_one_before():
    bytearray(256 * MEGA)  # the one before: its high-water mark must not be seen
    for size in (64 * MEGA, 16 * MEGA):
        read = machine.resident_memory_meter()
        held = bytearray(size)
        held[::4096] = b"1" * (size // 4096)
        del held
        peak_bytes, meter = read()
        if peak_bytes is None:
            pytest.skip(meter)
        assert size <= peak_bytes + MEGA
        assert peak_bytes < size + 8 * MEGA


def test_doctor_knows_this_machine_and_imports_no_framework():
    code = (
        "import sys; from steptime.questions.doctor.question import examine_machine;"
        "examine_machine().to_json();"
        "assert not {'torch', 'numpy', 'jax', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_doctor_says_what_is_missing_and_how_to_get_it(epyc, monkeypatch):
    monkeypatch.setattr(machine, "installed_version", lambda _: None)
    monkeypatch.setattr(machine, "load_per_cpu", lambda: 0.75)
    answer = examine_machine(epyc)
    remedies = {row.name: row.remedy for row in answer.missing}
    assert "pytorch.org" in remedies["PyTorch"]
    assert "steptime calibrate" in remedies["probe"]
    assert remedies["rapl"].startswith("no RAPL counters under /sys/class/powercap: energy needs")
    problems = " ".join(answer.problems)
    assert "load is 75 % of its CPUs" in problems
    assert "2.5 CPUs of the 7" in problems
    rows = {row["name"]: row["value"] for row in answer.tables()[0].rows}
    assert rows["CPU"] == "AMD EPYC 9R14 (virtual machine)"
    assert rows["cores"] == "4 physical, 8 CPUs, 7 allowed, quota 2.5"
    assert all(rows.values())
    assert str(answer).count("\n! ") == len(answer.problems) == 2
    assert msgspec.convert(answer.to_dict(), DoctorAnswer) == answer


def test_the_gpus_of_a_driver_have_sizes_in_bytes(monkeypatch):
    lines = "Tesla T4, 550.54, 15360 MiB, 70.00 W, [N/A]\nA100, 550.54, [N/A], [N/A], Disabled\n"
    monkeypatch.setattr(machine, "read_command_output", lambda *_: lines)
    first, second = drivers.read_nvidia_gpus()
    assert (first.capacity_bytes, first.power_limit_w) == (15360 * 2**20, 70.0)
    assert (second.capacity_bytes, second.power_limit_w) == (None, None)
    assert drivers.driver_of("cuda:0") == {"driver": "550.54"}


def test_doctor_finds_energy_counters_that_may_be_read(tmp_path):
    zone = "sys/class/powercap/intel-rapl:0"
    files = {"energy_uj": "123", "max_energy_range_uj": "999", "name": "package-0"}
    root = machine_tree.write(tmp_path, {f"{zone}/{name}": text for name, text in files.items()})
    assert drivers.meter_remedies(root)["rapl"] == ""
