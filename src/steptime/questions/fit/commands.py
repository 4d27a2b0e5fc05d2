"""Commands of changed steps that fit a device on which the step that was asked for does not."""

import shlex
from dataclasses import replace
from typing import Any

from steptime.core.errors import InputError
from steptime.core.kinds import setting_texts
from steptime.core.workload import FULL_TRAINING, changed_settings
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.hardware.prices import cheapest, offers
from steptime.network.recompute import find_repeated_ops
from steptime.planning.answer import fits, time_request
from steptime.planning.request import Request
from steptime.planning.site import Site, find_node_link
from steptime.prediction.states import host_link
from steptime.prediction.step_model import StepModel
from steptime.questions import options
from steptime.questions.fit.memory_savings import FROZEN_WEIGHTS
from steptime.questions.step_options import StepOptions

CARDS_OF_NODE = (2, 4, 8)  # over which weights may be sharded
CHUNKED_LOSS_STACK = "axolotl-2025"
LOW_STATES = {"adam": "adam8bit", "adamw": "adamw8bit", "lion": "lion8bit"}
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


def fitting_commands(
    base: StepModel, step: StepOptions, model: Any, largest_batch: int
) -> list[str]:
    """Return commands of changed steps that fit; each changes as few options as possible.

    The changes come in the order of what they cost: a smaller batch, fewer bits, states of 8 bits,
    a loss without whole logits, frozen weights in 4 bits where there is an adapter, recompute,
    else LoRA and LoRA beside weights of 4 bits, all of that together, states on the host, weights
    sharded over several such cards, and the cheapest card with a price.

    Args:
        base: the step that does not fit.
        step: its options.
        model: the network, as the user wrote it or as a workload.
        largest_batch: largest batch of `base` that fits, 0 if none does.
    """
    workload, device = base.workload, base.device
    batch = workload.batch_per_replica
    name = model if isinstance(model, str) else workload.label
    graph = base.graph()
    is_training = step.phase == "train"
    is_sequence_training = is_training and graph.tokens is not None
    can_recompute = is_sequence_training and bool(find_repeated_ops(graph, to_end=False))
    # Options and batch of each candidate, in the order of what they cost.
    candidates = [(step, largest_batch)] if largest_batch > 0 else []
    if is_training:
        candidates += [(changed_step, batch) for changed_step in _changed_trainings(base, step)]
    if can_recompute:
        candidates += [(changed_step, batch) for changed_step in _lighter_steps(base, step)]
    commands = []
    for changed_step, changed_batch in candidates:
        model_of_candidate = changed_step.on(name, changed_batch, device)
        if model_of_candidate.needs().fit(device):
            commands.append(_command(name, device.name, changed_step, changed_batch))
    if can_recompute:
        commands += _sharded_command(name, base, step)
    card = _cheapest_card(base)
    if card is not None:
        commands.append(_command(name, card.name, step, batch))
    return commands


def _changed_trainings(base: StepModel, step: StepOptions) -> list[StepOptions]:
    """Return trainings that need less memory and compute the same step."""
    workload = base.workload
    changes = []
    if workload.dtype == "float32":
        changes.append(replace(step, dtype="bfloat16-mixed"))
    if workload.optimizer in LOW_STATES and not workload.tuning.states:
        changes.append(replace(step, optimizer=LOW_STATES[workload.optimizer]))
    return changes


