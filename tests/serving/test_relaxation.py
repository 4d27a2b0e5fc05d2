"""What a search says where no server holds the targets: the least change, and that it is enough."""

import pytest

import steptime
from steptime.serving.relaxation import round_down, round_up

ASK = {"search": True, "input": 256, "output": 32, "count": 200}


def _search(**options):
    return steptime.serve("llama3_2_1b", "a100", **{**ASK, **options})


def test_values_are_rounded_to_the_side_that_holds():
    assert [round_up(0.1234), round_down(0.1234), round_up(12.0), round_down(71.9)] == [
        0.13,
        0.12,
        12.0,
        71.0,
    ]


IMPOSSIBLE = {
    "rate": {"rate": 500, "ttft": 0.5, "tpot": 0.02, "max_device_count": 1, "count": 1000},
    "max_device_count": {
        "rate": 500,
        "ttft": 0.5,
        "tpot": 0.02,
        "max_device_count": 1,
        "count": 1000,
    },
    "ttft": {"rate": 5, "ttft": 0.002, "tpot": 0.02, "max_device_count": 2},
    "tpot": {"rate": 5, "ttft": 0.5, "tpot": 0.0005, "max_device_count": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.rare if name in {"tpot", "max_device_count"} else ())
        for name in IMPOSSIBLE
    ],
)
def test_a_changed_limit_is_enough(name):
    options = IMPOSSIBLE[name]
    answer = _search(**options)
    assert not answer.rows
    limits = {limit.option: limit for limit in answer.relaxed_limits}
    limit = limits["--" + name.replace("_", "-")]
    assert not limit.is_joint
    assert limit.factor == pytest.approx(limit.value / options[name])
    value = int(limit.value) if name == "max_device_count" else limit.value
    assert _search(**{**options, name: value}).rows
    assert any(line.startswith(f"with {limit.option} ") for line in answer.headline)


@pytest.mark.slow
def test_a_little_less_of_a_change_is_not_enough():
    options = IMPOSSIBLE["ttft"]
    limit = _search(**options).relaxed_limits[0]
    assert not _search(**{**options, "ttft": 0.8 * limit.value}).rows


@pytest.mark.slow
def test_changes_that_help_together_alone():
    options = {"rate": 2000, "ttft": 0.001, "tpot": 0.0001, "max_device_count": 1}
    answer = _search(**options)
    limits = answer.relaxed_limits
    assert [limit.option for limit in limits] == ["--ttft", "--tpot", "--rate"]
    assert all(limit.is_joint for limit in limits)
    assert " and --rate " in answer.headline[1]
    values = {limit.option[2:]: limit.value for limit in limits}
    assert _search(**{**options, **values}).rows


def test_a_search_that_finds_servers_relaxes_nothing():
    assert _search(rate=5, ttft=0.5, tpot=0.02, max_device_count=1).relaxed_limits == ()
