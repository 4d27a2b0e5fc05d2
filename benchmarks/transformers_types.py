#!/usr/bin/env python3
"""Answer for model types of transformers as code: how many, and with torch's own FLOP.

Needs a Python that has transformers and torch. Types are drawn from those whose class transformers
builds on the device `meta` from its default configuration: those that it does not build, since they
have no class or need a library that is missing, are skipped and do not count as drawn. With
`--layers`, a type that is not built with fewer layers is built with all. Each is exported and read
as `transformers:TYPE` does it, and its FLOP of products is held against `FlopCounterMode`. Prints a
line for each type with its CPU seconds, and at the end how many were answered. A type may need more
than 18 GB; a limit of memory (`ulimit -v`) ends that type alone, and refuses others that only
reserve as much.

    python benchmarks/transformers_types.py [--count 200] [--seed 1] [--first 0] [--layers 2]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from steptime.build import build_step, make_workload, read_model
from steptime.measure.backends.native.export import export
from steptime.measure.backends.native.inputs import Spec, nest_arguments, tensors_of
from steptime.measure.backends.native.known_values import keep_small_values, list_value_buffers
from steptime.measure.backends.native.making import without_values
from steptime.measure.backends.native.transformers_models import (
    MAX_CPU_PARAMETERS,
    describe_input_fault,
    find_class,
    find_class_name,
    find_inputs,
    prepare_config,
)
from steptime.measure.backends.native.transformers_models import (
    make_model as make_transformers_model,
)
from steptime.network.ops import OPS, cost_of

warnings.filterwarnings("ignore")
WARM_UP = "gpt2"
TOLERANCE = 0.01  # relative
LAYER_FIELDS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers")


class OutOfTimeError(BaseException):
    """A type took too long. No library catches it with its `except Exception`."""


class TypeResult(NamedTuple):
    """What became of a type.

    Args:
        kind: the `model_type`.
        status: same, differs, refused, uncounted (torch does not count it) or skipped.
        text: the reason, or both FLOP.
    """

    kind: str
    status: str
    text: str


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `OutOfTimeError` in the block after so many seconds of the CPU."""

    def stop(*_: object) -> None:
        raise OutOfTimeError(f"not within {seconds} s of the CPU")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def make_model(kind: str, layers: int | None, device: str = "meta") -> tuple[Any, Any]:
    """Return the model of a type on a device, and its configuration; any error of transformers."""
    if layers:
        with contextlib.suppress(Exception):  # lists of settings may fit all layers alone
            return make_default_model(kind, layers, device)
    return make_default_model(kind, None, device)


def make_default_model(kind: str, layers: int | None, device: str) -> tuple[Any, Any]:
    """Return the model of a type's default configuration, with at most so many layers."""
    config = transformers.CONFIG_MAPPING[kind]()
    for part in (config, *vars(config).values()):
        other_names = getattr(part, "attribute_map", {})
        for field in LAYER_FIELDS if layers else ():
            # A number of stages, for which other settings are lists, stays.
            is_of_layers = other_names.get(field, field) in LAYER_FIELDS
            if is_of_layers and isinstance(getattr(part, field, None), int):
                with contextlib.suppress(Exception):
                    setattr(part, field, min(layers or 0, getattr(part, field)))
    prepare_config(config)
    make = find_class(transformers, find_class_name(transformers, kind), kind)
    with torch.device(device):
        return make_transformers_model(make, config), config


def find_inputs_of(kind: str, layers: int | None, model: Any, config: Any) -> tuple[Any, Any]:
    """Return a form of a type's model and its inputs, made on the CPU where `meta` has no values.

    The product does so, too (`make_transformers`).
    """
    form, inputs = find_inputs(model, config)
    is_small = sum(weight.numel() for weight in model.parameters()) <= MAX_CPU_PARAMETERS
    if inputs or not is_small:
        return form, inputs
    return find_inputs(*make_model(kind, layers, "cpu"))


def count_distances(points: list[int], others: list[int], *_: Any, **__: Any) -> int:
    """Return the FLOP of the product by which torch computes distances of more than 25 points."""
    *batch, point_count, width = points
    return 2 * math.prod(batch) * point_count * others[-2] * width


def make_counter() -> FlopCounterMode:
    """Return torch's counter, which counts the product in distances of points, too."""
    # `torch.cdist` dispatches to this op, which has no public name.
    distances = {torch.ops.aten._euclidean_dist: count_distances}  # noqa: SLF001
    return FlopCounterMode(display=False, custom_mapping=distances)


