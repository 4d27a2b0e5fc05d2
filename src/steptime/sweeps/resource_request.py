"""What a cell needs of a cluster, as the table `[slurm]` of an experiment file says it."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool


def one_or_more(value: object) -> list[object]:
    """Return what a file says as a value or as a list of them."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(is_good: Callable[[str], object], what: str) -> AfterValidator:
    """Return the check of a text that must be `what`."""

    def check(text: str) -> str:
        if not is_good(text):
            raise ValueError(what)
        return text

    return AfterValidator(check)


_NAME, _TIME = re.compile(r"[\w.+-]*"), re.compile(r"((?:\d+-)?\d{1,3}(?::\d{2}){0,2})?")
Name = Annotated[str, _text(_NAME.fullmatch, "a name has letters, digits and _.+-")]
Line = Annotated[str, _text(str.isprintable, "a text on one line")]
Time = Annotated[str, _text(_TIME.fullmatch, "a time such as 30, 2:00:00 or 1-12:00:00")]
Lines = Annotated[tuple[Line, ...], BeforeValidator(one_or_more)]


class ResourceRequest(BaseModel):
    """One kind of job: every cell runs once for each `gpu` of each table `[[slurm]]`.

    `name` tells tables apart that ask for the same type of GPU.
    `gpu` are types as the site's `--gres` calls them ("" for none); a cell gets one GPU a replica,
    all on one node unless `replicas_per_node` says how many at most. `cpus` are of one process
    (by default as many as its threads, and with neither one, or all of an exclusive node's),
    `memory_GB` of a node. `time` is the job's limit as Slurm writes it. `modules` are loaded and
    the lines of `run_first` are run before the first cell. `flags` are further ones of sbatch, and
    `python` is another interpreter than the one that submits. `requeues` is how often a cell may
    take its job down before it is given up. With `nodes` "each" every cell runs once on each node
    of the partition, or of `nodelist`, that has what is asked for. `data_on_nodes` says that the
    nodes have a data set which the machine that submits does not see.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = ""
    partition: Line = ""
    account: Line = ""
    qos: Line = ""
    gpu: Annotated[tuple[Name, ...], BeforeValidator(one_or_more)] = ("",)
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
    tasks_at_once: int = Field(default=8, ge=1, le=100_000)
    requeues: int = Field(default=2, ge=0, le=1000)
    data_on_nodes: StrictBool = False

    def model_post_init(self, _: Any) -> None:
        """Refuse a type of GPU that is named twice, or none."""
        if not self.gpu or len(set(self.gpu)) < len(self.gpu):
            raise ValueError("gpu: name each type once")

    @property
    def node(self) -> str:
        """The one node of a request that `on_each_node` has made, else ""."""
        return self.nodelist if self.nodes else ""

    def each(self) -> tuple[Self, ...]:
        """Return one request for each type of GPU."""
        return tuple(self.model_copy(update={"gpu": (name,)}) for name in self.gpu)
