"""The Python interface: the parts of a step, and a simulation that a user writes with them."""

from __future__ import annotations

import json
import pickle
import random
import re

import pytest

from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.grids.replicas import data_parallel
from steptime.hardware import catalog
from steptime.prediction.fabric import Fabric
from steptime.prediction.steps.step_model import StepModel


def test_a_simulation_of_strong_scaling_in_ten_lines(capsys):
    """The example of the README: SGD on a batch of 512 that workers share."""
    model = StepModel("resnet50", device="V100", link="ethernet-25")
    batch, images, alone = 512, 1_281_167, 0.0
    for workers in (1, 2, 4, 8, 16, 32):
        share = batch // workers
        compute = model.estimate_forward(share) + model.estimate_backward(share)
        step = compute + model.estimate_update() + model.estimate_comm(workers, "ring")
        alone = alone or step
        minutes = images / batch * step / 60
        print(f"{workers:2} workers: {minutes:5.1f} min an epoch, {alone / step:5.2f} x as fast")
    lines = capsys.readouterr().out.splitlines()
    rows = data_parallel(model, [1, 2, 4, 8, 16, 32], batch, "strong")
    assert [float(line.split()[-4]) for line in lines] == [round(row.speedup, 2) for row in rows]
    minutes_of = [float(line.split()[2]) for line in lines]
    assert minutes_of == [round(images / batch * row.step_s / 60, 1) for row in rows]


def test_parts_are_those_of_a_prediction():
    model = StepModel("alexnet_v2", "K80", "ethernet20", "paleo", {"ppp_comp": 0.62})
    assert model.parameters == 50_303_912
    assert model.gradient_bytes == 4 * 50_303_912
    found = model.timeline(32)
    assert model.estimate_forward(32) == found.forward_s
    assert model.estimate_backward(32) == found.backward_s
    assert model.estimate_update() == pytest.approx(found.update_s)
    assert model.timeline(32) is found  # computed once
    whole = 4 * 50_303_912 / (20e9 / 8)
    assert model.estimate_comm(8) == pytest.approx(2 * 3 * whole)  # Paleo's own is a tree
    assert model.estimate_comm(8, "butterfly") == pytest.approx(3 * whole)
    assert model.estimate_comm(1) == 0


def test_options_are_texts_or_values():
    def seconds(**options: object) -> float:
        return StepModel("nin", "K40", method="paleo", options=options).estimate_forward(4)

    assert seconds(pipeline=True) == seconds(pipeline="true") < seconds(pipeline=False)
    assert seconds(ppp_comp=0.5) == seconds(ppp_comp="0.5") == pytest.approx(2 * seconds())


def test_names_paths_and_values_say_the_same(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text('family = "fc"\nlayers = 2\nnodes = 64\n')
    workload = make_workload(read_model("fc:layers=2,nodes=64"), None, "float32", "train", "sgd")
    device, link = catalog.device("V100"), catalog.link("nvlink-2")
    times = {
        model.estimate_forward(8) + model.estimate_comm(4)
        for model in (
            StepModel("fc:layers=2,nodes=64", "V100", "nvlink-2"),
            StepModel(path, device, link),
            StepModel(workload, device, Fabric(link)),
        )
    }
    assert len(times) == 1


def test_wrong_input_is_one_line():
    model = StepModel("nin", "K40")
    with pytest.raises(InputError, match="4 replicas need a link"):
        model.estimate_comm(4)
    with pytest.raises(InputError, match="unknown collective 'rong'; did you mean 'ring'"):
        model.estimate_comm(1, "rong")
    with pytest.raises(InputError, match="batch: must be at least 1"):
        model.estimate_forward(0)
    with pytest.raises(InputError, match="replicas: must be at least 1"):
        model.estimate_comm(0)
    with pytest.raises(InputError, match="unknown option 'ppp'"):
        StepModel("nin", "K40", options={"ppp": 1})
    with pytest.raises(InputError, match="unknown method"):
        StepModel("nin", "K40", method="paelo")
    with pytest.raises(InputError, match="unknown link"):
        StepModel("nin", "K40", "telepathy")


def test_a_price_typed_on_the_command_line_predicts(tmp_path, capsys):
    text = "def model(kernel, device):\n    return 1.0"
    (tmp_path / "mine.py").write_text(f"{text} / kernel.missing\n")
    words = "predict", "fc", "--device", "a100", "--json", "--method"
    assert run([*words, f"{tmp_path}/mine.py:model"]) == 2
    assert "the price of linear fails: AttributeError" in capsys.readouterr().err
    (tmp_path / "mine.py").write_text(f"{text}\n")
    assert run([*words, f"{tmp_path}/mine.py:model"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["step_s"] == len(StepModel("fc", "a100").lower_step().kernels)
    assert (made["low_s"], made["high_s"]) == (None, None)


def test_a_price_typed_on_the_command_line_predicts_a_grid(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def model(kernel, device):\n    return 1.0\n")
    method = f"{tmp_path}/mine.py:model"
    kernels = len(StepModel("fc", "a100").lower_step().kernels)
    words = "predict", "fc", "--device", "a100", "--json", "--grid", "--method"
    assert run([*words, method]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["rows"]
    assert (cell["step_s"], cell["low_s"], cell["high_s"]) == (kernels, None, None)


def test_a_device_that_was_priced_is_data_still():
    device = catalog.device("a100")
    StepModel("fc", device).timeline()
    assert pickle.loads(pickle.dumps(device)) == device  # noqa: S301  # of our own


@pytest.mark.slow
def test_models_that_share_steps_predict_what_new_models_do():
    """60 random questions to models made by `on` and `of`, against a new model for each."""
    numbers = random.Random(45)  # noqa: S311
    devices = ("a100-sxm4-80gb", "h100-sxm5", "t4", "epyc-7742", "tpu-v4", "tesla-k80")
    for network in ("fc:layers=2,nodes=64", "cnn", "transformer:layers=1,length=16"):
        model = StepModel(network, devices[0], assumes=True)
        for _ in range(20):
            device, batch = numbers.choice(devices), numbers.randint(1, 8)
            try:
                fresh = StepModel(network, device, assumes=True)
                expected = fresh.predict(batch)
            except InputError as error:
                with pytest.raises(InputError, match=re.escape(str(error))):
                    model.with_device(device).predict(batch)
                continue
            model = model.with_device(device)
            assert model.predict(batch) == expected
            assert (model.options, model.workload.dtype) == (fresh.options, fresh.workload.dtype)
            other = model.with_graph(fresh.graph(batch), batch)
            assert other.timeline() == expected.times
            assert other.needs() == expected.needs
