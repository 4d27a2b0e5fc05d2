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
    changed_steps: list[StepOptions] = []
    if is_training:
        changed_steps += _list_changed_trainings(base_model, step)
    if can_recompute:
        changed_steps += _list_lighter_steps(base_model, step)
    candidates = [(changed_step, batch) for changed_step in changed_steps]
    if largest_batch > 0:
        candidates.insert(0, (step, largest_batch))
    commands = []
    for candidate_step, candidate_batch in candidates:
        candidate_model = candidate_step.build_model(name, candidate_batch, device)
        if candidate_model.needs().fit(device):
            commands.append(format_fit_command(name, device.name, candidate_step, candidate_batch))
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
    tuning = base_model.workload.tuning
    can_chunk_loss = _can_chunk_loss(base_model, step)
    recomputing_step = replace(step, recompute="full")
    # In the order of what a change costs in time and accuracy.
    changed_steps: list[StepOptions] = []
    if can_chunk_loss:
        changed_steps.append(replace(step, stack=CHUNKED_LOSS_STACK))
    if tuning.has_adapter and not tuning.weights:
        changed_steps.append(replace(step, weights=FROZEN_WEIGHTS))
    if step.recompute is None:
        changed_steps.append(recomputing_step)
    if tuning == FULL_TRAINING:
        lora_step = replace(step, dtype="bfloat16", lora="r=16")
        recomputing_lora_step = replace(lora_step, recompute="full")
        # QLoRA: an adapter beside frozen weights in 4 bits.
        qlora_step = replace(recomputing_lora_step, weights=step.weights or FROZEN_WEIGHTS)
        changed_steps += [lora_step, recomputing_lora_step, qlora_step]
        changed_steps += _list_lightest_step(base_model, qlora_step, can_chunk_loss)
    elif tuning.has_adapter:
        qlora_step = replace(recomputing_step, weights=tuning.weights or FROZEN_WEIGHTS)
        if not tuning.weights:
            changed_steps.append(qlora_step)
        changed_steps += _list_lightest_step(base_model, qlora_step, can_chunk_loss)
    if step.offload is None:
        changed_steps.append(replace(recomputing_step, offload="optimizer"))
    return changed_steps


def _can_chunk_loss(base_model: StepModel, step: StepOptions) -> bool:
    """Return whether another stack may compute the loss in chunks, without whole logits."""
    has_stack_setting = any(text.startswith("stack=") for text in setting_texts(step.options))
    is_stack_free = step.stack is None and not has_stack_setting
    can_run_stacks = base_model.device.kind == "gpu" and "stack" in base_model.method.options
    return is_stack_free and can_run_stacks


def _list_lightest_step(
    base_model: StepModel, qlora_step: StepOptions, can_chunk_loss: bool
) -> list[StepOptions]:
    """Return QLoRA with an optimizer of 8 bits and a chunked loss, [] where neither can be."""
    lightest_step = qlora_step
    has_state_modes = bool(base_model.workload.tuning.states)  # 8 bits, or offloaded
    if not has_state_modes:
        optimizer = LOW_STATE_OPTIMIZERS.get(base_model.workload.optimizer, qlora_step.optimizer)
        lightest_step = replace(lightest_step, optimizer=optimizer)
    if can_chunk_loss:
        lightest_step = replace(lightest_step, stack=CHUNKED_LOSS_STACK)
    is_listed = lightest_step == qlora_step  # QLoRA itself is a change of its own
    return [] if is_listed else [lightest_step]


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
        global_batch = device_count * batch
        request = Request(
            name,
            Site(device, inside=inside),
            global_batch=global_batch,
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
            plan_options: dict[str, object] = {
                "device": device.name,
                "inside": inside,
                "global_batch": global_batch,
                "dtype": step.dtype,
                **split,
                **{key: getattr(step, key) for key in PLAN_OPTIONS},
                "option": setting_texts(settings),
            }
            return [shlex.join(["steptime", "plan", name, *options.words_of(plan_options)])]
    return []


def format_fit_command(model: str, device: str, step: StepOptions, batch: int) -> str:
    """Format a command: `steptime fit resnet50 --device t4 --batch 64 --dtype float16`."""
    changed = changed_settings(step, StepOptions())
    changed["option"] = setting_texts(changed.pop("options", None))
    words = options.words_of({"device": device, "batch": batch, **changed, **step.words()})
    return shlex.join(["steptime", "fit", model, *words])
