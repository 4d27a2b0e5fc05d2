"""Networks or ops under the ceilings of their devices (Williams, Waterman, Patterson 2009)."""

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.rooflines.ceilings import (
    DRAM,
    Ceiling,
    compute_dtype,
    list_ceilings,
    list_ridges,
)
from steptime.analysis.rooflines.roofline_answer import (
    RooflineAnswer,
    RooflineGroup,
    RooflinePoint,
    RooflineSummary,
)
from steptime.analysis.rooflines.roofline_points import SETTING_PREFIX, list_points
from steptime.analysis.rooflines.roofline_words import describe_roofline
from steptime.core.errors import InputError
from steptime.core.tables.table import Column, Table
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.records.data import Data
from steptime.records.row import divide

MAX_ROWS = 20_000  # of more points some are rows, chosen by chance; all are counted
POINTS_PER_PRINTED_ROW = 2  # of a picture, for each row that people see
MAX_PRINTED_ROWS = 20
LARGEST_HASH = 2**64 - 1
GROUP_KEYS = ("platform", "dtype")
PEAK, BANDWIDTH = pl.col("peak_flop_per_s"), pl.col("memory_bytes_per_s")
RIDGE = PEAK / BANDWIDTH
SPEED = pl.coalesce("flop_per_s", "predicted_flop_per_s")


