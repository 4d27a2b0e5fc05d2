"""Reads the `config.json` of a model of Hugging Face: settings of a family, by its `model_type`.

What each type says is data, `data/huggingface.toml`. No weights are read, and no code is run.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

from steptime.core import registry
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.formula import formula
from steptime.core.toml_files import packaged
from steptime.core.values import MAX_COUNT
from steptime.core.workload import Value
from steptime.formats import Source
from steptime.formats.huggingface_composed import (
    CLASS_UNCHECKED,
    holds_words,
    kinds_of,
    text_part,
)
from steptime.network.families.family import Family, Parameter, resolve
from steptime.network.ops.builder import Builder

KEY = "model_type"
TIED = "tie_word_embeddings"
QUANTISED = "quantization_config"
_FORMATS = {"mxfp4": "mxfp4", "nvfp4": "float4", "fp8": "float8"}  # by a word of the method
_FAMILY = "steptime.network.families.transformer:FAMILY"
MOST_LAYERS = 2000  # of a file: some seconds, and a few hundred megabytes
LONGEST_LIST = 10_000
_AHEAD = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")
_MERGED = ("fields", "spelled", "only", "settings", "free", "remarks")
_NESTED = ("config", "config_dict")  # the second, of older files, wins
_WORDS = packaged("huggingface.toml")["words"]
_HARMLESS = re.compile(_WORDS["harmless"], re.VERBOSE)


@lru_cache(maxsize=1)
def _rows() -> Mapping[str, Mapping[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, row in packaged("huggingface.toml").items():
        if name == "words":
            continue
        base = rows.get(row.get("like", ""), {})
        merged = {part: {**base.get(part, {}), **_flat(row.get(part, {}))} for part in _MERGED}
        if "free" in row:
            merged["free"] = row["free"]
        if "heads" in row:
            ends = _WORDS["ends"] | row.get("ends", {})
            merged["heads"] = {end: ends[end] for end in row["heads"]}
        kept = {key: value for key, value in base.items() if key != "abstract"}
        rows[name] = {**kept, **row, **merged}
    return rows


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with what stands in groups beside what does not."""
    groups = (one if isinstance(one, dict) else {key: one} for key, one in table.items())
    return {key: value for group in groups for key, value in group.items()}


