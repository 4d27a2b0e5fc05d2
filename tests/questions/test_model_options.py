"""`--strict` and `--batch-axis`, wherever a network may be a file or code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.questions.model_text import set_model_words

QUESTIONS: dict[str, Callable[[str, Path], Any]] = {
    "count": lambda model, _: steptime.count(model, strict=True),
    "predict": lambda model, _: steptime.predict(model, device="a100", strict=True),
    "predict of a grid": lambda model, _: steptime.predict(
        model, device="a100,v100", all_cells=True, strict=True
    ),
    "fit": lambda model, _: steptime.fit(model, device="a100", strict=True),
    "plan": lambda model, _: steptime.plan(model, device="a100", strict=True),
    "choose": lambda model, _: steptime.choose(model, device="a100,v100", strict=True),
    "why": lambda model, _: steptime.why(model, device="a100", strict=True),
    "whatif": lambda model, _: steptime.whatif(
        "a100", set_=["peak=x2"], model=[model], strict=True
    ),
    "scale": lambda model, _: steptime.scale(
        model, device="a100", link="ethernet-10", replicas="1,2", strict=True
    ),
    "split": lambda model, _: steptime.split(
        model, device="v100", server="a100", link="ethernet-10", strict=True
    ),
    "systolic": lambda model, _: steptime.systolic(model, strict=True),
    "convert": lambda model, out: steptime.convert(model, out=out / "net.json", strict=True),
    "run": lambda model, _: steptime.run(model, device="cpu", strict=True),
}


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, save

    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Wave", ["h"], ["y"], domain="my"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    path = tmp_path / "custom.onnx"
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.mark.onnx
@pytest.mark.parametrize("question", QUESTIONS)
def test_strict_refuses_ops_of_unknown_work_in_every_question(
    question: str, custom: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"1 op of unknown work \(my.Wave\)"):
        QUESTIONS[question](str(custom), tmp_path)


@pytest.mark.onnx
def test_without_strict_a_note_says_the_share(custom: Path) -> None:
    notes = steptime.count(str(custom), batch=2).notes
    assert any("1 op of unknown work (my.Wave): priced by bytes" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "strict", "axis", "words"),
    [
        ("resnet50", True, None, "resnet50"),
        ("fc:layers=2", True, None, "fc:layers=2"),
        ("net.onnx", True, None, "net.onnx:strict=yes"),
        ("net.onnx:length=8", True, None, "net.onnx:length=8,strict=yes"),
        ("net.py:Net", False, 1, "net.py:Net:batch_axis=1"),
        ("net.py:Net:x=2x8", True, 1, "net.py:Net:x=2x8,batch_axis=1,strict=yes"),
        ("net.py:Net", False, None, "net.py:Net"),
    ],
)
def test_options_are_words_of_the_model_text(
    text: str, strict: bool, axis: int | None, words: str
) -> None:
    assert set_model_words(text, strict, axis) == words


def test_a_batch_axis_goes_with_code() -> None:
    with pytest.raises(InputError, match=r"--batch-axis: 'resnet50' is no code"):
        steptime.count("resnet50", batch_axis=1)


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.usefixtures("exported_here")
def test_a_batch_axis_counts_examples_along_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = tmp_path / "net.py"
    code.write_text(
        "import torch\n"
        "INPUTS = {'x': ((20, 4, 10), 'float32')}\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(10, 5)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x).cumsum(0)\n"
    )
    answer = steptime.count(f"{code}:Net", batch=3, phase="infer", batch_axis=1)
    assert sum(op.flop for op in answer.ops if op.work) == 2 * 20 * 3 * 10 * 5
