"""The answers of `list NAME`: one device, link or network, each number with its source."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from steptime.core.answer import Answer, AnswerRow, public_fields
from steptime.core.errors import unknown
from steptime.core.spelling import find_similar_names
from steptime.core.tables.table import Column, Table, make_facts_table
from steptime.core.units import format_value
from steptime.hardware import catalog, device_words
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device, Link
from steptime.hardware.device_file import DETAILS
from steptime.network.families import family, list_names
from steptime.network.families.family import Family
from steptime.questions.list.topics import Scalar

DERIVED_DEFAULT = "..."
"""The default of a hyperparameter that follows from the others."""
TEXT_FIELDS = ("name", "notes")


class SettingRow(AnswerRow, frozen=True, kw_only=True):
    """A value of a table in a device's file.

    Attributes:
        name: its key; keys of inner tables follow after dots.
        value: its value; lists are JSON texts.
    """

    name: str
    value: Scalar | None


class DeviceAnswer(Answer, frozen=True, kw_only=True):
    """A device with every number; null is unknown.

    Attributes:
        name: its name.
        kind: cpu, gpu, tpu or asic.
        peak_flop_per_s: peaks of matrix products by data type.
        vector_flop_per_s: peaks of other arithmetic by data type, where they differ.
        capacity_bytes: size of its memory.
        usable_bytes: the part of its memory that a process may use.
        memory_bytes_per_s: bandwidth of its memory.
        launch_s: seconds in which the host issues an op.
        clock_hz: clock of its cores, boosted.
        idle_w: power at idle.
        peak_w: power limit.
        multiprocessors: multiprocessors; compute units of AMD.
        arrays: systolic arrays.
        array_side: rows of a systolic array.
        cores: cores of a CPU.
        l2_bytes: size of its L2 cache.
        process_nm: process of its chip.
        maker: its maker.
        architecture: its architecture.
        memory_type: its kind of memory.
        only_by_name: whether only the full name selects the device, because its figures are from a
            single paper.
        products: names that a driver reports.
        details: further figures of the device's file; units are in the names.
        measured: what `steptime calibrate` measured.
        calibration: what `steptime calibrate` fitted.
        constants: constants of the formulas of the method `calibrated`.
        unverified: figures that should be checked before they are relied on.
        source: where its figures come from.
        notes: remarks.
    """

    name: str
    kind: str
    peak_flop_per_s: dict[str, float]
    vector_flop_per_s: dict[str, float]
    capacity_bytes: float | None
    usable_bytes: int | None
    memory_bytes_per_s: float
    launch_s: float | None
    clock_hz: float | None
    idle_w: float | None
    peak_w: float | None
    multiprocessors: int | None
    arrays: int | None
    array_side: int | None
    cores: int | None
    l2_bytes: float | None
    process_nm: float | None
    maker: str | None
    architecture: str | None
    memory_type: str | None
    only_by_name: bool
    products: tuple[str, ...]
    details: dict[str, Scalar]
    measured: tuple[SettingRow, ...]
    calibration: tuple[SettingRow, ...]
    constants: dict[str, float]
    unverified: tuple[str, ...]
    source: str
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the figures that are known, down the side."""
        return [make_facts_table(self.name, "", list(_list_facts(self)))]


class LinkAnswer(Answer, frozen=True, kw_only=True):
    """A link with every number; null is unknown.

    Attributes:
        name: its name.
        bytes_per_s: its rate in one direction.
        collective_bytes_per_s: the largest bus bandwidth that collectives are published to reach.
        latency_s: its latency.
        latency_low_s: the smallest latency of sources and software.
        latency_high_s: the largest latency of sources and software.
        topology: how its parts are joined; "" where each reaches each other one.
        hops: links that a byte of an all-to-all passes in the mean.
        measured: what `steptime calibrate` measured.
        unverified: figures that should be checked before they are relied on.
        source: where its figures come from.
        notes: remarks.
    """

    name: str
    bytes_per_s: float
    collective_bytes_per_s: float | None
    latency_s: float | None
    latency_low_s: float | None
    latency_high_s: float | None
    topology: str
    hops: float
    measured: tuple[SettingRow, ...]
    unverified: tuple[str, ...]
    source: str
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the figures that are known, down the side."""
        return [make_facts_table(self.name, "", list(_list_facts(self)))]


class HyperparameterRow(AnswerRow, frozen=True, kw_only=True):
    """A hyperparameter of a network.

    Attributes:
        name: its name.
        default: its default; "..." follows from the other hyperparameters.
        meaning: one line on it.
        choices: the only texts that are valid; none for a number.
    """

    name: str
    default: Scalar
    meaning: str
    choices: tuple[str, ...]


class NetworkAnswer(Answer, frozen=True, kw_only=True):
    """A network with its hyperparameters.

    Attributes:
        name: its name.
        source: where it is described.
        batch: its default batch.
        rows: its hyperparameters.
        headline: its source and its default batch.
        notes: remarks.
    """

    name: str
    source: str
    batch: int
    rows: tuple[HyperparameterRow, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the hyperparameters."""
        if not self.rows:
            return [make_facts_table(self.name, "", [("hyperparameters", "none")])]
        columns = (Column("name"), Column("default"), Column("meaning"), Column("choices"))
        return [Table(columns, [row.to_dict() for row in self.rows], self.name)]


