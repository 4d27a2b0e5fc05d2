"""Files of benchmarking and training tools, invented in the forms that the tools write."""

from __future__ import annotations

import json

import pytest

from every import every
from psc_log_text import psc_log
from steptime.cli.main import run
from steptime.records import store

ASKED = {"model": "resnet50", "batch": "64", "device": "v100"}
HYPERFINE = {
    "results": [
        {
            "command": f"python step.py {n}",
            "mean": 0.41,
            "stddev": 0.01,
            "median": 0.405,
            "user": 0.3,
            "system": 0.05,
            "min": 0.39,
            "max": 0.44,
            "times": [0.41, 0.4, 0.44],
            "exit_codes": [0, 0, 0],
        }
        for n in (1, 2)
    ]
}
PYTEST = {
    "machine_info": {"node": "ci1", "cpu": {"brand_raw": "AMD EPYC 7763"}},
    "commit_info": {"id": "abc"},
    "benchmarks": [
        {
            "group": None,
            "name": "test_step[64]",
            "fullname": "t.py::test_step[64]",
            "params": {"batch": 32},
            "extra_info": {},
            "options": {"disable_gc": False},
            "stats": {"min": 0.39, "max": 0.44, "mean": 0.41, "rounds": 3, "median": 0.405, **data},
        }
        for data in ({}, {"data": [0.4, 0.41, 0.42]})
    ],
    "datetime": "2024-03-01T01:00:00+00:00",
    "version": "4.0.0",
}
GOOGLE = {
    "context": {"date": "2024-03-01T10:00:00+01:00", "host_name": "h", "caches": [{"level": 1}]},
    "benchmarks": [
        *(
            {
                "name": "BM_Step/64",
                "run_type": "iteration",
                "repetition_index": i,
                "iterations": 9,
                "real_time": t,
                "cpu_time": 1.0,
                "time_unit": "ms",
            }
            for i, t in enumerate((40, 42))
        ),
        {
            "name": "BM_Step/64_mean",
            "run_type": "aggregate",
            "aggregate_name": "mean",
            "iterations": 2,
            "real_time": 41,
            "cpu_time": 1.0,
            "time_unit": "ms",
        },
        {
            "name": "BM_Bad",
            "run_type": "iteration",
            "iterations": 0,
            "real_time": 0,
            "cpu_time": 0,
            "time_unit": "ns",
            "error_occurred": True,
            "error_message": "no memory",
        },
    ],
}
GOOGLE_CSV = """2024-03-01T10:00:00+01:00
Running ./bench
Run on (8 X 3600 MHz CPU s)
name,iterations,real_time,cpu_time,time_unit,bytes_per_second,items_per_second,label,error_occurred,error_message
"BM_Step/64",100,4.0e+07,4.1e+07,ns,,,,,
"BM_Step/64",100,42000,4.1e+07,us,,,,,
"BM_Step/64_mean",2,4.1e+07,4.1e+07,ns,,,,,
"BM_Bad",,,,,,,,true,"no memory"
"""
TRAINER = {
    "best_metric": None,
    "epoch": 1.0,
    "global_step": 100,
    "log_history": [
        {"epoch": 0.5, "learning_rate": 1e-5, "loss": 2.3, "step": 50},
        {
            "epoch": 1.0,
            "step": 100,
            "train_loss": 2.0,
            "train_runtime": 123.45,
            "train_samples_per_second": 51.8,
            "train_steps_per_second": 0.8,
        },
    ],
}
DLLOGGER = "\n".join(
    f'{before}DLLL {{"timestamp": "1583330000.1", "elapsedtime": "1.2", "type": "{kind}", '
    f'"step": {step}, "data": {json.dumps(data)}}}'
    for before, kind, step, data in (
        ("", "PARAMETER", '"PARAMETER"', {"lr": 0.1}),
        ("", "LOG", "[0, 10]", {"train.compute_ips": 900, "train.total_ips": 640.0}),
        ("0: ", "LOG", "[0, 20]", {"train.compute_ips": 900, "train.total_ips": 320.0}),
        ("", "LOG", "[0]", {"train.total_ips": 1.0}),
        ("", "LOG", "[]", {"train.total_ips": 2.0}),
    )
)
MLLOG = "\n".join(
    f'{before}:::MLLOG {{"namespace": "", "time_ms": 1709280000000, "event_type": "POINT_IN_TIME", '
    f'"key": "{key}", "value": {json.dumps(value)}, "metadata": {{"step": 1}}}}'
    for before, key, value in (
        ("", "submission_benchmark", "resnet"),
        ("", "global_batch_size", 1024),
        ("", "run_start", None),
        ("0: ", "tracked_stats", {"throughput": 2048.0, "loss": 1.0}),
        ("", "tracked_stats", {"throughput": 4096.0}),
        ("", "tracked_stats", {"train_epoch_timing": 9.0}),
    )
)
TF_CNN = """TensorFlow:  1.15
Model:       resnet50
Dataset:     imagenet (synthetic)
Mode:        training
Batch size:  128 global
             64 per device
Devices:     ['/gpu:0', '/gpu:1']
Optimizer:   momentum
Step\tImg/sec\ttotal_loss
1\timages/sec: 340.1 +/- 0.0 (jitter = 0.0)\t7.972
10\timages/sec: 341.2 +/- 0.3 (jitter = 1.1)\t7.856
----------------------------------------------------------------
total images/sec: 320.0
----------------------------------------------------------------
"""
NVIDIA_SMI = """timestamp, name, index, power.draw [W], utilization.gpu [%]
2024/03/01 10:00:00.123, Tesla V100-SXM2-16GB, 0, 250.31 W, 98 %
2024/03/01 10:00:00.125, Tesla V100-SXM2-16GB, 1, 100.5 W, 10 %
2024/03/01 10:00:01.123, Tesla V100-SXM2-16GB, 0, [N/A], 99 %
2024/03/01 10:00:02.123, Tesla V100-SXM2-16GB, 0, 300.12 W, 99 %
"""
LAMBDA = """name_gpu,num_gpu,watt,price,ssd,bert_base_squad,bert_large_squad,gnmt,ncf,resnet50
Quadro RTX 8000,1.0,260.0,6037.5,182.0,0.0,50.0,88498.0,19801310.0,464.0
2x RTX 3090,2.0,700.0,5500.0,459.0,0.0,0.0,138466.0,53019604.0,1792.0
A card of tomorrow,1.0,1,1,1,0.0,0.0,1,1,1.0
"""
LAMBDA_2 = """,ssd,bert_base_squad,bert_large_squad,gnmt,ncf,resnet50,tacotron2,waveglow
Lambda_1x_Texas_2xH100_80GB_SXM5_192-222_v2,1707.0,0.0,0.0,923977.0,260852163.0,5120.0,150053.0,925228.0
"""
TIMM = """model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count
tinynet_e,10001.12,50.423,512,106,2.04
resnet18,2764.22,184.877,512,224,11.69
resnet50,1000.0,256.0,256,176,25.6
"""


