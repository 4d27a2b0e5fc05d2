"""Make a `Tuning` (adapter, quantised weights, states) from the options of a fine-tuning."""

import re
from dataclasses import replace
from typing import TypedDict

from steptime.core.adapters import ADAPTERS, FEW_BITS, AdapterRow
from steptime.core.dtypes import find_quantised_type
from steptime.core.errors import InputError, check_choice
from steptime.core.values import MAX_DROPOUT, parse_count, parse_number, parse_pairs
from steptime.core.workload import (
    DEQUANTISED_FORMATS,
    LORA,
    OFFLOADS,
    STATES,
    STORED_ALL,
    StateMode,
    Tuning,
)

NO_WEIGHTS = "none"  # `--weights none`: weights as they were before a file quantised them
GGUF_WORD = re.compile(r"(i?q|tq)\d")  # the beginning of a type of GGUF


class _AdapterFields(TypedDict, total=False):
    """The fields of a `Tuning` that `--adapter` or `--lora` says."""

    adapter: str
    rank: int
    on: str
    dropout: float
    tokens: int


class _WeightFields(TypedDict, total=False):
    """The fields of a `Tuning` that `--weights` says."""

    weights: str
    stored: str


def make_tuning(
    lora: str | None = None,
    weights: str | None = None,
    train: str | None = None,
    recompute: str | None = None,
    packed: object | None = None,
    padded: object | None = None,
    optimizer: str | None = None,
    offload: str | None = None,
    host_link: str | None = None,
    update_early: bool = False,
    adapter: str | None = None,
    modules_to_save: str | None = None,
    phase: str = "train",
) -> Tuning:
    """Return the fine-tuning of the texts of options.

    Args:
        lora: `r=16,on=linear,dropout=0.05`, or a rank alone.
        weights: the type of frozen weights, and in inference of all; `none` for the step's own.
        train: patterns of the names of weights that are trained, with commas.
        recompute: `none` or `full`.
        packed: tokens of the documents that sequences are packed from.
        padded: tokens of a sequence that are text.
        optimizer: the optimizer, whose name may say how its states are kept.
        offload: `none`, or `optimizer`: the host has its states.
        host_link: what joins a device to its host.
        update_early: gradients are applied as they are made.
        adapter: `dora,r=16,on=linear`: the name of an adapter and its settings.
        modules_to_save: `embedding,output`: modules that are trained whole beside an adapter.
        phase: train or infer.

    Raises:
        InputError: for values that the options do not take.
    """
    if recompute == "selective":
        raise InputError("--recompute selective: by plan alone; nearest: --recompute full")
    check_choice("offload", offload or "none", OFFLOADS)
    if offload in ("activations", "both"):
        raise InputError(f"--offload {offload}: by plan alone; nearest: --offload optimizer")
    # The name of an optimizer says whether its states have 8 bits or are paged (`adamw8bit`). The
    # options below add that they are offloaded, or that each weight is updated early.
    states = [*STATES.get(optimizer or "", ())]
    if offload == "optimizer":
        states.append(StateMode.OFFLOADED)
    if update_early:
        states.append(StateMode.EARLY)
    module_names = (modules_to_save or "").replace(",", "+").split("+")
    return Tuning(
        **_read_adapter(lora, adapter),
        **_read_weights(weights, phase),
        packed=0 if packed is None else parse_count(packed, "--packed"),
        padded=0 if padded is None else parse_count(padded, "--padded"),
        train=train or "",
        recompute=recompute or "none",
        states=tuple(states),
        host_link=host_link or "",
        saved="+".join(filter(None, module_names)),
    )


def _read_weights(weights: str | None, phase: str) -> _WeightFields:
    """Return the fields of `--weights`, none without it."""
    if not weights:
        return {}
    if weights == NO_WEIGHTS:
        # `state_weights` drops this mark, and with it the quantised weights of a network's file.
        return {"stored": NO_WEIGHTS}
    # Inference quantises all weights; a fine-tuning those that its adapter freezes ("").
    stored = STORED_ALL if phase == "infer" else ""
    return {"weights": read_format(str(weights), phase), "stored": stored}


def read_format(word: str, phase: str) -> str:
    """Return the format of weights that a word of any tool says, the word itself if unknown.

    Types of GGUF are formats of inference alone.
    """
    # Inference alone runs types of GGUF (`q4_k`): `Tuning` refuses the word as it is.
    if phase == "train" and GGUF_WORD.match(word.strip().lower()):
        return word
    return find_quantised_type(word, FEW_BITS) or word


def state_weights(
    tuning: Tuning,
    file_format: str,
    quantised_part: str,
    phase: str,
    place: str,
    alternatives: str = "--phase infer, --lora 16",
) -> Tuning:
    """Return a tuning with the quantised weights that the file of a network states.

    Inference and adapters use them as they are. A training of all weights has them wide, where
    libraries dequantise such a file to train it.

    Args:
        tuning: what the options say.
        file_format: of the weights; "" or another word where the file states none that a step uses.
        quantised_part: which weights the file keeps so (`stored` of `Tuning`).
        phase: train or infer.
        place: the network, as messages begin.
        alternatives: options with which a training of all weights is no longer one.

    Raises:
        InputError: for a training of whole-number weights, which have no gradient.
    """
    # The user asks for the weights as they were before the file quantised them.
    if tuning.stored == NO_WEIGHTS:
        return replace(tuning, stored="")
    # The format of `--weights` wins; a format without a row in the data changes nothing.
    user_states_other = tuning.weights and tuning.weights != file_format
    if file_format not in FEW_BITS or user_states_other:
        return tuning
    # Weights that are only read stay as the file has them.
    if phase == "infer" or tuning.has_frozen_weights:
        return replace(tuning, weights=file_format, stored=quantised_part)
    # Libraries widen weights of such a file to train them.
    if file_format in DEQUANTISED_FORMATS:
        return tuning
    nearest = f"nearest: {alternatives}, or --weights none, as before they were quantised"
    raise InputError(f"{place}: its weights are {file_format}, which have no gradient; {nearest}")


def _read_adapter(lora: str | None, adapter: str | None) -> _AdapterFields:
    """Return the fields of `--lora` or `--adapter`, none without them; raises `InputError`."""
    if lora is None and adapter is None:
        return {}
    if lora is not None and adapter is not None:
        raise InputError("--lora and --adapter: one of them; --adapter lora,r=16 is --lora r=16")
    if lora is not None:
        text = lora if "=" in lora else f"r={lora}"
        return _read_settings("--lora", LORA, text)
    name, _, text = (adapter or "").partition(",")
    check_choice("adapter", name, ADAPTERS, "--adapter")
    return _read_settings("--adapter", name, text)


def _read_settings(option: str, name: str, text: str) -> _AdapterFields:
    """Return the fields of an adapter's settings, `r=16,on=linear`; raises `InputError`."""
    row: AdapterRow = ADAPTERS[name]
    settings = parse_pairs(text.split(","), option) if text else {}
    for key in settings:
        check_choice("key", key, [*row.settings], option)
    texts = {key: str(value) for key, value in row.settings.items()} | settings
    fields: _AdapterFields = {"adapter": name}
    if "r" in texts:
        fields["rank"] = parse_count(texts["r"], f"{option} r")
    if "on" in texts:
        fields["on"] = texts["on"]
    if "dropout" in texts:
        fields["dropout"] = parse_number(texts["dropout"], f"{option} dropout", 0.0, MAX_DROPOUT)
    if "tokens" in texts:
        fields["tokens"] = parse_count(texts["tokens"], f"{option} tokens")
    return fields
