"""Training on many replicas: what more devices bring, and what they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Unpack

import msgspec

from steptime.build import tokens_per_example
from steptime.core.errors import InputError, check_choice
from steptime.core.signatures.kinds import Kind, text_of
from steptime.core.values import (
    Count,
    Price,
    parse_count,
    parse_counts,
    parse_duration,
    parse_number,
    parse_price,
)
from steptime.grids.replicas import (
    SCALINGS,
    ScalingRow,
    Sync,
    data_parallel,
    list_unprofitable_counts,
)
from steptime.hardware.catalog import PAPER_METHOD
from steptime.hardware.prices import BILLINGS, Training, bill_training
from steptime.paleo.model_parallel import hybrid, model_parallel
from steptime.paleo.placement import layer_rows
from steptime.planning.ranks.site import default_site
from steptime.prediction import DEFAULT
from steptime.prediction.assumed import assumed_of
from steptime.prediction.fabric import Fabric
from steptime.prediction.steps.step_model import StepModel
from steptime.questions import kinds
from steptime.questions.options import refuse, set_reading, single_device, workload_of
from steptime.questions.scale.answer import LayerTime, ScaleAnswer, ScaleRow
from steptime.questions.scale.notes import list_facts, list_notes
from steptime.questions.scale.replica_options import (
    Assumed,
    FilledNode,
    ReplicaKeywords,
    ReplicaOptions,
)
from steptime.questions.training import tokens_per_s, training_fields, training_of_tokens

PARALLEL = ("data", "model", "hybrid")
MAX_ROWS = 100_000
DEFAULT_REPLICAS = "1,2,4,8,16,32,64,128"
DEFAULT_EPOCHS = 1.0


@dataclass(frozen=True)
class _ScaleRequest:
    """A question about replicas.

    Args:
        model: the network on the device, with the fabric of the replicas.
        parallel: `data`, `model` or `hybrid`.
        scaling: `weak` or `strong`.
        sync: how gradients are exchanged.
        training: the training to pay for; None without examples.
        currency: the currency of the price; None where it names none.
        node_settings: how replicas are taken to be joined, by option.
    """

    model: StepModel
    parallel: str
    scaling: str
    sync: Sync
    training: Training | None
    currency: str | None
    node_settings: Assumed


def scale(
    model: kinds.Model,
    device: kinds.Device,
    link: kinds.Link | None = None,
    batch: kinds.Batch | None = None,
    replicas: kinds.Counts | None = None,
    scaling: Annotated[str, Kind("NAME", choices=SCALINGS)] = "weak",
    parallel: Annotated[str, Kind("NAME", choices=PARALLEL)] = "data",
    collective: kinds.Name | None = None,
    overlap: bool = False,
    compression: Annotated[float | str, Kind("F")] = 1.0,
    latency_us: Annotated[float | str, Kind("T")] | None = None,
    examples: kinds.Count | None = None,
    epochs: Annotated[float | str, Kind("E")] | None = None,
    price: kinds.Price | None = None,
    billing: Annotated[str, Kind("NAME", choices=BILLINGS)] | None = None,
    dtype: kinds.Dtype | None = None,
    optimizer: kinds.Optimizer | None = None,
    method: kinds.MethodName = DEFAULT,
    options: kinds.MethodSettings | None = None,
    allow_unknown: bool = False,
    strict: bool = False,
    batch_axis: kinds.Axis | None = None,
    length: kinds.Length | None = None,
    global_batch: kinds.Batch | None = None,
    tokens: kinds.Count | None = None,
    **replica_options: Unpack[ReplicaKeywords],
) -> ScaleAnswer:
    """Predict training on many replicas: time, speed-up and cost.

    A step takes forward + backward + update + the all-reduce of gradients - what overlaps.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME).
        device: A name of steptime list devices, FILE.toml, or local (this machine, calibrated).
        link: The link between replicas (steptime list links), or FILE.toml; needed for more than
            one.
        batch: Examples of a replica, in weak scaling. Default: 64; for transformers 1; for a file
            what it states.
        global_batch: Examples of all replicas, in strong scaling. Default: the value of --batch.
        replicas: Numbers of replicas: 1,2,4 or 1,2,4,...,128 or 1..128 x2. Default: 1,2,4,...,128;
            with --parallel model or hybrid the number into which the file splits its layers.
        scaling: `weak`: each replica keeps its batch. `strong`: the replicas divide the global
            batch.
        parallel: data; for files with split layers also model, or hybrid (split layers model
            parallel, the others data parallel).
        collective: How gradients are added up: one-to-all, tree, butterfly, butterfly-mixing, ring,
            halving-doubling, hierarchical or parameter-server. Default: ring; with --method paleo
            tree.
        overlap: All-reduce gradients in buckets during the backward pass (not with --method paleo).
        compression: Factor by which gradients are compressed.
        latency_us: Latency of a message over the link (not with --method paleo).
        examples: Examples of an epoch: shows time and cost.
        epochs: Epochs of a training. Default: 1.
        tokens: Tokens of a training of a language model, in place of examples and epochs.
        price: Price of a device for an hour.
        billing: Smallest time that is paid: `second`, or `hour` (every started one). Default:
            `second`.
        dtype: `float32`, `float64`, `bfloat16` or `float16`; `bfloat16-mixed` or `float16-mixed`
            with weights in `float32`. Default: `bfloat16-mixed` for sequence models
            (`float16-mixed` on a device without `bfloat16`), `float32` for others and on a CPU.
        optimizer: `sgd`, `momentum`, `rmsprop`, `adam`, `adamw`, `lion`, `lamb`, `adafactor` or
            `muon`. `adam`, `adamw` and `lion` also with a state in 8 bits (`adam8bit`), or moved to
            the host if the device is full (`paged_adam`, `paged_adam8bit`). Default: `adam` for
            sequence models, `sgd` for others.
        method: The cost model: how kernels are priced (steptime list methods).
        options: A setting of the cost model; may be repeated.
        allow_unknown: Accept layers of unknown type in a network's file: they pass their input on
            and count as no work.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.
        length: Tokens of a sequence. Default: the model's.
        **replica_options: How replicas are joined, and how a step is executed: `ReplicaOptions`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    typed_options = ReplicaOptions.from_keywords(replica_options, scale)
    check_choice("--scaling", scaling, SCALINGS)
    check_choice("--parallel", parallel, PARALLEL)
    training = _read_training(examples, epochs, tokens, price, billing)
    workload = workload_of(
        set_reading(model, strict, batch_axis),
        _read_batch(batch, global_batch, scaling),
        dtype,
        "train",
        optimizer,
        allow_unknown,
        length=None if length is None else parse_count(text_of(length), "--length"),
    )
    # Only now that the network is known do the tokens of a training become examples.
    if training is not None and tokens is not None:
        counted_training = training_of_tokens(tokens, workload, "--examples N")
        training = replace(counted_training, price=training.price, billing=training.billing)
    message_us = None if latency_us is None else parse_duration(latency_us, "--latency-us", "us")
    if parallel == "model":
        refuse(
            typed_options.joining_options(),
            "--parallel model all-reduces no gradients: leave out {}",
        )
    card = single_device(text_of(device))
    # Replicas are taken to stand in the maker's nodes, which Paleo's paper does not know.
    uses_maker_node = parallel == "data" and text_of(method) != PAPER_METHOD
    node = typed_options.fill_node(link, default_site(card) if uses_maker_node else {})
    fabric = _join_replicas(node, message_us)
    step_model = StepModel(
        workload,
        card,
        fabric,
        method,
        node.options.method_options(options),
        assumes=True,  # without --stack, the usual one of the device
    )
    if message_us is not None and not step_model.method.latency:
        raise InputError(f"--latency-us: method {step_model.method.name} knows no latency")
    compression_factor = parse_number(compression, "--compression", at_least=1.0)
    sync = Sync(collective, compression_factor, overlap)
    counts = _read_replicas(replicas, parallel)
    currency = "USD" if str(price).strip().startswith("$") else None
    has_replicas = counts is not None and max(counts) > 1  # one replica uses no link
    request = _ScaleRequest(
        model=step_model,
        parallel=parallel,
        scaling=scaling,
        sync=sync,
        training=training,
        currency=currency,
        node_settings=node.assumed if has_replicas else {},
    )
    return _describe(request, _predict_rows(request, counts))


