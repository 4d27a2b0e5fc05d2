"""Commands of changed steps that fit a device on which the step that was asked for does not."""

import shlex
from dataclasses import replace
from typing import Any

from steptime.core.errors import InputError
from steptime.core.signatures.kinds import setting_texts
from steptime.core.workload import FULL_TRAINING, changed_settings
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.hardware.prices import cheapest, read_offers
from steptime.network.recompute import find_repeated_ops
from steptime.planning.answer import fits, time_request
from steptime.planning.ranks.site import Site, find_node_link
from steptime.planning.request import Request
from steptime.prediction.steps.states import host_link
from steptime.prediction.steps.step_model import StepModel
from steptime.questions import options
from steptime.questions.fit.memory_savings import FROZEN_WEIGHTS
from steptime.questions.step_options import StepOptions

CARD_COUNTS_OF_NODE = (2, 4, 8)  # over which weights may be sharded
CHUNKED_LOSS_STACK = "axolotl-2025"
LOW_STATE_OPTIMIZERS = {"adam": "adam8bit", "adamw": "adamw8bit", "lion": "lion8bit"}
PLAN_OPTIONS = (
    "length",
    "lora",
    "adapter",
    "modules_to_save",
    "weights",
    "train",
    "packed",
    "padded",
)


def list_fitting_commands(
    base_model: StepModel, step: StepOptions, model: Any, largest_batch: int
) -> list[str]:
    """Return commands of changed steps that fit; each changes as few options as possible.

    The changes come in the order of what they cost: a smaller batch, fewer bits, states of 8 bits,
    a loss without whole logits, frozen weights in 4 bits where there is an adapter, recompute,
    else LoRA and LoRA beside weights of 4 bits, all of that together, states on the host, weights
    sharded over several such cards, and the cheapest card with a price.

    Args:
        base_model: the step that does not fit.
        step: its options.
        model: the network, as the user wrote it or as a workload.
        largest_batch: largest batch of `base_model` that fits, 0 if none does.
    """
    workload, device = base_model.workload, base_model.device
    batch = workload.batch_per_replica
    name = model if isinstance(model, str) else workload.label
    graph = base_model.graph()
    is_training = step.phase == "train"
    is_sequence_training = is_training and graph.tokens is not None
    # Recompute needs layers of which some ops can run again instead of keeping their outputs;
    # `to_end=False` counts only ops whose outputs a gradient reads.
    can_recompute = is_sequence_training and bool(find_repeated_ops(graph, to_end=False))
    # Options and batch of each candidate, in the order of what they cost.
    candidates = [(step, largest_batch)] if largest_batch > 0 else []
    if is_training:
        candidates += [
            (changed_step, batch) for changed_step in _list_changed_trainings(base_model, step)
        ]
    if can_recompute:
        candidates += [
            (changed_step, batch) for changed_step in _list_lighter_steps(base_model, step)
        ]
    commands = []
    for changed_step, changed_batch in candidates:
        model_of_candidate = changed_step.build_model(name, changed_batch, device)
        if model_of_candidate.needs().fit(device):
            commands.append(format_fit_command(name, device.name, changed_step, changed_batch))
    if can_recompute:
        commands += _list_sharded_commands(name, base_model, step)
    card = _find_cheapest_card(base_model)
    if card is not None:
        commands.append(format_fit_command(name, card.name, step, batch))
    return commands


def _list_changed_trainings(base_model: StepModel, step: StepOptions) -> list[StepOptions]:
    """Return trainings that need less memory and compute the same step."""
    workload = base_model.workload
    changed_steps = []
    if workload.dtype == "float32":
        changed_steps.append(replace(step, dtype="bfloat16-mixed"))
    # `states`: a type of the optimizer's states that the user chose already.
    if workload.optimizer in LOW_STATE_OPTIMIZERS and not workload.tuning.states:
        changed_steps.append(replace(step, optimizer=LOW_STATE_OPTIMIZERS[workload.optimizer]))
    return changed_steps


