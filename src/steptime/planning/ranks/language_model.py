"""Read a language model from the text that names it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from steptime.build import Choice, family_of, read_model
from steptime.core.errors import InputError, shorten
from steptime.network.families.family import Family, resolve
from steptime.network.layers.designs import USUAL as USUAL_DESIGN
from steptime.network.layers.designs import BlockDesign
from steptime.planning.ranks.shape import Shape

MAX_LAYERS = 100_000
LINEAR_ATTENTION = "l"  # the letter of such a layer in `windows`
LANGUAGE_MODEL_SETTINGS = {"layers", "width", "heads", "length", "vocabulary"}
"""The hyperparameters that every language model has."""

Settings = Mapping[str, Any]
"""Hyperparameters by name."""
MutableSettings = MutableMapping[str, Any]


def read_language_model(model: str, length: int | None = None, trusted: bool = False) -> Shape:
    """Return the language model that a text names.

    Args:
        model: the text.
        length: the tokens of a sequence; None for those of the model.
        trusted: whether the text may name code.

    Raises:
        InputError: for a network that is no language model of one decoder or encoder.
    """
    family, settings = resolve_settings(read_model(model, trusted=trusted), length)
    if not is_language_model(settings):
        raise _no_language_model(model, family.name, settings)
    settings["length"] = length or settings["length"]
    settings["max_length"] = max(settings["max_length"], settings["length"])
    if settings["layers"] > MAX_LAYERS:
        raise InputError(f"{settings['layers']:,} layers, at most {MAX_LAYERS:,}")
    # Layers of a kind cost the same, so that one example of each kind is built and priced: the
    # graph is cut behind the last example, and leading dense layers that are alike are one.
    shared_dense = _shared_dense_layers(settings)
    example_layers = _find_example_layers(settings, shared_dense)
    experts = settings["experts"]
    dense_layers = settings["dense_layers"] if experts else 0
    example_settings = {
        **settings,
        "layers": max(example_layers) + 1,
        "dense_layers": dense_layers - shared_dense,
    }
    return Shape(
        family=family,
        settings=settings,
        kind_settings=example_settings,
        kinds=tuple(f"block{example_layer + 1}" for example_layer in example_layers),
        length=settings["length"],
        vocabulary=settings["vocabulary"],
        # An encoder has no head that could share the embedding.
        tied=settings["kind"] == "decoder" and bool(settings["tied"]),
        experts=experts,
        expert_share=settings["experts_per_token"] / experts if experts else 1.0,
        label=model,
    )


def _no_language_model(model: str, family_name: str, settings: Settings) -> InputError:
    """Return the error for a network that is no language model, which says what it is."""
    description = family_name
    if settings.get("images"):
        description = "one that reads images; nearest: images=0"
    elif settings.get("decoder_layers"):
        description = "an encoder with a decoder"
    # The text may be the family's name itself, which says it already.
    actual_kind = "" if description in model else f", but {description}"
    unquoted_model = shorten(model)[1:-1]  # at most a line of it
    return InputError(f"{unquoted_model}: not a language model of one decoder{actual_kind}")


def _find_example_layers(settings: Settings, shared_dense: int) -> list[int]:
    """Return for each layer the first one of its kind, as the shortened network numbers them.

    That network leaves out `shared_dense` of the leading layers, so that all others move to the
    front by as many.
    """
    example_of_kind: dict[tuple[object, ...], int] = {}
    example_layers = []
    for layer in range(settings["layers"]):
        layer_in_shortened = max(0, layer - shared_dense)
        kind = _layer_kind(settings, layer)
        example_layers.append(example_of_kind.setdefault(kind, layer_in_shortened))
    return example_layers


def _shared_dense_layers(settings: Settings) -> int:
    """Return the leading dense layers that one example layer stands for, but for that layer.

    It is 0 unless the layers differ in nothing but whether they are dense or routed.
    """
    dense_layers = settings["dense_layers"] if settings["experts"] else 0
    has_other_kinds = bool(
        settings["expert_every"] > 1
        or settings["window"]
        or settings["dense_at"]
        or settings["linear_heads"]
        or settings.get("designs")
    )
    # With other kinds of layers, the position of a layer decides its kind: none may be left out.
    if has_other_kinds or dense_layers >= settings["layers"]:
        return 0
    return max(0, dense_layers - 1)  # all of them but the example


def _layer_kind(settings: Settings, layer: int) -> tuple[object, ...]:
    """Return the kind of a layer: whether it has routed experts, its window and its design."""
    is_after_dense = layer >= settings["dense_layers"]
    is_expert_turn = (layer + 1) % settings["expert_every"] == 0
    is_routed = bool(settings["experts"]) and is_after_dense and is_expert_turn
    windows = settings["windows"]
    window = windows[layer % len(windows)]
    # Without a window length the letters of `windows` change nothing, but for linear attention.
    has_window_length = bool(settings["window"])
    if not has_window_length and window != LINEAR_ATTENTION:
        window = ""
    designs: tuple[BlockDesign, ...] = settings.get("designs") or ()
    design = designs[layer] if designs else USUAL_DESIGN
    return is_routed, window, design


def resolve_settings(choice: Choice, length: int | None) -> tuple[Family, MutableSettings]:
    """Return the family and all hyperparameters of a network.

    Args:
        choice: the network that the user chose.
        length: the tokens of a sequence; None for those of the model.

    Raises:
        InputError: if the length contradicts that of the model.
    """
    family = family_of(choice)
    model_settings = dict(choice.settings)
    if length is not None and "length" in family.parameters:
        # As text, since the model's settings are strings or numbers.
        if str(model_settings.get("length", length)) != str(length):
            raise InputError(
                f"--length {length} contradicts length={model_settings['length']} of the model"
            )
        # The caller sets the length later: it may exceed the table of learned positions, which
        # then grows, while `resolve` would refuse it.
        model_settings.pop("length", None)
    # Families of plugins may have no such settings.
    defaults: MutableSettings = dict(getattr(family, "settings", {}))
    return family, {**defaults, **resolve(family, model_settings, choice.source or choice.model)}


def is_language_model(settings: Settings) -> bool:
    """Return whether hyperparameters are those of a language model of one encoder or decoder."""
    reads_words = settings.get("stem") == "words" and not settings.get("decoder_layers")
    reads_words = reads_words and not settings.get("images")
    return reads_words and settings.keys() >= LANGUAGE_MODEL_SETTINGS
