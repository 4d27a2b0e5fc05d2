"""The pytest plugin in a session of its own: benchmarks, baselines and limits."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from places import ROOT
from steptime.integrations.pytest_rounds import FIRST_ROUNDS
from steptime.records import store

pytest_plugins = ["pytester"]

PLUGIN = "steptime.integrations.pytest_plugin"
IS_INSTALLED = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
LOAD = () if IS_INSTALLED else ("-p", PLUGIN)
QUICK = ("--steptime-rounds", "2", "--steptime-budget", "0.05s")
NETWORK = "fc:layers=1,nodes=8"
BENCH = f"""
def test_step(steptime_bench):
    result = steptime_bench("{NETWORK}", batch=4)
    assert result.measured.step_s.median > 0
"""
MADE_UP_RUNS = """
import os, random

import pytest

from steptime.analysis.measurement import measurement
from steptime.core.progress import report_progress
from steptime.integrations import pytest_bench
from steptime.questions.run import question
from steptime.questions.run.measured_step import describe_measurement
from steptime.questions.options import workload_of
from steptime.records import store
from steptime.records.record import Quantity, Record, RecordMethod, current_time

STEPS = {steps}  # by batch: seconds, noise from run to run, platform
SEED = {seed}
CALLS = []


def run(model, batch=None, *, runs, out, **options):
    CALLS.append(str(out))
    for number in range(runs):
        report_progress("runs", number + 1, runs)
    random.seed(SEED + 1000 * (CALLS.count(str(out)) - 1))
    step_s, noise, platform = STEPS[batch]
    medians = [step_s * random.lognormvariate(0, noise) for _ in range(runs)]
    samples = [median * random.lognormvariate(0, 0.01) for median in medians for _ in range(40)]
    numbers = [number for number in range(runs) for _ in range(40)]
    columns = {{"run": tuple(numbers), "disturbed": (False,) * len(samples)}}
    record = Record(
        origin="measured",
        method=RecordMethod("torch", "2.13.0", {{"threads": 2, "compile": False, "runs": runs}}),
        workload=workload_of(model, batch),
        platform=platform,
        quantities={{
            "step_s": Quantity(samples=tuple(samples), columns=columns),
            "peak_bytes": Quantity(1e6),
        }},
        env={{"host": "test", "steady": True, "memory_meter": "-", "cpu_model": platform}},
        taken_at=current_time(),
    )
    with store.open_writer(out) as writer:
        writer.append(record)
    return describe_measurement(
        measurement(record, 1e6, {{"probed": None, "datasheet": None}})
    )


question.run = run
REFERENCE_S = {reference_s}


def measure_reference():
    with open("references", "a") as references:
        references.write("1")
    return REFERENCE_S * random.lognormvariate(0, 0.01) if REFERENCE_S else float("nan")


pytest_bench.measure_reference = measure_reference
"""


@pytest.fixture
def session(pytester):
    """Return a function that runs pytest on a file's text, in a process of its own."""

    def run(text, *options):
        path = pytester.makepyfile(test_bench=text)
        return pytester.runpytest_subprocess(*LOAD, *options, str(path))

    return run


@pytest.fixture
def made_up(pytester, session):
    """Return a function that runs pytest where `run` measures what it is told to, by batch."""

    def run(text, *options, seed=1, reference_s=None, **steps):
        by_batch = {int(name.removeprefix("batch")): step for name, step in steps.items()}
        pytester.makeconftest(
            MADE_UP_RUNS.format(steps=by_batch, seed=seed, reference_s=reference_s)
        )
        return session(text, *options)

    return run


@pytest.mark.slow
@pytest.mark.framework
def test_a_benchmark_is_measured_and_its_record_is_kept(session, pytester):
    result = session(BENCH, *QUICK, "--steptime-out", "records")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= steptime =*", "fc:*batch 4: * no baseline"])
    (record,) = store.load(pytester.path / "records/test_bench.py-test_step", print)
    assert set(record.quantities["step_s"].columns["run"]) == {0, 1}
    reference = pytester.path / "records/test_bench.py-test_step/reference.json"
    assert len(json.loads(reference.read_text())["reference_s"]) == 2


