"""The keys of a mapping file: what the columns of a table of measured times mean."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from steptime.calibration.cases import COPIES, Condition
from steptime.core.errors import one_of
from steptime.network.ops import OPS

Size = int | str


def _of_timing(name: str) -> str:
    """Return a key of `timing`; raises `InputError` for what is neither of events nor a kind."""
    one_of("timing", name, ("seen", "pause_s", *OPS))
    return name


class OpOf(BaseModel):
    """An op of a row: its kind, the shapes of its inputs, attributes, pass, and how often it runs.

    `gradients` are the places of the inputs whose gradients a backward pass makes, all by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    kind: str = ""
    shapes: tuple[tuple[Size, ...], ...] = ()
    attrs: dict[str, bool | Size | float | tuple[Size, ...]] = {}
    pass_: Literal["forward", "backward", "both"] = Field(default="forward", alias="pass")
    gradients: tuple[int, ...] | None = None
    dtype: str = ""
    count: Size = 1
    where: str = ""


class PartsTable(BaseModel):
    """A second table that lists the ops of a row's network: those with the same value `by`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file: str
    by: str
    ops: tuple[OpOf, ...] = Field(min_length=1)


class RowKeys(OpOf):
    """What some rows of a table are: an op, several `ops`, `parts`, or a `model`.

    Images of a `model` lie as `channels_last` says, its host is `host`, and products of float32 run
    as `tf32` says; without these they are what they are in the stack, and on any host. `timing` is
    how `isolated` ops were timed, where that is not what is usual (`cases.conditions`).
    """

    file: str = ""
    device: str = "{device}"
    seconds: str = "seconds"
    unit: Literal["s", "ms", "us", "ns"] = "s"
    condition: Condition = "isolated"
    group: str = ""
    family: str = ""
    ops: tuple[OpOf, ...] = ()
    parts: PartsTable | None = None
    model: str = ""
    batch: str = ""
    phase: str = "train"
    optimizer: str = "sgd"
    stack: str = ""
    channels_last: str = ""
    tf32: str = ""
    host: str = ""
    rivals: dict[str, str] = {}
    calibrates: bool = True
    copies: int = Field(COPIES, ge=1)
    timing: dict[Annotated[str, AfterValidator(_of_timing)], Annotated[float, Field(ge=0)]] = {}


class Keys(RowKeys):
    """The keys of a mapping file: defaults of all rows, words of the table, and its `rows`."""

    name: str = ""
    source: str = ""
    words: dict[str, dict[str, str]] = {}
    rows: tuple[dict[str, Any], ...] = ()
