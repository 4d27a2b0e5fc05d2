"""Options of a command line and keys of a file as settings, and what their values mean."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steptime.core.dtypes import find_quantised_type
from steptime.core.errors import InputError
from steptime.launch.job import FactValue, JobBuilder

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?", re.IGNORECASE)
_SIZED = re.compile(r"(\d+\.?\d*)([kKmMgG]?)")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
TRUE_WORDS = {"true", "1", "yes", "on", "enabled", "enable", "y"}
FALSE_WORDS = {"false", "0", "no", "off", "disabled", "disable", "none", "null", "n", ""}
FLOAT_TYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "float16", "half", "f16", "torch.float16"), "float16"),
    **dict.fromkeys(("fp32", "float32", "float", "f32", "torch.float32"), "float32"),
}
QUANTISED_TYPES = ("float8", "int8", "int4", "float4", "mxfp4", "nf4")
OPTIMIZERS = {
    **dict.fromkeys(("adam", "fusedadam", "distributed_fused_adam", "adam_pax"), "adam"),
    **dict.fromkeys(
        ("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused"), "adamw"
    ),
    **dict.fromkeys(("fused_adamw", "paged_adamw", "paged_adamw_32bit", "adamw_fused"), "adamw"),
    **dict.fromkeys(("adamw_anyprecision", "adamw_torch_xla", "adamw_torch_npu_fused"), "adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "adamw8bit"), "adam8bit"),
    **dict.fromkeys(("paged_adamw_8bit", "pagedadamw8bit", "adam8bit", "adam_8bit"), "adam8bit"),
    **dict.fromkeys(("ao_adamw_8bit", "adamw_torchao_8bit"), "adam8bit"),
    **dict.fromkeys(("lion_8bit", "lion_bnb_8bit", "lion8bit"), "lion8bit"),
    **dict.fromkeys(("paged_lion_32bit", "paged_lion"), "paged_lion"),
    "paged_lion_8bit": "paged_lion8bit",
    **dict.fromkeys(("lion", "lion_32bit"), "lion"),
}
PAGED = re.compile(r"paged", re.IGNORECASE)


@dataclass
class ToolSettings:
    """ToolSettings by normalized name: dashes become underscores, all in lower case.

    Attributes:
        values: values of each setting in order; none for a flag.
        positional: words that belong to no option.
        original_by_name: the setting as the user wrote it, by normalized name.
        used_names: names that a fact or a remark has taken.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    original_by_name: dict[str, str] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def put(self, name: str, values: Sequence[str]) -> None:
        """Set a setting; a later value wins over an earlier one."""
        key = normalize(name)
        self.values[key] = list(values)
        self.original_by_name[key] = " ".join([name, *values])

    def text(self, *names: str) -> str | None:
        """Return the first value of the first of these settings that is there, else None."""
        for name in names:
            if name in self.values:
                self.used_names.add(name)
                return self.values[name][0] if self.values[name] else ""
        return None

    def texts(self, *names: str) -> list[str]:
        """Return all values of the first of these settings that is there."""
        for name in names:
            if name in self.values:
                self.used_names.add(name)
                return [part for value in self.values[name] for part in value.split(",") if part]
        return []

    def flag(self, *names: str) -> bool | None:
        """Return whether a setting is true; a flag without a value is. None where it is absent."""
        for name in names:
            if name in self.values:
                value = self.text(name) or ""
                return not self.values[name] or value.lower() in TRUE_WORDS
        return None

    def count(self, *names: str) -> int | None:
        """Return a whole number; None where it is absent or none.

        Raises:
            InputError: for a negative number.
        """
        for name in names:
            value = self.text(name)
            # The tool decides by itself: the next name may say a number.
            if value is None or value.lower() in {"none", "null", "auto", "", "-1"}:
                continue
            return read_count(value, self.original_by_name[name])
        return None

    def number(self, *names: str) -> float | None:
        """Return a number; None where it is absent or none."""
        value = self.text(*names)
        return float(value) if value and _NUMBER.fullmatch(value) else None

    def list_unused(self) -> list[str]:
        """Return the settings that nothing has taken, as written."""
        return [text for name, text in self.original_by_name.items() if name not in self.used_names]


def split_names(text: str) -> frozenset[str]:
    """Return the names that a text lists, separated by blanks."""
    return frozenset(text.split())


def normalize(name: str) -> str:
    """Return the name of a setting without dashes in front, in lower case with underscores."""
    return name.lstrip("-").replace("-", "_").lower()


def read_count(text: str, source: str) -> int:
    """Return a whole number that may end in k, m, g (powers of 1000) or K, M, G (of 1024).

    Raises:
        InputError: if it is none.
    """
    match = _SIZED.fullmatch(text.strip().replace("_", ""))  # `32k`, `1_024`
    if match is None:
        raise InputError(f"{source}: a whole number is needed, such as 8 or 32k")
    return round(float(match[1]) * UNITS[match[2]])


def parse_words(words: Sequence[str], flags: frozenset[str] = frozenset()) -> ToolSettings:
    """Return the settings of a command line.

    Args:
        words: arguments, without the name of the command.
        flags: normalized names of options that never take a value, so that a word behind one is
            positional.
    """
    settings = ToolSettings()
    open_option = ""  # the option whose values follow
    values = list[str]()
    for word in words:
        is_option = word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)
        if not is_option:
            if open_option:
                values.append(word)
            else:
                settings.positional.append(word)
            continue
        if open_option:
            settings.put(open_option, values)
        name, equals, value = word.partition("=")
        values = [value] if equals else []
        is_complete = equals or normalize(name) in flags
        if is_complete:
            settings.put(name, values)
        open_option = "" if is_complete else name
    if open_option:
        settings.put(open_option, values)
    return settings


