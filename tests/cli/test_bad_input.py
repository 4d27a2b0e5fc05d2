"""Wrong input: one line on stderr that says what, where and the nearest name; exit code 2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import pytest

import command_lines
import idx_folder
import mistakes
import synthetic
from every import every
from mistakes import LONG
from steptime.cli import command as command_module
from steptime.cli.command import OUTPUT_OPTIONS
from steptime.cli.main import run
from steptime.measure.launch import Worker
from steptime.records import store

EXPERIMENT = 'name = "e"\nbackend = "null"\n[[networks]]\nfamily = "fc"\nlayers = 1\nnodes = 8\n'

FILES: dict[str, str | bytes] = {
    "file": "no folder\n",
    "junk.toml": bytes(range(256)) * 4,
    "junk.json": bytes(range(256)) * 4,
    "empty.toml": "",
    "timings.csv": ",mean_speed,Mean_Time_Per_Step,speed_uncertainty,Speed_Jitter,gpu_type,num_gpu,"
    "staged_from\n0,5000,0.01,1,2,k80,2,$LOCAL\n",
    "steps.csv": "set,model,device,device_count,length,microbatch,global_batch,tensor,pipeline,"
    "virtual,recompute,sequence_parallel,dtype,stack,step_s\n"
    "mine,gpt3_126m,A100,8,2048,4,32,1,1,1,none,no,float16,megatron-2021,0.5\n",
    "published.csv": "model_B,devices,tp,dp,pp,micro_batch,global_batch,sequence,hidden,layers,"
    "heads,step_s\n3.6,64,2,32,1,4,512,2048,3072,30,32,4.0\n",
    "ops.jsonl": '{"kind": "relu", "shapes": [[64, 512]], "dtype": "float32", "device": "T4", '
    '"seconds": 1e-4}\n',
    "empty.json": "",
    "deep.toml": "family = " + "[" * 50_000,
    "deep.json": "[" * 50_000,
    "both.toml": 'family = "fc"\nmodel = "resnet50"\n',
    "both.json": '{"family": "fc", "model": "resnet50"}',
    "twice.toml": 'model = "fc:layers=3"\nlayers = 4\n',
    "batch.toml": 'family = "fc"\nbatch = 8\n',
    "key.toml": 'family = "fc"\nlayer = 3\n',
    "list.json": '["fc"]',
    "device.toml": 'name = "mine"\nkind = "gpu"\nmemory_GB = -1\n',
    "records/records-a.jsonl": "",  # filled below
    "broken/a.jsonl": '{"schema": 2}\n{"schema": 2}\n',
    "binary/a.jsonl": bytes(range(256)) * 4,
    "later/a.jsonl": '{"schema": 999}\n',
    "endless/a.jsonl": '{"schema": 999}',
    "empty/readme": "",
    "csv/mnist_train.csv": "label\n",
    "half/train-images-idx3-ubyte": "",
    "half/train-labels-idx1-ubyte": "",
    "half/t10k-images-idx3-ubyte": "",
}

EXPERIMENTS = {  # name: (what is put before [[networks]], what follows it, what the line says)
    "typo": ('phse = "train"', "", "unknown key 'phse'; did you mean 'phase'?"),
    "long-key": (f"{LONG} = 1", "", f"unknown key '{LONG[:60]}...'"),
    "backend": ('backend = "torhc"', "", "unknown backend 'torhc'; did you mean 'torch'?"),
    "phase": ('phase = ["train", "infr"]', "", "unknown phase 'infr'; did you mean 'infer'?"),
    "dtype": ('dtype = "float31"', "", "unknown dtype 'float31'; did you mean 'float32'?"),
    "optimizer": ('optimizer = "adm"', "", "unknown optimizer 'adm'; did you mean 'adam'?"),
    "threads": ("threads = -1", "", "threads: must be at least 1, not -1"),
    "threads-text": ('threads = "all"', "", "threads: must be a whole number, not 'all'"),
    "compile": ("compile = 1", "", "compile: must be true or false, not '1'"),
    "tf32": ('tf32 = ["yes"]', "", "tf32: must be true or false, not 'yes'"),
    "device": ("device = 0", "", "device: must be a text, not '0'"),
    "no-device": (
        'backend = "torch"\ndevice = "gpu"',
        "",
        "unknown device 'gpu'; torch has cpu, cuda, mps, or with",
    ),
    "no-number": ('backend = "torch"\ndevice = "cuda:one"', "", "device 'cuda:one'; torch has"),
    "of-another": ('backend = "jax"\ndevice = "mps"', "", "'mps'; jax has cpu, cuda, tpu"),
    "stack": ('stack = ["torhc"]', "", "unknown stack 'torhc'; did you mean 'torch'?"),
    "stack-type": ("stack = [1]", "", "stack: must be a text, not '1'"),
    "stack-twice": ('stack = "torch"', "", "stack says backend, too; keep one of"),
    "stack-old": ('stack = "fsdp-2022"', "", "stack fsdp-2022 is for predictions: no backend"),
    "strategy": ('strategy = "alreduce"', "", "did you mean 'allreduce'?"),
    "overlap": ("overlap = 1", "", "overlap: must be true or false, not '1'"),
    "replicas": ("replicas = 0", "", "replicas: must be at least 1, not 0"),
    "many-replicas": ("replicas = 1000000", "", "replicas: 1000000 is more than 100000"),
    "train-steps": ("train_steps = -1", "", "train_steps: "),
    "slurm": ("slurm = 3", "", "slurm: "),
    "slurm-key": ("", "[[slurm]]\npartitoin = 'a'", "slurm: unknown key 'partitoin'; did you mean"),
    "slurm-gpu": ("", "[slurm]\ngpu = ['k80', 'k80']", "slurm: gpu: name each type once"),
    "slurm-none": ("", "[slurm]\ngpu = []", "slurm: gpu: name each type once"),
    "slurm-type": ("", "[slurm]\ngpu = 'k 80'", "slurm.gpu: a name has letters, digits"),
    "slurm-time": ("", "[slurm]\ntime = 'soon'", "slurm.time: a time such as 30, 2:00:00"),
    "slurm-flag": ("", "[slurm]\nexclusive = 'no'", "exclusive: must be true or false, not 'no'"),
    "slurm-cpus": ("", "[slurm]\ncpus = 0", "slurm.cpus: "),
    "slurm-line": ("", '[slurm]\nflags = ["a\\nb"]', "slurm.flags: a text on one line"),
    "slurm-cells": ("", "[slurm]\ncells_per_task = 0", "slurm.cells_per_task: "),
    "input": ('input = "hots"', "", "unknown input 'hots'; did you mean 'host'?"),
    "staging": ('staging = "locl"', "", "unknown staging 'locl'; did you mean 'local'?"),
    "data-none": ('input = "dataset"', "", "input 'dataset' needs data = "),
    "data-absent": ('data = "absent"\ninput = "dataset"', "", "data 'absent': no such folder"),
    "data-empty": ('data = "empty"\ninput = ["host", "dataset"]', "", "holds no data set of a kn"),
    "stage-to": (
        'data = "idx"\ninput = "dataset"\nstaging = "local"\nstage_to = "absent"',
        "",
        "'absent', where copies would go: no such folder",
    ),
    "train-few": ("train_steps = 9", "", "train_steps: must be 0 or at least 10, not 9"),
    "train-device": ("train_steps = 99", "", 'train_steps needs input = "dataset" and no other'),
    "train-infer": (
        'train_steps = 99\ndata = "idx"\ninput = "dataset"\nphase = ["train", "infer"]',
        "",
        'train_steps needs phase = "train" and no other',
    ),
    "loaders": ("loaders = -1", "", "loaders: must be at least 0, not -1"),
    "prefetch": ("prefetch = 0", "", "prefetch: must be at least 1, not 0"),
    "predict": ("predict = [3]", "", "predict: must be a text, not '3'"),
    "measure-type": ("measure = 0", "", "measure: must be true or false"),
    "measure": ("measure = false", "", "measure = false predicts: name devices with predict"),
    "measure-replicas": (
        'measure = false\npredict = "T4"\nreplicas = 2',
        "",
        "neither by_op nor several replicas",
    ),
    "predict-dtype": ('predict = "T4:float33"\nmeasure = false', "", "unknown dtype 'float33'"),
    "predict-on": ('predict = "V101"', "", "unknown device 'V101'; did you mean 'V100'?"),
    "axis": ("batch = []", "", "batch: an axis without a value"),
    "axis-here": ("", "inputs = []", "inputs: an axis without a value"),
    "batch": ("batch = 0", "", "batch: must be at least 1, not 0"),
    "batch-float": ("batch = 6.5", "", "batch: must be a whole number, not '6.5'"),
    "batch-huge": ("batch = 9007199254740993", "", "batch: '9007199254740993' is larger than 2^53"),
    "batch-table": ("batch = {a = 1}", "", "batch"),
    "range": ('batch = "8..2"', "", "range '8..2' runs backwards"),
    "range-step": ('batch = "1..8 x1"', "", "range '1..8 x1' stands still"),
    "range-text": ('batch = "1..many"', "", "'1..many' is not a range"),
    "range-long": ('batch = "0..9000000000000"', "", "has more than 10000000 values"),
    "cells": ('batch = "1..5000"', 'inputs = "1..5000"', "are more than 1000000"),
    "name": ('name = "a\\nb"', "", "name must be a text on one line"),
    "rounds": ("rounds = 0", "", "rounds: "),
    "runs": ('runs = "two"', "", "runs: "),
    "budget": ("budget_s = -1", "", "budget_s: "),
    "budget-nan": ("budget_s = nan", "", "budget_s: "),
    "limit": ("time_limit_s = 0", "", "time_limit_s: "),
    "flag": ('by_op = "perhaps"', "", "by_op: "),
    "parts": ("parts = 7", "", "parts: "),
    "try-all": ("try_all = []", "", "try_all: "),
    "method": ('sample = {method = "sobl", count = 1}', "", "sample: unknown method 'sobl'"),
    "sample-key": ('sample = {method = "sobol", cont = 1}', "", "did you mean 'count'?"),
    "count": ('sample = {method = "random", count = 0}', "", "sample.count: "),
    "count-many": ('sample = {method = "random", count = 999}', "", "sample: 999 of 1 cell"),
    "count-huge": ('sample = {method = "sobol", count = 99999999}', "", "more than 1000000"),
    "count-none": ('sample = {method = "random"}', "", "sample: a count goes with method"),
    "count-grid": ("sample = {count = 1}", "", "sample: a count goes with method"),
    "seed": ('sample = {method = "sobol", count = 1, seed = -1}', "", "sample.seed: "),
    "where": ('where = "flop 5"', "", "where: 'flop 5' is not 'name < number'"),
    "where-sign": ('where = "flop =< 5"', "", "where: 'flop =< 5' is not"),
    "where-name": ('where = "flops < 5"', "", "unknown name in where 'flops'; did you mean 'flop'"),
    "where-number": ('where = "flop < many"', "", "unknown name in where 'many'"),
    "where-nan": ('where = "flop < nan"', "", "unknown name in where 'nan'"),
    "where-text": ("where = 'block == \"x\"'", "", "where: 'block == \"x\"' is not 'name <"),
    "where-numbers": ('where = "3 < 5"', "", "where: '3 < 5' is not 'name <"),
    "where-zero": ('where = "1 / (nodes - nodes) < 5"', "", "toml: where: formula '1 / (nodes"),
    "where-type": ("where = 3", "", "where: must be a text"),
    "where-all": ('where = "nodes > 8"', "", "no cell is left by 'where'"),
    "hyper": ("", "nods = 3", "unknown hyperparameter 'nods'; did you mean 'nodes'?"),
    "hyper-value": ("", "outputs = -3", "outputs: must be at least 1, not -3"),
    "hyper-text": ("", 'outputs = "few"', "outputs: must be a whole number, not 'few'"),
    "hyper-table": ("", "outputs = {a = 1}", "outputs: "),
    "family": ("", '[[networks]]\nfamily = "fcc"', "unknown model 'fcc'; did you mean 'fc'?"),
    "contradiction": ("", 'model = "resnet50"', "give one of 'family' and 'model'"),
    "no-family": ("", "[[networks]]\nlayers = 3", "give one of 'family' and 'model'"),
    "file": ("", '[[networks]]\nmodel = "a.toml"', "'a.toml' is a file"),
}
NOT_EXPERIMENTS = {
    "no-networks": ('name = "e"\n', "networks: "),
    "zero-networks": ('name = "e"\nnetworks = []\n', "networks: "),
    "text-networks": ('name = "e"\nnetworks = "fc"\n', "networks: "),
    "no-name": ('[[networks]]\nfamily = "fc"\n', "name: "),
}


def _lines() -> list[tuple[str, str]]:
    lines = [*mistakes.lines()]
    for name, (*_, message) in (*EXPERIMENTS.items(), *NOT_EXPERIMENTS.items()):
        lines.append((f"sweep e-{name}.toml --out o", message))
    return lines


def _experiment(before: str, after: str) -> str:
    """Return the experiment with keys put in; one that is there already is replaced."""
    head, _, tail = EXPERIMENT.partition("[[networks]]")
    key = before.partition(" ")[0]
    kept = [line for line in head.splitlines() if not line.startswith(f"{key} ")]
    return "\n".join([*kept, before, f"[[networks]]{tail}{after}", ""])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("bad")
    experiments = {
        f"e-{name}.toml": _experiment(before, after)
        for name, (before, after, _) in EXPERIMENTS.items()
    } | {f"e-{name}.toml": text for name, (text, _) in NOT_EXPERIMENTS.items()}
    networks = {name: content for name, (content, _) in mistakes.NETWORKS.items()}
    for name, content in {**FILES, **networks, **experiments, "good.toml": EXPERIMENT}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    idx_folder.write(root / "idx")
    for name in ("folder.toml", "folder.csv"):
        (root / name).mkdir()
    with store.open_writer(root / "records") as writer:
        for workload in synthetic.workloads()[:2]:
            writer.append(synthetic.measured(workload))
            writer.append(synthetic.predicted(workload)[0])
    return root


def _split(line: str) -> list[str]:
    """Split a command line at spaces outside of quotes; unlike a shell's, this is fast."""
    return [quoted or bare for quoted, bare in re.findall(r"'([^']*)'|([^\s']+)", line)]


