"""The command `scale`: what more devices bring, and what they cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from steptime.core.errors import InputError
from steptime.core.question import (
    Text,
    choice,
    flag,
    named,
    number,
    optional,
    price_option,
    question,
    time_option,
    whole,
)
from steptime.core.table import Answer, picked
from steptime.core.values import parse_counts
from steptime.grids.replicas import SCALINGS, ScalingRow, Sync, data_parallel, unpaid
from steptime.hardware import catalog
from steptime.hardware.prices import BILLINGS, Training, bill_training
from steptime.paleo.model_parallel import hybrid, model_parallel
from steptime.paleo.placement import layer_rows
from steptime.prediction import DEFAULT
from steptime.prediction.assumed import assumed_of
from steptime.prediction.collectives import Fabric
from steptime.prediction.step_model import StepModel
from steptime.questions import options
from steptime.questions.scaling_table import notes_on, table
from steptime.questions.step_options import ExecutionOptions

PARALLEL = ("data", "model", "hybrid")
MOST_ROWS = 100_000
DEFAULT_REPLICAS = "1,2,4,8,16,32,64,128"


@dataclass(frozen=True)
class JoinOptions:
    """The options that say how replicas are joined, by the fields of `Fabric`."""

    per_node: int | None = whole(
        "N", "Devices of a node, for hierarchical, --inside or --links-per-node. Default 8."
    )
    inside: Text = optional(
        "LINK", "What joins the devices of a node. Default: every replica is alone on its link."
    )
    links_per_node: int | None = whole("N", "Links of a node that its devices share. Default 1.")
    servers: int | None = whole("K", "Parameter servers. Default 1.")


@question()
def scale(
    model: options.Model,
    device: options.Device,
    link: Text = optional(
        "LINK",
        "What joins the replicas (steptime list links) or FILE.toml; needed by more than one.",
    ),
    batch: Text = optional(
        "N",
        "Batch size: of each replica in weak scaling, of all in strong scaling. "
        "Default: 64, transformers 1, a file's own.",
    ),
    replicas: Text = optional(
        "N,...",
        "Numbers of replicas: 1,2,4 or 1,2,4,...,128 or 1..128 x2. Default: 1,2,4,...,128; "
        "with --parallel model or hybrid the splits of the file.",
    ),
    scaling: str = choice(
        SCALINGS, "weak: a replica keeps its batch. strong: they share the batch.", default="weak"
    ),
    parallel: str = choice(
        PARALLEL,
        "data; for files with split layers also model, or hybrid (split layers model "
        "parallel, the others data parallel).",
        default="data",
    ),
    collective: Text = optional(
        "NAME",
        "How gradients are added up: one-to-all, tree, butterfly, butterfly-mixing, ring, "
        "halving-doubling, hierarchical or parameter-server. Default: ring, of paleo tree.",
    ),
    overlap: bool = flag("All-reduce gradients in buckets during the backward pass (not paleo)."),
    compression: float = number("F", "Gradients are compressed F times.", 1.0, at_least=1.0),
    latency_us: float | None = time_option(
        "T", "Latency of a message over the link (not paleo).", unit="us"
    ),
    examples: int | None = whole("N", "Examples of an epoch: shows time and cost."),
    epochs: float | None = number("E", "Epochs of a training. Default 1."),
    price: float | None = price_option("P", "Price of a device for an hour."),
    billing: Text = choice(BILLINGS, "What is paid: every second (default), or started hour."),
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
    allow_unknown: options.AllowUnknown = False,
    length: options.Length = None,
    *,
    shape: JoinOptions,
    execution: ExecutionOptions,
) -> Answer:
    """Predict training on many replicas: time, speed-up and cost.

    A step takes forward + backward + update + the all-reduce of gradients - what overlaps.
    """
    training = _training(examples, epochs, price, billing)
    workload = options.workload_of(
        model, batch, dtype, "train", optimizer, allow_unknown, length=length
    )
    told = {named(name): one for name, one in vars(shape).items()}
    if parallel == "model":
        options.refuse(told, "--parallel model all-reduces no gradients: leave out {}")
    if link is None:
        options.refuse({**told, "--latency-us": latency_us}, "{} needs --link LINK")
    fabric = None if link is None else _fabric(link, latency_us, options.given(shape))
    given = execution.method_options(option_)
    found = StepModel(workload, options.one_device(device), fabric, method, given, assumes=True)
    if latency_us is not None and not found.method.latency:
        raise InputError(f"--latency-us: method {found.method.name} knows no latency")
    how = Sync(collective, compression, overlap)
    counts = None
    if replicas is not None or parallel == "data":
        counts = sorted(
            parse_counts(DEFAULT_REPLICAS if replicas is None else replicas, "--replicas")
        )
        if len(counts) > MOST_ROWS:
            raise InputError(f"--replicas: {len(counts)} numbers of replicas, at most {MOST_ROWS}")
    rows = _rows(found, parallel, counts, scaling, how)
    joined: dict[str, Any] = {"link": None}
    if (seen := found.fabric) is not None:  # as the method sees it
        joined = {"link": seen.between.name, "latency_s": seen.between.latency_s}
        joined |= {"inside": getattr(seen.inside, "name", None)}
        joined |= picked(seen, "per_node links_per_node servers")
    document: dict[str, Any] = {
        "model": workload.label,
        "device": found.device.name,
        **joined,
        "method": method,
        "options": found.options,
        "assumed": assumed_of(found),
        "batch": workload.batch_per_replica,
        **picked(workload, "dtype optimizer"),
        "scaling": scaling,
        "parallel": parallel,
        "collective": found.collective(collective),
        "overlap": overlap,
        "compression": how.compression,
        **picked(found, "parameters gradient_bytes"),
        "training": None if training is None else asdict(training),
        "rows": [_row(row, training) for row in rows],
        "stops_paying": min(unpaid((r.replicas, r.examples_per_s) for r in rows), default=None),
        "notes": notes_on(found, parallel, rows, how),
        "unmodelled": list(found.graph(workload.batch_per_replica).unmodelled),
    }
    if parallel != "data":
        document["ops"] = layer_rows(found, rows[0].batch, parallel)
    return Answer(document, [table(document)])


def _rows(
    model: StepModel, parallel: str, counts: Sequence[int] | None, scaling: str, how: Sync
) -> Sequence[ScalingRow]:
    batch = model.workload.batch_per_replica
    model.collective(how.collective)
    if parallel == "data":
        return data_parallel(model, counts or (), batch, scaling, how)
    if counts is not None and len(counts) > 1:
        raise InputError(f"--replicas: --parallel {parallel} has one number, the file's splits")
    one = None if counts is None else counts[0]
    if parallel == "hybrid":
        return [hybrid(model, batch, one, scaling, how)]
    if scaling == "strong" or how.overlap or how.compression != 1 or how.collective:
        raise InputError(
            "--parallel model all-reduces no gradients and shares no batch: leave out --scaling, "
            "--collective, --overlap and --compression"
        )
    return [model_parallel(model, batch, one)]


def _fabric(link: str, latency_us: float | None, shape: dict[str, Any]) -> Fabric:
    between = catalog.link(link, "--link")
    if latency_us is not None:
        between = replace(between, latency_s=latency_us * 1e-6)
    if "inside" in shape:
        shape["inside"] = catalog.link(shape["inside"], "--inside")
    return Fabric(between, **shape)


def _training(
    examples: int | None, epochs: float | None, price: float | None, billing: Text
) -> Training | None:
    if examples is None:
        given = {"--epochs": epochs, "--price": price}
        options.refuse(given, "{} needs --examples N, the examples of an epoch")
    if price is None:
        options.refuse({"--billing": billing}, "{} needs --price P")
    paid = billing or BILLINGS[0]
    return None if examples is None else Training(examples, epochs or 1.0, price, paid)


def _row(row: ScalingRow, training: Training | None) -> dict[str, Any]:
    table = asdict(row)
    table |= table.pop("parts")
    if training is not None:
        table |= asdict(bill_training(training, row.step_s, row.global_batch, row.replicas))
    return table