def types() -> Mapping[str, Mapping[str, Any]]:
    """Return the row of each `model_type`, with what it takes over from others."""
    return {name: row for name, row in _rows().items() if not row.get("abstract")}


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of a `config.json`, its weights as transformers counts them."""
    table: Any = source.table
    return described(table, shorten(source.name)[1:-1])


def described(table: Mapping[str, Any], place: str, before: Sequence[str] = ()) -> Family:
    """Return the network that the values of a `config.json` say; `before` are remarks on it."""
    name = table[KEY]
    for kind in kinds_of(table):
        if why := _WORDS["unlike"].get(kind):
            raise InputError(f"{place}: {KEY} {shorten(kind)} is not known: it has {why}")
    row = types().get(name, {}) if isinstance(name, str) else {}
    if not row and (not isinstance(name, str) or not holds_words(table)):
        raise unknown(KEY, name, types(), place)
    if not row or "text" in row:
        return _of_text(table, row, place)
    if "towers" in row:
        return _of_towers(table, row, place)
    head, remarks = _head(table, row, place)
    remarks = [*before, *remarks]
    values = {**_fields(table, row, place), "labels": _labels(table, row, place), "head": head}
    _check_heads(values, row, place)
    settings = _settings(values, row, place)
    base: Family = registry.load(row.get("family", _FAMILY))
    free = {
        key: Parameter(_value(text, values, place), base.parameters[key].meaning)
        for key, text in row["free"].items()
    }
    given = {**settings, **{key: one.default for key, one in free.items()}}
    fixed = resolve(base, given, place)
    remarks += _remarks(table, row)
    remarks += [said for when, said in row["remarks"].items() if _value(when, values, place)]

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        b.remarks.extend(f"{place}: {remark}" for remark in remarks)
        return base.build(b, {**fixed, **p}, batch)

    def check(p: Mapping[str, Any]) -> str | None:
        return base.check({**fixed, **p})

    about = f"a config.json of Hugging Face, model_type {name}"
    return Family(
        place,
        build,
        free,
        about,
        1,
        named=True,
        check=check,
        settings=fixed,
        weights=weights_format(table),
    )


def _of_text(table: Mapping[str, Any], row: Mapping[str, Any], place: str) -> Family:
    """Return the network of words in one of words and images."""
    remarks = _head(table, row, place)[1] if row else [CLASS_UNCHECKED]
    decoder, left_out = text_part(table, row.get("text", ""), types(), place)
    decoder["architectures"] = [_class(decoder[KEY], "ForCausalLM")]
    return described(decoder, place, [*remarks, *left_out])


def _inner(table: Mapping[str, Any], name: str, kind: str, place: str) -> dict[str, Any]:
    """Return a configuration in another, {} for none; raises `InputError` if of another kind."""
    inner = table.get(name) or {}
    if not isinstance(inner, dict):
        raise InputError(f"{place}: {name}: must be a table, not {shorten(inner)}")
    if inner.get(KEY, kind) != kind:
        raise unknown(KEY, inner[KEY], [kind], f"{place}: {name}")
    return inner


def _of_towers(table: Mapping[str, Any], row: Mapping[str, Any], place: str) -> Family:
    """Return a network of words and images, each of which a nested configuration says."""
    join = registry.load("steptime.formats.huggingface_towers:TOWERS")[table[KEY]]
    head, remarks = _head(table, row, place)
    base: Family = registry.load(_FAMILY)
    towers, given = {}, {**table}
    for tower, kind in row["towers"].items():
        where = f"{place}: {tower}_config"
        inner: dict[str, Any] = {}
        for part in _NESTED:
            inner |= _inner(table, f"{tower}_{part}", kind, place)
        of_head = head if tower == "text" else "none"
        one = _rows()[kind]
        given |= {name: inner[name] for name in one.get("passed", ()) if name in inner}
        values = {**_fields(inner, one, where), "labels": 2, "head": of_head}
        free = {key: _value(text, values, where) for key, text in one["free"].items()}
        towers[tower] = resolve(base, {**_settings(values, one, where), **free}, where)
        remarks += _remarks(inner, one)
    own, text = _fields(given, row, place), towers["text"]
    free = {"length": Parameter(text["length"], "tokens of a sequence")}

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        b.remarks.extend(f"{place}: {remark}" for remark in remarks)
        output: str = join(b, {**towers, "text": {**text, **p}}, own, batch)
        return output

    def check(p: Mapping[str, Any]) -> str | None:
        image = own.get("mm_tokens_per_image", 1)
        if not 1 <= image < max(p["length"], 2) or round(image**0.5) ** 2 != image:
            return f"length {p['length']} is not above the {image} tokens of an image, a square"
        return base.check({**text, **p})

    remarks += _remarks(table, row)
    about = f"a config.json of Hugging Face, model_type {table[KEY]}"
    return Family(place, build, free, about, 1, named=True, check=check)


def _head(table: Mapping[str, Any], row: Mapping[str, Any], place: str) -> tuple[str, list[str]]:
    """Return what the network ends with, by the name of its class, and a remark where it has none.

    `BertForMaskedLM` ends with words that were masked, `BertModel` with nothing.
    """
    names, heads = table.get("architectures"), row["heads"]
    if names in (None, []):
        end = next(iter(heads))
        return heads[end], [f"no architectures; taken as ...{end}"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{place}: architectures: must be a list of names, not {shorten(names)}")
    # other code behind a name that ends alike, as JinaBertForMaskedLM, is another network
    stem = re.sub(r"[^a-z0-9]", "", str(table[KEY]).lower())
    stems = stem, stem.removesuffix("text"), stem.removesuffix("model")
    known = {own + end.lower(): end for own in stems for end in heads}
    known |= {_class(table[KEY], end).lower(): end for end in heads}
    end = known.get(names[0].lower())
    if end is None:
        raise unknown("architecture", names[0], [_class(table[KEY], end) for end in heads], place)
    return heads[end], []


def _class(kind: str, end: str) -> str:
    """Return the name of the class of a `model_type` that ends so."""
    name = types()[kind].get("name", kind.replace("_", " ").title().replace(" ", ""))
    return f"{name}{end}"


def _labels(table: Mapping[str, Any], row: Mapping[str, Any], place: str) -> int:
    """Return the number of classes, that of the row where none is said."""
    names, count = table.get("id2label"), table.get("num_labels")
    if isinstance(names, dict) and names:
        return len(names)
    return (
        row.get("labels", 2) if count is None else int(_checked(count, 2, f"{place}: num_labels"))
    )


def _fields(table: Mapping[str, Any], row: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the fields that a row reads, by its names, absent ones by default."""
    rope = table.get("rope_parameters") or table.get("rope_scaling")
    given = {**(rope if isinstance(rope, dict) else {}), **table}
    spelled = {new: old for old, new in row["spelled"].items() if old in given}
    own = {name: name for name in row["fields"] if name in given}
    names = {**own, **spelled} if row.get("spelled_wins") else {**spelled, **own}
    values = {}
    for name, default in row["fields"].items():
        where = f"{place}: {names.get(name, name)}"
        values[name] = _checked(given[names[name]], default, where) if name in names else default
        zero = type(default) is int and given.get(names.get(name, "")) == 0  # null is another thing
        if zero and name not in _WORDS["may_be_0"]:
            raise InputError(f"{where}: must be at least 1, not 0")
    for name, text in row["only"].items():
        only = _value(text, values, place) if isinstance(text, str) else text
        if table.get(name, only) not in (only, None):
            raise InputError(f"{place}: {name}: {shorten(table[name])} is not known, only {only}")
    return values