def count_by_torch(model: Any, inputs: dict[str, Spec]) -> int:
    """Return the FLOP that torch's counter sees in a forward pass without values."""
    try:
        return count_on_meta(model, inputs)
    except Exception:  # noqa: BLE001  # it reads values
        network, counter = without_values(model), make_counter()
        values = keep_small_values(network, list_value_buffers(model))
        fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        # oneDNN runs recurrent layers as one op, whose products torch's counter does not see.
        plain = torch.backends.mkldnn.flags(enabled=False)
        with fake, counter, torch.no_grad(), values, plain:
            by_place, by_name = tensors_of(inputs)
            with sdpa_kernel(SDPBackend.MATH):
                network(*by_place, **by_name)
        return int(counter.get_total_flops())


def count_on_meta(model: Any, inputs: dict[str, Spec]) -> int:
    """Return the FLOP that torch's counter sees in a forward pass on `meta`."""
    values = {
        name: torch.zeros(tuple(shape), dtype=getattr(torch, dtype), device="meta")
        for name, (shape, dtype) in inputs.items()
    }
    by_place, by_name = nest_arguments(values)
    masks = transformers.masking_utils  # `meta` has no values to look at
    masks.fast_all = lambda _: True
    masks.find_packed_sequence_indices = lambda *_, **__: None
    transformers.PreTrainedModel.warn_if_padding_and_no_attention_mask = lambda *_, **__: None
    counter = make_counter()
    model.requires_grad_(False)  # torch's counter fails on views of weights that want a gradient
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(*by_place, **by_name)
    return int(counter.get_total_flops())


def count_by_steptime(model: Any, inputs: dict[str, Spec], folder: Path) -> tuple[int, list[str]]:
    """Return the FLOP of products in a forward pass, and the notes on them."""
    path = folder / "model.pt2"
    export(model, inputs, path, {"key": "", "where": "", "name": ""})
    batch = next(iter(inputs.values()))[0][0]
    graph = build_step(make_workload(read_model(str(path)), batch, "float32", "infer"))
    flop = sum(cost_of(*graph.cases[op.name])[0] for op in graph.ops if OPS[op.kind].work)
    return flop, list(graph.remarks)


def check_type(kind: str, layers: int | None, limit_s: int, folder: Path) -> TypeResult:
    """Hold a type against torch's counter."""
    try:
        with time_limit(limit_s):
            model, config = make_model(kind, layers)
    except (Exception, OutOfTimeError) as error:  # noqa: BLE001  # transformers raises anything
        return TypeResult(kind, "skipped", describe_error(error))
    try:
        with time_limit(limit_s):
            model, inputs = find_inputs_of(kind, layers, model, config)
            if not inputs:
                return TypeResult(kind, "refused", describe_input_fault(model))
            flop, _ = count_by_steptime(copy.deepcopy(model), inputs, folder)
    except (Exception, OutOfTimeError) as error:  # noqa: BLE001  # torch raises anything
        return TypeResult(kind, "refused", describe_error(error))
    try:
        with time_limit(limit_s):
            torch_flop = count_by_torch(model, inputs)
    except (Exception, OutOfTimeError) as error:  # noqa: BLE001  # torch raises anything
        return TypeResult(kind, "uncounted", describe_error(error))
    is_same = abs(flop - torch_flop) <= TOLERANCE * max(torch_flop, 1)
    return TypeResult(kind, "same" if is_same else "differs", f"{flop:,} torch {torch_flop:,}")


def describe_error(error: BaseException) -> str:
    """Describe an error in one line: `ValueError: 3 heads`."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def main() -> None:
    """Draw types, hold each against torch's counter, and print the tally."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first of the drawn types")
    parser.add_argument("--layers", type=int, help="at most so many layers")
    parser.add_argument("--types", help="these types instead")
    parser.add_argument("--limit", type=int, default=150, help="seconds of a type")
    options = parser.parse_args()
    known = sorted(transformers.CONFIG_MAPPING.keys())
    order = random.Random(options.seed).sample(known, len(known))  # noqa: S311  # no secret
    kinds = options.types.split(",") if options.types else order
    tally: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        check_type(WARM_UP, 1, options.limit * 10, Path(folder))  # imports what all need
        for kind in kinds[options.first :]:
            if sum(n for status, n in tally.items() if status != "skipped") >= options.count:
                break
            start_s = time.process_time()
            result = check_type(kind, options.layers, options.limit, Path(folder))
            tally[result.status] = tally.get(result.status, 0) + 1
            print(*result, f"{time.process_time() - start_s:.0f}s", sep="\t", flush=True)
    print(json.dumps(tally))


if __name__ == "__main__":
    main()
    sys.exit(0)
