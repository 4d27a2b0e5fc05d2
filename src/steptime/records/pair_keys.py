"""The keys by which records are paired, as expressions over a frame of records.

A level is a value of the column that is compared. A cell is the set of values that two records
share if they differ in nothing but that column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from steptime.core.errors import InputError, unknown
from steptime.records.frames.frame_columns import SCHEMA, STRING, other_number
from steptime.records.row import AMOUNTS

if TYPE_CHECKING:
    from steptime.records.folders import Folders

PLATFORM_OPTIONS = ("gpu", "allocation")  # options that name the platform that was asked for
STACK_OPTIONS = ("compile", "stack")
PLATFORM_COLUMNS = (
    "platform",
    "gpu",
    "threads",
    "host",
)  # columns that may give a platform another name
LEVEL_OPTIONS: Mapping[str, Sequence[str]] = {  # options in which the levels of a column differ
    **dict.fromkeys(("platform", "gpu"), PLATFORM_OPTIONS),
    **dict.fromkeys(("stack", "method"), STACK_OPTIONS),
}
NO_LEVELS = frozenset(  # columns of a frame that are compared by value, or not at all
    (
        *("params", "settings", "plan", "samples", "run", "runs", "others", "sampled", *AMOUNTS),
        *("estimate", "env", "method_options", "seq", "place", "folder_rank"),
    )
)
METHOD_NAME = pl.col("method").str.strip_suffix("-compile")  # whatever the stack
METHOD = ("method", "method_version", "method_options")
IS_PREDICTED = pl.col("origin") == "predicted"


def quantity_value(quantity: str) -> pl.Expr:
    """Return the number of a quantity, null where a record has none."""
    if quantity in AMOUNTS:
        return pl.col(quantity)
    if quantity == "examples_per_s":
        return pl.coalesce("examples_per_s", other_number(quantity))
    return other_number(quantity)


def has_quantity(data: Folders, quantity: str) -> bool:
    """Whether some record has a quantity."""
    return _has_value(data, quantity_value(quantity))


def check_quantity(data: Folders, quantity: str) -> None:
    """Raise `InputError` if no record has a quantity."""
    if has_quantity(data, quantity):
        return
    if data.failed:
        raise InputError(data.failed)
    record_counts = data.scan().select(pl.col(sorted(AMOUNTS)).count()).collect()
    # For the message: the quantities that some record has.
    amounts = [name for name in record_counts.columns if record_counts[name].item()]
    names = pl.col("others").explode().struct.field("key").unique()
    free_quantities = data.scan().select(names).collect()["key"].drop_nulls()
    raise unknown("quantity", quantity, sorted([*amounts, *free_quantities]))


def cell_columns(data: Folders, column: str, free: Collection[str]) -> list[pl.Expr]:
    """Return the expressions whose values two records share if they may be paired.

    Args:
        data: the records.
        column: the column that is compared.
        free: settings in which the two may differ.
    """
    # Records of one cell are equal in all but `column`, whose values are compared, and the settings
    # `free`, in which they may differ.
    settings = set(data.settings)
    network_columns = _network_columns(data, settings, free)
    may_differ_in_network = not {*network_columns, "replicas", *settings}.isdisjoint(free)
    if may_differ_in_network:
        cell = [expression for name, expression in network_columns.items() if name not in free]
    else:  # the same network exactly
        cell = [pl.col("workload_key")]
    cell += [pl.col("scope"), pl.col("origin")]
    if column not in PLATFORM_COLUMNS:
        cell.append(pl.col("platform"))
    if column == "stack":
        # Stacks are predicted by one method, which must be the same. They are measured by different
        # methods (`torch`, `jax`), which may differ.
        predicted_method = pl.when(IS_PREDICTED).then(METHOD_NAME).otherwise(pl.lit(""))
        cell.append(predicted_method.alias("method"))
    elif column not in ("method", "predicted_by"):
        cell.append(METHOD_NAME)
    return cell


def _network_columns(
    data: Folders, settings: set[str], free: Collection[str]
) -> dict[str, pl.Expr]:
    """Return the settings of a network without `free`, by the names of their columns."""
    network = {
        "model": _model_name(data, is_version_free="sha256" in free).alias("model"),
        "batch": (pl.col("examples") / pl.col("replicas")).alias("batch"),
        **{name: pl.col(name) for name in ("dtype", "phase", "optimizer", "params", "plan")},
    }
    if "replicas" in free:
        network["plan"] = without_keys(data, "plan", ["data"])
    free_settings = sorted(settings & {*free})
    if free_settings:
        network["params"] = without_keys(data, "params", free_settings)
    return network


def _model_name(data: Folders, *, is_version_free: bool) -> pl.Expr:
    """Return the name of a network without its settings, which are in `params`.

    `resnet50` is the family `resnet` with settings. A model without its family's name is the path
    of a file, which the hash in `params` names, wherever the file lies. Where versions of a file
    are compared (`is_version_free`), the versions of one file share its name.
    """
    has_family_in_name = pl.col("model").str.starts_with(pl.col("family"))
    model = pl.when(has_family_in_name).then(pl.col("family")).otherwise(pl.col("model"))
    has_file_hash = pl.col("params").str.contains("sha256", literal=True)
    if not is_version_free:
        return pl.when(has_file_hash).then(pl.lit("")).otherwise(model)
    paths = data.scan().filter(has_file_hash).select("folder_rank", model.alias("path"))
    return model.replace(_name_files(paths.unique().collect()))


def _name_files(files: pl.DataFrame) -> dict[str, str]:
    """Return the name by which other versions of each file are known, by its path.

    The versions of a network lie in several checkouts, or in a folder for each content, so the
    file's name decides. A name that two files of one folder of records have is left out: their
    paths tell them apart.

    Args:
        files: a row per `folder_rank` (of the folder of records) and `path`.
    """
    name = pl.col("path").str.split("/").list.last()
    files_with_names = files.with_columns(name.alias("name"))
    # Two files of one name in one folder of records are different networks: they keep their paths.
    is_shared = pl.col("path").n_unique().over("folder_rank", "name") > 1
    shared_names = files_with_names.filter(is_shared)["name"].implode()
    distinct = files_with_names.filter(~pl.col("name").is_in(shared_names))
    return dict(zip(distinct["path"], distinct["name"], strict=True))


def find_level(data: Folders, column: str, place: str = "--by") -> pl.Expr:
    """Return the level of a column as text, null where a record says nothing of it.

    Args:
        data: the records.
        column: a column of the frame, a hyperparameter, an option of the method, a key of the
            environment, a way of parallelism such as `tensor-parallel`, or `predicted_by`.
        place: the option or file that names the column, for an error message.

    Raises:
        InputError: for a column of which no record says anything.
    """
    frame_columns = [name for name in SCHEMA if name not in NO_LEVELS]
    level = _level_text(data, column, column in frame_columns)
    if _has_value(data, level):
        return level
    option_names = _json_keys(data, "method_options")
    env_names = _json_keys(data, "env")
    valid_names = [*frame_columns, *data.settings, *option_names, *env_names, "predicted_by"]
    if column in valid_names:
        raise InputError(f"{place} {column}: no step here says its {column}")
    raise unknown("column", column, valid_names, place)


def _level_text(data: Folders, column: str, is_frame_column: bool) -> pl.Expr:
    if column == "predicted_by":
        return pl.when(IS_PREDICTED).then(METHOD_NAME).alias(column)
    text = _column_text(data, column) if is_frame_column else _option_text(data, column)
    level = text.replace({"true": "yes", "false": "no"})
    if column == "host":  # where a prediction was computed changes nothing
        level = pl.when(~IS_PREDICTED).then(level)
    return level.alias(column)


def _column_text(data: Folders, column: str) -> pl.Expr:
    """Return a column of the frame as text."""
    if SCHEMA[column].is_float():
        return map_values(data, column, repr)
    return pl.col(column).cast(STRING)


def _option_text(data: Folders, column: str) -> pl.Expr:
    """Return the text of a key of the settings, the options or the environment."""
    json_columns = ["method_options", "env"]
    if column in data.settings:
        json_columns.insert(0, "params")
    # The first column that says something decides.
    texts = [map_values(data, name, lambda text: find_text(text, column)) for name in json_columns]
    if column.endswith("-parallel"):
        plan_key = column.removesuffix("-parallel")
        texts.append(map_values(data, "plan", lambda text: find_text(text, plan_key)))
    return pl.coalesce(texts)


def find_text(text: str, key: str) -> str | None:
    """Return the value of a key of a JSON object as text: a string as it is, quantities as JSON."""
    value = json.loads(text).get(key)
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _json_keys(data: Folders, column: str) -> list[str]:
    """Return the keys of a column of JSON objects."""
    texts = data.scan().select(pl.col(column).unique(maintain_order=True)).collect()[column]
    return list(dict.fromkeys(key for text in texts for key in json.loads(text)))


def without_keys(data: Folders, column: str, keys: Iterable[str]) -> pl.Expr:
    """Return a column of JSON objects without some keys."""
    dropped_keys = {*keys}

    def drop_keys(text: str) -> str:
        table = json.loads(text)
        return json.dumps({key: value for key, value in table.items() if key not in dropped_keys})

    return map_values(data, column, drop_keys)


def map_values(data: Folders, column: str, describe: Callable[[Any], str | None]) -> pl.Expr:
    """Return the text that a function makes of each value of a column, which it sees once."""
    values = data.scan().select(pl.col(column).unique(maintain_order=True)).collect()[column]
    values = values.drop_nulls()
    texts = pl.Series([describe(value) for value in values], dtype=STRING)
    return pl.col(column).replace_strict(values, texts, default=None, return_dtype=STRING)


def _has_value(data: Folders, expression: pl.Expr) -> bool:
    frame = data.scan().select(expression.is_not_null().any().alias("has_value")).collect()
    return bool(frame["has_value"].item())


def sort_levels(levels: Iterable[str]) -> list[str]:
    """Return levels in order: numbers by size, then words as they come."""

    def sort_key(level: str) -> float:
        try:
            number = float(level)
        except ValueError:
            return math.inf  # a word stands behind all numbers
        return number if math.isfinite(number) else math.inf

    return sorted(levels, key=sort_key)
