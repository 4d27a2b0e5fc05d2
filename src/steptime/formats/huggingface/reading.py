"""Reads the `config.json` of a model of Hugging Face: the network of its `model_type`.

No weights are read, and no code is run.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core import registry
from steptime.core.errors import InputError, shorten, unknown
from steptime.formats import Source
from steptime.formats.huggingface.ahead import describe_ahead
from steptime.formats.huggingface.composed import (
    CLASS_UNCHECKED,
    holds_words,
    kinds_of,
    text_part,
)
from steptime.formats.huggingface.config import Config, Settings, Table, check_value
from steptime.formats.huggingface.quantised import find_quantised_part, weights_format
from steptime.formats.huggingface.remarks import describe_file
from steptime.formats.huggingface.settings import finish_settings, resolve_settings
from steptime.formats.huggingface.types import UNLIKE, ModelType, all_types, types
from steptime.formats.huggingface.vision import add_images
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder

TYPE_FIELD = "model_type"
LIBRARY_HINT = "with transformers installed, its types are read by their class"
NESTED = ("config", "config_dict")  # ends of nested tables; the second, of older files, wins


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
    for kind in kinds_of(table):
        if reason := UNLIKE.get(kind):
            text = f"{place}: {TYPE_FIELD} {shorten(kind)} is not read natively: it has {reason}"
            raise InputError(f"{text}; {LIBRARY_HINT}")
    row = types().get(name) if isinstance(name, str) else None
    if row is None and not (isinstance(name, str) and holds_words(table)):
        raise InputError(f"{unknown(TYPE_FIELD, name, types(), place)}; {LIBRARY_HINT}")
    if row is None or row.text:
        return _describe_words(table, row, place)
    if row.towers:
        return _describe_towers(table, row, place)
    return _describe_single(table, row, place, remarks)


def _describe_single(
    table: Mapping[str, Any], row: ModelType, place: str, first_remarks: Sequence[str]
) -> Family:
    """Return a network that one function describes."""
    head, head_remarks = find_head(table, row, place)
    config = Config(table, place, head, count_labels(table, row, place))
    settings = finish_settings(config, row.describe(config))
    base: Family = registry.load(row.family)
    fixed = resolve_settings(base, settings, place)
    free = {key: Parameter(fixed[key], base.parameters[key].meaning) for key in row.free}
    remarks = [*first_remarks, *head_remarks, *describe_file(table, config.read_fields)]
    remarks += [*describe_ahead(table, base, fixed), *config.remarks]

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        b.remarks.extend(f"{place}: {remark}" for remark in remarks)
        return base.build(b, {**fixed, **p}, batch)

    return Family(
        place,
        build,
        free,
        f"a config.json of Hugging Face, model_type {row.name}",
        1,
        is_preset=True,
        check=lambda p: base.check({**fixed, **p}),
        settings=fixed,
        weights=weights_format(table),
        stored=find_quantised_part(table),
    )


def _describe_words(table: Mapping[str, Any], row: ModelType | None, place: str) -> Family:
    """Return the network of words in one of words and images."""
    remarks = find_head(table, row, place)[1] if row else [CLASS_UNCHECKED]
    decoder, text_remarks = text_part(table, row.text if row else "", types(), place)
    decoder["architectures"] = [name_class(types()[decoder[TYPE_FIELD]], "ForCausalLM")]
    family = describe_network(decoder, place, [*remarks, *text_remarks])
    return add_images(family, table, str(table[TYPE_FIELD]), place)


def _nested_table(table: Mapping[str, Any], tower: str, kind: str, place: str) -> Table:
    """Return the nested configuration of a tower, {} for none.

    Raises:
        InputError: for a nested value that is no table, or is of another type.
    """
    result: Table = {}
    for end in NESTED:
        name = f"{tower}_{end}"
        inner = table.get(name) or {}
        if not isinstance(inner, dict):
            raise InputError(f"{place}: {name}: must be a table, not {shorten(inner)}")
        if inner.get(TYPE_FIELD, kind) != kind:
            raise unknown(TYPE_FIELD, inner[TYPE_FIELD], [kind], f"{place}: {name}")
        result |= inner
    return result


def _describe_towers(table: Mapping[str, Any], row: ModelType, place: str) -> Family:
    """Return a network of words and images, each of which a nested configuration says."""
    join = registry.load("steptime.formats.huggingface.towers:TOWERS")[row.name]
    head, remarks = find_head(table, row, place)
    towers: dict[str, Settings] = {}
    outer_table = {**table}
    base: Family = registry.load(row.family)
    for tower, kind in row.towers.items():
        inner = _nested_table(table, tower, kind, place)
        inner_type = all_types()[kind]
        tower_place = f"{place}: {tower}_config"
        config = Config(inner, tower_place, head if tower == "text" else "none")
        settings = finish_settings(config, inner_type.describe(config))
        towers[tower] = resolve_settings(base, settings, tower_place)
        outer_table |= {key: inner[key] for key in inner_type.passed if key in inner}
        remarks += [*describe_file(inner, config.read_fields), *config.remarks]
    outer = Config(outer_table, place, head)
    outer.read_fields |= {f"{tower}_{end}" for tower in row.towers for end in NESTED}
    join_settings, text = row.describe(outer), towers["text"]
    remarks += [*describe_file(table, outer.read_fields), *outer.remarks]

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        b.remarks.extend(f"{place}: {remark}" for remark in remarks)
        output: str = join(b, {**towers, "text": {**text, **p}}, join_settings, batch)
        return output

    def check(p: Mapping[str, Any]) -> str | None:
        image = join_settings.get("mm_tokens_per_image", 1)
        if not 1 <= image < max(p["length"], 2) or round(image**0.5) ** 2 != image:
            return f"length {p['length']} is not above the {image} tokens of an image, a square"
        return base.check({**text, **p})

    free = {"length": Parameter(text["length"], "tokens of a sequence")}
    about = f"a config.json of Hugging Face, model_type {row.name}"
    return Family(place, build, free, about, 1, is_preset=True, check=check)


def find_head(table: Mapping[str, Any], row: ModelType, place: str) -> tuple[str, list[str]]:
    """Return the end of the network by the name of its class, and a remark where it has no name.

    `BertForMaskedLM` ends with words that were masked, `BertModel` with nothing.

    Raises:
        InputError: for a class that is none of the type's.
    """
    names, heads = table.get("architectures"), row.heads
    if names in (None, []):
        end = next(iter(heads))
        return heads[end], [f"no architectures; taken as ...{end}"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{place}: architectures: must be a list of names, not {shorten(names)}")
    # other code behind a name that ends alike, as JinaBertForMaskedLM, is another network
    stem = re.sub(r"[^a-z0-9]", "", row.name.lower())
    stems = stem, stem.removesuffix("text"), stem.removesuffix("model")
    classes = {start + end.lower(): end for start in stems for end in heads}
    classes |= {name_class(row, end).lower(): end for end in heads}
    plain_classes = {name.replace("_", ""): end for name, end in classes.items()}
    end_name = plain_classes.get(names[0].lower().replace("_", ""))
    if end_name is None:
        class_names = [name_class(row, end) for end in heads]
        raise InputError(f"{unknown('architecture', names[0], class_names, place)}; {LIBRARY_HINT}")
    return heads[end_name], []


def name_class(row: ModelType, end: str) -> str:
    """Return the name of the class of a type that ends so: `LlamaForCausalLM`."""
    return f"{row.class_name}{end}"


def count_labels(table: Mapping[str, Any], row: ModelType, place: str) -> int:
    """Return the number of classes, that of the type where the file says none."""
    names, count = table.get("id2label"), table.get("num_labels")
    if isinstance(names, dict) and names:
        return len(names)
    return row.labels if count is None else int(check_value(count, 2, f"{place}: num_labels"))