ASK = Worker.ask


def _only_start(worker: Worker, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """Let a worker say what it has; that anything is measured is a failure of the test."""
    assert request["do"] == "start", "a wrong command line got to be measured"
    return ASK(worker, request, limit_s)


def _by_command() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for line, message in _lines():
        found.setdefault(_split(line)[0][:60], []).append((line, message))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", _by_command())
def test_a_mistake_is_one_line_and_exit_code_2(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("steptime.measure.launch.Worker.ask", _only_start)
    monkeypatch.setattr(command_module, "PATIENCE_S", inf)  # however busy this machine is
    every(("line", "message"), _by_command()[command])(_is_one_line)(capsys=capsys)


def _is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(_split(line))
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("steptime: ")
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1, err
    assert message in err
    assert "Traceback" not in err
    assert "x" * 61 not in err
    assert not re.search(r"9{61}", err)


OF_CHOOSE = {("choose", "sort"), ("choose", "top")}  # which are its own


def test_every_command_and_every_option_has_its_mistakes():
    lines = [_split(line) for line, _ in _lines()]
    for name, options in command_lines.command_lines().items():
        mine = [line for line in lines if command_lines.command_line_name(line) == name]
        assert mine, name
        for option in options:
            takes_a_value = not option.is_argument and not option.is_flag
            is_printed = option.name in OUTPUT_OPTIONS and (name, option.name) not in OF_CHOOSE
            if takes_a_value and not is_printed:  # of every command: one way
                words = {word.partition("=")[0] for line in mine for word in line}
                assert words & set(option.names), (name, option.names)


def test_a_mistake_leaves_the_folder_as_it_was(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    before = sorted((path.name, path.read_bytes()) for path in Path("records").iterdir())
    for line in (
        "sweep good.toml --out new --launcher slrm",
        "sweep e-hyper.toml --out new",
        "sweep good.toml --out records --retry ook",
        "run fc:layers=0 --backend null --out new",
        "query 'FROM recrds' --in records -o t.csv",
        "analyse memory absent -o p.svg",
        "report absent -o r.html",
        "choose fc --device t4 --page p.html --link nvlnk-3",
        "choose gpt2_xl --device t4 --batch 512 --page p.html --replicas 1",
    ):
        assert run(_split(line)) == 2
    assert sorted((path.name, path.read_bytes()) for path in Path("records").iterdir()) == before
    for name in ("new", "t.csv", "p.svg", "r.html", "p.html"):
        assert not Path(name).exists(), name
    capsys.readouterr()
