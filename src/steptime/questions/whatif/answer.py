"""The answers to `whatif`: networks on one changed device, on many, or after single upgrades."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_line, assumed_text
from steptime.core.tables.table import Column, Table, make_frame
from steptime.core.units import format_count
from steptime.grids.batches import MAX_BATCH

MAX_OP_ROWS = 12  # that people see
MAX_ROWS = 40
SPEED_COLUMNS = (
    Column("speedup", "speed-up"),
    Column("grown_speedup", "speed-up at larger batch"),
    Column("newly_fitting_count", "newly fitting"),
)
CLASS_COLUMNS = (
    Column("bound", "bottleneck"),
    Column("batch"),
    Column("traffic", is_spare=True),
    Column("op_count", "ops"),
    Column("time_share", "time"),
    Column("speedup", "speed-up"),
    Column("min_speedup", "min speed-up", is_spare=True),
    Column("max_speedup", "max speed-up", is_spare=True),
)
OP_COLUMNS = (
    Column("kind", "op"),
    Column("unit"),
    Column("bound", "bottleneck"),
    Column("op_count", "ops"),
    Column("time_share", "time"),
    Column("speedup", "speed-up"),
)


def _network_columns(batch_suffix: str) -> tuple[Column, ...]:
    """Return the columns of networks; `batch_suffix` is that of the keys of largest batches."""
    return (
        Column("model"),
        Column("batch"),
        Column("bound", "bottleneck"),
        Column("step_s", "step"),
        Column("changed_step_s", "step changed"),
        Column("speedup", "speed-up"),
        Column("grown_batch", "larger batch", is_spare=True),
        Column("grown_speedup", "speed-up at larger batch", is_spare=True),
        Column(f"largest_batch{batch_suffix}", "largest batch", is_spare=True),
        Column(f"changed_largest_batch{batch_suffix}", "largest batch changed", is_spare=True),
        Column("status", is_spare=True),
    )


NETWORK_COLUMNS = _network_columns("_text")
NETWORK_CSV_COLUMNS = _network_columns("")


class BoundCount(AnswerRow, frozen=True, kw_only=True):
    """The number of networks with one bottleneck.

    Attributes:
        bound: compute, memory, host or communication.
        network_count: number of networks.
    """

    bound: str
    network_count: int


class Summary(AnswerRow, frozen=True, kw_only=True):
    """The speed-ups of all networks together; null where no network has one.

    Attributes:
        network_count: number of networks, each counted at each batch.
        speedup: geometric mean of the speed-ups at the same batch.
        min_speedup: the smallest speed-up at the same batch.
        median_speedup: the median of the speed-ups at the same batch.
        max_speedup: the largest speed-up at the same batch.
        bounds: number of networks by what most of their step waits for before the change.
        newly_fitting_count: number of networks that fit only after the change.
        no_longer_fitting_count: number of networks that fit only before the change.
        larger_batch_count: number of networks whose largest batch changes.
        batch_growth: geometric mean of the factors by which these batches grow.
        larger_batch_speedup: geometric mean of the speed-ups with the larger batch.
        max_larger_batch_speedup: the largest speed-up with a larger batch.
        compute_bound_speedup: speed-up of compute-bound ops at the same batch.
        memory_bound_speedup: speed-up of memory-bound ops at the same batch.
        host_bound_speedup: speed-up of host-bound ops at the same batch.
        memory_bound_larger_batch_speedup: speed-up with the larger batch, of memory-bound ops whose
            bytes do not grow with the batch (such as those of weights).
    """

    network_count: int
    speedup: float | None
    min_speedup: float | None
    median_speedup: float | None
    max_speedup: float | None
    bounds: tuple[BoundCount, ...]
    newly_fitting_count: int
    no_longer_fitting_count: int
    larger_batch_count: int
    batch_growth: float | None
    larger_batch_speedup: float | None
    max_larger_batch_speedup: float | None
    compute_bound_speedup: float | None
    memory_bound_speedup: float | None
    host_bound_speedup: float | None
    memory_bound_larger_batch_speedup: float | None


class OpClass(AnswerRow, frozen=True, kw_only=True):
    """The ops with one bottleneck before the change.

    Attributes:
        batch: whether the batch after the change is the `same` or `larger`.
        bound: compute, memory or host.
        traffic: for memory-bound ops at a larger batch: `each step` where their bytes stay the same
            (weights), `each example` where they grow (activations); null for others.
        op_count: number of ops.
        time_share: their share of the time of all ops before the change.
        speedup: speed-up of all together; null without time after the change.
        min_speedup: the smallest speed-up of an op.
        max_speedup: the largest speed-up of an op.
    """

    batch: str
    bound: str
    traffic: str | None
    op_count: int
    time_share: float
    speedup: float | None
    min_speedup: float | None
    max_speedup: float | None


class OpKindClass(AnswerRow, frozen=True, kw_only=True):
    """The ops of a kind with one bottleneck before the change, at the same batch.

    Attributes:
        kind: the kind of op (`steptime list ops`).
        unit: the unit of the device that computes it.
        bound: compute, memory or host.
        op_count: number of ops.
        time_share: their share of the time of all ops before the change.
        speedup: speed-up of all together; null without time after the change.
        min_speedup: the smallest speed-up of an op.
        max_speedup: the largest speed-up of an op.
    """

    kind: str
    unit: str
    bound: str
    op_count: int
    time_share: float
    speedup: float | None
    min_speedup: float | None
    max_speedup: float | None


class NetworkRow(AnswerRow, frozen=True, kw_only=True):
    """A network at a batch, before and after the change.

    Attributes:
        model: the network.
        batch: examples of a step.
        bound: what most of the step waits for before the change; null where it does not fit.
        step_s: seconds of a step before the change; null where it does not fit.
        changed_step_s: seconds of a step after the change; null where it does not fit.
        speedup: `step_s` over `changed_step_s`; null where one of them is null.
        grown_batch: `batch` times `changed_largest_batch` over `largest_batch`; null where the step
            does not fit.
        grown_speedup: speed-up in examples a second, with `grown_batch` after the change.
        largest_batch: the largest power of two (to 1,048,576) that fits before the change, or 0.
        changed_largest_batch: `largest_batch` after the change.
        status: ok, oom, new (fits only after the change) or oom after (fits only before).
    """

    model: str
    batch: int
    bound: str | None
    step_s: float | None
    changed_step_s: float | None
    speedup: float | None
    grown_batch: int | None
    grown_speedup: float | None
    largest_batch: int
    changed_largest_batch: int
    status: str

    @property
    def is_capped(self) -> bool:
        """Whether the search for a largest batch ended at its cap, not at the memory."""
        return max(self.largest_batch, self.changed_largest_batch) >= MAX_BATCH


class NetworkSettings(AnswerRow, frozen=True, kw_only=True):
    """The settings that are assumed for one of several networks.

    Attributes:
        model: the network.
        assumed: settings not given that decide its predictions, by the option that changes them.
    """

    model: str
    assumed: dict[str, str]


class NetworksAnswer(Answer, frozen=True, kw_only=True):
    """Networks on a device and on changed ones.

    Attributes:
        device: the device.
        method: the cost model.
        dtype: data type of weights and activations; null where the networks have several.
        network_count: number of networks.
        assumed: settings that were not given and decide all predictions alike, by the option that
            changes them.
        network_settings: the assumed settings of each network, where they are not alike.
        notes: remarks that change how the answer is read.
    """

    device: str
    method: str
    dtype: str | None
    network_count: int
    assumed: dict[str, str]
    network_settings: tuple[NetworkSettings, ...]
    notes: tuple[str, ...]

    def describe_assumed(self) -> list[str]:
        """Describe the assumed settings in a line, of each network where they are not alike."""
        settings = [(row.model, assumed_text(row.assumed)) for row in self.network_settings]
        return assumed_line(settings or [(self.device, assumed_text(self.assumed))])

    def describe_question(self) -> str:
        """Describe the question: `t4, 2 networks, float32 (calibrated)`."""
        networks = format_count(self.network_count, "network")
        dtype = self.dtype or "of several types"
        return f"{self.device}, {networks}, {dtype} ({self.method})"


class WhatIfAnswer(NetworksAnswer, frozen=True, kw_only=True):
    """Networks on a device and on a changed one; speed-ups above 1 are faster.

    Attributes:
        changes: the changes of the device.
        summary: the speed-ups of all networks together.
        classes: the ops, grouped by their bottleneck.
        ops: the ops, grouped by kind, unit and bottleneck, at the same batch.
        rows: the networks, each at each batch.
        headline: the answer in a few sentences.
    """

    has_details: ClassVar[bool] = True

    changes: tuple[str, ...]
    summary: Summary
    classes: tuple[OpClass, ...]
    ops: tuple[OpKindClass, ...]
    rows: tuple[NetworkRow, ...]
    headline: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the classes of ops, the kinds of ops and the networks."""
        title = f"{self.device} with {', '.join(self.changes)}"
        footnotes = self.describe_assumed()
        networks = []
        for row in self.rows:
            batch_texts = {
                "largest_batch_text": format_largest(row.largest_batch),
                "changed_largest_batch_text": format_largest(row.changed_largest_batch),
            }
            networks.append(row.to_dict() | batch_texts)
        network_table = Table(
            NETWORK_COLUMNS,
            networks,
            f"{title}, by network",
            footnotes,
            max_rows=MAX_ROWS,
            csv_columns=NETWORK_CSV_COLUMNS,
        )
        class_table = Table(
            CLASS_COLUMNS,
            [op_class.to_dict() for op_class in self.classes],
            "ops by what binds them",
            is_detail=True,
        )
        op_table = Table(
            OP_COLUMNS,
            [op_kind.to_dict() for op_kind in self.ops],
            "ops by kind, at the same batch",
            max_rows=MAX_OP_ROWS,
            is_detail=True,
        )
        return [network_table, class_table, op_table]


