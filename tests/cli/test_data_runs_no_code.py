"""Data never runs code: whatever a file names or carries, a canary beside it stays silent.

The canary is `evil.py`, which writes a file when it is run or imported; its folder is the current
one and is searched by `import`. Where a person asks for it, it runs.
"""

from __future__ import annotations

import json
import marshal
import os
import pickle
import shutil
import sys
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

import exported
import synthetic
from onnx_bytes import model, node, tensor, value
from steptime.cli.main import run
from steptime.core.workload import workload_from_json, workload_to_json
from steptime.records import store
from steptime.records.record import Record, record_to_json

CODE = "evil.py:Net"
SAYS = "is code, which data does not run; name it on the command line, in Python or in an exper"
EVIL = """from pathlib import Path
Path(__file__).with_name("RAN").write_text("x")
import torch
class Net(torch.nn.Module):
    INPUTS = {"x": ((2, 8), "float32")}
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
    def forward(self, x):
        return self.layer(x)
def price(kernel, device):
    return 1.0
"""
IMPORTS = "__import__('evil')"
MAPPING = """name = "t"
source = "t"
model = "{model}"
platform = "T4"
batch = "4"
[quantities.step_s]
column = "s"
"""
ROWS = """device = "T4"
seconds = "s"
batch = "4"
"""
BUILD = {"module": "evil", "class_name": "Net", "registered_name": "evil>Net"}
LAMBDA = {"class_name": "Lambda", "config": {"name": "l", "function": ["evil", None, None]}}
TRAINED = (  # the columns of a table of steps of trainings
    "set,model,device,device_count,length,microbatch,global_batch,tensor,pipeline,virtual,recompute,"
    "sequence_parallel,dtype,stack,step_s"
)
INPUT = {"class_name": "InputLayer", "config": {"batch_shape": [None, 8], "name": "i"}}
MARSHALLED = {  # a function of Keras as its bytes, in base64
    "class_name": "__lambda__",
    "config": {"code": b64encode(marshal.dumps(compile("import evil", "e", "exec"))).decode()},
}
STARTS = {"module": "evil", "class_name": "Net", "registered_name": "evil>Net", "config": {}}
DENSE = {"class_name": "Dense", "config": {"name": "d", "units": 4, "kernel_initializer": STARTS}}
PYTHON = """name: "n" input: "d" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
layer { name: "l" type: "Python" bottom: "d" top: "l"
  python_param { module: "evil" layer: "Net" param_str: "__import__('evil')" } }
"""


