"""Verdicts of `compare` on two folders whose records hold the machine's reference."""

import numpy as np
import pytest

import steptime
import synthetic
from steptime.core.copying import replace
from steptime.records import store
from steptime.records.record import Quantity, single_run

ROUNDS = 6
STEP_S = 0.010
REFERENCE_S = 0.004


def write_folder(folder, step_factor=1.0, reference_factor=1.0, has_reference=True, seed=0):
    """Write rounds of two networks, each a record with its reference, as a sweep does."""
    rng = np.random.default_rng(seed)
    with store.open_writer(folder) as writer:
        for round_number in range(ROUNDS):
            for workload in synthetic.workloads()[:2]:
                noise = rng.normal(0, 0.01, 31)
                samples = STEP_S * step_factor * np.exp(noise[0] + 0.1 * noise[1:])
                record = synthetic.measured(workload)
                quantities = {**record.quantities, "step_s": single_run(samples.tolist())}
                if has_reference:
                    reference_s = REFERENCE_S * reference_factor * float(np.exp(noise[0] / 2))
                    quantities["reference_s"] = single_run([reference_s])
                env = {**record.env, "round": round_number}
                writer.append(replace(record, quantities=quantities, env=env))
    return folder


def judge(a, b):
    answer = steptime.compare([a, b], fail_on="slower")
    return [row.verdict for row in answer.rows], answer


def test_a_slower_machine_is_no_slower_network(tmp_path):
    """Steps and reference take 1.3 times as long: nobody can say that the network did it."""
    a = write_folder(tmp_path / "a")
    b = write_folder(tmp_path / "b", step_factor=1.3, reference_factor=1.3, seed=1)
    verdicts, answer = judge(a, b)
    assert verdicts == ["unsure", "unsure"]
    assert answer.exit_code == 2
    (note,) = [line for line in answer.notes if "reference" in line]
    assert note.startswith("unsure: 2 steps changed as the machine's reference did (+")
    assert answer.changes.regressions == ()


def test_a_slower_network_is_found_on_a_slower_machine(tmp_path):
    a = write_folder(tmp_path / "a")
    b = write_folder(tmp_path / "b", step_factor=1.2 * 1.5, reference_factor=1.2, seed=1)
    verdicts, answer = judge(a, b)
    assert verdicts == ["slower", "slower"]
    assert answer.exit_code == 3
    assert all(row.ratio == pytest.approx(1.8, rel=0.03) for row in answer.rows)


def test_a_slower_reference_alone_is_no_verdict(tmp_path):
    """What makes the reference slower need not make the step so: it excuses nothing that stands."""
    a = write_folder(tmp_path / "a")
    b = write_folder(tmp_path / "b", reference_factor=1.3, seed=1)
    verdicts, answer = judge(a, b)
    assert "slower" not in verdicts
    assert "faster" not in verdicts
    assert answer.exit_code == 0


@pytest.mark.parametrize("sides", [(False, False), (True, False), (False, True)])
def test_without_a_reference_on_both_sides_the_steps_decide(tmp_path, sides):
    a = write_folder(tmp_path / "a", has_reference=sides[0])
    b = write_folder(tmp_path / "b", step_factor=1.3, has_reference=sides[1], seed=1)
    verdicts, answer = judge(a, b)
    assert verdicts == ["slower", "slower"]
    assert answer.exit_code == 3


def test_a_record_without_its_reference_leaves_its_network_to_the_steps(tmp_path):
    a = write_folder(tmp_path / "a")
    b = write_folder(tmp_path / "b", step_factor=1.3, reference_factor=1.3, seed=1)
    record = synthetic.measured(synthetic.workloads()[0])
    quantities = {**record.quantities, "step_s": Quantity(samples=(1.3 * STEP_S,) * 30)}
    with store.open_writer(b) as writer:
        writer.append(replace(record, quantities=quantities))
    verdicts, answer = judge(a, b)
    assert sorted(verdicts) == ["slower", "unsure"]
    assert answer.exit_code == 3