def _lighter_steps(base: StepModel, step: StepOptions) -> list[StepOptions]:
    """Return steps of a sequence model that need less memory, the least costly first."""
    recomputed = replace(step, recompute="full")
    light = replace(recomputed, dtype="bfloat16", lora="r=16")
    chunked = _with_stack(step, CHUNKED_LOSS_STACK)
    has_chunked_kernels = base.device.kind == "gpu" and "stack" in base.method.options
    is_chunked_already = chunked is step
    can_chunk = has_chunked_kernels and not is_chunked_already
    tuning = base.workload.tuning
    trains_all = tuning == FULL_TRAINING
    can_quantise = tuning.has_adapter and not tuning.weights
    changes: list[StepOptions] = []
    if can_chunk:
        changes.append(chunked)
    if can_quantise:
        changes.append(replace(step, weights=FROZEN_WEIGHTS))
    if step.recompute is None:
        changes.append(recomputed)
    if trains_all:
        changes += [replace(light, recompute=step.recompute), light]
    elif tuning.has_adapter:
        light = replace(recomputed, weights=tuning.weights or FROZEN_WEIGHTS)
    if trains_all or can_quantise:
        changes.append(replace(light, weights=light.weights or FROZEN_WEIGHTS))
    if trains_all or tuning.has_adapter:
        changes += _lightest_step(base, light, can_chunk=can_chunk)
    if step.offload is None:
        changes.append(replace(recomputed, offload="optimizer"))
    return changes


def _lightest_step(base: StepModel, light: StepOptions, *, can_chunk: bool) -> list[StepOptions]:
    """Return the step with frozen weights in 4 bits and all that helps, [] where it is there."""
    tuning = base.workload.tuning
    low_states = None if tuning.states else LOW_STATES.get(base.workload.optimizer)
    if not (can_chunk or low_states):
        return []
    lightest = replace(light, weights=light.weights or FROZEN_WEIGHTS)
    if low_states:
        lightest = replace(lightest, optimizer=low_states)
    return [_with_stack(lightest, CHUNKED_LOSS_STACK) if can_chunk else lightest]


def _with_stack(step: StepOptions, stack: str) -> StepOptions:
    """Return a step under a stack; one whose options name a stack stays as it is."""
    has_option = any(text.startswith("stack=") for text in setting_texts(step.options))
    if step.stack is not None or has_option:
        return step
    return replace(step, stack=stack)


def _cheapest_card(base: StepModel) -> Device | None:
    """Return the card with the lowest price in USD that runs a step, None without any."""
    offers_usd = cheapest(offer for offer in offers() if offer.currency == "USD")
    for offer in sorted(offers_usd.values(), key=lambda offer: offer.price):
        card = catalog.device(offer.device)
        if card.datasheet.usable_bytes is not None and _runs_on(base, card):
            return card
    return None


def _runs_on(base: StepModel, card: Device) -> bool:
    """Return whether a step fits another card that has all that its options ask for."""
    model = base.on(card)
    try:
        _ = model.effective_device  # raises for a card without TF32 under --tf32 on
    except InputError:
        return False
    return bool(model.needs().fit(card))


def _sharded_command(name: str, base: StepModel, step: StepOptions) -> list[str]:
    """Return the command of the fewest such cards that hold the step with sharded weights."""
    device = base.device
    batch = base.workload.batch_per_replica
    inside = None if find_node_link(device) else host_link(device)
    settings = step.method_options(step.options)
    for device_count in CARDS_OF_NODE:
        split = {"data": device_count, "zero": 3, "recompute": "full"}
        site = Site(device, inside=inside)
        request = Request(
            name,
            site,
            device_count * batch,
            batch,
            step.sequence_length,
            dtype=step.dtype,
            split=split,
            options=settings,
            tuning=replace(step.tuning, recompute="none"),
        )
        try:
            problem, plan_time = time_request(request)
        except InputError:
            return []
        if fits(problem, plan_time):
            words: dict[str, object] = {"device": device.name, "inside": inside}
            words |= {"global_batch": device_count * batch, "dtype": step.dtype, **split}
            words |= {key: getattr(step, key) for key in PLAN_OPTIONS}
            words["option"] = setting_texts(settings)
            return [shlex.join(["steptime", "plan", name, *options.words_of(words)])]
    return []


def _command(model: str, device: str, step: StepOptions, batch: int) -> str:
    changed = changed_settings(step, StepOptions())
    changed["option"] = setting_texts(changed.pop("options", None))
    words = options.words_of({"device": device, "batch": batch, **changed, **step.words()})
    return shlex.join(["steptime", "fit", model, *words])