class Carrier:
    """What runs the canary where it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("import evil",)


def _json(value: object) -> str:
    return json.dumps(value)


def _keras(*layers: dict[str, Any]) -> str:
    return _json({"class_name": "Sequential", "config": {"name": "s", "layers": [*layers]}})


def _graph(kind: str, **attrs: Any) -> str:
    """Return a file of a graph with one op, from rows to a number each."""
    op = {"name": "o", "kind": kind, "inputs": ["x"], "outputs": ["y"], "attrs": attrs}
    tensors = {"x": ["float32", [2, 4]], "y": ["float32", [2]]}
    places = {"inputs": ["x"], "weights": [], "outputs": ["y"], "tensors": tensors, "ops": [op]}
    about = {"steptime_graph": 1, "name": CODE, "phase": "infer", "dtype": "float32", "batch": 2}
    return _json(about | places)


WAYS: dict[str, tuple[dict[str, str], str, str]] = {  # files, command, what the line says ("": any)
    "config.json of a folder": ({"hf/config.json": _json({"model": CODE})}, "count ./hf", SAYS),
    "config.json that maps classes": (
        {"hf/config.json": _json({"model_type": "evil", "auto_map": {"AutoModel": "evil.Net"}})},
        "count ./hf",
        "",
    ),
    "table of JSON": ({"net.json": _json({"model": CODE})}, "count net.json", SAYS),
    "table of TOML": ({"net.toml": f'model = "{CODE}"'}, "count net.toml", SAYS),
    "family of TOML": ({"net.toml": f'family = "{CODE}"'}, "count net.toml", SAYS),
    "table that names a table": (
        {"a.toml": 'model = "./b.json"', "b.json": _json({"model": CODE})},
        "count a.toml",
        SAYS,
    ),
    "inputs in the text": (
        {"net.toml": f'model = "{CODE}:x=2x8:float32"'},
        "predict net.toml --device T4",
        SAYS,
    ),
    "network of a grid": (
        {"net.toml": f'model = "{CODE}"'},
        "predict fc,net.toml --device T4 --grid",
        SAYS,
    ),
    "experiment whose network is a file": (
        {
            "x.toml": 'name = "x"\n[[networks]]\nmodel = "net.json"',
            "net.json": _json({"model": CODE}),
        },
        "sweep x.toml --out out",
        SAYS,
    ),
    "condition of an experiment": (
        {"x.toml": f'name = "x"\nwhere = ["{IMPORTS} > 0"]\n[[networks]]\nmodel = "fc"'},
        "sweep x.toml --out out",
        "is not 'name < number'",
    ),
    "jsonl case": (
        {"c.jsonl": _json({"model": CODE, "device": "T4", "seconds": 1, "batch": 4})},
        "evaluate c.jsonl",
        SAYS,
    ),
    "cell that a mapping reads": (
        {"t.csv": f"model,s\n{CODE},1\n", "m.toml": f'model = "{{model}}"\n{ROWS}'},
        "evaluate t.csv --map m.toml",
        SAYS,
    ),
    "mapping that names it": (
        {"t.csv": "s\n1\n", "m.toml": f'model = "{CODE}"\n{ROWS}'},
        "evaluate t.csv --map m.toml",
        SAYS,
    ),
    "formula of a mapping": (
        {"t.csv": "s\n1\n", "m.toml": f'model = "{{{IMPORTS}}}"\n{ROWS}'},
        "evaluate t.csv --map m.toml",
        "functions are ceil, ",
    ),
    "cell of an import": (
        {"t.csv": f"model,s\n{CODE},1\n", "m.toml": MAPPING},
        "import t.csv --mapping m.toml --out out",
        "",
    ),
    "attributes in a mapping's braces": (
        {"t.csv": "model,s\nfc,1\n", "m.toml": MAPPING.replace("{model}", "{model.__class__}")},
        "import t.csv --mapping m.toml --out out",
        "",
    ),
    "table of points of a calibration": (
        {"t.csv": f"model,device,seconds,batch\n{CODE},T4,1,4\n"},
        "calibrate --device T4 --from t.csv",
        "",
    ),
    "table of steps of trainings": (
        {"t.csv": f"{TRAINED}\ns,{CODE},H100,8,2048,1,8,1,1,1,none,no,bfloat16,jax,1\n"},
        "evaluate t.csv",
        SAYS,
    ),
    "device that is code": (
        {"c.jsonl": _json({"model": "fc", "device": "evil.py", "seconds": 1, "batch": 4})},
        "evaluate c.jsonl",
        "unknown device",
    ),
    "stack that is code": (
        {"s.toml": f'name = "{CODE}"\nsource = "s"\nbackend = "evil"\n'},
        "predict fc --device T4 --stack s.toml",
        "",
    ),
    "backend of a stack": (
        {"x.toml": 'name = "x"\nbackend = "evil"\n[[networks]]\nmodel = "fc"'},
        "sweep x.toml --out out",
        "unknown backend 'evil'",
    ),
    "layer of Keras": (
        {"k.json": _keras(INPUT, BUILD | {"config": {"name": "e"}})},
        "count k.json",
        "",
    ),
    "function of Keras": ({"k.json": _keras(INPUT, LAMBDA)}, "count k.json", ""),
    "layer of a Paleo file": (
        {"p.json": _json({"name": "n", "layers": {"a": {"type": CODE, "parents": []}}})},
        "count p.json",
        "",
    ),
    "bytes of Keras": (
        {"k.json": _keras(INPUT, {**LAMBDA, "config": {"name": "l", "function": MARSHALLED}})},
        "count k.json",
        "a Lambda holds code, which is not run",
    ),
    "initializer of Keras": ({"k.json": _keras(INPUT, DENSE)}, "count k.json", ""),
    "layer of Caffe": ({"p.prototxt": PYTHON}, "count p.prototxt", "'Python' is not modelled"),
    "kind of a graph": ({"g.json": _graph(CODE)}, "count g.json", "unknown op kind"),
    "function of a graph": (
        {"g.json": _graph("reduce", function="load", axes=[1], keep=False)},
        "run g.json --phase infer --budget 0.1",
        "reduce knows sum, mean",
    ),
    "config.json that asks for trust": (
        {
            "hf/config.json": _json(
                {
                    "model_type": "llama",
                    "num_hidden_layers": 1,
                    "trust_remote_code": True,
                    "auto_map": {"AutoConfig": "evil.Net"},
                    "quantization_config": {"quant_method": CODE},
                }
            )
        },
        "predict ./hf --device T4",
        "trust_remote_code",
    ),
    "stack of a case": (
        {
            "c.jsonl": _json(
                {"model": "fc", "device": "T4", "seconds": 1, "batch": 4, "stack": CODE}
            )
        },
        "evaluate c.jsonl",
        "unknown stack",
    ),
    "formula that reaches for objects": (
        {"t.csv": "s\n1\n", "m.toml": f'model = "fc:nodes={{().__class__.__base__}}"\n{ROWS}'},
        "evaluate t.csv --map m.toml",
        "Attribute is not allowed",
    ),
    "link that is code": (
        {"l.toml": f'name = "{CODE}"\nsource = "s"\nGB_per_s = 1\nlike = "evil.py"\n'},
        "scale fc --device T4 --replicas 2 --link l.toml",
        "unknown key 'like'",
    ),
    "prices": ({"p.toml": f'model = "{CODE}"'}, "choose fc --device T4 --prices p.toml", ""),
}
RECORDS = {
    "model of a record": ({"workload": {"model": CODE}}, "predict --in out --device T4"),
    "file of a record": (
        {"workload": {"file": "evil.py", "model": CODE}},
        "predict --in out --device T4",
    ),
    "code of a record": ({"workload": {"code": CODE}}, "predict --in out --device T4"),
    "method of a record": ({"method": {"name": "evil.py:price"}}, "compare out out"),
    "backend of a record": ({"method": {"name": "evil"}}, "analyse errors out"),
    "platform of a record": ({"platform": "evil.py"}, "predict --in out"),
    "stack of a record": ({"env": {"stack": CODE, "backend": "evil"}}, "analyse history out"),
    "page of records": ({"workload": {"model": CODE}}, "report out -o page.html"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _silent(folder: Path, line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command; return what it says. Neither the canary nor a traceback came."""
    run(line.split())
    said = capsys.readouterr()
    assert not (folder / "RAN").exists(), line
    assert "evil" not in sys.modules, line
    assert "Traceback" not in said.err, said.err
    return said.err