def find_item(name: str, topics: Iterable[str]) -> DeviceAnswer | LinkAnswer | NetworkAnswer:
    """Return a device, link or network: each number and its source.

    Args:
        name: its name, or a device's file.
        topics: names that the user may have meant instead.

    Raises:
        InputError: for an unknown name, and for a file that is not a device.
    """
    lower_name = name.lower()
    is_local = lower_name == device_words.LOCAL
    has_device_file = bool(device_words.device_path(lower_name)) or lower_name.endswith(".toml")
    has_device_words = bool(device_words.find_devices(name))  # such as "A100 80GB"
    if is_local or has_device_file:
        # The catalogue gives a device of a paper's table only to the method of that paper. If the
        # name also stands for a real card (`k80`), that card is shown instead.
        method = "" if has_device_words else catalog.PAPER_METHOD
        return _make_device_answer(catalog.device(name, method))
    if catalog.LINKS.find(lower_name):
        return _make_link_answer(catalog.link(name))
    if name in list_names():
        return _make_network_answer(family(name))
    # Words such as "A100 80GB" come last: a link or a network with just this name goes first.
    if has_device_words:
        return _make_device_answer(catalog.device(name))
    devices = [*catalog.device_names(), *device_words.aliases()]
    candidates = (*topics, *devices, *catalog.link_names(), *list_names())
    has_similar_name = bool(find_similar_names(name, candidates))
    # All names are too many to suggest: without a similar one, name the topics.
    raise unknown("name", name, candidates if has_similar_name else topics)


def _make_device_answer(device: Device) -> DeviceAnswer:
    # All other fields are copied from the datasheet.
    set_fields = {"name", "kind", "capacity_bytes", "details", "notes"}
    set_fields |= {"measured", "calibration", "constants"}
    datasheet = device.datasheet
    return DeviceAnswer(
        capacity_bytes=datasheet.memory_bytes,
        details={name: value for name, value in datasheet.details.items() if value is not None},
        measured=tuple(_flatten_table(device.measured)),
        calibration=tuple(_flatten_table(device.calibration.table)),
        name=device.name,
        kind=device.kind,
        constants=dict(device.constants),
        notes=_list_notes(datasheet),
        **_copy_fields(DeviceAnswer, datasheet, excluded_names=set_fields),
    )


def _make_link_answer(link: Link) -> LinkAnswer:
    low_s, high_s = link.latency_range_s or (None, None)
    # All other fields are copied from the link.
    set_fields = {"collective_bytes_per_s", "latency_low_s", "latency_high_s", "measured", "notes"}
    return LinkAnswer(
        collective_bytes_per_s=link.bus_bytes_per_s,
        latency_low_s=low_s,
        latency_high_s=high_s,
        measured=tuple(_flatten_table(link.measured)),
        notes=_list_notes(link),
        **_copy_fields(LinkAnswer, link, excluded_names=set_fields),
    )


def _copy_fields(
    answer_class: type[Answer], item: Datasheet | Link, excluded_names: set[str]
) -> Mapping[str, Any]:
    """Return the fields of an answer that have the same name and value in the item."""
    fields = {}
    for name in public_fields(answer_class):
        if name not in excluded_names:
            value = getattr(item, name)
            fields[name] = dict(value) if isinstance(value, Mapping) else value
    return fields


def _list_notes(item: Datasheet | Link) -> tuple[str, ...]:
    """Return the remark of a file and its unverified figures."""
    unverified_text = f"not verified: {', '.join(item.unverified)}" if item.unverified else ""
    return tuple(" ".join(text.split()) for text in (item.note, unverified_text) if text)


def _flatten_table(table: Mapping[str, Any], prefix: str = "") -> Iterator[SettingRow]:
    """Yield the values of nested tables under names with dots."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten_table(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield SettingRow(name=name, value=json.dumps(value))
        else:
            yield SettingRow(name=name, value=value)


def _list_facts(answer: DeviceAnswer | LinkAnswer) -> Iterator[tuple[str, str]]:
    """Yield the figures that are known as names and texts; figures of details only once."""
    for key in public_fields(type(answer)):
        value = getattr(answer, key)
        if isinstance(value, dict):
            for name, figure in value.items():
                # Such a detail is also a field of the answer itself, which is listed by its key.
                is_datasheet_field = key == "details" and name in DETAILS
                if not is_datasheet_field:
                    yield f"{key}.{name}", format_value(key, figure)
        elif key in ("measured", "calibration"):
            for setting in value:
                yield f"{key}.{setting.name}", format_value(setting.name, setting.value)
        else:
            is_empty = value is False or value in ("", (), None)
            if key not in TEXT_FIELDS and not is_empty:
                yield key, format_value(key, value)


def _make_network_answer(network: Family) -> NetworkAnswer:
    rows = tuple(
        HyperparameterRow(
            name=name,
            default=DERIVED_DEFAULT if callable(parameter.default) else parameter.default,
            meaning=parameter.meaning,
            choices=tuple(parameter.choices),
        )
        for name, parameter in network.parameters.items()
    )
    has_derived_default = any(row.default == DERIVED_DEFAULT for row in rows)
    return NetworkAnswer(
        name=network.name,
        source=network.source,
        batch=network.batch,
        rows=rows,
        headline=(f"source: {network.source}", f"default batch: {network.batch}"),
        notes=("...: follows from the other hyperparameters",) if has_derived_default else (),
    )
