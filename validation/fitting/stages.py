"""The stages of the fit, and the table of devices left out."""

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from steptime.calibration.cases import Case, conditions
from steptime.calibration.columns import Columns
from steptime.calibration.fit import log_residuals
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.hardware.constants import Constant
from steptime.prediction.prices import Floats
from validation.fitting import (
    aiconfigurator,
    catapult,
    deepbench,
    neusight,
    paradnn,
    timm,
    vidur,
)
from validation.fitting.hierarchy import hierarchical
from validation.fitting.write import write, write_lines

PRIORS = Path(__file__).parents[2] / "src/steptime/data/priors"
CONDITIONS = PRIORS.with_name("conditions.toml")
STACKS = PRIORS.with_name("stacks")
WEIGHT = 1000.0  # of a device, in rows
PER_KIND = 400  # rows of a kind of a device, drawn by a seeded shuffle, so that none outweighs

OF_CONVOLUTIONS = {  # where they start, and how far they vary, as a device may move them
    "convolution.share": (0.69, 0.2),
    "convolution.weights": (0.68, 0.2),
    "convolution.ramp": (49.0, 0.1),
    "convolution.fused_share": (0.51, 0.15),
    "convolution.transform": (0.56, 0.15),
    "convolution.turned_bytes_per_s": (20000000000.0, 0.3),
    "convolution.turned_channels": (1.0, 0.2),
    "product.kepler": (0.4, 0.2),
    "host.forward_op_s": (1.4e-05, 0.2),
    "host.backward_op_s": (1.6e-05, 0.2),
    "host.update_op_s": (1e-05, 0.2),
}


@dataclass(frozen=True)
class Stage:
    """Constants that are fitted together, and the cases that tell them, of the sets `rows`.

    `free` are their names, and where they start; `priors` is the file that holds them, and those of
    other stages. `words` say what the cases are. Constants in `shared` are the same on all devices;
    the spread of the others is that of fits to one device each. `held` are how far ln(constant) may
    move from its start, 1 for others. Those in `near` are given a spread
    that too few or too unlike devices do not tell. Those of the host belong to the software stack
    `stack`. `freedom` is how far single devices may be off (`hierarchical`).
    """

    priors: str
    free: Mapping[str, float]
    cases: Callable[[Path], Iterable[Case]]
    words: str
    rows: tuple[str, ...]
    shared: tuple[str, ...] = ()
    held: Mapping[str, float] = field(default_factory=dict)
    near: Mapping[str, float] = field(default_factory=dict)
    stack: str = catalog.DEFAULT_STACK
    freedom: int = 1

    def known(self) -> Mapping[str, Constant]:
        """Return the constants that are known before the fit, those of the host by the stack.

        Its own start where they always do, so that a second fit finds the same.
        """
        found = {**catalog.priors(self.priors, self.stack), **conditions()}
        own = {name: found[name]._replace(value=value) for name, value in self.free.items()}
        return {**found, **own}


def _products(data: Path) -> Iterable[Case]:
    """Return products in float32, but linear layers on GPUs before Volta.

    What these wait for their weights is a matter of the library's version: no constant tells it.
    """
    for case in chain(neusight.products(data), deepbench.products(data)):
        if case.kernels[0].kind != "linear" or not has_trait(case.device, "old"):
            yield case


def _of_amd(data: Path) -> Iterable[Case]:
    """Return batched products of AMD's GPUs."""
    for case in neusight.products(data, "measured/neusight/more_matmul.csv.gz"):
        if case.device.datasheet.maker == "AMD" and case.kind == "bmm":
            yield case


