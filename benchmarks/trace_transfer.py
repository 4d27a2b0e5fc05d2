"""How well `predict --trace` moves a step to other settings of the CPU that it was traced on.

Ten networks are traced at one thread, in float32, at batch 8. Each is predicted and measured with
two threads, at batch 64, under ONEDNN_MAX_CPU_ISA=AVX2 and in bfloat16. This CPU with two threads
or with AVX2 is another device, whose ceilings are measured. Rivals are the traced step (its ops and
gaps) times the ratio of FLOP over peak, and `predict` of the module, which knows no trace.

    python benchmarks/trace_transfer.py measure FOLDER    # ceilings, traces, samples: 15 minutes
    python benchmarks/trace_transfer.py judge FOLDER      # predictions and the table
    python benchmarks/trace_transfer.py all FOLDER --case threads    # of one setting: 5 minutes

With two threads, `cores` is the prediction for as many cores as the measured peak says: two threads
of one core share its units, so that no op becomes twice as fast. A second table has the times of
the ops by kind, traced with one thread and with two, and predicted for two.

Samples of one thread are CPU time, and the lower quartile counts. Samples of two threads are wall
time, and their threads wait for each other actively, as OpenMP's do by default: on a busy machine
they mean nothing. With OMP_WAIT_POLICY=PASSIVE every parallel op wakes a thread first, which takes
50 to 100 us on a virtual machine. All samples stay in FOLDER/samples.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from steptime.core.toml_files import toml_text
from steptime.hardware.device import Device

TRACED_BATCH = 8
LARGE_BATCH = 64
ROUNDS = 4  # visits of each network under each setting, in turns
SAMPLE_S = 0.5  # of a visit
MIN_SAMPLES = 3
TRACED_STEPS = 20
CEILING_MINUTES = 0.6
PROBES = 3
MIN_KIND_SHARE = 0.01  # of all ops, below which a kind has no line


class Setting(NamedTuple):
    """How a step is run.

    Attributes:
        name: its name in the table.
        threads: threads of the process.
        batch: examples of a step.
        dtype: type of weights and inputs.
        isa: the instructions that oneDNN may use; "" for all.
    """

    name: str
    threads: int = 1
    batch: int = TRACED_BATCH
    dtype: str = "float32"
    isa: str = ""


BASE = Setting("traced")
CASES = {
    "threads": Setting("two threads", threads=2),
    "batch": Setting("batch 64", batch=LARGE_BATCH),
    "isa": Setting("AVX2", isa="AVX2"),
    "dtype": Setting("bfloat16", dtype="bfloat16"),
}
SETTINGS = tuple(CASES.values())


def make_networks(  # noqa: C901  # ten networks
) -> dict[str, tuple[Callable[[], Any], tuple[int, ...]]]:
    """Return the networks with the shape of an example; one of one size is a sequence of words."""
    from torch import nn

    def conv(c_in: int, c_out: int, stride: int = 1, groups: int = 1, size: int = 3) -> Any:
        layer = nn.Conv2d(c_in, c_out, size, stride, size // 2, groups=groups, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(c_out), nn.ReLU())

    def head(width: int) -> list[Any]:
        return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]

    class Residual(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = conv(width, width), conv(width, width)

        def forward(self, x: Any) -> Any:
            return x + self.second(self.first(x))

    class Dense(nn.Module):
        def __init__(self, width: int, growth: int) -> None:
            super().__init__()
            self.layer = conv(width, growth)

        def forward(self, x: Any) -> Any:
            import torch

            return torch.cat([x, self.layer(x)], 1)

    class Attention(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm, self.joint = nn.LayerNorm(width), nn.Linear(width, 3 * width)
            self.out, self.second_norm = nn.Linear(width, width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.joint(self.norm(x)).view(batch, length, 3, self.heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
            seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))

    class Words(nn.Module):
        def __init__(self, vocabulary: int, width: int, layers: Any, out: int = 0) -> None:
            super().__init__()
            self.table, self.layers = nn.Embedding(vocabulary, width), layers
            self.head = nn.Linear(out or width, 10)

        def forward(self, words: Any) -> Any:
            x = self.layers(self.table(words))
            x = x[0] if isinstance(x, tuple) else x
            return self.head(x.mean(1))

    def lenet() -> Any:
        first = nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)
        return nn.Sequential(
            *first, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)
        )

    def vgg() -> Any:
        parts: list[Any] = []
        for c_in, c_out in ((3, 32), (32, 64), (64, 128)):
            parts += [conv(c_in, c_out), conv(c_out, c_out), nn.MaxPool2d(2)]
        return nn.Sequential(*parts, nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), *head(256)[2:])

    def resnet() -> Any:
        stages = [Residual(32), Residual(32), conv(32, 64, 2), Residual(64), Residual(64)]
        stages += [conv(64, 128, 2), Residual(128), Residual(128)]
        return nn.Sequential(conv(3, 32), *stages, *head(128))

    def mobilenet() -> Any:
        parts = [conv(3, 32, 2)]
        for c_in, c_out, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)):
            parts += [conv(c_in, c_in, stride, c_in), conv(c_in, c_out, size=1)]
        return nn.Sequential(*parts, *head(256))

    def densenet() -> Any:
        parts = [conv(3, 24)] + [Dense(24 + 12 * i, 12) for i in range(6)]
        parts += [nn.AvgPool2d(2)] + [Dense(96 + 12 * i, 12) for i in range(6)]
        return nn.Sequential(*parts, *head(168))

    def autoencoder() -> Any:
        down = [conv(3, 32, 2), conv(32, 64, 2)]
        up = [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)]
        return nn.Sequential(*down, *up, *head(3))

    def perceptron() -> Any:
        wide = nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        return nn.Sequential(*wide, nn.Linear(1024, 10))

    def encoder() -> Any:
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
        return Words(1000, 128, nn.TransformerEncoder(layer, 3))

    def decoder() -> Any:
        return Words(2000, 192, nn.Sequential(*[Attention(192, 6) for _ in range(3)]))

    def recurrent() -> Any:
        return Words(1000, 128, nn.LSTM(128, 256, batch_first=True), 256)

    return {
        "lenet": (lenet, (1, 28, 28)),
        "vgg": (vgg, (3, 32, 32)),
        "resnet": (resnet, (3, 32, 32)),
        "mobilenet": (mobilenet, (3, 64, 64)),
        "densenet": (densenet, (3, 32, 32)),
        "autoencoder": (autoencoder, (3, 64, 64)),
        "perceptron": (perceptron, (784,)),
        "encoder": (encoder, (64,)),
        "decoder": (decoder, (96,)),
        "recurrent": (recurrent, (32,)),
    }


def make_step(name: str, batch: int, dtype: str) -> Callable[[], None]:
    """Return a function that trains a network for one step."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    build, shape = make_networks()[name]
    number_type = getattr(torch, dtype)
    model = build().to(number_type)
    x = make_input(name, shape, batch, number_type)
    labels = torch.randint(0, 10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def make_input(name: str, shape: tuple[int, ...], batch: int, number_type: Any) -> Any:
    """Return a batch of examples: words for networks of words, else numbers."""
    import torch

    if name in ("encoder", "decoder", "recurrent"):
        return torch.randint(0, 1000, (batch, *shape))
    return torch.randn(batch, *shape, dtype=number_type)


def take_samples(step: Callable[[], None], threads: int) -> list[float]:
    """Return seconds of steps: CPU time of one thread, else wall time."""
    clock = time.process_time if threads == 1 else time.perf_counter
    step()
    step()
    samples: list[float] = []
    end = time.perf_counter() + SAMPLE_S
    while len(samples) < MIN_SAMPLES or time.perf_counter() < end:
        began = clock()
        step()
        samples.append(clock() - began)
    return samples


def take_trace(step: Callable[[], None], path: str) -> None:
    """Write the trace of some steps."""
    from torch.profiler import ProfilerActivity, profile, schedule

    plan = schedule(wait=1, warmup=1, active=TRACED_STEPS, repeat=1)
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, record_shapes=True, schedule=plan) as profiler:
        for _ in range(TRACED_STEPS + 2):
            step()
            profiler.step()
    profiler.export_chrome_trace(path)