@pytest.mark.parametrize(
    ("device", "platform", "references"), [("cpu", "cpu-test-2t", FIRST_ROUNDS), ("cuda", "t4", 0)]
)
def test_no_reference_is_measured_beside_a_gpu(made_up, pytester, device, platform, references):
    bench = f"""
def test_step(steptime_bench):
    steptime_bench("fc:layers=2,nodes=4,inputs=4,outputs=4", 1, device="{device}")
"""
    steady = (0.01, 0.001, platform)
    made_up(bench, "--steptime-out", "main", reference_s=0.01, batch1=steady).assert_outcomes(
        passed=1
    )
    counted = pytester.path / "references"
    assert (len(counted.read_text()) if counted.exists() else 0) == references
    assert len(list(pytester.path.glob("main/*/reference.json"))) == bool(references)


QUIET = (0.001, 0.01, "cpu-test-2t")
CHANGES = {  # batch: the step of the branch
    "batch1": (0.0015, 0.01, "cpu-test-2t"),  # slower
    "batch2": QUIET,
    "batch3": (0.0006, 0.01, "cpu-test-2t"),  # faster
    "batch4": (0.0011, 0.8, "cpu-test-2t"),  # too much noise
    "batch5": QUIET,  # a single round
    "batch6": (0.002, 0.01, "cpu-other-4t"),  # another machine
    "batch7": QUIET,  # new
}
GATE = f"""
import pytest

@pytest.mark.parametrize("batch", range(1, 8))
def test_step(steptime_bench, batch):
    steptime_bench("{NETWORK}", batch, rounds=1 if batch == 5 else None)
"""


@pytest.mark.slow
def test_a_slower_step_fails_and_one_without_a_verdict_only_if_asked(made_up, pytester):
    main = dict.fromkeys(CHANGES, QUIET)
    made_up(GATE, "--steptime-out", "main", "-k", "not 7", **main).assert_outcomes(
        passed=6, deselected=1
    )
    result = made_up(
        GATE, "--steptime-baseline", "main", "--steptime-out", "branch", seed=2, **CHANGES
    )
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*, batch 1: * slower: +* against the baseline (*",
            "*1 of 1 pair slower, 1.5* times the time in the mean",
            "*= steptime =*",
            "*, batch 1: * slower: +*",
            "*, batch 2: * against the baseline (*",
            "*, batch 3: * faster: -* against the baseline (*",
            "*, batch 4: * unsure: *",
            "*, batch 5: * unsure: *",
            "*, batch 6: *",
            "*, batch 7: *; no baseline in main*",
            "FAILED test_bench.py::test_step[[]1[]]*",
        ]
    )
    assert "Traceback" not in result.stdout.str()

    elsewhere = pytester.path.parent / f"{pytester.path.name}-main"  # moves the root of pytest
    (pytester.path / "main").rename(elsewhere)
    result = made_up(GATE, "--steptime-baseline", str(elsewhere), "-k", "1", seed=2, **CHANGES)
    result.assert_outcomes(failed=1, deselected=6)
    elsewhere.rename(pytester.path / "main")

    compared = ("--steptime-baseline", "main", "--steptime-fail-unsure")
    result = made_up(GATE, *compared, seed=2, **CHANGES)
    failed = {line.split("[")[1][0] for line in result.outlines if line.startswith("FAILED")}
    assert {"1", "4", "5", "6"} <= failed
    assert not {"3", "7"} & failed

    result = made_up(GATE, "--steptime-out", "branch", "-k", "2", **CHANGES)
    result.stdout.fnmatch_lines(["steptime: branch*: holds records; name a new folder*"])


SINGLE = """
def test_step(steptime_bench):
    steptime_bench("fc:layers=2,nodes=4,inputs=4,outputs=4", 1)
"""