def _join_replicas(node: FilledNode, message_us: float | None) -> Fabric | None:
    """Return the fabric of the replicas, None where no link is named or assumed.

    Raises:
        InputError: for options of a fabric without a link.
    """
    if node.link is not None:
        return node.options.fabric(text_of(node.link), message_us)
    joining_options = {**node.options.joining_options(), "--latency-us": message_us}
    refuse(joining_options, "{} needs --link LINK")
    return None


def _read_batch(
    batch: str | int | None, global_batch: str | int | None, scaling: str
) -> str | int | None:
    """Return the examples that are scaled: a replica's, in strong scaling those of all replicas.

    Raises:
        InputError: for the number of the other scaling.
    """
    if scaling == "strong":
        refuse({"--batch": batch}, "{} is one replica's; --scaling strong shares --global-batch N")
        if global_batch is None:
            return None
        return parse_count(global_batch, "--global-batch")  # an error names this option
    refuse({"--global-batch": global_batch}, "{} goes with --scaling strong; nearest: --batch N")
    batch_text: str | None = text_of(batch)
    return batch_text  # still a text: `workload_of` parses it as --batch


def _read_training(
    examples: Count | None,
    epochs: float | str | None,
    tokens: Count | None,
    price: Price | None,
    billing: str | None,
) -> Training | None:
    """Return the training that the options say, None without examples and tokens.

    That of tokens has no examples yet: their number depends on the network.

    Raises:
        InputError: for options that do not go together.
    """
    if billing is not None:
        check_choice("--billing", billing, BILLINGS)
    if price is None:
        refuse({"--billing": billing}, "{} needs --price P")
    if tokens is not None:
        refuse({"--examples": examples, "--epochs": epochs}, "{} and --tokens: give one")
    elif examples is None:
        refuse({"--epochs": epochs}, "{} needs --examples N, the examples of an epoch")
        refuse({"--price": price}, "{} needs --examples N or --tokens N, those of a training")
        return None
    return Training(
        # Without --examples there are --tokens, which the caller turns into examples.
        examples=0 if examples is None else parse_count(text_of(examples), "--examples"),
        epochs=DEFAULT_EPOCHS if epochs is None else parse_number(epochs, "--epochs"),
        price=None if price is None else parse_price(price, "--price"),
        billing=billing or BILLINGS[0],
    )


