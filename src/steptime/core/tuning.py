"""From the options of a fine-tuning to its `Tuning`."""

from dataclasses import replace
from typing import TypedDict

from steptime.core.dtypes import find_quantised_type
from steptime.core.errors import InputError, check_choice
from steptime.core.values import MAX_DROPOUT, parse_count, parse_number, parse_pairs
from steptime.core.workload import (
    DEQUANTISED_FORMATS,
    FEW_BITS,
    LORA_ON,
    OFFLOADS,
    STATES,
    STORED_ALL,
    Tuning,
)

NO_WEIGHTS = "none"  # `--weights none`: weights as they were before a file quantised them
LORA_KEYS = ("r", "on", "dropout")
DEFAULT_RANK = "16"


class _LoraFields(TypedDict, total=False):
    """The fields of a `Tuning` that `--lora` says."""

    rank: int
    on: str
    dropout: float


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
    phase: str = "train",
) -> Tuning:
    """Return the fine-tuning of the texts of options.

    Args:
        lora: `r=16,on=linear,dropout=0.05`, or a rank alone.
        weights: the type of frozen weights, and in inference of all; `none` for the step's own.
        train: a pattern of the names of weights that are trained.
        recompute: `none` or `full`.
        packed: tokens of the documents that sequences are packed from.
        padded: tokens of a sequence that are text.
        optimizer: the optimizer, whose name may say how its states are kept.
        offload: `none`, or `optimizer`: the host has its states.
        host_link: what joins a device to its host.
        update_early: gradients are applied as they are made.
        phase: train or infer.

    Raises:
        InputError: for values that the options do not take.
    """
    if recompute == "selective":
        raise InputError("--recompute selective: by plan alone; nearest: --recompute full")
    check_choice("offload", offload or "none", OFFLOADS)
    if offload in ("activations", "both"):
        raise InputError(f"--offload {offload}: by plan alone; nearest: --offload optimizer")
    words = [STATES.get(optimizer or "", ""), "offloaded" if offload == "optimizer" else ""]
    words += ["early"] if update_early else []
    stored = STORED_ALL if weights and phase == "infer" else ""
    return Tuning(
        **_read_lora(lora),
        packed=0 if packed is None else parse_count(packed, "--packed"),
        padded=0 if padded is None else parse_count(padded, "--padded"),
        weights="" if weights in (None, NO_WEIGHTS) else read_format(str(weights)),
        stored=NO_WEIGHTS if weights == NO_WEIGHTS else stored,
        train=train or "",
        recompute=recompute or "none",
        states=" ".join(filter(None, words)),
        host_link=host_link or "",
    )


def read_format(word: str) -> str:
    """Return the format of weights that a word of any tool says, the word itself if unknown."""
    return find_quantised_type(word, FEW_BITS) or word


def state_weights(
    tuning: Tuning,
    stated: str,
    stored: str,
    phase: str,
    place: str,
    alternatives: str = "--phase infer, --lora 16",
) -> Tuning:
    """Return a tuning with the quantised weights that the file of a network states.

    Inference and adapters use them as they are. A training of all weights has them wide, where
    libraries dequantise such a file to train it.

    Args:
        tuning: what the options say.
        stated: the format of the file; "" or another word where it states none that a step uses.
        stored: which weights the file keeps so (`Tuning`).
        phase: train or infer.
        place: the network, as messages begin.
        alternatives: options with which a training of all weights is no longer one.

    Raises:
        InputError: for a training of whole-number weights, which have no gradient.
    """
    if tuning.stored == NO_WEIGHTS:
        return replace(tuning, stored="")
    if stated not in FEW_BITS or (tuning.weights and tuning.weights != stated):
        return tuning
    if phase == "infer" or tuning.freezes:
        return replace(tuning, weights=stated, stored=stored)
    if stated in DEQUANTISED_FORMATS:
        return tuning
    nearest = f"nearest: {alternatives}, or --weights none, as before they were quantised"
    raise InputError(f"{place}: its weights are {stated}, which have no gradient; {nearest}")


def _read_lora(lora: str | None) -> _LoraFields:
    """Return the fields of `--lora`, none without it; raises `InputError`."""
    if lora is None:
        return {}
    text = lora if "=" in lora else f"r={lora}"
    settings = parse_pairs(text.split(","), "--lora")
    for key in settings:
        check_choice("key", key, LORA_KEYS, "--lora")
    dropout = settings.get("dropout", "0")
    return {
        "rank": parse_count(settings.get("r", DEFAULT_RANK), "--lora r"),
        "on": settings.get("on", LORA_ON[0]),
        "dropout": parse_number(dropout, "--lora dropout", 0.0, MAX_DROPOUT),
    }
