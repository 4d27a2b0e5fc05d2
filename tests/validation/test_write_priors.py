"""The script that fits priors rewrites its constants and leaves the others alone."""

import pytest

from steptime.core.toml_files import read_toml
from steptime.hardware.constants import Constant, constants_from_table


def test_constants_are_rewritten_to_three_digits(tmp_path):
    from validation.fitting.write import write

    path = tmp_path / "gpu.toml"
    path.write_text("# about a\n" + '[a]\nx = {value = 1, spread = 0, fitted_on = "old"}\n')
    more = {
        "a.y": Constant(0.87654, 0.03, 'six "rows"', ("a",)),
        "b.z": Constant(12345.0, 0, why="z"),
    }
    write(path, more)
    assert path.read_text().startswith("# about a\n\n[a]\n")
    found = constants_from_table(read_toml(path), "gpu.toml")
    assert found == {
        "a.x": Constant(1, 0, why="old"),
        "a.y": Constant(0.877, 0.03, 'six "rows"', ("a",)),
        "b.z": Constant(12300.0, 0.0, why="z"),
    }


def test_constants_of_a_host_are_rewritten_in_the_file_of_its_stack(tmp_path):
    from validation.fitting.write import write_lines

    path = tmp_path / "mine.toml"
    before = 'name = "mine"\n\n[host] # seconds\nstep_s = {}\nview_s = {}\n'
    path.write_text(before)
    write_lines(path, {"host.step_s": Constant(0.00012345, 0.5, "it's", ("a", "b"))})
    assert path.read_text() == before.replace(
        "step_s = {}",
        'step_s = { value = 0.000123, spread = 0.5, fitted_on = "it\'s", rows = ["a", "b"] }',
    )
    with pytest.raises(KeyError):
        write_lines(path, {"host.none_s": Constant(1.0, 0.0, "rows")})


def test_a_host_s_constants_move_to_what_steps_took():
    from steptime.calibration.cases import Case
    from steptime.calibration.columns import Columns
    from steptime.calibration.fit import fit_constants
    from steptime.hardware import catalog
    from steptime.prediction.kernel import Kernel

    def tiny(ops: int) -> tuple[Kernel, ...]:
        return (Kernel("op", "relu", "forward", "float32", "vector", 1, 4),) * ops

    priors = catalog.priors("gpu")
    known = {name: one.value for name, one in priors.items()}
    op_s, base_s = known["host.forward_op_s"], known["host.step_s"]
    cases = [
        Case(
            tiny(ops),
            catalog.device("t4"),
            3 * known["host.factor"] * (base_s + ops * op_s),
            "tiny",
            "step",
        )
        for ops in (10, 100, 1000)
    ]
    found = fit_constants(
        [Columns(cases)], {**priors, "host.factor": Constant(known["host.factor"], 1.0, "")}
    )
    assert found["host.factor"] == pytest.approx(3 * known["host.factor"], rel=0.03)


def test_a_fit_finds_the_same_whatever_the_last_one_left(monkeypatch):
    from steptime.calibration.cases import Case, op_kernels
    from steptime.hardware import catalog
    from validation.fitting.stages import STAGES, whole_fit

    monkeypatch.setattr("validation.fitting.hierarchy.ROUNDS", 3)
    device, stage = catalog.device("l40s"), STAGES["tensor"]
    shapes = [(2**i, 4096) for i in range(4, 12)]
    cases = [
        Case(
            op_kernels("linear", (s, (4096, 4096)), {}, "bfloat16"), device, 1e-4, "one", "repeated"
        )
        for s in shapes
    ]
    first = whole_fit(stage, {"l40s": cases})
    known = catalog.priors("gpu") | first
    monkeypatch.setattr(catalog, "priors", lambda *_: known)
    assert whole_fit(stage, {"l40s": cases}) == first
    free = [name for one in STAGES.values() for name in one.free if not name.startswith("host.")]
    assert len(free) == len(set(free))  # a constant belongs to one stage


def test_stages_start_from_what_the_files_have():
    from steptime.calibration.cases import conditions
    from steptime.hardware import catalog
    from validation.fitting.stages import STAGES

    for stage in STAGES.values():
        here = {**catalog.priors(stage.priors, stage.stack), **conditions()}
        for name, start in stage.free.items():
            assert start == pytest.approx(here[name].value, rel=0.5), name