def _import(tmp_path, name, content, **keys):
    path = tmp_path / name
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    words = [word for key, value in keys.items() for word in (f"--{key}", value)]
    out = tmp_path / "out"
    assert run(["import", str(path), "--out", str(out), *words]) == 0
    return store.load(out, pytest.fail)


def _quantity(record, name="step_s"):
    quantity = record.quantities[name]
    runs = tuple(quantity.columns.get("run", ()))
    return (quantity.samples, runs) if quantity.samples else quantity.value


def test_hyperfine(tmp_path):
    records = _import(tmp_path, "bench.json", HYPERFINE, **ASKED)
    assert [_quantity(one) for one in records] == [((0.41, 0.4, 0.44), (0, 1, 2))] * 2
    assert [one.method.options["command"] for one in records] == [
        "python step.py 1",
        "python step.py 2",
    ]
    assert {(one.origin, one.method.name) for one in records} == {("measured", "hyperfine")}


def test_pytest_benchmark(tmp_path):
    keys = ASKED | {"batch": "{params.batch}", "device": "{machine_info.cpu.brand_raw}"}
    first, second = _import(tmp_path, "0001_x.json", PYTEST, **keys)
    assert (_quantity(first), _quantity(second)) == (0.405, ((0.4, 0.41, 0.42), (0, 0, 0)))
    assert (first.platform, first.workload.batch_per_replica) == ("epyc-7763", 32)
    assert first.taken_at == "2024-03-01T01:00:00+00:00"
    assert first.method.version == "4.0.0"


@every(("name", "content"), [("g.json", GOOGLE), ("g.csv", GOOGLE_CSV)])
def test_google_benchmark(tmp_path, name, content):
    good, bad = _import(tmp_path, name, content, **ASKED)
    samples, runs = _quantity(good)
    assert samples == pytest.approx((0.04, 0.042))
    assert runs == (0, 0)
    assert good.method.options == {"benchmark": "BM_Step/64"}
    assert (bad.status, bad.cause) == ("failed", "no memory")


