"""Optimizers of data/optimizers.toml: what they keep of weights, and what an update computes."""

import json

import pytest

import steptime
from steptime.core.graph import TensorSpec
from steptime.core.tuning import make_tuning
from steptime.core.workload import (
    BASE_OPTIMIZERS,
    OPTIMIZERS,
    StateMode,
    Tuning,
    tuning_to_json,
)
from steptime.network.ops.optimizers import find_update_kind, make_states, optimizer_rows

MATRIX = TensorSpec((300, 500), "float32")
VECTOR = TensorSpec((300,), "float32")


@pytest.mark.parametrize(
    ("optimizer", "matrix_numbers", "vector_numbers"),
    [
        ("adamw", 300_000, 600),
        ("lion", 150_000, 300),
        ("lamb", 300_000, 600),
        ("adafactor", 800, 300),
    ],
)
def test_states_are_those_of_the_papers(
    optimizer: str, matrix_numbers: int, vector_numbers: int
) -> None:
    """Adafactor keeps a number for each row and column, others whole tensors."""
    assert sum(state.size for state in make_states(optimizer, MATRIX)) == matrix_numbers
    assert sum(state.size for state in make_states(optimizer, VECTOR)) == vector_numbers


def test_muon_leaves_tables_and_vectors_to_adamw() -> None:
    """Matrices of layers alone are made orthogonal."""
    assert find_update_kind("muon", MATRIX, "linear") == "muon"
    assert find_update_kind("muon", MATRIX, "embedding") == "adamw"
    assert find_update_kind("muon", VECTOR, "rms_norm") == "adamw"


@pytest.mark.slow
def test_every_optimizer_is_priced() -> None:
    """Each row is a choice of --optimizer; states of 8 bits need a quarter."""
    assert tuple(optimizer_rows()) == OPTIMIZERS
    state_bytes = {
        name: steptime.fit("gpt2", "rtx-4090", 1, optimizer=name, dtype="float32").state_bytes
        for name in (*OPTIMIZERS, "lion8bit")
    }
    assert state_bytes["lion"] == pytest.approx(state_bytes["adamw"] / 2, rel=0.01)
    assert state_bytes["lion8bit"] == pytest.approx(state_bytes["lion"] / 4, rel=0.05)
    assert state_bytes["adafactor"] < 0.01 * state_bytes["adamw"]
    assert state_bytes["lion"] < state_bytes["muon"] < state_bytes["adamw"]


def test_words_for_states_name_their_optimizer() -> None:
    """`paged_lion8bit` is lion with states of 8 bits that may be paged."""
    assert BASE_OPTIMIZERS["paged_lion8bit"] == "lion"
    assert BASE_OPTIMIZERS["adam8bit"] == "adam"
    tuning = steptime.fit("gpt2", "rtx-4090", 1, optimizer="paged_lion8bit").tuning
    assert tuning == "paged 8-bit states"


def test_modes_of_states_survive_json() -> None:
    tuning = make_tuning(optimizer="paged_adamw8bit", offload="optimizer", update_early=True)
    assert tuning.states == (
        StateMode.PAGED,
        StateMode.EIGHT_BIT,
        StateMode.OFFLOADED,
        StateMode.EARLY,
    )
    values = json.loads(json.dumps(tuning_to_json(tuning)))
    assert values == {"states": ["paged", "8-bit", "offloaded", "early"]}
    assert Tuning(**values) == tuning