def work() -> None:
    """Answer requests on standard input: the process of one setting of threads and instructions."""
    import torch

    threads = int(sys.argv[2])
    torch.set_num_threads(threads)
    steps: dict[tuple[str, int, str], Callable[[], None]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = request["network"], request["batch"], request["dtype"]
        steps = {key: steps[key]} if key in steps else {key: make_step(*key)}
        if request["trace"]:
            take_samples(steps[key], threads)  # the first steps of a process are slower
            take_trace(steps[key], request["trace"])
            answer: list[float] = []
        else:
            answer = take_samples(steps[key], threads)
        print(json.dumps(answer), flush=True)


class SettingWorker:
    """A process that runs steps with so many threads and such instructions."""

    def __init__(self, threads: int, isa: str) -> None:
        """Start it."""
        variables = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if isa:
            variables["ONEDNN_MAX_CPU_ISA"] = isa
        self.process = subprocess.Popen(
            [sys.executable, __file__, "work", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **variables},
        )

    def ask(self, network: str, setting: Setting, trace: str = "") -> Any:
        """Return samples of a step; with `trace` the seconds of a traced step."""
        request = {"network": network, "batch": setting.batch, "dtype": setting.dtype}
        requests, answers = self.process.stdin, self.process.stdout
        if requests is None or answers is None:
            raise RuntimeError("the worker was started without pipes")
        requests.write(json.dumps({**request, "trace": trace}) + "\n")
        requests.flush()
        return json.loads(answers.readline())

    def stop(self) -> None:
        """End it."""
        self.process.communicate()  # its standard input ends


def measure(folder: Path, settings: Sequence[Setting]) -> None:
    """Measure ceilings, take traces and samples, and keep all of them in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting in (BASE, *settings):
        measure_ceilings(folder, setting, probes=PROBES if len(settings) > 1 else 1)
    keys = dict.fromkeys((setting.threads, setting.isa) for setting in (BASE, *settings))
    workers = {key: SettingWorker(*key) for key in keys}
    kept = folder / "samples.json"
    samples: dict[str, dict[str, list[float]]] = (
        json.loads(kept.read_text()) if kept.exists() else {}
    )
    try:
        for network in make_networks():
            if network in samples:
                continue
            samples[network] = measure_network(network, folder, workers, settings)
            kept.write_text(json.dumps(samples))
            print(network, {name: f"{quartile(own):.4f}" for name, own in samples[network].items()})
    finally:
        for worker in workers.values():
            worker.stop()


def device_file(folder: Path, setting: Setting) -> Path:
    """Return the path of the device file of this CPU with such threads and instructions."""
    return folder / f"cpu{setting.threads}{setting.isa}.toml"


def measure_ceilings(folder: Path, setting: Setting, probes: int) -> None:
    """Write the device file of this CPU with such threads and instructions.

    Other work only lowers what a probe reaches, so that the highest rates of several count. Two
    threads that wait for each other on a busy machine reach a hundredth of one, so that theirs are
    at least those of one thread.
    """
    merged = device_file(folder, setting)
    if merged.exists():
        return
    homes = [folder / f"probe{setting.threads}{setting.isa}-{number}" for number in range(probes)]
    tables = [probe_ceilings(home, setting) for home in homes]
    table = tables[0]
    table["memory_GB_per_s"] = max(probed["memory_GB_per_s"] for probed in tables)
    for dtype in table["peak_TFLOP_per_s"]:
        rates = [probed["peak_TFLOP_per_s"].get(dtype, 0.0) for probed in tables]
        table["peak_TFLOP_per_s"][dtype] = max(rates)
    if setting.threads > 1:
        base = tomllib.loads(device_file(folder, BASE).read_text())
        table["memory_GB_per_s"] = max(table["memory_GB_per_s"], base["memory_GB_per_s"])
        for dtype, rate in table["peak_TFLOP_per_s"].items():
            base_rate = base["peak_TFLOP_per_s"].get(dtype, 0.0)
            table["peak_TFLOP_per_s"][dtype] = max(rate, base_rate)
    del table["measured"]
    merged.write_text(toml_text(table))


def probe_ceilings(home: Path, setting: Setting) -> dict[str, Any]:
    """Return the device file that one probe writes, as a table."""
    command = [sys.executable, "-m", "steptime", "calibrate", "--only", "ceilings"]
    command += ["--threads", str(setting.threads), "--minutes", str(CEILING_MINUTES)]
    variables = {**os.environ, "STEPTIME_HOME": str(home)}
    if setting.isa:
        variables["ONEDNN_MAX_CPU_ISA"] = setting.isa
    subprocess.run(command, check=True, env=variables, stdout=subprocess.DEVNULL)
    return tomllib.loads(next(home.glob("devices/*.toml")).read_text())


def measure_network(
    network: str,
    folder: Path,
    workers: dict[tuple[int, str], SettingWorker],
    settings: Sequence[Setting],
) -> dict[str, list[float]]:
    """Return the samples of a network by setting, and write its trace, also of two threads."""
    base = workers[BASE.threads, BASE.isa]
    base.ask(network, BASE, str(folder / f"{network}.json"))
    for setting in settings:
        if setting.threads > 1:
            worker = workers[setting.threads, setting.isa]
            worker.ask(network, setting, str(threads_trace(folder, network)))
    samples: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for setting in (BASE, *settings):
            own = workers[setting.threads, setting.isa].ask(network, setting)
            samples.setdefault(setting.name, []).extend(own)
    return samples


def threads_trace(folder: Path, network: str) -> Path:
    """Return the path of the trace of a network with two threads."""
    return folder / f"{network}-threads.json"


def quartile(samples: list[float]) -> float:
    """Return the lower quartile."""
    return quantiles(samples, n=4)[0]


class Outcome(NamedTuple):
    """What was measured of a network under a setting, and what was predicted [s]."""

    network: str
    setting: str
    measured_s: float
    traced_s: float
    flop_s: float
    plain_s: float
    cores_s: float | None = None


def judge(folder: Path, settings: Sequence[Setting]) -> None:
    """Print predicted over measured for each network and setting, and the errors."""
    samples = json.loads((folder / "samples.json").read_text())
    outcomes = list(predict_all(folder, samples, settings))
    (folder / "outcomes.json").write_text(json.dumps([row._asdict() for row in outcomes]))
    print(
        f"{'network':13}{'setting':13}{'measured':>10}{'trace':>8}{'FLOP':>8}{'predict':>8}{'cores':>8}"
    )
    for row in outcomes:
        predictions_s = (row.traced_s, row.flop_s, row.plain_s, row.cores_s)
        ratios = [
            predicted_s / row.measured_s - 1
            for predicted_s in predictions_s
            if predicted_s is not None
        ]
        texts = "".join(f"{100 * ratio:+7.0f}%" for ratio in ratios)
        print(f"{row.network:13}{row.setting:13}{1e3 * row.measured_s:8.2f}ms{texts}")
    for setting in (*dict.fromkeys(row.setting for row in outcomes), "all"):
        own = [row for row in outcomes if setting in (row.setting, "all")]
        print(f"{setting:13}", describe_errors(own))
    for parallel in settings:
        if parallel.threads > 1:
            own = [row for row in outcomes if row.setting == parallel.name]
            errors = [abs((row.cores_s or 0.0) / row.measured_s - 1) for row in own]
            print(f"{parallel.name:13} median error {100 * median(errors):.0f} % with `cores`")
            print_kinds(folder, list(samples), parallel)


def print_kinds(folder: Path, networks: Sequence[str], setting: Setting) -> None:
    """Print the times of ops by kind over all networks: with one thread, with more, predicted."""
    import steptime
    from steptime.questions.predict.traced_step import TracedStepTime

    base_device = steptime.device(device_file(folder, BASE))
    target = steptime.device(device_file(folder, setting))
    totals: dict[str, list[float]] = {}
    for network in networks:
        trace, other_trace = folder / f"{network}.json", threads_trace(folder, network)
        moved = steptime.predict(trace=trace, from_device=base_device, device=target)
        measured = steptime.predict(trace=other_trace, from_device=target, device=target)
        for place, answer in enumerate((moved, measured)):
            if not isinstance(answer, TracedStepTime):
                raise SystemExit(f"no step was predicted: {answer}")
            for row in answer.rows:
                total = totals.setdefault(row.kind, [0.0, 0.0, 0.0])
                if place == 0:
                    total[0] += row.measured_s
                    total[2] += row.step_s
                else:
                    total[1] += row.measured_s
    whole_s = sum(total[0] for total in totals.values())
    print(f"{'op':34}{'1 thread':>10}{'threads':>10}{'faster':>8}{'predicted':>10}")
    for kind, (one_s, threads_s, predicted_s) in sorted(
        totals.items(), key=lambda item: -item[1][0]
    ):
        if one_s < MIN_KIND_SHARE * whole_s or not threads_s or not predicted_s:
            continue
        times = f"{1e3 * one_s:8.2f}ms{1e3 * threads_s:8.2f}ms"
        print(f"{kind:34}{times}{one_s / threads_s:8.2f}{one_s / predicted_s:10.2f}")


def describe_errors(rows: list[Outcome]) -> str:
    """Describe errors: `median error 9 % (FLOP 40 %, predict 25 %); better on 9, 10 of 10`."""
    errors = {
        name: [abs(getattr(row, name) / row.measured_s - 1) for row in rows]
        for name in ("traced_s", "flop_s", "plain_s")
    }
    medians = [f"{100 * median(own):.0f} %" for own in errors.values()]
    better = [
        sum(own < rival for own, rival in zip(errors["traced_s"], errors[name], strict=True))
        for name in ("flop_s", "plain_s")
    ]
    return (
        f"median error {medians[0]} (FLOP {medians[1]}, predict {medians[2]}); "
        f"better on {better[0]}, {better[1]} of {len(rows)}"
    )


def read_seconds(answer: object) -> float:
    """Return the predicted seconds of a step; one that cannot be predicted is an error here."""
    step_s = getattr(answer, "step_s", None)
    if not isinstance(step_s, float):
        raise SystemExit(f"no step was predicted: {answer}")
    return step_s


def scale_cores(base_device: Device, target: Device) -> Device:
    """Return a CPU with as many cores as its peak is a multiple of that of one thread."""
    peaks = [device.datasheet.peak_flop_per_s["float32"] for device in (target, base_device)]
    cores = max(1.0, peaks[0] / peaks[1])
    return target.with_figures(cores=cores)


def predict_all(
    folder: Path, samples: dict[str, Any], settings: Sequence[Setting]
) -> Iterator[Outcome]:
    """Yield the predictions of every network under every setting."""
    import torch

    import steptime

    base_device = steptime.device(device_file(folder, BASE))
    networks = make_networks()
    for network, own in samples.items():
        build, shape = networks[network]
        trace = folder / f"{network}.json"
        base_s = read_seconds(
            steptime.predict(trace=trace, from_device=base_device, device=base_device)
        )
        x = make_input(network, shape, TRACED_BATCH, torch.float32)
        module_file = steptime.from_module(build(), {"0": (tuple(x.shape), str(x.dtype)[6:])})
        for setting in settings:
            target = steptime.device(device_file(folder, setting))
            options: dict[str, Any] = {"batch": setting.batch, "dtype": setting.dtype}
            moved = steptime.predict(trace=trace, from_device=base_device, device=target, **options)
            cores_s = None
            if setting.threads > 1:
                scaled = scale_cores(base_device, target)
                answer = steptime.predict(
                    trace=trace, from_device=base_device, device=scaled, **options
                )
                cores_s = read_seconds(answer)
            plain = steptime.predict(module_file, target, optimizer="sgd", **options)
            peaks = [
                base_device.datasheet.peak_flop_per_s["float32"]
                / target.datasheet.peak_flop_per_s[setting.dtype]
            ]
            flop_s = base_s * setting.batch / TRACED_BATCH * peaks[0]
            yield Outcome(
                network,
                setting.name,
                quartile(own[setting.name]),
                read_seconds(moved),
                flop_s,
                read_seconds(plain),
                cores_s,
            )


def main() -> None:
    """Measure, judge, or both, as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("measure", "judge", "all"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--case", choices=CASES, help="one setting alone")
    arguments = parser.parse_args()
    settings = SETTINGS if arguments.case is None else (CASES[arguments.case],)
    if arguments.command != "judge":
        measure(arguments.folder, settings)
    if arguments.command != "measure":
        judge(arguments.folder, settings)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work()
    else:
        main()
