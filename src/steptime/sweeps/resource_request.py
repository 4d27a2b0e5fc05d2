"""The request of a cell to a cluster, as the table `[slurm]` of an experiment file says it."""

import re
from collections.abc import Callable
from datetime import time as time_of_day
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool


def as_list(value: object) -> list[object]:
    """Return a value, or a list of values, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(is_valid: Callable[[str], object], description: str) -> AfterValidator:
    """Return the check of a text; an error says the description of a valid one."""

    def check(text: str) -> str:
        if not is_valid(text):
            raise ValueError(description)
        return text

    return AfterValidator(check)


def _time_text(value: object) -> object:
    """Return a limit as sbatch's text: whole minutes, and 1:00:00 that TOML reads as a time."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number or isinstance(value, time_of_day) else value


_NAME = re.compile(r"[\w.+-]*")
_MINUTES = r"\d+(?::\d{1,2}){0,2}"  # minutes, minutes:seconds, hours:minutes:seconds
_DAYS = r"\d+-\d+(?::\d{1,2}){0,2}"  # days-hours, days-hours:minutes, and with seconds
_TIME = re.compile(rf"(?:{_MINUTES}|{_DAYS}|unlimited|infinite)?", re.IGNORECASE | re.ASCII)
TIME_FORMS = "a time such as 30, 2:00:00, 90:00, 1-12, 1-12:30, 1-12:00:00 or UNLIMITED"
Name = Annotated[str, _text(_NAME.fullmatch, "a name has letters, digits and _.+-")]
Line = Annotated[str, _text(str.isprintable, "a text on one line")]
Time = Annotated[str, BeforeValidator(_time_text), _text(_TIME.fullmatch, TIME_FORMS)]
Lines = Annotated[tuple[Line, ...], BeforeValidator(as_list)]


class ResourceRequest(BaseModel):
    """One kind of job: every cell runs once for each `gpu` of each table `[[slurm]]`.

    Attributes:
        name: tells tables apart that ask for the same type of GPU.
        partition: as sbatch has it, like `account`, `qos`, `constraint` and `nodelist`.
        gpu: types as the site's `--gres` calls them ("" for none); one GPU a replica.
        replicas_per_node: replicas of a cell on one node at most; 0: all of them on one.
        cpus: cores of one process; None: its threads, else one, or all of an exclusive node.
        memory_GB: memory of a node.
        time: the limit of a task as sbatch has it, in any of its forms.
        exclusive: whole nodes.
        nodes: "each": every cell once on each node of the partition, or of `nodelist`, that has
            the GPUs and features of the request.
        modules: environment modules to load.
        run_first: lines of Bash to run before the first cell.
        flags: further flags of sbatch, which win.
        python: an interpreter in place of the one that submits.
        cells_per_task: cells of a task.
        max_running_tasks: tasks of a job that may run at a time; `tasks_at_once` in files.
        requeues: number of times that a cell may take its job down before it is given up.
        data_on_nodes: the nodes have a data set which the machine that submits does not see.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = ""
    partition: Line = ""
    account: Line = ""
    qos: Line = ""
    gpu: Annotated[tuple[Name, ...], BeforeValidator(as_list)] = ("",)
    replicas_per_node: int = Field(default=0, ge=0, le=1024)
    cpus: int | None = Field(default=None, ge=1, le=100_000)
    memory_GB: float | None = Field(default=None, gt=0, le=1e6)  # noqa: N815  # a key of files
    time: Time = ""
    exclusive: StrictBool = False
    constraint: Line = ""
    nodes: Literal["", "each"] = ""
    nodelist: Line = ""
    modules: Lines = ()
    run_first: Lines = ()
    flags: Lines = ()
    python: Line = ""
    cells_per_task: int = Field(default=50, ge=1, le=100_000)
    max_running_tasks: int = Field(default=8, ge=1, le=100_000, alias="tasks_at_once")
    requeues: int = Field(default=2, ge=0, le=1000)
    data_on_nodes: StrictBool = False

    def model_post_init(self, _: Any) -> None:
        """Refuse a type of GPU that is named twice, or none."""
        if not self.gpu or len(set(self.gpu)) < len(self.gpu):
            raise ValueError("gpu: name each type once")

    @property
    def node(self) -> str:
        """The node of a request for a single node, which `place_on_nodes` makes, else ""."""
        return self.nodelist if self.nodes else ""

    def split_by_gpu(self) -> tuple[Self, ...]:
        """Return one request for each type of GPU."""
        return tuple(self.model_copy(update={"gpu": (name,)}) for name in self.gpu)
