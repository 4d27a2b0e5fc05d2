"""What there is: the question `list`, of a topic or of one device, link or network."""

from collections.abc import Callable
from dataclasses import asdict
from inspect import getdoc
from typing import Annotated

from steptime.core import registry
from steptime.core.answer import AnswerRow
from steptime.core.errors import check_choice, unknown
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import File, Kind
from steptime.core.spelling import plain_name
from steptime.core.units import QUANTITIES
from steptime.hardware import catalog, device_words
from steptime.questions.list.item import (
    DERIVED_DEFAULT,
    DeviceAnswer,
    LinkAnswer,
    NetworkAnswer,
    find_item,
)
from steptime.questions.list.prices import PriceRow, PricesAnswer, read_prices
from steptime.questions.list.stacks import StacksAnswer, read_stacks
from steptime.questions.list.topics import (
    AcceleratorRow,
    AcceleratorsAnswer,
    DeviceRow,
    DevicesAnswer,
    FigureRow,
    LinkRow,
    LinksAnswer,
    ListedQuestion,
    MethodRow,
    MethodsAnswer,
    ModelRow,
    ModelsAnswer,
    OpRow,
    OpsAnswer,
    OptionRow,
    QuantitiesAnswer,
    QuantityRow,
    QuestionsAnswer,
)

ListAnswer = (
    ModelsAnswer
    | DevicesAnswer
    | LinksAnswer
    | StacksAnswer
    | MethodsAnswer
    | OpsAnswer
    | QuantitiesAnswer
    | AcceleratorsAnswer
    | PricesAnswer
    | QuestionsAnswer
    | DeviceAnswer
    | LinkAnswer
    | NetworkAnswer
)


def list_(
    topic: Annotated[
        File,
        Kind(
            "TOPIC|NAME", is_argument=True, completes="steptime.questions.list.question:topic_names"
        ),
    ] = "models",
    only: Annotated[str, Kind("TEXT", is_argument=True)] | None = None,
    sources: bool = False,
) -> ListAnswer:
    """List models, devices, links and more, or show one of them.

    Args:
        topic: models, devices, links, stacks, methods, ops, quantities, accelerators, prices,
            questions; or the name of one device, link or model, or a device's FILE.toml, to see
            each of its numbers and their source.
        only: Only what has this in its name, or in a short name.
        sources: Also show where the numbers come from.

    Raises:
        InputError: for an unknown topic or name, and where no name has the text.
    """
    name = str(topic)
    if name not in TOPICS and only is None:
        return find_item(name, TOPICS)
    check_choice("topic", name, TOPICS)
    answer_class, read_rows = TOPICS[name]
    rows = read_rows()
    listed_rows = (
        rows if only is None else tuple(row for row in rows if _has_name_with_text(row, only))
    )
    if not listed_rows:
        # "devices" becomes "device" in the message.
        singular = "quantity" if name == "quantities" else name.removesuffix("s")
        raise unknown(singular, only, [_find_row_name(row) for row in rows])
    return answer_class(topic=name, rows=listed_rows, _show_sources=sources)


def topic_names() -> list[str]:
    """Return the topics and the names of devices, for a shell."""
    return [*TOPICS, *catalog.device_names(), *device_words.aliases(), device_words.LOCAL]


def _find_row_name(row: AnswerRow) -> str:
    if isinstance(row, OpRow):
        return row.kind
    return row.device if isinstance(row, PriceRow) else str(getattr(row, "name", ""))


def _has_name_with_text(row: AnswerRow, text: str) -> bool:
    """Return whether a name of a row has a text in it, however spelled: `rtx 4090` has rtx-4090."""
    aliases = row.aliases if isinstance(row, DeviceRow) else ()
    names = (_find_row_name(row), *aliases)
    return any(plain_name(text) in plain_name(name) for name in names)


def _read_models() -> tuple[ModelRow, ...]:
    from steptime.network.families import family, list_names

    return tuple(
        ModelRow(
            name=name,
            parameters={
                key: DERIVED_DEFAULT if callable(parameter.default) else parameter.default
                for key, parameter in family(name).parameters.items()
            },
            source=family(name).source,
        )
        for name in list_names()
    )