STAGES: Mapping[str, Stage] = {  # each reads what those before it told
    "stream": Stage(
        "gpu",
        {
            "launch.isolated_s": 3e-05,
            "isolated.seen": 0.61,
            "isolated.relu": 1.2,
            "isolated.gelu": 1.2,
            "isolated.softmax": 1.2,
            "isolated.layer_norm": 1.8,
            "stream.share_hbm": 0.92,
            "stream.share_gddr": 0.81,
            "stream.share_old": 0.79,
            "stream.cached_bytes": 21.0,
            "stream.softmax_again": 0.49,
            "stream.norm_again": 0.66,
            "stream.reduced_bytes": 7.5,
            "stream.rows_running": 18.0,
        },
        lambda data: chain(neusight.vectors(data), aiconfigurator.weights(data), vidur.sums(data)),
        "vector ops of NeuSight (float32) and vidur (float16), thin products of AIConfigurator",
        ("neusight_vector", "aiconfigurator_products", "layer_ops"),
    ),
    "tensor": Stage(
        "gpu",
        {
            "product.tensor_share": 0.92,
            "product.tensor_half_reuse": 27.0,
            "product.tensor_ramp": 230.0,
            "product.sum_s": 3.9e-06,
            "product.tensor_turn_s": 1.5e-07,
            "product.tensor_wait_s": 1.4e-06,
        },
        lambda data: chain(
            aiconfigurator.products(data),
            aiconfigurator.products(data, "measured/aiconfigurator/more.csv.gz"),
        ),
        "AIConfigurator's linear layers in bfloat16",
        ("aiconfigurator_products",),
        # plans of published trainings, of which constants were told with 0.92, tell it as well
        held={"product.tensor_share": 0.02, "product.tensor_half_reuse": 0.1},
        freedom=3,  # four devices, of which none is strange
    ),
    "product": Stage(
        "gpu",
        {
            "isolated.linear": 2.0,
            "isolated.matmul": 1.2,
            "isolated.pause_s": 0.00023,
            "product.share": 0.93,
            "product.half_reuse": 14.0,
            "product.ramp_s": 2e-6,
            "product.turn_s": 1e-7,
            "product.along": 2.5,
            "power.flop_j": 1.6e-11,
        },
        _products,
        "products of NeuSight and DeepBench, float32",
        ("neusight_matmul", "deepbench_gemm"),
        held={
            "product.share": 0.05,
            "product.half_reuse": 0.15,
            "power.flop_j": 0.05,  # told by devices of 70 and 75 W alone
            "isolated.pause_s": 0.2,
        },
        near={"power.flop_j": 0.1},  # of the process: single ops of a device tell it badly
    ),
    "amd": Stage(
        "gpu",
        {"product.amd_batched": 0.7},
        _of_amd,
        "batched products of NeuSight, float32, on AMD",
        ("neusight_matmul",),
    ),
    "convolution": Stage(
        "gpu",
        {
            **{name: start for name, (start, _) in OF_CONVOLUTIONS.items()},
            "isolated.conv2d": 5.0,
            "host.step_s": 0.00029,
        },
        lambda data: chain(
            neusight.convolutions(data, first=True),
            deepbench.convolutions(data),
            catapult.convolutions(data),
            catapult.dense(data),
        ),
        "convolutions of NeuSight and DeepBench, layers of CDECatapult in TensorFlow 1, float32",
        ("neusight_conv", "deepbench_conv", "catapult_conv", "catapult_dense"),
        shared=tuple(OF_CONVOLUTIONS),
        near={name: spread for name, (_, spread) in OF_CONVOLUTIONS.items()},
        stack=catapult.STACK,
    ),
    "recurrent": Stage(
        "gpu",
        {
            "recurrent.step_s": 2.5e-05,
            "recurrent.block_clocks": 170.0,
        },
        deepbench.recurrent,
        "recurrent layers of DeepBench, float32",
        ("deepbench_rnn",),
    ),
    "image": Stage(
        "gpu",
        {
            "stream.share_geforce": 0.86,
            "product.geforce": 1.1,
            "convolution.matrix_share": 1.1,
            "convolution.matrix_turned": 0.18,
            "convolution.gradients_turned": 1.1,
            "convolution.depthwise_share": 0.32,
        },
        lambda data: (one for one in timm.op_by_op(data) if one.kind != "train nhwc"),
        "networks of timm, op by op under autocast",
        ("timm",),
    ),
    "groups": Stage(
        "gpu",
        {"convolution.groups_share": 0.1},
        lambda data: (one for one in timm.op_by_op(data) if one.kind == "train nhwc"),
        "networks of timm in training with channels last, op by op under autocast",
        ("timm",),
    ),
    "host": Stage(
        "gpu",
        {
            "host.update_s": 0.001,
            "host.factor": 1.0,
        },
        paradnn.steps,
        "training of fully connected networks in PyTorch ParaDnn, Adam",
        ("paradnn_pytorch",),
        stack=paradnn.STACK,
    ),
}


