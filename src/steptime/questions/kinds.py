"""The kinds of values that several questions take: devices, networks, types, folders.

Each is a type for Python with, by `Annotated`, how the command line writes it. The meaning of a
parameter stands in the docstring of the question.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Annotated

from steptime.core.kinds import File, Kind, Settings
from steptime.core.workload import Workload
from steptime.hardware import device as hardware

_DEVICES = "steptime.cli.complete:device_names"
_LINKS = "steptime.hardware.catalog:link_names"
Model = Annotated[
    str | PathLike[str] | Workload,
    Kind("MODEL", is_argument=True, completes="steptime.network.families:names"),
]
Device = Annotated[str | PathLike[str] | hardware.Device, Kind("NAME", completes=_DEVICES)]
Devices = Annotated[
    str | PathLike[str] | hardware.Device | Sequence[str | PathLike[str] | hardware.Device],
    Kind("NAME,...", completes=_DEVICES),
]
Link = Annotated[str | PathLike[str] | hardware.Link, Kind("LINK", completes=_LINKS)]
Links = Annotated[
    str | hardware.Link | Sequence[str | hardware.Link], Kind("LINK,...", completes=_LINKS)
]
Batch = Annotated[int | str, Kind("N")]
Count = Annotated[int | str, Kind("N")]
Counts = Annotated[int | str | Sequence[int], Kind("N,...")]
Number = Annotated[float | str, Kind("X")]
Seconds = Annotated[float | str, Kind("TIME")]
Bytes = Annotated[float | str, Kind("SIZE")]
Name = Annotated[str, Kind("NAME")]
Names = Annotated[str | Sequence[str], Kind("NAME,...")]
MethodName = Annotated[str, Kind("NAME", completes="steptime.prediction:METHODS")]
MethodSettings = Annotated[Settings, Kind("NAME=VALUE", names=("--option",))]
Phase = Annotated[str, Kind("NAME", completes="steptime.core.workload:PHASES")]
Dtype = Annotated[str, Kind("NAME", completes="steptime.core.dtypes:PRECISIONS")]
Optimizer = Annotated[str, Kind("NAME", completes="steptime.core.workload:OPTIMIZERS")]
Folder = Annotated[File, Kind("DIR", is_argument=True)]
Folders = Annotated[PathLike[str] | Sequence[File], Kind("DIR", is_argument=True)]
Paths = Annotated[PathLike[str] | Sequence[File], Kind("PATH", is_argument=True)]
RecordsFolder = Annotated[File, Kind("DIR", names=("--out", "-o"))]
InFolder = Annotated[File, Kind("DIR", names=("--in",))]
MappingFile = Annotated[File, Kind("MAP.toml", names=("--map", "--mapping"))]
OutFile = Annotated[File, Kind("FILE", names=("--out", "-o"))]
OutFolder = Annotated[File, Kind("DIR", names=("--out",))]