def format_largest(batch: int) -> str:
    """Format the largest batch: `1024`, or `at least 1048576` from the cap of the search on."""
    return f"at least {batch}" if batch >= MAX_BATCH else str(batch)


class ChangedDevice(AnswerRow, frozen=True, kw_only=True):
    """The networks on one of many changed devices.

    Attributes:
        changes: the new figures or factors, by the key of the device's file.
        speedup: geometric mean of the speed-ups at the same batch, of networks that fit before and
            after the change; null for none.
        grown_speedup: geometric mean of the speed-ups in examples a second, with a batch that grows
            as the largest that fits does.
        network_count: number of networks that fit before and after the change.
        newly_fitting_count: number of networks that fit only after the change.
    """

    changes: dict[str, float]
    speedup: float | None
    grown_speedup: float | None
    network_count: int
    newly_fitting_count: int


class ChangedDevicesAnswer(NetworksAnswer, frozen=True, kw_only=True):
    """Networks on every combination of changes of a device.

    Attributes:
        axes: the keys of the changed figures.
        rows: the changed devices.
        headline: the fastest changed device, in a sentence.
    """

    axes: tuple[str, ...]
    rows: tuple[ChangedDevice, ...]
    headline: tuple[str, ...]
    _factors: tuple[str, ...] = ()

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each changed device; needs pandas."""
        return make_frame(self._flat_rows())

    def _flat_rows(self) -> list[Mapping[str, Any]]:
        """Return rows with a column for each changed figure."""
        tables = (row.to_dict() for row in self.rows)
        return [table.pop("changes") | table for table in tables]

    def tables(self) -> list[Table]:
        """Return a row for each changed device."""
        keys = [
            Column(key, f"{key}{' x' if key in self._factors else ''}", form="g")
            for key in self.axes
        ]
        return [_speed_table(self, (*keys, *SPEED_COLUMNS), self._flat_rows())]


class Upgrade(AnswerRow, frozen=True, kw_only=True):
    """One of several changes of a device, alone.

    Attributes:
        upgrade: the change.
        speedup: geometric mean of the speed-ups at the same batch; null where no network fits.
        grown_speedup: geometric mean of the speed-ups in examples a second, with a batch that grows
            as the largest that fits does.
        newly_fitting_count: number of networks that fit only after the change.
        gain_share: by what share all networks become faster: `grown_speedup` - 1.
    """

    upgrade: str
    speedup: float | None
    grown_speedup: float | None
    newly_fitting_count: int
    gain_share: float


class UpgradesAnswer(NetworksAnswer, frozen=True, kw_only=True):
    """Single upgrades of a device, the one that pays most first.

    Attributes:
        rows: the upgrades.
        headline: the upgrade that pays most, in a sentence.
    """

    rows: tuple[Upgrade, ...]
    headline: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return a row for each upgrade."""
        rows = [row.to_dict() for row in self.rows]
        return [_speed_table(self, (Column("upgrade"), *SPEED_COLUMNS), rows)]


def _speed_table(
    answer: NetworksAnswer,
    heads: Sequence[Any],
    rows: Sequence[Mapping[str, Any]],
) -> Table:
    """Return the table of changed devices, with what is assumed below."""
    footnotes = answer.describe_assumed()
    return Table(heads, rows, answer.describe_question(), footnotes, max_rows=MAX_ROWS)
