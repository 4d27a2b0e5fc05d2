"""The torch backend runs every family, phase and precision, and names what it cannot run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from every import every
from steptime.build import build
from steptime.cli.main import run
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.workload import OPTIMIZERS, Plan, Workload
from steptime.measure.contract import Options, OutOfMemoryError, UnsupportedError
from steptime.network.ops import OPS, communication, opaque
from tiny_networks import FC, TINY, workload

pytestmark = pytest.mark.framework


def prepared(work: Workload, options: Options | None = None) -> Any:
    from steptime.measure.backends.torch import backend as torch_backend

    return torch_backend.prepare(build(work), work, options or Options())


def module_code(work: Workload) -> str:
    """The generated function of a network."""
    import torch

    from steptime.measure.backends.torch.module import initial_values, module_of

    graph = build(work)
    values = initial_values(graph, torch.device("cpu"), 0)
    return str(module_of(graph, values, precision(work.dtype)).code)


def test_every_forward_kind_has_a_row():
    from steptime.measure.backends.torch.backend import RUNS

    backward = {kind for kind in OPS if kind.endswith(("_grad", "_grad_weight"))}
    assert RUNS.keys() == OPS.keys() - backward - {*OPTIMIZERS, *communication.KINDS, *opaque.KINDS}


def has_kernels(network: str, dtype: str) -> bool:
    """Ask PyTorch itself: its LSTM under autocast needs an instruction set of newer CPUs."""
    import torch

    if (network, dtype) != ("lstm", "bfloat16-mixed"):
        return True
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.LSTM(4, 4, batch_first=True)(torch.zeros(2, 3, 4))
    except RuntimeError:
        return False
    return True


@every("dtype", ["float32", "bfloat16", "bfloat16-mixed"])
@every("network", TINY)
def test_every_family_trains_and_infers(network, dtype):
    from steptime.measure.backends.torch import backend as torch_backend

    training = prepared(workload(TINY[network], dtype=dtype))
    if not has_kernels(network, dtype):
        with pytest.raises(RuntimeError) as raised:
            training.step()
        meant = torch_backend.translate_error(raised.value)
        assert isinstance(meant, UnsupportedError)
        assert str(meant).startswith("torch has no kernel for it here: could not")
        return
    training.step()
    training.sync()
    assert list(training.parts) == ["forward", "backward", "update"]
    for part in training.parts.values():
        part()
    inference = prepared(workload(TINY[network], dtype=dtype, phase="infer"))
    inference.step()
    assert list(inference.parts) == ["forward"]


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN's limit is one of x86-64")
def test_a_kind_without_a_kernel_on_this_cpu_is_unsupported(monkeypatch, capsys):
    """oneDNN is told to take this CPU for one that has no AVX-512."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    words = ["run", TINY["lstm"], "--dtype", "bfloat16-mixed", "--budget", "0.05"]
    assert run(words) == 3
    said = "".join(capsys.readouterr())
    assert "unsupported (unsupported): torch has no kernel for it here: could not create" in said
    assert said.count("\n") == 1


@every("optimizer", ("sgd", "momentum", "rmsprop", "adam", "adamw"))
@every("dtype", ["float64", "float16", "float16-mixed", "bfloat16"])
def test_weights_move_and_stay_finite(dtype, optimizer):
    import torch

    from steptime.measure.backends.torch.module import initial_values, module_of, optimizer_of

    work = workload(FC, dtype=dtype, optimizer=optimizer)
    graph, types = build(work), precision(dtype)
    values = initial_values(graph, torch.device("cpu"), 0)
    before = {name: values[name].detach().clone() for name in graph.weights}
    module = module_of(graph, values, types)
    update = optimizer_of(optimizer, [values[name] for name in graph.weights], types.weights)
    for group in update.param_groups:
        group["lr"] = 0.01  # a default step is below what bfloat16 resolves
    for _ in range(20):
        compute = getattr(torch, types.compute)
        with torch.autocast("cpu", dtype=compute, enabled=types.mixed):
            loss = module(*(values[name] for name in graph.inputs))
        loss.backward()
        update.step()
        update.zero_grad()
    assert torch.isfinite(loss)
    assert loss.dtype == getattr(torch, types.weights)
    for name, old in before.items():
        assert torch.isfinite(values[name]).all()
        assert not torch.equal(values[name], old)


def test_a_bias_is_part_of_the_product_before_it():
    code = module_code(workload("deep_mnist:batch=2"))
    assert code.count("convolution(") == 2
    assert code.count("linear(") == 2
    assert "kinds_bias" not in code


def test_a_product_that_others_read_keeps_its_bias_apart():
    import torch

    from steptime.measure.backends.torch.module import initial_values, module_of
    from steptime.network.layers.dense import mean_loss
    from steptime.network.ops.builder import Builder

    b = Builder("twice", precision("float64"), training=True)
    product = b.op("linear", b.input("x", (2, 3)), b.weight("w", (4, 3)), name="product")
    biased = b.op("bias", product, b.weight("b", (4,)), name="biased", axis=-1)
    graph = b.graph(mean_loss(b, b.op("add", biased, product, name="sum")))
    values = initial_values(graph, torch.device("cpu"), 0)
    values["b"].data.fill_(3.0)
    module = module_of(graph, values, precision("float64"))
    # the sum of a biased product and the product alone
    expected = (2 * values["x"] @ values["w"].T + 3).mean()
    torch.testing.assert_close(module(values["x"]), expected)


