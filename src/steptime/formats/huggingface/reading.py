"""Reads the `config.json` of a model of Hugging Face: the network of its `model_type`.

No weights are read, and no code is run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, NamedTuple

from steptime.core import registry
from steptime.core.errors import InputError, shorten, unknown
from steptime.formats import Source
from steptime.formats.huggingface.ahead import describe_ahead
from steptime.formats.huggingface.composed import (
    CLASS_UNCHECKED,
    extract_decoder,
    has_nested_decoder,
    list_model_types,
)
from steptime.formats.huggingface.config import Config, Settings, Table, check_value
from steptime.formats.huggingface.quantised import find_quantised_part, weights_format
from steptime.formats.huggingface.remarks import describe_file
from steptime.formats.huggingface.settings import finish_settings, resolve_settings
from steptime.formats.huggingface.types import UNREAD_TYPES, ModelType, all_types, types
from steptime.formats.huggingface.vision import add_images
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder

TYPE_FIELD = "model_type"
LIBRARY_HINT = "with transformers installed, its types are read by their class"
NESTED_ENDS = ("config", "config_dict")  # ends of nested tables; the second, of older files, wins


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of a `config.json`, its weights as transformers counts them."""
    table: Any = source.table
    return describe_network(table, shorten(source.name)[1:-1])


def describe_network(table: Mapping[str, Any], place: str, remarks: Sequence[str] = ()) -> Family:
    """Return the network that the values of a `config.json` say.

    Args:
        table: the values of the file.
        place: the file, as messages begin.
        remarks: sentences that the answer shows first.

    Raises:
        InputError: for an unknown type, or a value that no model of the type has.
    """
    name = table[TYPE_FIELD]
    for kind in list_model_types(table):
        if reason := UNREAD_TYPES.get(kind):
            text = f"{place}: {TYPE_FIELD} {shorten(kind)} is not read natively: it has {reason}"
            raise InputError(f"{text}; {LIBRARY_HINT}")
    network_type = types().get(name) if isinstance(name, str) else None
    if network_type is None:
        holds_decoder = isinstance(name, str) and has_nested_decoder(table)
        if not holds_decoder:
            raise InputError(f"{unknown(TYPE_FIELD, name, types(), place)}; {LIBRARY_HINT}")
        # the type is not known, but that of the decoder of words nested in it may be
        return _describe_words(table, network_type=None, place=place)
    if network_type.decoder_type:
        return _describe_words(table, network_type, place)
    if network_type.tower_types:
        return _describe_towers(table, network_type, place)
    return _describe_single(table, network_type, place, remarks)


def _describe_single(
    table: Mapping[str, Any], network_type: ModelType, place: str, first_remarks: Sequence[str]
) -> Family:
    """Return a network that one function describes."""
    head, head_remarks = find_head(table, network_type, place)
    config = Config(table, place, head, count_labels(table, network_type, place))
    settings = finish_settings(config, network_type.describe(config))
    # the network that this file sets: a transformer in most types
    base: Family = registry.load(network_type.family)
    fixed = resolve_settings(base, settings, place)
    # hyperparameters that a user may choose, the file's own as their defaults
    free_parameters = {
        key: Parameter(fixed[key], base.parameters[key].meaning)
        for key in network_type.free_parameters
    }
    remarks = [*first_remarks, *head_remarks, *describe_file(table, config.read_fields)]
    remarks += [*describe_ahead(table, base, fixed), *config.remarks]

    def build(b: Builder, values: Mapping[str, Any], batch: int) -> str:
        b.remarks.extend(f"{place}: {remark}" for remark in remarks)
        return base.build(b, {**fixed, **values}, batch)

    return Family(
        place,
        build,
        free_parameters,
        source=f"a config.json of Hugging Face, model_type {network_type.name}",
        batch=1,
        is_preset=True,
        check=lambda values: base.check({**fixed, **values}),
        settings=fixed,
        weights=weights_format(table),
        stored=find_quantised_part(table),
    )


