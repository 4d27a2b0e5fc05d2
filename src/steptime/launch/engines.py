"""Read the options of a serving engine as facts of a job, by the table that it has of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from steptime.launch.job import SERVING, JobBuilder, complete_serving
from steptime.launch.settings import (
    FactReader,
    Files,
    ToolSettings,
    float_type,
    merge,
    note_unpriced,
    parse_mapping,
    parse_words,
    take_facts,
)


@dataclass(frozen=True, kw_only=True)
class EngineFormat:
    """What the options of a serving engine mean.

    Attributes:
        name: name of the tool.
        flags: options without a value.
        model_options: options that name the network, the strongest first.
        has_positional_model: whether a word without an option may name the network.
        file_options: options that name a YAML file of further options.
        is_file_stronger: whether the file wins over the command.
        subcommands: words that are neither an option nor a value.
        facts: fact of an option, and how its value is read.
        unpriced: options that are not priced, and why.
        set_combinations: sets the facts that take more than one option.
    """

    name: str
    flags: frozenset[str]
    model_options: tuple[str, ...]
    has_positional_model: bool
    file_options: tuple[str, ...]
    is_file_stronger: bool = False
    subcommands: frozenset[str] = frozenset()
    facts: Mapping[str, tuple[str, FactReader]]
    unpriced: Mapping[str, str]
    set_combinations: Callable[[JobBuilder, ToolSettings], None]


def read_engine(engine: EngineFormat, words: list[str], files: Files) -> JobBuilder:
    """Read the words behind the command that starts an engine.

    Args:
        engine: what its options mean.
        words: arguments of the command.
        files: files that the arguments name.
    """
    job = JobBuilder(tool=engine.name, kind=SERVING)
    settings = _collect_settings(engine, words, files)
    job.model = settings.text(*engine.model_options)
    if job.model is None and engine.has_positional_model and settings.positional:
        job.model = settings.positional[0]
    take_facts(job, settings, engine.facts)
    job.set("dtype", float_type(settings.text("dtype")))  # None, as for `auto`, stays open
    engine.set_combinations(job, settings)
    complete_serving(job)
    note_unpriced(job, settings, engine.unpriced)
    return job


def _collect_settings(engine: EngineFormat, words: list[str], files: Files) -> ToolSettings:
    """Return the options of a command and of the YAML file that it names, the stronger ones win."""
    settings = parse_words([word for word in words if word not in engine.subcommands], engine.flags)
    path = settings.text(*engine.file_options)
    if not path:
        return settings
    file_settings = parse_mapping(files.read_mapping(path) or {})
    if engine.is_file_stronger:
        return merge(weaker=settings, stronger=file_settings)
    return merge(weaker=file_settings, stronger=settings)
