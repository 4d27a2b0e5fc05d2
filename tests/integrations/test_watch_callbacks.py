"""Callbacks of Lightning and Accelerate: the real libraries where they are, else stand-ins."""

from __future__ import annotations

import contextlib
import importlib
import logging
import subprocess
import sys
import textwrap
import time
from types import ModuleType, SimpleNamespace

import pytest

from stepped_clock import SteppedClock
from steptime.core.errors import InputError
from steptime.integrations.accelerate import watch_accelerator
from steptime.integrations.watch import Watch
from steptime.records import store

pytestmark = pytest.mark.framework
torch = pytest.importorskip("torch")

BATCH, BATCHES = 16, 24
OWN_LIMIT_S = 0.5e-3
RANKS = 2


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))


@pytest.fixture
def callback_module(monkeypatch):
    """Return `steptime.integrations.lightning`, beside a stand-in where Lightning is not here."""
    name = "steptime.integrations.lightning"
    monkeypatch.delitem(sys.modules, name, raising=False)
    if "lightning" not in sys.modules:
        callbacks = ModuleType("lightning.pytorch.callbacks")
        callbacks.Callback = type("Callback", (), {})
        for module_name in ("lightning", "lightning.pytorch"):
            monkeypatch.setitem(sys.modules, module_name, ModuleType(module_name))
        monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks", callbacks)
    yield importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of the host, which no other load of the machine moves."""
    stepped = SteppedClock()
    monkeypatch.setattr(time, "perf_counter", stepped.read)
    return stepped


class Module(torch.nn.Module):
    """A module as Lightning trains it: its network is inside, and is called by `training_step`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())

    def training_step(self, batch, _index):
        return self.net(batch).sum()


def fit(callback, module, clock, accumulate=1, epochs=1, fail_at=None):
    """Call the hooks of a callback in the order in which Lightning's Trainer does."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    trainer = SimpleNamespace(global_step=0)
    callback.on_train_start(trainer, module)
    for _ in range(epochs):
        callback.on_train_epoch_start(trainer, module)
        for i in range(BATCHES):
            batch = torch.randn(BATCH, 8)
            callback.on_train_batch_start(trainer, module, batch, i)
            module.training_step(batch, i).backward()
            if i == fail_at:
                callback.on_exception(trainer, module, KeyboardInterrupt())
                return
            if (i + 1) % accumulate == 0:
                optimizer.step()
                trainer.global_step += 1
            callback.on_train_batch_end(trainer, module, None, batch, i)
        clock.wait(0.1)  # the validation
        callback.on_validation_end(trainer, module)
    callback.on_train_end(trainer, module)


@pytest.mark.slow
def test_lightning_steps_are_recorded_without_the_validation(callback_module, clock, tmp_path):
    callback = callback_module.LightningStepTimeCallback(device="epyc-7763", out=tmp_path / "out")
    fit(callback, Module(), clock, epochs=2)
    answer = callback.watch.answer
    assert answer.step_count == 2 * BATCHES - 1
    assert answer.batch == BATCH
    assert answer.predicted_s is not None, answer.notes
    assert answer.watch_s <= OWN_LIMIT_S
    (record,) = store.load(tmp_path / "out", pytest.fail)
    assert record.workload.model == "Sequential.pt2"
    assert max(record.quantities["step_s"].samples) < 0.1
    assert record.env["predicted_s"] == answer.predicted_s
    assert record.env["process_bytes"] > 0


def test_lightning_batches_whose_gradients_are_accumulated_are_one_step(
    callback_module, clock, tmp_path
):
    callback = callback_module.LightningStepTimeCallback(out=tmp_path)
    fit(callback, Module(), clock, accumulate=4)
    answer = callback.watch.answer
    assert (answer.step_count, answer.batch) == (BATCHES // 4 - 1, 4 * BATCH)


def test_ctrl_c_in_lightning_writes_the_steps_before(callback_module, clock, tmp_path):
    callback = callback_module.LightningStepTimeCallback(out=tmp_path)
    fit(callback, Module(), clock, fail_at=12)
    (record,) = store.load(tmp_path, pytest.fail)
    assert record.env["interrupted_by"] == "KeyboardInterrupt"
    assert callback.watch.answer.step_count == 11


def test_the_network_of_a_lightning_module_is_the_one_inside(callback_module):
    module = Module()
    assert callback_module.find_network(module) is module.net
    module.head = torch.nn.Linear(4, 2)
    assert callback_module.find_network(module) is module  # no part has all weights


def test_without_lightning_one_line_says_so(monkeypatch):
    name = "steptime.integrations.lightning"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for module_name in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks"):
        monkeypatch.setitem(sys.modules, module_name, None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(InputError, match="nearest: pip install lightning"):
        importlib.import_module(name)


def run_accelerated(accelerator, module, out, loader):
    """Run a loop as Accelerate's documents show it."""
    with watch_accelerator(accelerator, module, device="epyc-7763", out=out) as watch:
        for batch in watch.wrap(loader):
            with watch.step(), accelerator.accumulate(module):
                module(batch).sum().backward()
    return watch.answer