@every(
    ("name", "content"),
    [
        ("trainer_state.json", TRAINER),
        ("all_results.json", TRAINER["log_history"][1]),
        ("train_results.json", json.dumps(TRAINER["log_history"][1], indent=4)),
    ],
)
def test_the_trainer_of_transformers(tmp_path, name, content):
    (record,) = _import(tmp_path, name, content, **ASKED)
    assert _quantity(record) == 1.25
    assert record.workload.optimizer == "adamw"


def test_dllogger(tmp_path):
    (record,) = _import(tmp_path, "nvlog.json", DLLOGGER, replicas="2", **ASKED)
    assert _quantity(record) == ((0.2, 0.4), (0, 0))
    assert record.workload.plan.data == 2


def test_mlperf_logs(tmp_path):
    keys = {"model": "resnet50", "device": "h100", "replicas": "8"}
    (record,) = _import(tmp_path, "result_0.txt", MLLOG, **keys)
    assert _quantity(record) == ((0.5, 0.25), (0, 0))
    assert record.workload.batch_per_replica == 128
    assert record.method.options == {"benchmark": "resnet"}
    assert record.taken_at == "2024-03-01T08:00:00+00:00"


def test_tf_cnn_benchmarks(tmp_path):
    (record,) = _import(tmp_path, "log.txt", TF_CNN, device="v100")
    assert _quantity(record) == 0.4
    assert (record.workload.batch_per_replica, record.workload.plan.data) == (64, 2)
    assert (record.workload.optimizer, record.workload.phase) == ("momentum", "train")


def test_a_part_of_such_a_log_needs_model_and_batch(tmp_path):
    part = TF_CNN.partition("momentum\n")[2]
    (record,) = _import(tmp_path, "log.txt", part, **ASKED)
    assert _quantity(record) == 0.2


def test_nvidia_smi(tmp_path, capsys):
    first, second = _import(tmp_path, "smi.csv", NVIDIA_SMI, model="resnet50", batch="64")
    assert _quantity(first, "power_w") == ((250.31, 300.12), (0, 0))
    assert _quantity(second, "power_w") == 100.5
    assert first.platform == "v100-sxm2-16gb"
    assert "smi.csv, 4: power.draw [W]: must be a number, not '[N/A]'" in capsys.readouterr().err


def test_tables_of_lambda(tmp_path, capsys):
    records = _import(tmp_path, "t.csv", LAMBDA, dtype="float16-mixed")
    assert [(one.platform, one.workload.model, _quantity(one)) for one in records] == [
        ("quadro-rtx-8000", "resnet50", 2.0),
        ("quadro-rtx-8000", "bert_large", 1.28),
        ("rtx-3090", "resnet50", 0.5),
    ]
    assert [one.workload.plan.data for one in records] == [1, 1, 2]
    assert "t.csv, 4: " in capsys.readouterr().err


def test_the_second_table_of_lambda(tmp_path):
    (record,) = _import(tmp_path, "v2.csv", LAMBDA_2, dtype="float16-mixed")
    assert (record.platform, _quantity(record), record.workload.plan.data) == ("h100-sxm5", 0.5, 2)


def test_tables_of_timm(tmp_path, capsys):
    records = _import(tmp_path, "t.csv", TIMM, device="rtx-3090", dtype="float16-mixed")
    assert [_quantity(one) for one in records] == pytest.approx([0.184877, 0.256])
    assert [dict(one.workload.params) for one in records] == [{}, {"image": 176}]
    assert "timm:NAME" in capsys.readouterr().err


def test_a_file_of_a_tool_asks_for_what_it_does_not_say(tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(HYPERFINE))
    assert run(["import", str(path), "--out", str(tmp_path / "out"), "--model", "resnet50"]) == 2
    told = capsys.readouterr().err
    assert "files of hyperfine say no batch and device: give --batch BATCH --device DEVICE" in told


def test_a_mapping_may_complete_one_of_the_house(tmp_path):
    (tmp_path / "m.toml").write_text(
        'base = "hyperfine"\nmodel = "resnet50"\nbatch = "64"\n'
        'device = "v100"\norigin = "published"\n'
    )
    first, _ = _import(tmp_path, "b.json", HYPERFINE, map=str(tmp_path / "m.toml"))
    assert _quantity(first) == ((0.41, 0.4, 0.44), (0, 1, 2))
    assert first.origin == "published"


def test_keys_of_a_command_are_refused_where_no_mapping_reads(tmp_path, capsys):
    (tmp_path / "slurm-1.out").write_text(psc_log(), encoding="utf-8")
    words = ["import", str(tmp_path / "slurm-1.out"), "--out", str(tmp_path / "out")]
    assert run([*words, "--batch", "64"]) == 2
    assert "--batch: for files that a mapping reads" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
