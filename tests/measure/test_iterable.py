"""Input from any iterable of batches that a person's function returns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.build import build, make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.core.workload import Workload
from steptime.measure.contract import BadDataError, Options, make_record_method
from steptime.measure.data.iterable import open_loader

FC = "fc:layers=1,nodes=16,inputs=6,outputs=4"
LOADERS = """
import numpy as np

def numbered(batch, first=0):
    for i in range(3):
        yield np.full((batch, 6), i, "float32"), np.full(batch, i)

def listed(batch, rank, replicas, seed):
    return [{"labels": np.zeros(batch, int), "input": np.full((batch, 2, 3), 100 * seed + rank)
             .astype("float64"), "name": "left out"}]

def short(batch): return [[np.zeros((batch, 5), "float32"), np.zeros(batch, int)]]
def integers(batch): return [[np.zeros((batch, 6), int), np.zeros(batch, int)]]
def texts(batch): return [[["a"] * batch, np.zeros(batch, int)]]
def one(batch): return [np.zeros((batch, 6), "float32")]
def unnamed(batch): return [{"x": np.zeros((batch, 6), "float32")}]
def sized(batch, sizes): return [[np.full((n, 6), n, "float32"), np.zeros(n, int)] for n in sizes]
def last_smaller(batch): return sized(batch, [batch, batch, 1])
def middle_smaller(batch): return sized(batch, [batch, 1, batch])
def first_smaller(batch): return sized(batch, [batch - 1, batch])
def three(batch): return 3
def empty(): return []
def fails(): raise OSError("disk on fire")

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(LOADERS)
    return path


def _workload(phase: str = "train", replicas: int = 1) -> Workload:
    return make_workload(read_model(FC), 4, phase=phase, replicas=replicas)


def _opened(file: Path, name: str, phase: str = "train") -> tuple[Any, Mapping[str, Any]]:
    workload = _workload(phase)
    return open_loader(build(workload), workload, f"{file}:{name}", seed=0)


def test_a_generator_is_made_anew_when_it_is_exhausted(file):
    feed, facts = _opened(file, "numbered")
    taken = [feed.next() for _ in range(7)]
    assert [int(one["labels"][0]) for one in taken] == [0, 1, 2, 0, 1, 2, 0]
    assert all(one["input"].shape == (4, 6) for one in taken)
    assert facts["loader"] == "mine.py:numbered"


def test_a_smaller_batch_at_the_end_of_an_epoch_is_passed_over(file):
    feed, _ = _opened(file, "last_smaller")
    assert [feed.next()["input"].shape for _ in range(5)] == [(4, 6)] * 5


def test_a_smaller_batch_elsewhere_is_refused_with_a_hint(file):
    feed, _ = _opened(file, "middle_smaller")
    feed.next()
    said = "a batch within an epoch has 1 of 4 examples: .*drop_last=True of a DataLoader"
    with pytest.raises(BadDataError, match=said):
        feed.next()
    said = "the first batch has 3 of 4 examples: give the loader this batch, or a smaller --batch"
    with pytest.raises(BadDataError, match=said):
        _opened(file, "first_smaller")


def test_a_mapping_goes_by_names_and_the_function_gets_what_it_names(file):
    workload = _workload(replicas=2)
    feed, _ = open_loader(build(workload), workload, f"{file}:listed", seed=3, rank=1)
    batch = feed.next()
    assert list(batch) == ["input", "labels"]
    assert np.array_equal(batch["input"], np.full((4, 6), 301.0))


def test_inference_leaves_the_labels_out(file):
    feed, _ = _opened(file, "numbered", "infer")
    assert list(feed.next()) == ["input"]


@pytest.mark.framework
def test_tensors_and_a_dataloader_are_taken_bfloat16_too(tmp_path):
    path = tmp_path / "loading.py"
    path.write_text(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "def make(batch):\n"
        "    x = torch.arange(48.0).reshape(8, 6).bfloat16()\n"
        "    return DataLoader(TensorDataset(x, torch.arange(8)), batch_size=batch)\n"
    )
    feed, facts = _opened(path, "make")
    batch = feed.next()
    assert np.array_equal(batch["input"], np.arange(24.0).reshape(4, 6))
    assert feed.next()["labels"].tolist() == [4, 5, 6, 7]
    assert facts["loader_class"].endswith("DataLoader")
    assert facts["loaders"] == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("short", "'input' is float32 [4, 5], the network takes float32 [4, 6]"),
        ("integers", "'input' is int64 [4, 6], the network takes float32 [4, 6]"),
        ("texts", "'input' is <U1 [4], the network takes float32 [4, 6]"),
        ("one", "a batch has 1 array, the network takes 2: input, labels"),
        ("unnamed", "has no 'input', but x"),
        ("empty", "gives no batch"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_at_once(file, name, says):
    with pytest.raises(BadDataError) as error:
        _opened(file, name)
    assert str(error.value) == f"input mine.py:{name}: {says}"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("three", "input mine.py:three: returns int, which is no iterable"),
        ("fails", "input mine.py:fails: OSError: disk on fire"),
        ("numberd", "did you mean 'numbered'?"),
        ("number", "unknown function 'number'"),
    ],
)
def test_what_gives_no_batches_is_said(file, name, says):
    with pytest.raises(InputError) as error:
        _opened(file, name)
    assert says in str(error.value)


def test_a_changed_file_is_another_method(file):
    options = Options(input=f"{file}:numbered")
    before = make_record_method("torch", "", options, 1).options["input"]
    assert str(before).startswith("mine.py:numbered-")
    file.write_text(LOADERS + "\n# another\n")
    assert make_record_method("torch", "", options, 1).options["input"] != before


@pytest.mark.slow
@pytest.mark.framework
def test_a_run_is_fed_by_it_and_says_how_long_it_waited(file, capsys):
    how = ["--batch", "4", "--budget", "0.05", "--threads", "1", "--json"]
    assert run(["run", FC, *how, "--input", f"{file}:numbered"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["input_s"] > 0
    assert 0 < document["infeed"] < 1
    assert document["env"]["loader"] == "mine.py:numbered"


def test_a_file_that_is_not_there_is_wrong_input(capsys):
    assert run(["run", FC, "--input", "no.py:make"]) == 2
    assert "--input 'no.py:make': there is no file 'no.py'" in capsys.readouterr().err