@pytest.mark.parametrize(
    ("step_s", "reference_s", "word"),
    [
        (0.0125, 0.01, "slower"),  # the machine is as fast as it was
        (0.0125, 0.0125, "unsure"),  # the machine is slower, too
        pytest.param(0.0150, 0.0110, "slower", marks=pytest.mark.slow),  # by more than the machine
        pytest.param(0.0100, 0.0075, "same", marks=pytest.mark.slow),  # a reference fails nothing
    ],
)
def test_a_machine_that_became_slower_is_no_slower_step(
    made_up, pytester, step_s, reference_s, word
):
    cpu = "cpu-amd-epyc-2t"
    steady = (0.01, 0.01, cpu)
    kept = ("--steptime-out", "main")
    result = made_up(SINGLE, *kept, reference_s=0.01, batch1=steady)
    result.assert_outcomes(passed=1)
    (file,) = pytester.path.glob("main/*/reference.json")
    assert len(json.loads(file.read_text())["reference_s"]) == FIRST_ROUNDS
    now = {"reference_s": reference_s, "batch1": (step_s, 0.01, cpu)}
    result = made_up(SINGLE, "--steptime-baseline", "main", seed=2, **now)
    result.stdout.fnmatch_lines([f"*batch 1: *{word}: *the machine's reference *, the step over*"])
    result.assert_outcomes(**{"failed" if word == "slower" else "passed": 1})


@pytest.mark.rare
def test_noise_asks_for_further_rounds_unless_a_number_is_said(made_up, pytester):
    loud = (0.001, 0.25, "cpu-test-2t")
    test = f"""
def test_step(steptime_bench):
    steptime_bench("{NETWORK}", 1)
"""
    made_up(test, "--steptime-out", "main", batch1=loud).assert_outcomes(passed=1)
    folder = pytester.path / "main/test_bench.py-test_step"
    rounds = [
        set(record.quantities["step_s"].columns["run"]) for record in store.load(folder, print)
    ]
    assert 10 <= sum(map(len, rounds)) <= 20
    exact = ("--steptime-rounds", "5")
    result = made_up(test, *exact, "--steptime-out", "exact", batch1=loud)
    result.stdout.fnmatch_lines(["*batch 1: *; no baseline"])
    assert len(list(store.load(pytester.path / "exact/test_bench.py-test_step", print))) == 1
    slower = (0.0015, 0.25, "cpu-test-2t")
    compared = ("--steptime-baseline", "main", "--steptime-out", "branch")
    result = made_up(test, *compared, seed=2, batch1=slower)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*batch 1: * in * rounds; slower: +*"])


@pytest.mark.slow
def test_a_marker_with_a_model_is_held_before_the_test(session):
    cases = (
        ('fits="24GB"', "*resnet50, batch 8: needs * of 24 GB on rtx-4090"),
        ('fits="24GiB", device="l4"', "*needs * on l4"),
        ('fits="l4"', "*needs * on l4"),
        ('fits="1GB"', "*needs * of 1 GB on rtx-4090"),
        ('fits="24 parsecs"', "*fits: unknown unit in '24 parsecs'*"),
        ('fits="rtx-409"', "*unknown device 'rtx-409'; did you mean*"),
        ('max_step="1.2 predicted"', "*max_step: unknown limit*"),
        ('dtype="float32"', "*a marker steptime needs a limit*"),
    )
    tests = [
        f"""
@pytest.mark.steptime("resnet50", batch=8, {limits})
def test_{number}():
    assert "torch" not in sys.modules
"""
        for number, (limits, _) in enumerate(cases)
    ]
    result = session("import sys\nimport pytest\n" + "".join(tests))
    result.assert_outcomes(passed=3, failed=5)
    for _, words in cases:
        result.stdout.fnmatch_lines([words])


@pytest.mark.rare
def test_a_marker_without_a_model_is_of_what_the_test_benchmarks(session):
    result = session("""
        import pytest

        @pytest.mark.steptime(fits="24GB")
        def test_fits(steptime_bench):
            assert steptime_bench("resnet50", batch=8).verdict == "fits"

        @pytest.mark.steptime(fits="1GB")
        def test_is_too_large(steptime_bench):
            steptime_bench("resnet50", batch=8)

        @pytest.mark.steptime(fits="24GB")
        def test_forgets_the_model():
            pass
    """)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*name a model, or let the test take steptime_bench"])