@pytest.mark.parametrize("way", WAYS)
def test_what_files_name_is_not_run(way, folder, capsys):
    files, line, says = WAYS[way]
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    assert says in _silent(folder, line, capsys)
    if says == SAYS:
        capsys.readouterr()
        assert run(line.split()) in (2, 3)


def _changed(record: Record, changes: dict[str, Any]) -> str:
    table = record_to_json(record)
    for name, change in changes.items():
        table[name] = {**table[name], **change} if isinstance(change, dict) else change
    return json.dumps(table) + "\n"


@pytest.mark.parametrize("way", RECORDS)
def test_what_records_name_is_not_run(way, folder, capsys):
    changes, line = RECORDS[way]
    records = [synthetic.measured(one) for one in synthetic.workloads()[:3]]
    with store.open_writer(folder / "out") as writer:
        writer.append_all(records)
    (lines,) = (folder / "out").glob("*.jsonl")
    lines.write_text("".join(_changed(one, changes) for one in records))
    _silent(folder, line, capsys)


def test_a_file_of_torch_is_not_unpickled(folder, capsys):
    carried = pickle.dumps(Carrier())
    exported.write(folder / "net.pt2", exported.document())
    with zipfile.ZipFile(folder / "net.pt2", "a") as archive:
        for name in ("data.pkl", "data/weights/w.pt", "data/sample_inputs/model.pt", "extra/e.pkl"):
            archive.writestr(f"net/{name}", carried)
    said = _silent(folder, "count net.pt2", capsys)
    assert said.startswith("note: loss: ")
    assert said.count("\n") == 1
    (folder / "whole.pt2").write_bytes(carried)
    assert "not a ZIP archive" in _silent(folder, "count whole.pt2", capsys)


@pytest.mark.onnx
def test_operators_of_onnx_load_no_library(folder, capsys):
    weight = tensor("w", (4, 4))
    made = model(
        [node("Net", "x w", "y", domain="evil")], [weight], [value("x", 2, 4)]
    )  # fmt: skip
    (folder / "net.onnx").write_bytes(made)
    assert "Net" in _silent(folder, "count net.onnx", capsys)


def _of_code(folder: Path) -> Path:
    """Return a file of torch that says it was made of the canary, as it is."""
    about = {"where": str(folder / "evil.py"), "name": "Net", "inputs": {"0": [[2, 4], "float32"]}}
    return exported.write(
        folder / "net.pt2", exported.document(), **{"net/extra/steptime.json": _json(about)}
    )


@pytest.mark.slow
@pytest.mark.framework
def test_a_measurement_runs_no_code_that_a_file_names(folder, capsys):
    _of_code(folder)
    assert run(["run", "net.pt2", "--backend", "native", "--budget", "0.1"]) == 3
    assert "it runs where a person names it" in "".join(capsys.readouterr())
    assert not (folder / "RAN").exists()
    for name in ("torch.py", "numpy.py", "typing.py"):  # as a folder of somebody else's may hold
        shutil.copy(folder / "evil.py", folder / name)
    assert run(["run", "fc", "--batch", "2", "--budget", "0.1"]) == 0
    assert not (folder / "RAN").exists()


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.usefixtures("exported_here")
def test_code_runs_where_a_person_asks_for_it(folder, capsys):
    import steptime

    def ran() -> bool:
        there = (folder / "RAN").exists()
        (folder / "RAN").unlink(missing_ok=True)
        shutil.rmtree(Path(os.environ["STEPTIME_HOME"]) / "networks", ignore_errors=True)
        return there

    assert run(["count", CODE]) == 0
    assert ran()
    assert steptime.predict(CODE, "T4").batch == 2
    assert ran()
    (folder / "c.jsonl").write_text(
        _json({"model": "fc", "device": "T4", "seconds": 1.0, "batch": 4})
    )
    assert run(["evaluate", "c.jsonl", "--method", "evil.py:price"]) == 0
    assert ran()
    (folder / "x.toml").write_text(
        f'name = "x"\nbatch = 2\nbackend = "native"\nbudget_s = 0.1\n[[networks]]\nmodel = "{CODE}"'
    )
    assert run(["sweep", "x.toml", "--out", "out"]) == 0
    assert ran()


def test_no_file_says_which_code_a_workload_may_run():
    table = workload_to_json(synthetic.workloads()[0]) | {"code": CODE}
    assert workload_from_json(table).code == ""