def parse_mapping(mapping: Mapping[str, Any], prefix: str = "") -> ToolSettings:
    """Return the settings of a file: nested keys joined by dots."""
    settings = ToolSettings()
    for name, value in flatten_mapping(mapping, prefix):
        settings.put(name, value)
    return settings


def flatten_mapping(
    mapping: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Yield the keys of nested mappings, joined by dots, with their values as texts."""
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten_mapping(value, f"{name}.")
        elif isinstance(value, list):
            yield name, [part if isinstance(part, str) else json.dumps(part) for part in value]
        elif value is None:
            yield name, ["null"]
        else:
            yield name, [str(value)]


def parse_assignments(words: Sequence[str]) -> ToolSettings:
    """Return the settings of words of the form `name=value`."""
    settings = ToolSettings()
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            settings.put(name, [value])
        else:
            settings.positional.append(word)
    return settings


def merge(weaker: ToolSettings, stronger: ToolSettings) -> ToolSettings:
    """Return settings of which the second ones win."""
    return ToolSettings(
        values=weaker.values | stronger.values,
        positional=[*weaker.positional, *stronger.positional],
        original_by_name=weaker.original_by_name | stronger.original_by_name,
    )


def read_data(text: str, ending: str, source: str) -> Any:
    """Parse a YAML, JSON or TOML text.

    Raises:
        InputError: if it is none, with the place of the fault.
    """
    import yaml

    try:
        if ending == ".toml":
            return tomllib.loads(text)
        if ending == ".json":
            return json.loads(text)
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{source}: {reason}") from error
    return documents[0] if len(documents) == 1 else documents  # YAML may hold several


class Files:
    """The files that a job names: those that its script writes, then those of its folder.

    Attributes:
        folder: folder of the job, to which paths are relative.
        script_files: texts that the script writes, by path.
    """

    def __init__(self, folder: Path, script_files: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.script_files = dict(script_files or {})

    def find_text(self, path: str) -> str | None:
        """Return the text of a file, None where it is not there."""
        # By the name alone: folders of another machine are not here.
        for script_path, text in self.script_files.items():
            if Path(script_path).name == Path(path).name:
                return text
        for candidate in (self.folder / path, self.folder / Path(path).name):
            if candidate.is_file():
                return candidate.read_text(encoding="utf-8-sig")
        return None

    def read_mapping(self, path: str) -> Mapping[str, Any] | None:
        """Return the mapping of a YAML, JSON or TOML file, None where the file is not there."""
        text = self.find_text(path)
        if text is None:
            return None
        data = read_data(text, Path(path).suffix, path)
        return data if isinstance(data, dict) else None


def float_type(text: str | None) -> str | None:
    """Return `bfloat16`, `float16` or `float32` for a tool's word of a type, None for others."""
    return FLOAT_TYPES.get(text.lower()) if text else None


def quantised_type(text: str | None) -> str | None:
    """Return our word for weights or a cache of few bits, None for others."""
    return find_quantised_type(text, QUANTISED_TYPES) if text else None


OPEN_WORDS = {"auto", "none", "null", ""}  # values that leave a fact open
FactReader = Callable[[ToolSettings, str], FactValue | None]


def set_optimizer(job: JobBuilder, text: str | None) -> None:
    """Set the optimizer from a tool's word; a paged one gets a note."""
    if not text:
        return
    name = text.rpartition(".")[2].lower()
    job.set("optimizer", OPTIMIZERS.get(name, name))
    if PAGED.search(name):
        job.notes.append(f"optimizer {text}: its states may move to the host, which is not priced")


def take_facts(
    job: JobBuilder,
    settings: ToolSettings,
    table: Mapping[str, tuple[str, FactReader]],
) -> None:
    """Set the facts of a table from option names to a fact and the way to read it.

    A value that says no fact stays unused, unless it leaves the fact open.
    """
    for name, (fact, read_value) in table.items():
        if name in settings:
            value = read_value(settings, name)
            text = (settings.text(name) or "").lower()
            is_unreadable = value is None and text not in OPEN_WORDS
            if is_unreadable:  # reported among the options that are not used
                settings.used_names.discard(name)
            job.set(fact, value)  # None is not set: the fact stays open


def count(settings: ToolSettings, name: str) -> int | None:
    """Read a setting as a whole number."""
    return settings.count(name)


def read_number(settings: ToolSettings, name: str) -> float | None:
    """Read a setting as a number."""
    return settings.number(name)


def read_flag(settings: ToolSettings, name: str) -> bool | None:
    """Read a setting as true or false."""
    return settings.flag(name)


def storage_type(settings: ToolSettings, name: str) -> str | None:
    """Read a setting as the type of weights or of a cache; `auto` leaves it open."""
    value = settings.text(name)
    return quantised_type(value) or float_type(value)


def note_unpriced(job: JobBuilder, settings: ToolSettings, reasons: Mapping[str, str]) -> None:
    """Add a note for each setting that matters and cannot be priced.

    Args:
        job: the job; its notes and unused options grow.
        settings: what its facts have not taken is `not_used`.
        reasons: what is not priced, by the name of the setting.
    """
    for name, reason in reasons.items():
        values = settings.values.get(name)
        if values is None or name in settings.used_names:  # absent, or a fact holds it
            continue
        is_off = bool(values) and values[0].lower() in FALSE_WORDS  # an option without value is on
        if not is_off:
            job.notes.append(f"{settings.original_by_name[name]}: {reason}")
    job.not_used += settings.list_unused()