def _list_lighter_steps(base_model: StepModel, step: StepOptions) -> list[StepOptions]:
    """Return steps of a sequence model that need less memory, the least costly first."""
    recomputing_step = replace(step, recompute="full")
    chunked_loss_step = _with_stack(step, CHUNKED_LOSS_STACK)
    has_chunked_kernels = base_model.device.kind == "gpu" and "stack" in base_model.method.options
    # `_with_stack` returns the step itself if the user chose a stack.
    has_stack_option = chunked_loss_step is step
    can_chunk = has_chunked_kernels and not has_stack_option
    tuning = base_model.workload.tuning
    # A full training may become LoRA; one with an adapter may keep its frozen weights in 4 bits.
    trains_all = tuning == FULL_TRAINING
    can_quantise = tuning.has_adapter and not tuning.weights
    if tuning.has_adapter:
        # It has an adapter of its own: recompute and 4 bits are what is left to add.
        adapter_step = replace(recomputing_step, weights=tuning.weights or FROZEN_WEIGHTS)
    else:
        adapter_step = replace(recomputing_step, dtype="bfloat16", lora="r=16")
    changed_steps: list[StepOptions] = []
    if can_chunk:
        changed_steps.append(chunked_loss_step)
    if can_quantise:
        changed_steps.append(replace(step, weights=FROZEN_WEIGHTS))
    if step.recompute is None:
        changed_steps.append(recomputing_step)
    if trains_all:
        changed_steps += [replace(adapter_step, recompute=step.recompute), adapter_step]
    # QLoRA: an adapter beside frozen weights in 4 bits.
    if trains_all or can_quantise:
        changed_steps.append(replace(adapter_step, weights=adapter_step.weights or FROZEN_WEIGHTS))
    if trains_all or tuning.has_adapter:
        changed_steps += _list_lightest_step(base_model, adapter_step, can_chunk=can_chunk)
    if step.offload is None:
        changed_steps.append(replace(recomputing_step, offload="optimizer"))
    return changed_steps


def _list_lightest_step(
    base_model: StepModel, adapter_step: StepOptions, *, can_chunk: bool
) -> list[StepOptions]:
    """Return the step with frozen weights in 4 bits and all that helps, [] where it is there."""
    tuning = base_model.workload.tuning
    low_state_optimizer = (
        None if tuning.states else LOW_STATE_OPTIMIZERS.get(base_model.workload.optimizer)
    )
    if not (can_chunk or low_state_optimizer):
        # Without either of them the step with 4 bits, listed before, is the lightest.
        return []
    lightest_step = replace(adapter_step, weights=adapter_step.weights or FROZEN_WEIGHTS)
    if low_state_optimizer:
        lightest_step = replace(lightest_step, optimizer=low_state_optimizer)
    return [_with_stack(lightest_step, CHUNKED_LOSS_STACK) if can_chunk else lightest_step]


def _with_stack(step: StepOptions, stack: str) -> StepOptions:
    """Return a step under a stack; one whose options name a stack stays as it is."""
    has_stack_option = any(text.startswith("stack=") for text in setting_texts(step.options))
    if step.stack is not None or has_stack_option:
        return step
    return replace(step, stack=stack)


def _find_cheapest_card(base_model: StepModel) -> Device | None:
    """Return the card with the lowest price in USD that runs a step, None without any."""
    offers_usd = cheapest(offer for offer in read_offers() if offer.currency == "USD")
    for offer in sorted(offers_usd.values(), key=lambda offer: offer.price):
        card = catalog.device(offer.device)
        if card.datasheet.usable_bytes is not None and _runs_on(base_model, card):
            return card
    return None


def _runs_on(base_model: StepModel, card: Device) -> bool:
    """Return whether a step fits another card that has all that its options ask for."""
    model = base_model.with_device(card)
    try:
        _ = model.effective_device  # raises for a card without TF32 under --tf32 on
    except InputError:
        return False
    return bool(model.needs().fit(card))


def _list_sharded_commands(name: str, base_model: StepModel, step: StepOptions) -> list[str]:
    """Return the command of the fewest such cards that hold the step with sharded weights."""
    device = base_model.device
    batch = base_model.workload.batch_per_replica
    # Cards without a link of their own reach each other through the host.
    inside = None if find_node_link(device) else host_link(device)
    settings = step.method_options(step.options)
    # The smallest number of cards of a node that fits is enough.
    for device_count in CARD_COUNTS_OF_NODE:
        split = {"data": device_count, "zero": 3, "recompute": "full"}
        site = Site(device, inside=inside)
        request = Request(
            name,
            site,
            global_batch=device_count * batch,
            microbatch=batch,
            length=step.sequence_length,
            dtype=step.dtype,
            split=split,
            options=settings,
            # The split says what is recomputed.
            tuning=replace(step.tuning, recompute="none"),
        )
        try:
            problem, plan_time = time_request(request)
        except InputError:
            # `plan` does not take the network or an option: no number of devices changes that.
            return []
        if fits(problem, plan_time):
            option_values: dict[str, object] = {"device": device.name, "inside": inside}
            option_values |= {"global_batch": device_count * batch, "dtype": step.dtype, **split}
            option_values |= {key: getattr(step, key) for key in PLAN_OPTIONS}
            option_values["option"] = setting_texts(settings)
            return [shlex.join(["steptime", "plan", name, *options.words_of(option_values)])]
    return []


def format_fit_command(model: str, device: str, step: StepOptions, batch: int) -> str:
    """Format a command: `steptime fit resnet50 --device t4 --batch 64 --dtype float16`."""
    changed = changed_settings(step, StepOptions())
    changed["option"] = setting_texts(changed.pop("options", None))
    words = options.words_of({"device": device, "batch": batch, **changed, **step.words()})
    return shlex.join(["steptime", "fit", model, *words])