def _describe_words(table: Mapping[str, Any], network_type: ModelType | None, place: str) -> Family:
    """Return the network of words in one of words and images."""
    if network_type:
        _, head_remarks = find_head(table, network_type, place)
        usual_decoder_type = network_type.decoder_type
    else:
        head_remarks = [CLASS_UNCHECKED]
        usual_decoder_type = ""
    decoder, text_remarks = extract_decoder(table, usual_decoder_type, types(), place)
    decoder_row = types()[decoder[TYPE_FIELD]]
    # the class of the whole says nothing of the decoder, which ends with words
    decoder["architectures"] = [name_class(decoder_row, "ForCausalLM")]
    family = describe_network(decoder, place, [*head_remarks, *text_remarks])
    return add_images(family, table, str(table[TYPE_FIELD]), place)


def _nested_table(table: Mapping[str, Any], tower: str, type_name: str, place: str) -> Table:
    """Return the nested configuration of a tower, {} for none.

    Raises:
        InputError: for a nested value that is no table, or is of another type.
    """
    tower_table: Table = {}
    for end in NESTED_ENDS:
        name = f"{tower}_{end}"
        nested_table = table.get(name) or {}
        if not isinstance(nested_table, dict):
            raise InputError(f"{place}: {name}: must be a table, not {shorten(nested_table)}")
        stated_type = nested_table.get(TYPE_FIELD, type_name)
        if stated_type != type_name:
            raise unknown(TYPE_FIELD, stated_type, [type_name], f"{place}: {name}")
        # fields of the later table win
        tower_table |= nested_table
    return tower_table


def _describe_towers(table: Mapping[str, Any], network_type: ModelType, place: str) -> Family:
    """Return a network of words and images, each of which a nested configuration says."""
    head, remarks = find_head(table, network_type, place)
    base: Family = registry.load(network_type.family)
    settings_by_tower: dict[str, Settings] = {}
    outer_table = {**table}
    for name, type_name in network_type.tower_types.items():
        nested_table = _nested_table(table, name, type_name, place)
        tower_head = head if name == "text" else "none"  # the tower of words ends the network
        config = Config(nested_table, f"{place}: {name}_config", tower_head)
        tower = _read_tower(config, nested_table, all_types()[type_name], base)
        settings_by_tower[name] = tower.settings
        outer_table |= tower.outer_fields
        remarks += tower.remarks
    outer = Config(outer_table, place, head)
    outer.read_fields |= _list_nested_names(network_type)
    join_settings = network_type.describe(outer)
    remarks += [*describe_file(table, outer.read_fields), *outer.remarks]
    towers = _JoinedTowers(
        place, base, network_type.name, settings_by_tower, join_settings, remarks
    )
    return Family(
        place,
        towers.build,
        {"length": Parameter(settings_by_tower["text"]["length"], "tokens of a sequence")},
        source=f"a config.json of Hugging Face, model_type {network_type.name}",
        batch=1,
        is_preset=True,
        check=towers.check,
    )


class _Tower(NamedTuple):
    """A tower of a network of words and images, as its nested table says.

    Attributes:
        settings: its hyperparameters.
        outer_fields: fields of the whole network that some files put into the table of a tower.
        remarks: what the answer says of the table.
    """

    settings: Settings
    outer_fields: Table
    remarks: list[str]


def _read_tower(config: Config, table: Table, tower_type: ModelType, base: Family) -> _Tower:
    """Return the tower that a nested table says, resolved as a network of the family `base`."""
    settings = finish_settings(config, tower_type.describe(config))
    outer_fields = {key: table[key] for key in tower_type.outer_fields if key in table}
    return _Tower(
        resolve_settings(base, settings, config.place),
        outer_fields,
        [*describe_file(table, config.read_fields), *config.remarks],
    )


def _list_nested_names(network_type: ModelType) -> set[str]:
    """Return the names that the nested tables of towers may have: `text_config`."""
    return {f"{tower}_{end}" for tower in network_type.tower_types for end in NESTED_ENDS}


