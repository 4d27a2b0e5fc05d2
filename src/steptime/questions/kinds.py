"""The kinds of values that several questions take: devices, networks, types, folders.

Each is a type for Python with, by `Annotated`, how the command line writes it. The meaning of a
parameter stands in the docstring of the question.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Annotated, Protocol

from steptime.core import values
from steptime.core.signatures.kinds import File, Kind, Settings
from steptime.core.workload import STAGINGS, STRATEGIES, Workload
from steptime.hardware import device as hardware

PROBES = ("ceilings", "link")


class DataFrame(Protocol):
    """A table of pandas, or one like it."""

    def to_dict(self, orient: str) -> object:
        """Return its rows as mappings, for the orient `records`."""


_DEVICES = "steptime.cli.complete:device_names"
_LINKS = "steptime.hardware.catalog:link_names"
Model = Annotated[
    str | PathLike[str] | Workload,
    Kind("MODEL", is_argument=True, completes="steptime.network.families:list_names"),
]
Device = Annotated[str | PathLike[str] | hardware.Device, Kind("NAME", completes=_DEVICES)]
DeviceArgument = Annotated[
    str | PathLike[str] | hardware.Device, Kind("DEVICE", is_argument=True, completes=_DEVICES)
]
Models = Annotated[
    str | PathLike[str] | Workload | Sequence[str | PathLike[str] | Workload],
    Kind("MODEL", names=("--model", "--grid"), completes="steptime.network.families:list_names"),
]
Devices = Annotated[
    str | PathLike[str] | hardware.Device | Sequence[str | PathLike[str] | hardware.Device],
    Kind("NAME,...", completes=_DEVICES),
]
Link = Annotated[str | PathLike[str] | hardware.Link, Kind("LINK", completes=_LINKS)]
Links = Annotated[
    str | hardware.Link | Sequence[str | hardware.Link], Kind("LINK,...", completes=_LINKS)
]
Batch = Annotated[int | str, Kind("N")]
Count = Annotated[values.Count, Kind("N")]
Counts = Annotated[values.Batches, Kind("N,...")]
Number = Annotated[float | str, Kind("X")]
Seconds = Annotated[values.Seconds, Kind("TIME")]
Bytes = Annotated[values.Bytes, Kind("SIZE")]
Name = Annotated[str, Kind("NAME")]
MethodName = Annotated[str, Kind("NAME", completes="steptime.prediction:METHODS")]
MethodSettings = Annotated[Settings, Kind("NAME=VALUE", names=("--option",))]
Axis = Annotated[int | str, Kind("N", panel="Model")]
Length = Annotated[int | str, Kind("N", names=("--length", "--seq-len"), panel="Model")]
StackName = Annotated[
    str, Kind("NAME", completes="steptime.hardware.catalog:stack_names", panel="Software")
]
LaunchFile = Annotated[File | str, Kind("FILE", names=("--from",), panel="Model")]
EmittedTool = Annotated[str, Kind("TOOL", panel="Output")]
PriceFile = Annotated[File, Kind("FILE")]
Price = Annotated[float | str, Kind("P")]
Trace = Annotated[File, Kind("FILE")]
TimelineFile = Annotated[File, Kind("FILE", panel="Output")]
TorchTrace = Annotated[File, Kind("FILE", panel="Model")]
ServingResults = Annotated[PathLike[str] | Sequence[File], Kind("FILE", names=("--serving",))]
ServerSettings = Annotated[Settings, Kind("NAME=VALUE", names=("--server",))]
RecordsIn = Annotated[File, Kind("DIR", names=("--in",))]
Phase = Annotated[str, Kind("NAME", completes="steptime.core.workload:PHASES")]
Dtype = Annotated[str, Kind("NAME", completes="steptime.core.dtypes:PRECISIONS")]
Optimizer = Annotated[str, Kind("NAME", completes="steptime.core.workload:OPTIMIZERS")]
Folder = Annotated[File, Kind("DIR", is_argument=True)]
Folders = Annotated[PathLike[str] | Sequence[File], Kind("DIR", is_argument=True)]
RecordPath = Annotated[File, Kind("DIR|FILE", is_argument=True)]
RecordPaths = Annotated[PathLike[str] | Sequence[File], Kind("DIR|FILE", is_argument=True)]
Paths = Annotated[PathLike[str] | Sequence[File], Kind("PATH", is_argument=True)]
RecordsFolder = Annotated[File, Kind("DIR", names=("--out", "-o"))]
InFolder = Annotated[File, Kind("DIR", names=("--in",))]
MappingFile = Annotated[File, Kind("MAP.toml", names=("--map", "--mapping"))]
OutFile = Annotated[File, Kind("FILE", names=("--out", "-o"))]
OutFolder = Annotated[File, Kind("DIR", names=("--out",))]
ExperimentFile = Annotated[File, Kind("FILE.toml", is_argument=True)]
Statuses = Annotated[str | Sequence[str], Kind("STATUS,...")]
Shard = Annotated[str, Kind("I/N")]
Backend = Annotated[str, Kind("NAME", completes="steptime.measure.registry:BACKENDS")]
Place = Annotated[str, Kind("NAME", completes="steptime.questions.options:PLACES")]
Threads = Annotated[int | str, Kind("K")]
Minutes = Annotated[float | str, Kind("M")]
Probe = Annotated[str, Kind("NAME", choices=PROBES)]
Cases = Annotated[
    File | Sequence[Mapping[str, object]] | DataFrame, Kind("DIR|FILE", names=("--from",))
]
CasePaths = Annotated[
    Sequence[str | PathLike[str]] | Sequence[Mapping[str, object]] | DataFrame,
    Kind("DIR|FILE", is_argument=True),
]
Groups = Annotated[str | Sequence[str], Kind("NAMES")]
DrawCount = Annotated[int | str, Kind("K")]
RowCount = Annotated[int | str, Kind("N", names=("--rows",))]
RunStack = Annotated[str, Kind("NAME", completes="steptime.measure.registry:stack_names")]
DataFolder = Annotated[File, Kind("DIR")]
Staging = Annotated[str, Kind("NAME", choices=tuple(STAGINGS))]
Strategy = Annotated[str, Kind("NAME", choices=tuple(STRATEGIES))]
LoaderCount = Annotated[int | str, Kind("K")]
SecondCount = Annotated[float | str, Kind("S")]
TraceFile = Annotated[File, Kind("FILE")]
