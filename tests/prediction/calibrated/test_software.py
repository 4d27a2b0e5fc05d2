"""What can be asked of the software: TF32, the layout of images, the host."""

from math import exp

import pytest

import steptime
from every import every
from printed import answer
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.prediction.assumed import assumed_of
from steptime.prediction.steps.step_model import StepModel

A100 = catalog.device("a100-sxm4-80gb")


def _times(model: str, device: object = A100, **options: str) -> dict[str, float]:
    asked = StepModel(model, device, options=options)
    return {row.row.name: row.step_s for row in asked.timeline(8).rows}


def test_tf32_makes_products_faster_and_leaves_convolutions_that_had_it():
    auto, on = _times("resnet50"), _times("resnet50", tf32="on")
    differ = {name for name in auto if on[name] != auto[name]}
    assert differ == {"output/linear"}
    assert on["output/linear"] < auto["output/linear"]


def test_tf32_can_be_turned_off_for_convolutions_alone_or_not():
    auto, off = _times("resnet50"), _times("resnet50", tf32="off")
    differ = {name for name in auto if off[name] != auto[name]}
    convolutions = {name for name in auto if "conv2d" in name}
    assert differ == convolutions
    assert all(off[name] > auto[name] for name in convolutions)
    assert _times("fc", tf32="off") == _times("fc")
    assert _times("fc", tf32="no") == _times("fc", tf32="off")


def test_tf32_leaves_a_type_that_is_not_float32():
    plain = StepModel("fc", A100, dtype="bfloat16").timeline().step_s
    assert (
        StepModel("fc", A100, dtype="bfloat16", options={"tf32": "on"}).timeline().step_s == plain
    )


def test_tf32_on_a_device_without_it_is_refused():
    with pytest.raises(InputError, match="no peak is known for tf32"):
        StepModel("fc", "v100", options={"tf32": "on"}).timeline()


def test_channels_last_is_the_layout_of_every_convolution():
    first, last = (StepModel("resnet50", A100, options={"channels_last": how})
                   for how in ("no", "yes"))  # fmt: skip
    assert {k.channels_last for k in first.lower_step().kernels} == {False}
    convolved = [k for k in last.lower_step().kernels if k.window and k.unit == "matrix"]
    assert convolved
    assert all(k.channels_last for k in convolved)
    assert last.timeline().step_s < first.timeline().step_s  # tensor cores read them as they lie


def test_a_slow_host_takes_as_much_longer_as_hosts_differ():
    hosts = {
        name: StepModel("fc", "v100", options={"host": name}).timeline(1)
        for name in ("any", "fast", "slow")
    }
    shared = catalog.stack().interval or {}
    assert not {"interval.host_shared", "interval.host_own"} & {
        *shared
    }  # the stack has those of all GPUs
    constants = StepModel("fc", "v100").effective_device.constants
    apart = constants["interval.host_shared"] * constants["interval.host_unstated"]
    assert hosts["slow"].host_s == pytest.approx(hosts["any"].host_s * exp(apart))
    assert hosts["fast"].host_s == pytest.approx(hosts["any"].host_s * exp(-apart))
    assert hosts["slow"].step_s == pytest.approx(hosts["slow"].host_s)  # bound by its host


def test_a_host_of_the_data_is_the_usual_one_of_its_cards():
    card, named = (StepModel("fc", "v100", options={"host": one}) for one in ("any", "server"))
    assert card.timeline(1).host_s == named.timeline(1).host_s  # the usual one of such a card
    desk = StepModel("fc", "rtx-4090")
    assert desk.timeline(1).host_s == pytest.approx(card.timeline(1).host_s / 2)
    assert assumed_of(desk)["host"] == "any-desktop"