def _read_replicas(replicas: Any, parallel: str) -> list[int] | None:
    """Return the sorted numbers of replicas, None for the splits of a file."""
    if replicas is None and parallel != "data":
        return None
    counts = parse_counts(DEFAULT_REPLICAS if replicas is None else text_of(replicas), "--replicas")
    if len(counts) > MAX_ROWS:
        raise InputError(f"--replicas: {len(counts)} numbers of replicas, at most {MAX_ROWS}")
    return sorted(counts)


def _predict_rows(
    request: _ScaleRequest, replica_counts: Sequence[int] | None
) -> Sequence[ScalingRow]:
    """Return the step of each number of replicas; raises `InputError`."""
    model, sync = request.model, request.sync
    batch = model.workload.batch_per_replica
    # Refuses an unknown collective before any row is computed.
    model.collective(sync.collective)
    if request.parallel == "data":
        return data_parallel(model, replica_counts or (), batch, request.scaling, sync)
    if replica_counts is not None and len(replica_counts) > 1:
        splits = f"--parallel {request.parallel} has one number, the file's splits"
        raise InputError(f"--replicas: {splits}")
    replica_count = None if replica_counts is None else replica_counts[0]
    if request.parallel == "hybrid":
        return [hybrid(model, batch, replica_count, request.scaling, sync)]
    if request.scaling == "strong" or sync != Sync():
        raise InputError(
            "--parallel model all-reduces no gradients and shares no batch: leave out --scaling, "
            "--collective, --overlap and --compression"
        )
    return [model_parallel(model, batch, replica_count)]