class Accelerator:
    """What a loop sees of accelerate: gradients are in step after so many batches."""

    def __init__(self, accumulate: int) -> None:
        self._accumulate, self._batches, self.sync_gradients = accumulate, 0, True

    def accumulate(self, _model):
        self._batches += 1
        self.sync_gradients = self._batches % self._accumulate == 0
        return contextlib.nullcontext()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_accelerate_steps_end_where_weights_are_updated(clock, tmp_path, accumulate):
    def slow_loader():
        for _ in range(BATCHES):
            clock.wait(0.002)
            yield torch.randn(BATCH, 8)

    module = Module().net
    answer = run_accelerated(Accelerator(accumulate), module, tmp_path / "out", slow_loader())
    assert answer.step_count == BATCHES // accumulate - 1
    assert answer.batch == accumulate * BATCH
    assert answer.input_share > 0.3  # waits before all batches of a step
    assert answer.step_s > accumulate * 0.002
    assert answer.watch_s <= OWN_LIMIT_S


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # advice on the machine, and what torch deprecates
def test_a_real_lightning_trainer(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from steptime.integrations.lightning import LightningStepTimeCallback

    class Real(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())

        def training_step(self, batch, _index):
            return self.net(batch[0]).sum()

        def validation_step(self, batch, _index):
            self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.TensorDataset(torch.randn(BATCHES * BATCH, 8))
    loaders = [torch.utils.data.DataLoader(data, batch_size=BATCH) for _ in range(2)]
    callback = LightningStepTimeCallback(device="epyc-7763", out=tmp_path / "out")
    trainer = lightning.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Real(), *loaders)
    answer = callback.watch.answer
    assert (answer.step_count, answer.batch) == (BATCHES - 1, 2 * BATCH)
    assert answer.predicted_s is not None, answer.notes
    assert answer.watch_s <= OWN_LIMIT_S


@pytest.mark.slow
def test_a_real_accelerator(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    module = Module().net
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(BATCHES * BATCH, 8), batch_size=BATCH)
    module, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    with watch_accelerator(accelerator, module, device="epyc-7763", out=tmp_path) as watch:
        for batch in watch.wrap(loader):
            with watch.step(), accelerator.accumulate(module):
                accelerator.backward(module(batch).sum())
                optimizer.step()
                optimizer.zero_grad()
    assert (watch.answer.step_count, watch.answer.batch) == (BATCHES // 2 - 1, 2 * BATCH)
    assert watch.answer.predicted_s is not None, watch.answer.notes
    assert watch.answer.watch_s <= OWN_LIMIT_S


RANK_PROGRAM = """
    import sys
    import torch
    import torch.distributed as distributed
    import steptime

    rank, size, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with steptime.watch(net, device="epyc-7763", out=out) as watch:
        for _ in range(30):
            with watch.step():
                optimizer.zero_grad()
                net(torch.randn(16, 8)).sum().backward()
                optimizer.step()
    assert watch.answer.step_count == 29
    distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_write_one_record(tmp_path):
    program = tmp_path / "rank.py"
    program.write_text(textwrap.dedent(RANK_PROGRAM))
    files = [str(tmp_path / name) for name in ("store", "out")]
    ranks = [
        subprocess.Popen([sys.executable, str(program), str(rank), str(RANKS), *files])
        for rank in range(RANKS)
    ]
    assert [rank.wait(120) for rank in ranks] == [0] * RANKS
    (record,) = store.load(tmp_path / "out", pytest.fail)
    assert record.workload.plan.data == RANKS
    assert record.workload.global_batch == 2 * BATCH


def test_a_fault_within_an_accumulated_step_is_one_warning(monkeypatch, caplog):
    monkeypatch.setattr(Watch, "_count_steps", lambda _self: 1 / 0)
    module = Module().net
    accelerator = Accelerator(2)
    with watch_accelerator(accelerator, module) as watch:
        for batch in watch.wrap([torch.randn(BATCH, 8)] * BATCHES):
            with watch.step(), accelerator.accumulate(module):
                module(batch)
    warnings = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
    assert len(warnings) == 1