def _check_heads(values: Mapping[str, Any], row: Mapping[str, Any], place: str) -> None:
    """Raise `InputError` if heads without a width of their own do not share the model's width."""
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    shared = "hidden_size // num_attention_heads" in row["settings"].get("head_width", "")
    if shared and width and heads and not values.get("head_dim") and width % heads:
        raise InputError(f"{place}: hidden_size {width} does not divide into {heads} heads")


def _checked(value: object, default: Any, where: str) -> Any:
    """Return a value of a file if it is of the type of the default; null is nothing of that.

    A list of one whole number, as often as there are layers, is that number.
    """
    if value is None:
        return type(default)()
    if type(default) is int and isinstance(value, list) and len({*map(repr, value)}) == 1:
        value = value[0]
    if isinstance(default, list):
        fits = isinstance(value, list) and len(value) <= LONGEST_LIST
    elif isinstance(default, float):
        number = isinstance(value, int | float) and type(value) is not bool
        fits = number and isfinite(value) and abs(value) <= MAX_COUNT  # type: ignore[arg-type]
    elif type(default) is int:
        fits = type(value) is int and 0 <= value <= MAX_COUNT
    else:
        fits = type(value) is type(default)
    if not fits:
        what = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise InputError(
            f"{where}: must be {what.get(type(default), 'a list')}, not {shorten(value)}"
        )
    return value


def _value(text: str, values: Mapping[str, Any], place: str) -> Any:
    try:
        value = formula(text)(values)
        return "-".join(map(str, value)) if isinstance(value, list) else value
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _settings(values: Mapping[str, Any], row: Mapping[str, Any], place: str) -> dict[str, Value]:
    settings = {key: _value(text, values, place) for key, text in row["settings"].items() if text}
    if settings.pop("gated", None) is not None or "activation" in settings:
        gated = bool(_value(row["settings"].get("gated", "False"), values, place))
        clamped = "clamped_" if settings.pop("clamped", False) else ""
        settings["activation"] = clamped + _activation(settings["activation"], gated, place)
    if values.get("layer_types"):
        settings["windows"] = _windows(values["layer_types"], place)
    elif values.get("chunked_at"):
        settings["windows"] = "".join("w" if chunked else "a" for chunked in values["chunked_at"])
    for key, value in settings.items():
        numbers = re.findall(r"\d+", str(value)) if key.endswith(("layers", "depths")) else ()
        if (layers := sum(map(float, numbers))) > MOST_LAYERS:  # also those of several stages
            raise InputError(f"{place}: {layers:.0f} layers, at most {MOST_LAYERS}")
    if sparse := values.get("moe_layers"):
        settings |= _mixtures(sparse, values["num_hidden_layers"], place)
    return settings