@pytest.mark.slow
def test_a_limit_of_time_is_measured_on_the_device_that_is_present(made_up):
    limits = ('"1.1ms"', '"0.8ms"', *['"1.2x predicted"'] * 3, '"1.2x predicted", device="l4"')
    tests = [
        f"""
@pytest.mark.steptime("{NETWORK}", batch={batch}, max_step={limit})
def test_{batch}():
    pass
"""
        for batch, limit in enumerate(limits, start=1)
    ]
    result = made_up(
        "import pytest\n" + "".join(tests),
        batch1=QUIET,
        batch2=QUIET,
        batch3=QUIET,
        batch4=(0.5, 0.01, "t4"),
        batch5=(1e-6, 0.01, "t4"),
        batch6=(0.5, 0.01, "t4"),
    )
    result.assert_outcomes(passed=2, failed=2, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "*= steptime =*",
            "*batch 1: * of at most 1.1 ms on cpu-test-2t",
            "*batch 2: * of at most 800 us on cpu-test-2t; 2* above the limit",
            "*skipped: no prediction of cpu-test-2t: unknown device*",
            "*batch 4: * 1.2 times the predicted * on t4; * above the limit",
            "*batch 5: * 1.2 times the predicted * on t4",
            "*skipped: the device is t4, not l4",
        ]
    )


@pytest.mark.slow
@pytest.mark.framework
def test_a_device_that_is_absent_skips_visibly(session):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    result = session(f"""
        import pytest

        @pytest.mark.steptime("{NETWORK}", max_step="1.2x predicted", device="h100")
        def test_it():
            pass
    """)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*= steptime =*", "*skipped: 'cuda' is not available here*"])


@pytest.mark.rare  # the marker with a model reads one
@pytest.mark.framework
def test_a_class_and_a_module_are_models(pytester, session):
    pytester.makepyfile(
        nets="""
        from torch import nn

        INPUTS = [((4, 8), "float32")]

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(8, 2)

            def forward(self, x):
                return self.layer(x)
    """
    )
    result = session("""
        import pytest
        from nets import INPUTS, Net

        @pytest.mark.steptime(fits="24GB")
        def test_class(steptime_bench):
            steptime_bench(Net, batch=4)

        @pytest.mark.steptime(fits="24GB")
        def test_module(steptime_bench):
            steptime_bench(Net(), batch=4, inputs=INPUTS)

        @pytest.mark.steptime(fits="24GB")
        def test_module_without_inputs(steptime_bench):
            steptime_bench(Net(), batch=4)

        @pytest.mark.steptime(fits="24GB")
        def test_class_inside(steptime_bench):
            class Inner(Net):
                pass
            steptime_bench(Inner)
    """)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["Net.pt2, batch 4: needs *"])
    result.stdout.fnmatch_lines(["*a module Net needs inputs=*"])
    result.stdout.fnmatch_lines(["*give a class or function at the top of a file*"])


def test_a_foreign_session_imports_nothing_of_it(session):
    result = session("""
        import sys

        def test_it():
            heavy = {"torch", "polars", "numpy", "msgspec", "cyclopts"} & set(sys.modules)
            ours = {name for name in sys.modules if name.startswith("steptime")}
            assert not heavy
            assert ours == {
                "steptime",
                "steptime.integrations",
                "steptime.integrations.pytest_names",
                "steptime.integrations.pytest_plugin",
            }
    """)
    result.assert_outcomes(passed=1)
    assert "= steptime =" not in result.stdout.str()


def test_its_import_takes_few_milliseconds():
    line = (
        "import pytest, time; begin = time.process_time(); "
        f"import {PLUGIN}; print(time.process_time() - begin)"
    )
    times_s = [
        float(
            subprocess.run(
                [sys.executable, "-c", line], capture_output=True, text=True, check=True, cwd=ROOT
            ).stdout
        )
        for _ in range(3)
    ]
    assert min(times_s) < 0.02