def by_device(cases: Iterable[Case], most: int = PER_KIND) -> dict[str, list[Case]]:
    """Return at most `most` cases of each kind by the name of the device."""
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.device.name, case.kind].append(case)
    found: dict[str, list[Case]] = defaultdict(list)
    for (device, _), some in groups.items():
        random.Random(0).shuffle(some)  # noqa: S311  # a draw of rows keeps no secret
        found[device] += some[:most]
    return found


def even(columns: Columns) -> Floats:
    """Return the weights of cases under which kinds of a device, and devices, weigh the same."""
    count = Counter(case.kind for case in columns.cases)
    each = WEIGHT / len(count)
    return np.array([each / count[case.kind] for case in columns.cases])


def left_out(
    stage: Stage, sets: Mapping[str, Sequence[Case]]
) -> list[tuple[str, str, float, float, float, int]]:
    """Return median error, MAPE and bias (mean ln) by device and kind, fitted to the others."""
    priors = stage.known()
    columns = {name: Columns(cases) for name, cases in sets.items()}
    found = []
    for name, own in columns.items():
        others = [one for other, one in columns.items() if other != name]
        constants, _ = hierarchical(
            others,
            priors,
            [*stage.free],
            [even(one) for one in others],
            stage.shared,
            stage.held,
            stage.freedom,
        )
        for kind in sorted({case.kind for case in own.cases}):
            here = np.array([case.kind == kind for case in own.cases])
            off = log_residuals(own, constants)[here]
            errors = np.abs(np.exp(-off) - 1)
            middle, mape = float(np.median(errors)), float(errors.mean())
            found.append((name, kind, middle, mape, float(-off.mean()), int(here.sum())))
    return found


def whole_fit(stage: Stage, sets: Mapping[str, Sequence[Case]]) -> dict[str, Constant]:
    """Return the constants of a stage fitted to all devices, with how far single ones depart."""
    priors = stage.known()
    columns = [Columns(cases) for cases in sets.values()]
    weights = [even(one) for one in columns]
    values, spreads = hierarchical(
        columns, priors, [*stage.free], weights, stage.shared, stage.held, stage.freedom
    )
    count = sum(len(one.cases) for one in columns)
    words = f"{stage.words}: {len(sets)} devices, {count} rows"
    spreads |= stage.near
    found = {name: Constant(values[name], spreads[name], words, stage.rows) for name in stage.free}
    for name in [name for name in found if name.startswith("host.") or len(sets) == 1]:
        spread = max(found[name].spread, stage.known()[name].spread)
        # a laboratory shares its hosts, and one device tells nothing of others
        found[name] = found[name]._replace(spread=spread)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the stages that are asked for."""
    if not arguments:
        print("usage: python -m validation.fit DATA [STAGE ...]", file=sys.stderr)
        return 2
    data, wanted = Path(arguments[0]), arguments[1:] or list(STAGES)
    for name in wanted:
        stage = STAGES[name]
        sets = by_device(stage.cases(data))
        if not sets:
            print(f"{name} stays as it is: no case of {stage.words}", file=sys.stderr)
            continue
        for device, kind, middle, mape, bias, count in left_out(stage, sets):
            print(f"{name} {device:24} {kind:18} {middle:6.1%} {mape:6.1%} {bias:+.2f} {count}")
        constants = whole_fit(stage, sets)
        of_host = {key: one for key, one in constants.items() if key.startswith("host.")}
        write_lines(STACKS / Path(stage.stack).with_suffix(".toml"), of_host)
        timing = {key: one for key, one in constants.items() if key in conditions()}
        write(CONDITIONS, timing)
        both = of_host | timing
        rest = {key: one for key, one in constants.items() if key not in both}
        write(PRIORS / f"{stage.priors}.toml", rest)
        for key, one in constants.items():
            print(f"{name} {key} {one.value:.3g} spread {one.spread:.2f}")
    return 0