def _mixtures(sparse: list[Any], layers: int, place: str) -> dict[str, Value]:
    """Return the settings of blocks with experts by their numbers from 0."""
    wrong = [one for one in sparse if type(one) is not int or not 0 <= one < layers]
    if wrong:
        raise InputError(f"{place}: moe_layers: {shorten(wrong[0])} is none of {layers} layers")
    dense = (str(i) for i in range(layers) if i not in {*sparse})
    return {"dense_at": "-".join(dense), "expert_every": 1}


def _activation(name: str, gated: bool, place: str) -> str:
    known = {
        key: ours
        for key, ours in _WORDS["activations"].items()
        if not gated or ours in _WORDS["gated"]
    }
    if name not in known:
        raise unknown("activation", name, known, place)
    return str(_WORDS["gated"][known[name]]) if gated else known[name]


def _windows(names: list[Any], place: str) -> str:
    for name in names:
        if not isinstance(name, str) or name not in _WORDS["layers"]:
            raise unknown("layer type", name, _WORDS["layers"], place)
    return "".join(_WORDS["layers"][name] for name in names)


def weights_format(table: Mapping[str, Any]) -> str:
    """Return the format of the quantised weights of a `config.json`: int4, float8, mxfp4, or "".

    Read are `quant_method`, `quant_algo` (NVFP4, FP8 of ModelOpt), the first group of
    compressed-tensors, and numbers of bits (AWQ, GPTQ, bitsandbytes).
    """
    config = table.get(QUANTISED)
    if not isinstance(config, Mapping):
        return ""
    groups = config.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    weights = weights if isinstance(weights, Mapping) else {}
    words = " ".join(str(config.get(key, "")) for key in ("quant_method", "quant_algo", "format"))
    for word, format_ in _FORMATS.items():
        if word in words.lower():
            return format_
    bits = weights.get("num_bits", config.get("bits", config.get("w_bit")))
    kind = "float" if weights.get("type") == "float" else "int"
    if config.get("load_in_4bit") or str(bits) == "4":
        return f"{kind}4"
    return f"{kind}8" if config.get("load_in_8bit") or str(bits) == "8" else ""


def _describe_quantisation(table: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the remark on quantised weights: which method, and what counts them so."""
    loaded = {"load_in_4bit": 4, "load_in_8bit": 8}
    flag = next((key for key in loaded if config.get(key)), "")
    bits = config.get("bits") or loaded.get(flag)
    method = shorten(config.get("quant_method", "an unnamed method"))[1:-1]
    method += f" in {shorten(bits)[1:-1]} bits" if bits else ""
    storage = weights_format(table)
    only = f"only serve keeps them so (--weights {storage})"
    effect = only if storage else "they are counted as they were before"
    return f"its weights are quantised ({method}); {effect}"


def _remarks(table: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Describe what a reader must know: what of the file is not counted, or not read."""
    remarks = []
    if table.get("auto_map"):
        remarks.append("the code that auto_map names is not run")
    config = table.get(QUANTISED)
    if isinstance(config, dict) and config:
        remarks.append(_describe_quantisation(table, config))
    dtype = table.get("dtype") or table.get("torch_dtype")
    if isinstance(dtype, str) and dtype not in ("float32", "auto"):
        remarks.append(f"its weights are {shorten(dtype)[1:-1]}; --dtype says what is computed")
    for field in _AHEAD:
        if type(table.get(field)) is int and table[field] > 0:
            layers = table[field]
            remarks.append(f"layers that guess further tokens (MTP) are not counted: {layers}")
            break
    return [*remarks, *_describe_unread(table, row)]


def _describe_unread(table: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Describe the fields of a file that are not read, if there are any."""
    read_fields = {*row["fields"], *row["spelled"], *row["only"]}
    read_fields |= {f"{tower}_{part}" for tower in row.get("towers", ()) for part in _NESTED}
    unread = [key for key in table if key not in read_fields and not _HARMLESS.search(key)]
    if not unread:
        return []
    names = ", ".join(shorten(key)[1:-1] for key in unread[:8])
    return [f"fields that are not read: {names}" + (", ..." if unread[8:] else "")]
