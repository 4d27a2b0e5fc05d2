"""A user's request for a plan, and the problem and the step that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from steptime.build import read_model, set_length
from steptime.core import dtypes
from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.workload import BASE_OPTIMIZERS, FULL_TRAINING, Plan, Tuning
from steptime.hardware import catalog
from steptime.hardware.defaults import SEQUENCE_MODEL, default_dtype
from steptime.hardware.device import Cluster, Device, Link
from steptime.hardware.software import Software, defaults_for, year_of
from steptime.network.ops.optimizers import STATES as OPTIMIZERS
from steptime.planning.faults import check_step
from steptime.planning.pipelines.stages import DEFAULT_ORDER
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem, without_direct_latency
from steptime.planning.ranks.language_model import (
    is_language_model,
    read_language_model,
    resolve_settings,
)
from steptime.planning.ranks.network import NetworkShape, model_network, read_network
from steptime.planning.ranks.rank_model import RankModel
from steptime.planning.ranks.shape import Shape
from steptime.planning.ranks.site import Site, build_cluster
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.method import Method
from steptime.prediction.training import LOW_BYTES

SERVING_DTYPES = ("bfloat16", "float16", "float8", "float4")
TRAINING_DTYPES = ("bfloat16-mixed", "float16-mixed", "float32", *SERVING_DTYPES)
GRADIENT_BITS = (16, 32)
LANGUAGE_MODEL_OPTIMIZERS = ("adam", "adamw")


@dataclass(frozen=True)
class Request:
    """A user's request for a training: the network, the devices, and the chosen parts of its plan.

    Attributes:
        model: the text that names the network.
        site: the devices and their links.
        global_batch: the sequences of a step; None for one microbatch of each replica.
        microbatch: the sequences of a microbatch; None for the usual one, or for a search.
        length: the tokens of a sequence; None for those of the model.
        split: the chosen fields of `Plan`.
        device_counts: the numbers of devices to search plans for; () for the one plan of `split`.
        order: the order in which dimensions of the plan number the ranks.
        dtype: the data type; None for the usual one of the device.
        gradients: the bits of a gradient in memory; None for the stack's own.
        stack: the software stack, or a year; None for the usual one.
        method: the prediction method.
        options: the options of the method.
        tokens: the tokens of the whole training; None where they are unknown.
        limits: the limits of a search, `budget_per_hour`, `days` (of its tokens) and `watts`; None
            for no limit.
        prices: a file of prices; None for the packaged one.
        trace: the file to which the run of the pipeline is written; None for none.
        other_sites: other sites, which are searched, too.
        optimizer: the optimizer; None for the usual one.
        tuning: which parameters are trained.
        trusted: whether the model may be code.
        node_options: the fields of the site that the user set; the others are assumed.
    """

    model: str
    site: Site
    global_batch: int | None = None
    microbatch: int | None = None
    length: int | None = None
    split: Mapping[str, Any] = field(default_factory=dict)
    device_counts: tuple[int, ...] = ()
    order: str | None = None
    dtype: str | None = None
    gradients: int | None = None
    stack: str | None = None
    method: str | Method = DEFAULT
    options: Mapping[str, str] = field(default_factory=dict)
    tokens: float | None = None
    limits: Mapping[str, float | None] = field(default_factory=dict)
    prices: Path | None = None
    trace: Path | None = None
    other_sites: tuple[Site, ...] = ()
    optimizer: str | None = None
    tuning: Tuning = FULL_TRAINING
    trusted: bool = False
    node_options: frozenset[str] = frozenset()

    @cached_property
    def shape(self) -> Shape:
        """The network: a language model, or a graph cut into pieces; raises `InputError`."""
        choice = read_model(self.model, trusted=self.trusted)
        _, settings = resolve_settings(choice, self.length)
        if is_language_model(settings):
            self._check_optimizer()
            return read_language_model(self.model, self.length, self.trusted)
        if self.gradients is not None or self.tuning != FULL_TRAINING:
            option = f"{self.tuning.text}: fine-tuning"
            if self.gradients is not None:
                option = "--gradients"
            raise InputError(f"{option} goes with language models")
        sized_choice = choice if self.length is None else set_length(choice, self.length)
        return read_network(sized_choice, self.model, self.dtype, self.optimizer)

    @property
    def base_optimizer(self) -> str | None:
        """The optimizer without the form of its states; None if the user named none."""
        return BASE_OPTIMIZERS.get(self.optimizer or "", self.optimizer)

    def _check_optimizer(self) -> None:
        optimizer = self.base_optimizer
        if optimizer is not None and optimizer not in LANGUAGE_MODEL_OPTIMIZERS:
            check_choice("optimizer", optimizer, OPTIMIZERS)
            name = shorten(self.optimizer)
            raise InputError(f"--optimizer {name}: language models are planned with adam or adamw")

    def make_step(self, shape: Shape) -> PlanStep:
        """Return the step of the one plan.

        Without a batch each replica has one microbatch: one sequence, or the usual batch of a
        network. With a batch, the microbatch of a network is as large as its pipeline allows.

        Raises:
            InputError: if the plan cannot be.
        """
        plan = make_plan(self.split)
        microbatch = self.microbatch or shape.batch or 1
        is_batch_alone = self.global_batch is not None and self.microbatch is None
        if is_batch_alone and not shape.is_language_model:
            replica_batch = max(1, (self.global_batch or 1) // plan.data)
            # One microbatch for each stage keeps the pipeline busy. It must divide the batch.
            max_microbatch = max(1, replica_batch // plan.pipeline)
            microbatch = next(n for n in range(max_microbatch, 0, -1) if replica_batch % n == 0)
        global_batch = self.global_batch
        if global_batch is None:
            global_batch = microbatch * plan.data
        order = DEFAULT_ORDER if self.order is None else self.order
        return check_step(shape, PlanStep(plan, microbatch, global_batch, order))

    @property
    def explicit_stack(self) -> str | None:
        """The stack that the user named; None for none, and for a year alone."""
        return None if year_of(self.stack) else self.stack

    def find_software(self, device: Device, device_count: int) -> Software:
        """Return the usual software of the plan, of the year that the user named.

        Devices that are compared have the same stack: the newest of their usual ones.
        """
        plan = make_plan(self.split) if device_count > 1 else Plan()
        # The usual software depends on the number of devices: the plan with replicas for all.
        replicas = plan.data * device_count // plan.device_count
        full_plan = replace(plan, data=max(plan.data, replicas))
        devices = [device, *(catalog.device(site.device) for site in self.other_sites)]
        software = [
            defaults_for(
                candidate,
                full_plan,
                self.site.per_node,
                year=year_of(self.stack),
                reads_words=self.shape.unit == "tokens",
            )
            for candidate in devices
        ]
        # Devices that are compared run the same stack.
        stacks = [candidate.stack for candidate in software]
        newest_stack = max(stacks, key=lambda stack: catalog.stack(stack).since)
        return software[0]._replace(stack=newest_stack)

    def make_problem(
        self, shape: Shape, device_count: int, sibling: PlanProblem | None = None
    ) -> PlanProblem:
        """Return the problem of plans on a number of devices.

        Args:
            shape: the network.
            device_count: the number of devices.
            sibling: the problem on another number of these devices, whose layers are priced.

        Raises:
            InputError: if the devices are not joined, or for a setting that does not suit them.
        """
        cluster = build_cluster(self.site, device_count)
        if sibling is not None:
            return sibling.on_cluster(cluster)
        method = cost_model(self.method)
        if method.name != DEFAULT:
            raise InputError(f"plan: {method.name} prices no plans; nearest: --method {DEFAULT}")
        # The stack is that of the largest number of devices. Networks that are no language models
        # have the step of `predict`, whose stack is the usual one of a single device.
        max_device_count = max(self.device_counts, default=device_count)
        stack_device_count = 1 if isinstance(shape, NetworkShape) else max_device_count
        default_software = self.find_software(cluster.device, stack_device_count)
        is_stack_open = self.stack is None and "stack" not in self.options
        problem = make_problem(
            shape,
            cluster,
            self.dtype,
            method,
            {"stack": self.explicit_stack or default_software.stack, **self.options},
            self.gradients,
            tuning=shape.state_weights(self.tuning),
            optimizer=self.base_optimizer or "adam",
            host_link=self._host_link(),
            # Several stacks may be meant only if the user named none, and only for several devices.
            software=default_software if is_stack_open and stack_device_count > 1 else None,
        )
        stack = problem.method.settings.stack
        if not catalog.stack(stack).trains:
            nearest = f"nearest: --stack {default_software.stack}"
            raise InputError(f"plan: stack {stack} runs inference alone; {nearest}")
        if self.split.get("offload", "none") != "none":
            problem.host_transfer(0.0)  # refuses an unknown host link before layers are priced
        return problem

    def _host_link(self) -> Link | None:
        if self.site.host_link is None:
            return None
        return catalog.link(self.site.host_link, "--host-link")


def make_problem(
    shape: Shape,
    cluster: Cluster,
    dtype: str | None,
    method: str | Method,
    options: Mapping[str, str],
    gradients: int | None = None,
    use: str = "training",
    tuning: Tuning = FULL_TRAINING,
    optimizer: str = "adam",
    host_link: Link | None = None,
    software: Software | None = None,
) -> PlanProblem:
    """Return the problem of a network on a cluster.

    Args:
        shape: the network.
        cluster: the devices and their links.
        dtype: the data type. None is that of sequence models on the device for a training, and the
            first of `SERVING_DTYPES` that the device has for a server.
        method: the prediction method.
        options: its options.
        gradients: the bits of a gradient in memory; None for the stack's own.
        use: "training" or "serving".
        tuning: which parameters are trained.
        optimizer: the optimizer.
        host_link: joins a device to the memory of its host.
        software: the stacks that may be meant if the user named none.

    Raises:
        InputError: for a data type, an option or bits of gradients that do not suit the device.
    """
    configured_method = cost_model(method).with_options(options)
    if isinstance(shape, NetworkShape):
        rank: RankModel = model_network(shape, cluster.device, configured_method)
    else:
        checked_dtype = _choose_dtype(dtype, cluster.device, use)
        if gradients not in (None, *GRADIENT_BITS):
            raise unknown("bits of gradients", gradients, map(str, GRADIENT_BITS), "plan")
        rank = RankModel(
            shape,
            cluster.device,
            configured_method,
            checked_dtype,
            gradient_bits=gradients or 0,  # 0: the stack's own
            use=use,
            tuning=tuning,
            optimizer=optimizer,
        )
    # Servers exchange directly over the other devices' memory, without a latency of messages.
    if use == "serving":
        cluster = without_direct_latency(cluster)
    return PlanProblem(rank, cluster, host_link, software)


def _choose_dtype(dtype: str | None, device: Device, use: str) -> str:
    """Return the data type of a training or a server; raises `InputError` for an unknown one."""
    peaks = device.datasheet.peak_flop_per_s
    usual_serving_dtype = next((name for name in SERVING_DTYPES if name in peaks), "bfloat16")
    is_serving = use == "serving"
    if dtype is not None:
        word = dtype
    elif is_serving:
        word = usual_serving_dtype
    else:
        word = default_dtype(SEQUENCE_MODEL.dtypes, device)
    name = dtypes.ALIASES.get(word.lower(), word.lower())
    # A known type, but one of mixed precision: say which type of inference is next to it.
    if is_serving and name in dtypes.PRECISIONS and name not in SERVING_DTYPES:
        nearest = f"nearest: --dtype {usual_serving_dtype}"
        raise InputError(f"serve: {name} is a type of training; {nearest}")
    valid_names = SERVING_DTYPES if is_serving else TRAINING_DTYPES
    if name not in valid_names:
        raise unknown("dtype", word, valid_names)
    # 8- and 4-bit products need units for them; weights alone may be stored in fewer bits.
    if name in LOW_BYTES and name not in peaks:
        nearest = f"--dtype {usual_serving_dtype}-mixed"
        if is_serving:
            nearest = f"--dtype {usual_serving_dtype} --weights {name}"
        reason = f"device '{device.name}': no peak is known for {name}"
        raise InputError(f"{reason}; nearest: {nearest}")
    return name


def make_plan(fields: Mapping[str, Any]) -> Plan:
    """Return the plan with some of its fields; raises `InputError` for an unknown field."""
    names = [name for name in vars(Plan()) if name != "microbatches"]
    for name in fields:
        check_choice("part of a plan", name, names)
    return Plan(**fields)