def draw_roofline(
    points: pl.DataFrame, devices: Sequence[Device], max_rows: int = MAX_ROWS
) -> RooflineAnswer:
    """Return points under the ceilings of their platforms, the fastest first.

    Args:
        points: the points (`roofline_points.list_points`).
        devices: devices whose ceilings are listed, too.
        max_rows: points that are rows, about; of more points some are chosen by chance.
    """
    roofs = _find_roofs(points, devices)
    # The devices that the user names come first, then those of the records that are known.
    devices_by_name = {device.name: device for device in devices}
    for platform in roofs["platform"].unique(maintain_order=True):
        device = devices_by_name.get(platform) or _find_device(platform)
        if device is not None:
            devices_by_name[platform] = device
    ceilings = _list_all_ceilings([*devices_by_name.values()], roofs)
    placed = _place_under_roofs(points, roofs)
    groups = [_add_highest_peak(group, ceilings) for group in _group_points(placed)]
    point_count = len(points)
    points_per_row = max(1, -(-point_count // max_rows))  # rounded up
    fastest = [group.best for group in groups if group.best is not None]  # names of points
    return RooflineAnswer(
        rows=_make_rows(placed, points_per_row, fastest),
        summary=_summarise(groups, ceilings, point_count, points_per_row),
    )


def _find_device(name: str) -> Device | None:
    """Return a device of the catalog, None if the records alone may say its ceilings."""
    try:
        return catalog.device(name)
    except InputError:
        return None


def _find_roofs(points: pl.DataFrame, devices: Sequence[Device]) -> pl.DataFrame:
    """Return peak and bandwidth by platform and dtype: those of records, else of the device."""
    groups = (
        points.group_by(GROUP_KEYS)
        .agg(PEAK.max(), BANDWIDTH.max())
        .sort(GROUP_KEYS, nulls_last=True)
    )
    by_name = {device.name: device for device in devices}
    peaks: list[float | None] = []
    rates: list[float | None] = []
    for platform, dtype, peak, rate in groups.iter_rows():
        device = by_name.get(platform) or _find_device(platform)
        device_peaks = device.datasheet.peak_flop_per_s if device else {}
        # What records state wins over the datasheet: it is of the machine that ran.
        peaks.append(peak or device_peaks.get(compute_dtype(dtype)))
        rates.append(rate or (device.datasheet.memory_bytes_per_s if device else None))
    return groups.with_columns(
        pl.Series("peak_flop_per_s", peaks, dtype=pl.Float64()),
        pl.Series("memory_bytes_per_s", rates, dtype=pl.Float64()),
    )


def _list_all_ceilings(devices: Sequence[Device], roofs: pl.DataFrame) -> list[Ceiling]:
    """Return the ceilings of all devices, and those that only the records state."""
    ceilings = [ceiling for device in devices for ceiling in list_ceilings(device)]
    device_names = {device.name for device in devices}
    for platform, dtype, peak, rate in roofs.iter_rows():
        platform_ceilings = [ceiling for ceiling in ceilings if ceiling.platform == platform]
        peaks = {ceiling.flop_per_s for ceiling in platform_ceilings}
        rates = {ceiling.bytes_per_s for ceiling in platform_ceilings}
        # A recorded figure that differs from the datasheet's gets a ceiling of its own.
        suffix = " as recorded" if platform in device_names else ""
        if peak is not None and peak not in peaks:
            ceilings.append(
                Ceiling(
                    platform=platform,
                    unit=f"matrix{suffix}",
                    dtype=compute_dtype(dtype),
                    flop_per_s=peak,
                )
            )
        if rate is not None and rate not in rates:
            level = f"{DRAM}{suffix}"
            ceilings.append(Ceiling(platform=platform, level=level, bytes_per_s=rate))
    return ceilings


def _place_under_roofs(points: pl.DataFrame, roofs: pl.DataFrame) -> pl.DataFrame:
    """Return points with the ceilings of their platform, and speeds of published shares of it."""
    unplaced = points.drop("peak_flop_per_s", "memory_bytes_per_s")
    placed = unplaced.join(
        roofs, on=GROUP_KEYS, how="left", nulls_equal=True, maintain_order="left"
    )
    # A published share of the peak is a speed, once the peak is known.
    measured_speed = pl.coalesce("flop_per_s", pl.col("peak_share") * PEAK)
    intensity = pl.col("intensity")
    has_roof = intensity > 0
    # A speed or an intensity of 0 is an unknown one: it becomes null.
    return placed.with_columns(
        pl.when(measured_speed != 0).then(measured_speed).alias("flop_per_s"),
        pl.when(intensity != 0).then(intensity).alias("intensity"),
        pl.when(has_roof)
        .then(pl.min_horizontal(PEAK, intensity * BANDWIDTH))
        .alias("roof_flop_per_s"),
    )


def _group_points(placed: pl.DataFrame) -> list[RooflineGroup]:
    """Return a group for each platform and dtype, with the fastest of its points."""
    measured_speed = pl.col("flop_per_s")  # null for a prediction alone, unlike `SPEED`
    # Null for a point without an intensity or a group without a ridge: these are in neither share.
    is_above = pl.col("intensity") >= RIDGE
    has_placed_point = is_above.count() > 0
    above_share = is_above.sum() / is_above.count()
    # Name and speed lose the same points, so that the place of the highest speed is right for both.
    is_measured = measured_speed.is_not_null()
    fastest = pl.col("name").filter(is_measured).get(measured_speed.drop_nulls().arg_max())
    groups = (
        placed.group_by(GROUP_KEYS, maintain_order=True)
        .agg(
            PEAK.first(),
            BANDWIDTH.first(),
            RIDGE.first().alias("ridge_flop_per_byte"),
            pl.len().alias("points"),
            pl.col("intensity").count().alias("with_intensity"),
            SPEED.count().alias("with_speed"),  # measured or predicted
            pl.when(has_placed_point).then(above_share).alias("above_ridge_share"),
            pl.when(has_placed_point).then(1 - above_share).alias("below_ridge_share"),
            pl.when(is_measured.any()).then(fastest).alias("best"),
            measured_speed.max().alias("best_flop_per_s"),
            (measured_speed / PEAK).max().alias("best_peak_fraction"),
            (measured_speed / pl.col("roof_flop_per_s")).max().alias("best_roof_fraction"),
            (measured_speed > PEAK).sum().alias("above_peak"),
        )
        .sort(GROUP_KEYS, nulls_last=True)
    )
    return [msgspec.convert(row, RooflineGroup) for row in groups.iter_rows(named=True)]


def _add_highest_peak(group: RooflineGroup, ceilings: Sequence[Ceiling]) -> RooflineGroup:
    """Return a group with the highest peak of its platform, and how near its best point comes."""
    unit_ceilings = [
        ceiling
        for ceiling in ceilings
        if ceiling.platform == group.platform
        and ceiling.flop_per_s
        # Rates of integers are no FLOP.
        and "int" not in (ceiling.dtype or "")
    ]
    highest = max(unit_ceilings, key=lambda ceiling: ceiling.flop_per_s or 0.0, default=None)
    if highest is None:
        return group
    return msgspec.structs.replace(
        group,
        highest_peak_dtype=highest.dtype,
        highest_peak_flop_per_s=highest.flop_per_s,
        best_highest_peak_fraction=divide(group.best_flop_per_s, highest.flop_per_s),
    )


def _make_rows(
    placed: pl.DataFrame, points_per_row: int, fastest: Sequence[str]
) -> list[RooflinePoint]:
    """Return the points that have a place in the picture, or one in `points_per_row` of them."""
    roof = pl.col("roof_flop_per_s")
    is_compute_bound = pl.col("intensity") >= RIDGE
    is_prediction = pl.col("intensity").is_not_null() & pl.col("predicted_flop_per_s").is_not_null()
    has_speed = pl.col("flop_per_s").is_not_null() | is_prediction
    is_row = has_speed
    if points_per_row > 1:
        # A sample of the points by a hash of the name, which is the same in each run, and the
        # fastest point of each platform.
        is_sampled = pl.col("name").hash(seed=0) <= LARGEST_HASH // points_per_row
        is_row &= is_sampled | pl.col("name").is_in(fastest)
    rows = (
        placed.filter(is_row)
        .with_columns(
            (SPEED / PEAK).alias("peak_fraction"),
            (SPEED / roof).alias("roof_fraction"),
            pl.when(is_compute_bound)
            .then(pl.lit("compute"))
            .when(~is_compute_bound)
            .then(pl.lit("memory"))
            .alias("bound"),
        )
        .sort(
            ["flop_per_s", "predicted_flop_per_s", "name", *GROUP_KEYS],
            descending=[True, True, False, False, False],
            nulls_last=True,
            maintain_order=True,
        )
    )
    return [_make_point(row) for row in rows.iter_rows(named=True)]


def _make_point(row: Mapping[str, object]) -> RooflinePoint:
    settings = {
        name.removeprefix(SETTING_PREFIX): value
        for name, value in row.items()
        if name.startswith(SETTING_PREFIX)
    }
    return msgspec.convert({**row, "settings": settings}, RooflinePoint)


def _summarise(
    groups: Sequence[RooflineGroup], ceilings: Sequence[Ceiling], points: int, points_per_row: int
) -> RooflineSummary:
    """Return the numbers of all platforms together."""
    best = max(groups, key=lambda group: group.best_flop_per_s or 0, default=None)
    # The share of all points: that of each group weighs as much as it has points.
    above_count = 0.0
    placed_count = 0
    for group in groups:
        if group.above_ridge_share is not None:
            above_count += group.with_intensity * group.above_ridge_share
            placed_count += group.with_intensity
    above_share = divide(above_count, placed_count)
    # A common ridge only if all groups have the same.
    ridges = {group.ridge_flop_per_byte for group in groups}
    return RooflineSummary(
        points=points,
        ridge_flop_per_byte=ridges.pop() if len(ridges) == 1 else None,
        above_ridge_share=above_share,
        below_ridge_share=None if above_share is None else 1 - above_share,
        best=best.best if best else None,
        best_flop_per_s=best.best_flop_per_s if best else None,
        best_peak_fraction=best.best_peak_fraction if best else None,
        platforms=list(groups),
        ceilings=list(ceilings),
        ridges=list_ridges(ceilings),
        points_per_row=points_per_row,
    )


def roofline_table(
    data: Data, device: str | None, ops: bool, color: str | None, line: str | None
) -> Table:
    """Return a row a network, or an op: its intensity, speed, ceiling and share of the ceiling.

    Without a folder a row for each ridge point of the devices.

    Raises:
        InputError: for an unknown device or column.
    """
    devices = [catalog.device(name.strip()) for name in device.split(",")] if device else []
    if not data.names:
        if not devices:
            raise InputError("roofline: give folders of records, or devices with --device")
        return _make_device_table(devices)
    points = list_points(data, [name for name in (color, line) if name], ops=ops)
    # `data.max_rows` limits the printed rows (None: no limit); the chart may show more points.
    max_rows = min(MAX_ROWS, POINTS_PER_PRINTED_ROW * (data.max_rows or MAX_ROWS))
    answer = draw_roofline(points, devices, max_rows)
    if not answer.rows and devices:
        return _make_device_table(devices)
    rows = [row.to_columns() for row in answer.rows]
    columns = (
        (Column("name", "op") if ops else Column("name", "network")),
        Column("platform", is_spare=True),
        Column("dtype", "type", is_spare=True),
        Column("origin", is_spare=True),
        Column("intensity", "FLOP per byte", form=".4g"),
        Column("flop_per_s", "speed"),
        Column("predicted_flop_per_s", "predicted"),
        Column("roof_flop_per_s", "ceiling"),
        Column("roof_fraction", "of ceiling"),
        Column("peak_fraction", "of peak"),
    )
    return Table(
        columns,
        rows,
        max_rows=MAX_PRINTED_ROWS,
        csv_columns=tuple(map(Column, rows[0] if rows else ())),
        summary={**answer.summary.to_dict(), "ops": ops, "color": color, "line": line},
        structs=answer.rows,
    )


def _make_device_table(devices: Sequence[Device]) -> Table:
    """Return the ridge points of devices, for which there are no points."""
    ceilings = [ceiling for device in devices for ceiling in list_ceilings(device)]
    ridges = list_ridges(ceilings)
    rows = [ridge.to_dict() for ridge in ridges]
    columns = (
        Column("platform"),
        Column("unit"),
        Column("dtype", "type"),
        Column("peak_flop_per_s", "peak"),
        Column("level", "memory"),
        Column("memory_bytes_per_s", "bandwidth"),
        Column("ridge_flop_per_byte", "ridge point"),
    )
    summary = {
        "points": 0,
        "platforms": [],
        "ceilings": [ceiling.to_dict() for ceiling in ceilings],
        "ridges": rows,
    }
    return Table(columns, rows, summary=summary, structs=ridges)


SETTINGS = (
    Setting(
        "device",
        "The devices whose ceilings are shown, without a folder: names or FILE.toml, with commas.",
        metavar="DEVICE",
    ),
    Setting("ops", "Show single ops instead of whole networks.", default=False, kind=bool),
    Setting("color", "Colour the points by a column: a hyperparameter, batch, family, dtype."),
    Setting("line", "Join the points of networks that differ only in this hyperparameter."),
)
ANALYSIS = Analysis(
    """Print networks or ops under the ceilings of their devices.

    A ceiling is a peak of a unit and dtype, or a bandwidth times FLOP per byte.
    A network's share of the lower one says how much faster it could be at best.
    Measured, published and predicted alike; with --device alone only ceilings.
    """,
    roofline_table,
    describe_roofline,
    row_struct=RooflinePoint,
    section="Roofline",
    chart="steptime.reports.charts.roofline:chart",
    settings=SETTINGS,
    folders=16,
    min_folders=0,
)