def _read_devices() -> tuple[DeviceRow, ...]:
    aliases_by_device: dict[str, list[str]] = {}
    for alias, name in device_words.aliases().items():
        aliases_by_device.setdefault(name, []).append(alias)
    return tuple(
        DeviceRow(
            name=device.name,
            kind=device.kind,
            peak_flop_per_s=dict(device.datasheet.peak_flop_per_s),
            capacity_bytes=device.datasheet.memory_bytes,
            memory_bytes_per_s=device.datasheet.memory_bytes_per_s,
            multiprocessors=device.datasheet.multiprocessors,
            cores=device.datasheet.cores,
            l2_bytes=device.datasheet.l2_bytes,
            process_nm=device.datasheet.process_nm,
            clock_hz=device.datasheet.clock_hz,
            idle_w=device.datasheet.idle_w,
            peak_w=device.datasheet.peak_w,
            only_by_name=device.datasheet.only_by_name,
            details=dict(device.datasheet.details),
            aliases=tuple(aliases_by_device.get(device.name, ())),
            source=device.datasheet.source,
        )
        for device in catalog.devices(print_note)
    )


def _read_links() -> tuple[LinkRow, ...]:
    links = [catalog.link(name) for name in catalog.link_names()]
    return tuple(
        LinkRow(
            name=link.name,
            bytes_per_s=link.bytes_per_s,
            latency_s=link.latency_s,
            source=link.source,
        )
        for link in links
    )


def _read_methods() -> tuple[MethodRow, ...]:
    from steptime.prediction import METHODS, cost_model

    target_by_name = {**METHODS, **registry.extension_rows("methods")}  # `module:attribute`
    rows = []
    for name, target in target_by_name.items():
        module_name = target.partition(":")[0]
        docstring = getdoc(registry.load(module_name)) or ""
        options = tuple(
            OptionRow(name=key, meaning=option.meaning)
            for key, option in cost_model(name).options.items()
        )
        # The first line of its module describes a method.
        first_line = docstring.partition("\n")[0]
        rows.append(MethodRow(name=name, description=first_line, options=options))
    return tuple(rows)


def _read_ops() -> tuple[OpRow, ...]:
    kinds = registry.load("steptime.network.ops:OPS")
    return tuple(
        OpRow(kind=kind, has_gradient=op.gradient is not None, source=op.source)
        for kind, op in kinds.items()
    )


def _read_quantities() -> tuple[QuantityRow, ...]:
    return tuple(
        QuantityRow(name=name, unit=unit, meaning=meaning)
        for name, (unit, meaning) in QUANTITIES.items()
    )


def _read_accelerators() -> tuple[AcceleratorRow, ...]:
    from steptime.energy.accelerators import designs

    return tuple(
        AcceleratorRow(
            name=design.name,
            process_nm=design.process_nm,
            clock_hz=design.clock_hz,
            area_mm2=design.area_mm2,
            power_w=design.power_w,
            networks=design.networks,
            published=tuple(FigureRow(**asdict(figure)) for figure in design.figures),
            source=design.source,
        )
        for design in designs()
    )


def _read_questions() -> tuple[ListedQuestion, ...]:
    """Return the questions; their table belongs to `api`, a room above this one."""
    # By name, since `api` itself imports this package.
    api = registry.load("steptime.api")
    return tuple(
        ListedQuestion(
            name=name,
            panel=row.panel,
            description=registry.describe_target(row.answer),
            schema=api.schema(name),
        )
        for name, row in api.QUESTIONS.items()
    )


TOPICS: dict[str, tuple[Callable[..., ListAnswer], Callable[[], tuple[AnswerRow, ...]]]] = {
    "models": (ModelsAnswer, _read_models),
    "devices": (DevicesAnswer, _read_devices),
    "links": (LinksAnswer, _read_links),
    "stacks": (StacksAnswer, read_stacks),
    "methods": (MethodsAnswer, _read_methods),
    "ops": (OpsAnswer, _read_ops),
    "quantities": (QuantitiesAnswer, _read_quantities),
    "accelerators": (AcceleratorsAnswer, _read_accelerators),
    "prices": (PricesAnswer, read_prices),
    "questions": (QuestionsAnswer, _read_questions),
}
"""The topics with their answers and the functions that read their rows."""