def test_the_host_of_a_calibrated_device_can_be_asked_for():
    factor = 3 * catalog.stack().host["host.factor"].value
    own = catalog.device("t4").with_calibration(
        {"constants": {"host.factor": factor}, "intervals": {"host": [-0.1, 0.2]}}
    )
    found = StepModel("fc", own, options={"host": "fast"})
    any_host = StepModel("fc", "t4", options={"host": "fast"})
    assert found.timeline(1).host_s == any_host.timeline(1).host_s  # in place of its own


def test_the_calibrated_host_is_the_assumed_one_and_another_can_take_its_place():
    factor = 3 * catalog.stack().host["host.factor"].value
    own = catalog.device("t4").with_calibration(
        {"constants": {"host.factor": factor}, "intervals": {"host": [-0.1, 0.2]}}
    )
    usual = StepModel("fc", own)
    assert assumed_of(usual)["host"] == "calibrated"
    for host, expected in (("calibrated", usual), ("any-server", StepModel("fc", "t4"))):
        timeline = StepModel("fc", own, options={"host": host}).timeline(1)
        assert timeline.host_s == pytest.approx(expected.timeline(1).host_s)
    with pytest.raises(InputError, match="was not calibrated with steps"):
        StepModel("fc", "t4", options={"host": "calibrated"}).timeline()


@every(
    ("options", "said"),
    [
        ({"host": "fsat"}, "did you mean 'fast'"),
        ({"host": "a100-sxm4-80gb"}, "was not calibrated with steps"),
        ({"tf32": "perhaps"}, "auto, on, off, yes or no"),
        ({"channels_last": "perhaps"}, "auto, yes or no"),
    ],
)
def test_a_wish_that_is_none_is_said_in_a_line(options, said):
    with pytest.raises(InputError, match=said) as error:
        StepModel("fc", A100, options=options).timeline()
    assert "\n" not in str(error.value)


def test_a_cpu_is_its_own_host():
    with pytest.raises(InputError, match="its own host"):
        StepModel("fc", "epyc-7742", options={"host": "slow"}).timeline()


def test_command_line_and_python_ask_alike_and_say_what_they_assume(capsys):
    line = "predict resnet50 --device a100 --batch 8 --tf32 off --channels-last yes --host slow"
    document = answer(capsys, *line.split())
    made = steptime.predict("resnet50", "a100", 8, tf32="off", channels_last=True, host="slow")
    assert document["step_s"] == made.step_s
    assert document["assumed"] == made.assumed == {
        "stack": "torch-eager", "channels_last": "yes", "tf32": "off", "host": "slow",
        "dtype": "float32", "optimizer": "sgd",
    }  # fmt: skip


def test_what_is_assumed_stands_before_the_step(capsys):
    assert run(["predict", "resnet50", "--device", "a100", "--batch", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split(maxsplit=1) == [
        "assumed",
        (
            "--stack torch-eager, --channels-last no, --tf32 auto, --host any-server, "
            "--dtype float32, --optimizer sgd"
        ),
    ]
    assert lines[3].split()[0] == "step"
    bare = steptime.predict("fc", "a100", method="roofline").assumed
    assert bare == {
        "tf32": "off",
        "dtype": "float32",
        "optimizer": "sgd",
    }  # a roofline has no software


def test_a_bound_without_software_assumes_nothing_on_the_screen(capsys):
    for words in (
        "predict fc --device a100 --dtype float16 --optimizer sgd",
        "fit fc --device a100 --dtype float16 --optimizer sgd",
    ):
        assert run([*words.split(), "--method", "roofline"]) == 0
        assert "assumed" not in capsys.readouterr().out


@every("name", ["trainium1", "trainium2", "gaudi3", "inferentia2"])
def test_compilers_of_accelerators_turn_no_images_around(name):
    """As cuDNN does for tensor cores: TF32, four times the peak, took 1.6 times as long."""
    device = catalog.device(name)
    off, on = (_times("resnet50", device, tf32=tf32) for tf32 in ("off", "on"))
    assert sum(on.values()) < 0.9 * sum(off.values())