def _describe(request: _ScaleRequest, rows: Sequence[ScalingRow]) -> ScaleAnswer:
    """Return the answer of predicted rows."""
    model, training, fabric = request.model, request.training, request.model.fabric
    workload, collective = model.workload, model.collective(request.sync.collective)
    ops = [] if request.parallel == "data" else layer_rows(model, rows[0].batch, request.parallel)
    length = tokens_per_example(workload)
    unpaid_replicas = list_unprofitable_counts((row.replicas, row.examples_per_s) for row in rows)
    return ScaleAnswer(
        model=workload.label,
        device=model.device.name,
        link=None if fabric is None else fabric.between.name,
        latency_s=None if fabric is None else fabric.between.latency_s,
        inside=None if fabric is None else getattr(fabric.inside, "name", None),
        per_node=None if fabric is None else fabric.per_node,
        links_per_node=None if fabric is None else fabric.links_per_node,
        servers=None if fabric is None else fabric.servers,
        method=model.method.name,
        options=dict(model.options),
        assumed=assumed_of(model) | request.node_settings,
        batch=None if request.scaling == "strong" else workload.batch_per_replica,
        global_batch=workload.batch_per_replica if request.scaling == "strong" else None,
        dtype=workload.dtype,
        optimizer=workload.optimizer,
        scaling=request.scaling,
        parallel=request.parallel,
        collective=collective,
        overlap=request.sync.overlap,
        compression=request.sync.compression,
        parameters=model.parameters,
        gradient_bytes=model.gradient_bytes,
        **training_fields(training),
        cost_per_hour=None if training is None else training.price,
        currency=request.currency,
        billing=None if training is None else training.billing,
        stops_paying=min(unpaid_replicas, default=None),
        rows=tuple(_make_row(row, collective, training, length) for row in rows),
        ops=tuple(LayerTime(**op) for op in ops),
        unmodelled=tuple(model.graph(workload.batch_per_replica).unmodelled),
        headline=tuple(list_facts(unpaid_replicas, rows[-1].replicas, training)),
        notes=tuple(list_notes(model, request.parallel, request.sync, rows)),
    )


def _make_row(
    row: ScalingRow, collective: str, training: Training | None, length: int | None
) -> ScaleRow:
    """Return the row of a number of replicas, with the cost of the training.

    Args:
        row: the predicted step.
        collective: the collective that adds up the gradients.
        training: the training to pay for; None without one.
        length: tokens of an example; None of a network that reads none.
    """
    seconds_by_collective = {
        name: float(exchange_s) for name, exchange_s in row.communication_s.items()
    }
    values: dict[str, object] = {
        **_plain_numbers(asdict(row)),
        **_plain_numbers(row.parts),  # further ones of model and hybrid parallelism
        # Of the row's seconds by collective, those of the chosen one.
        "communication_s": seconds_by_collective.get(collective, 0.0),
        "collectives": [
            {"collective": name, "communication_s": exchange_s}
            for name, exchange_s in seconds_by_collective.items()
        ],
        "notes": [row.note] if row.note else [],
        "tokens_per_s": tokens_per_s(length, float(row.examples_per_s)),
    }
    if training is not None:
        bill = bill_training(training, row.step_s, row.global_batch, row.replicas)
        values |= _plain_numbers(asdict(bill))
        if training.tokens is not None:
            # A training that is said in tokens has no epochs.
            values["epoch_s"] = None
    return msgspec.convert(values, ScaleRow)


def _plain_numbers(values: Mapping[str, object]) -> dict[str, object]:
    """Return values with numbers of numpy as Python's, those of tables inside too."""
    plain: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            plain[name] = _plain_numbers(value)
        else:
            # The float64 of numpy is a float too.
            plain[name] = float(value) if isinstance(value, float) else value
    return plain
