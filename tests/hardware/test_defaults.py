"""One data type and one optimizer by kind of network, where nobody says them."""

import json

import pytest

import steptime
from every import every
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.dtypes import PRECISIONS
from steptime.hardware import catalog
from steptime.hardware.defaults import (
    OTHER_MODEL,
    SEQUENCE_MODEL,
    default_dtype,
    settle_dtype_by_place,
)
from steptime.sweeps.cells import cells_of
from steptime.sweeps.experiment import check_experiment

SEQUENCE_MODELS = ("gpt2", "bert_base", "llama3_8b", "rnn", "transformer:layers=1")
OTHER_MODELS = ("resnet18", "fc", "cnn", "vit_b_16", "transformer:stem=patches")
DTYPES = (
    ("a100", "bfloat16-mixed", "float32"),
    ("v100", "float16-mixed", "float32"),
    ("K40", "float32", "float32"),
    ("epyc-7742", "float32", "float32"),  # a CPU, whatever its matrix units are
    ("tpu-v3", "bfloat16-mixed", "bfloat16"),  # has no peak of float32
)


@every(("device", "of_sequences", "of_others"), DTYPES)
def test_a_device_decides_the_data_type_and_the_model_the_optimizer(
    device, of_sequences, of_others
):
    for models, dtype, optimizer in (
        (SEQUENCE_MODELS, of_sequences, "adam"),
        (OTHER_MODELS, of_others, "sgd"),
    ):
        for model in models:
            workload = make_workload(read_model(model), 1, device=catalog.device(device))
            assert (workload.dtype, workload.optimizer) == (dtype, optimizer), model


def test_every_device_of_the_catalog_has_a_default_that_a_step_can_be_computed_in():
    for device in catalog.devices(print):
        for defaults in (SEQUENCE_MODEL, OTHER_MODEL):
            dtype = default_dtype(defaults.dtypes, device)
            peaks = {name for name in device.datasheet.peak_flop_per_s if name in PRECISIONS}
            assert PRECISIONS[dtype].compute in peaks or not peaks, (device.name, dtype)
            assert dtype == "float32" or device.kind != "cpu"


@every(
    ("place", "dtype"),
    (("cpu", "float32"), ("cuda:1", "bfloat16-mixed"), ("tpu", "bfloat16-mixed")),
)
def test_a_measurement_takes_the_data_type_of_its_place(place, dtype):
    assert settle_dtype_by_place(make_workload(read_model("gpt2"), 1), place).dtype == dtype
    workload = make_workload(read_model("gpt2"), 1, "float16")
    assert settle_dtype_by_place(workload, place).dtype == "float16"


def test_a_network_of_a_file_that_reads_tokens_is_a_sequence_model(tmp_path):
    for model, optimizer in (("rnn:length=8", "adam"), ("resnet18", "sgd")):
        file = tmp_path / "network.json"
        steptime.convert(model, out=file, phase="train", dtype="float16-mixed")
        workload = make_workload(read_model(str(file)), None)
        assert (workload.dtype, workload.optimizer) == ("float16-mixed", optimizer)
        assert workload.default_dtypes == ()  # the file has no other type
        file = tmp_path / "network.onnx"
        steptime.convert(model, out=file)
        workload = make_workload(read_model(str(file)), None, phase="infer")
        assert workload.dtype == ("float32" if optimizer == "sgd" else "bfloat16-mixed")


@pytest.mark.parametrize("model", [pytest.param("gpt2", marks=pytest.mark.slow), "resnet18"])
def test_every_command_takes_the_same_data_type_and_optimizer(model):
    link = {"link": "infiniband-ndr", "replicas": 1}
    answers = {
        "predict": steptime.predict(model, "v100", 2),
        "grid": steptime.predict(model, "v100", 2, all_cells=True).rows[0],
        "fit": steptime.fit(model, "v100", 2),
        "why": steptime.why(model, "v100", 2),
        "choose": steptime.choose(model, "v100", 2).rows[0],
        "scale": steptime.scale(model, "v100", batch=2, **link),
        "whatif": steptime.whatif("v100", ["memory_GB=x2"], model, 2),
        "plan": steptime.plan(model, "v100", 2),
    }
    settings = {
        name: (answer.assumed["dtype"], answer.assumed["optimizer"])
        for name, answer in answers.items()
    }
    wanted = ("float16-mixed", "adam") if model == "gpt2" else ("float32", "sgd")
    assert set(settings.values()) == {wanted}, settings


def test_a_setting_that_was_said_is_not_assumed():
    answer = steptime.predict("gpt2", "v100", 2, dtype="float32", optimizer="sgd")
    assert not {"dtype", "optimizer"} & {*answer.assumed}
    assert "optimizer" not in steptime.predict("gpt2", "v100", phase="infer").assumed
    text = json.loads(steptime.count("gpt2", dtype="float16").to_json())
    assert text["assumed"].keys() == {"stack", "optimizer"}


@pytest.mark.slow
def test_run_measures_in_the_default_of_a_cpu_and_says_so(capsys):
    words = ["run", "rnn:length=2,embedding=4,vocabulary=8", "--batch", "1", "--budget", "0.01"]
    assert run([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["dtype"], answer["optimizer"]) == ("float32", "adam")
    assert answer["assumed"] == {"dtype": "float32", "optimizer": "adam"}


def test_a_sweep_measures_in_the_default_of_each_network(tmp_path):
    table = {"name": "both", "networks": [{"model": "rnn"}, {"model": "fc"}], "batch": 1}
    cells = cells_of(check_experiment(table, "both.toml"), "both.toml").cells
    steps = [(cell.workload.dtype, cell.workload.optimizer) for cell in cells]
    assert steps == [("float32", "adam"), ("float32", "sgd")]
    on_gpu = cells_of(check_experiment({**table, "device": "cuda"}, "gpu.toml"), "gpu.toml").cells
    assert [cell.workload.dtype for cell in on_gpu] == ["bfloat16-mixed", "float32"]