@dataclass(frozen=True)
class _JoinedTowers:
    """A network of a tower of words and one of images.

    Attributes:
        place: the file, as remarks begin.
        base: the family of the towers, which checks the tower of words.
        type_name: the type of the whole, by which the function that joins the towers is found.
        settings_by_tower: the hyperparameters of each tower.
        join_settings: those of the whole.
        remarks: what the answer says of the file.
    """

    place: str
    base: Family
    type_name: str
    settings_by_tower: Mapping[str, Settings]
    join_settings: Settings
    remarks: Sequence[str]

    def build(self, b: Builder, values: Mapping[str, Any], batch: int) -> str:
        """Append both towers and the ops that join them; return the output."""
        b.remarks.extend(f"{self.place}: {remark}" for remark in self.remarks)
        joins = registry.load("steptime.formats.huggingface.towers:TOWERS")
        towers = {**self.settings_by_tower, "text": self._text_settings(values)}
        output: str = joins[self.type_name](b, towers, self.join_settings, batch)
        return output

    def check(self, values: Mapping[str, Any]) -> str | None:
        """Describe the first fault of the hyperparameters; None if they fit."""
        # CLIP and SigLIP compare two towers and put no image among the words: 1 passes the check
        image_tokens = self.join_settings.get("mm_tokens_per_image", 1)
        fault = _describe_length_fault(values["length"], image_tokens)
        return fault or self.base.check(self._text_settings(values))

    def _text_settings(self, values: Mapping[str, Any]) -> Settings:
        """Return the hyperparameters of the tower of words with those that a user chooses."""
        return {**self.settings_by_tower["text"], **values}


def _describe_length_fault(length: int, image_tokens: int) -> str | None:
    """Describe a length that holds no word beside an image, or an image that is no square."""
    leaves_words = 1 <= image_tokens < max(length, 2)
    if leaves_words and is_square(image_tokens):
        return None
    return f"length {length} is not above the {image_tokens} tokens of an image, a square"


def is_square(number: int) -> bool:
    """Whether a number is the square of a whole number."""
    return isqrt(number) ** 2 == number


def find_head(
    table: Mapping[str, Any], network_type: ModelType, place: str
) -> tuple[str, list[str]]:
    """Return the end of the network by the name of its class, and a remark where it has no name.

    `BertForMaskedLM` ends with words that were masked, `BertModel` with nothing.

    Raises:
        InputError: for a class that is none of the type's.
    """
    names = table.get("architectures")
    head_by_end = network_type.head_by_class_end
    if names in (None, []):
        end = next(iter(head_by_end))
        return head_by_end[end], [f"no architectures; taken as ...{end}"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{place}: architectures: must be a list of names, not {shorten(names)}")
    # some files write the name of a class with underlines, some without
    class_end = _list_class_ends(network_type).get(names[0].lower().replace("_", ""))
    if class_end is None:
        class_names = [name_class(network_type, end) for end in head_by_end]
        raise InputError(f"{unknown('architecture', names[0], class_names, place)}; {LIBRARY_HINT}")
    return head_by_end[class_end], []


def _list_class_ends(network_type: ModelType) -> dict[str, str]:
    """Return the end of each name that a class of the type may have, in lower case.

    The whole name must match: JinaBertForMaskedLM ends like BertForMaskedLM, and its code is
    another network.
    """
    stem = re.sub(r"[^a-z0-9]", "", network_type.name.lower())
    # a class may leave out the end of the name of its type: `gemma3_text` has Gemma3TextModel and
    # Gemma3ForCausalLM, `clip_text_model` has CLIPTextModel
    stems = (stem, stem.removesuffix("text"), stem.removesuffix("model"))
    ends = network_type.head_by_class_end
    end_by_class = {start + end.lower(): end for start in stems for end in ends}
    # some types have classes of another name, which the table states: `kimi_k2` has those of
    # DeepseekV3
    end_by_class |= {name_class(network_type, end).lower(): end for end in ends}
    return {name.replace("_", ""): end for name, end in end_by_class.items()}


def name_class(network_type: ModelType, end: str) -> str:
    """Return the name of the class of a type that ends so: `LlamaForCausalLM`."""
    return f"{network_type.class_name}{end}"


def count_labels(table: Mapping[str, Any], network_type: ModelType, place: str) -> int:
    """Return the number of classes, that of the type where the file says none."""
    label_names = table.get("id2label")
    if isinstance(label_names, dict) and label_names:
        return len(label_names)
    count = table.get("num_labels")
    if count is None:
        return network_type.default_label_count
    return int(check_value(count, default=2, place=f"{place}: num_labels"))