def test_tensors_are_let_go_after_their_last_use():
    lines = module_code(workload(FC)).splitlines()
    for line in lines:
        if "relu = torch.relu(" in line:
            assert "_bias = None" in line


def test_casts_of_autocast_are_left_to_it():
    """That the loss is in float32 all the same is seen in `test_weights_move_and_stay_finite`."""
    assert "kinds_cast(" not in module_code(workload(FC, dtype="bfloat16-mixed"))


def test_the_same_seed_draws_the_same_values():
    import torch

    from steptime.measure.backends.torch.module import initial_values

    graph = build(workload(TINY["decoder"]))
    first, second, other = (initial_values(graph, torch.device("cpu"), n) for n in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["tokens"], other["tokens"])
    assert int(first["tokens"].max()) < 9
    assert int(first["tokens"].min()) >= 0
    # angles: cosines, then sines; place 0 is not turned
    assert first["angles"][0].tolist() == [1.0, 0.0]


def test_facts_and_meter_say_how_it_ran():
    import torch

    ready = prepared(workload(FC), Options(threads=1))
    assert ready.facts["torch"] == torch.__version__
    assert ready.facts["torch_threads"] == 1
    assert ready.facts["tf32"] is False
    assert torch.backends.cudnn.allow_tf32 is False
    assert ready.memory() == (None, "resident set, by the worker")
    assert ready.timer is None
    ready.reset_memory()
    assert prepared(workload(FC, dtype="float16-mixed")).facts["loss_scaling"]


def test_what_is_absent_or_not_supported_is_named():
    from steptime.measure.backends.torch import backend as torch_backend

    with pytest.raises(InputError, match=r"'cuda:99' is not available here; there is: cpu"):
        torch_backend.device_facts("cuda:99")
    with pytest.raises(InputError, match="'gpu' is not available here"):
        prepared(workload(FC), Options(device="gpu"))
    with pytest.raises(UnsupportedError, match="parallel plan"):
        prepared(replace(workload(FC), plan=Plan(tensor=2)))
    assert not torch_backend.device_facts("cpu").is_accelerator


def test_unknown_kinds_are_named():
    from steptime.measure.backends.torch.module import module_of
    from steptime.network.ops.training import training_graph

    graph = training_graph(build(workload(FC)), "sgd")
    with pytest.raises(UnsupportedError, match=r"torch does not run: .*relu_grad.*sgd"):
        module_of(graph, {}, precision("float32"))


def test_too_large_a_network_is_out_of_memory():
    from steptime.measure.backends.torch import backend as torch_backend

    # 4 * (2e7)^2 = 1.6e15 bytes are beyond the 1.4e14 that a process can address
    with pytest.raises(RuntimeError) as raised:
        prepared(workload("fc:layers=1,nodes=20000000,inputs=20000000,outputs=2,batch=1"))
    meant = torch_backend.translate_error(raised.value)
    assert isinstance(meant, OutOfMemoryError)
    assert "memory" in str(meant)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports warn
@pytest.mark.parametrize("network", ["fc", pytest.param("decoder", marks=pytest.mark.rare)])
def test_a_compiled_network_trains_and_says_what_the_compiler_did(network):
    ready = prepared(workload(TINY[network]), Options(compile=True))
    ready.step()
    assert ready.facts["compile"] == "inductor, default mode"
    compiler_facts = ready.afterwards()
    assert (compiler_facts["graphs"], compiler_facts["graph_breaks"]) == (1, {})
    assert compiler_facts["compile_s"] > 0
    # forward and backward
    assert compiler_facts["cache_hits"] + compiler_facts["cache_misses"] == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports warn
def test_what_is_compiled_is_kept_by_the_vector_units_of_the_cpu(monkeypatch, tmp_path):
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        prepared(workload(FC), Options(compile=True))
        units = torch.backends.cpu.get_cpu_capability()
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / units)


@pytest.mark.rare  # it starts torch's compiler for one message
def test_a_missing_compiler_is_said_in_one_line(tmp_path):
    """In a process of its own: Inductor looks for its compiler once."""
    from steptime.measure.backends.torch.backend import NO_COMPILER

    line = [sys.executable, "-m", "steptime", "run", FC, "--stack", "torch-compile"]
    variables = {"CXX": str(tmp_path / "none"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        line, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert NO_COMPILER in done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights")  # nn.LSTM does so, too, in bfloat16
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16-mixed"])
@pytest.mark.parametrize("network", TINY)
def test_every_family_runs_on_a_gpu(network, dtype):
    ready = prepared(workload(TINY[network], dtype=dtype), Options(device="cuda"))
    ready.reset_memory()
    assert ready.timer is not None
    assert ready.timer(ready.step, 3) > 0
    peak, meter = ready.memory()
    assert peak
    assert meter == "torch.cuda.max_memory_allocated"
