"""A service of a language model: the network, where it runs, how it is split, and its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from steptime.core.dtypes import ALIASES, find_quantised_type
from steptime.core.errors import InputError, unknown
from steptime.core.workload import STORED_ALL, STORED_EXPERTS, Plan
from steptime.hardware import catalog
from steptime.hardware.software import defaults_for
from steptime.planning.faults import check_step
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.shape import Shape
from steptime.planning.ranks.site import Site, build_cluster
from steptime.planning.request import make_problem
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.method import Method
from steptime.prediction.training import LOW_BYTES
from steptime.serving.calibration import ServingCalibration
from steptime.serving.demand import Demand
from steptime.serving.engine import Engine
from steptime.serving.kernels import BYTES_BY_FORMAT
from steptime.serving.memory import largest_running_sequences, memory_of
from steptime.serving.phases import Phases
from steptime.serving.server import count_cached_tokens
from steptime.serving.speculation import (
    LAYER_METHODS,
    PROMPT_LOOKUP,
    Guesses,
    Speculation,
    draft_head,
)
from steptime.serving.step_cost import StepCost

PLAIN_FILE_TYPES = ("f16", "bf16", "f32")  # of GGUF files whose weights are not quantised
LOW_CACHES = ("float8", "int8")  # formats of a cache of half the size


@dataclass(frozen=True)
class Service:
    """A network, where it runs, how it is split, and its requests.

    Args:
        model: the network, a text.
        site: the devices and their links.
        running_sequences: sequences that come at once.
        input: tokens of a prompt.
        output: tokens of an answer.
        tensor: devices that split each matrix product (tensor parallelism).
        pipeline: stages of the pipeline.
        data: ranks that divide the sequences (and experts).
        expert: data ranks that divide the experts (expert parallelism).
        replicas: independent copies of the server.
        dtype: data type; None for the device's.
        weights: format of the layers' weights; None for that of the data type.
        kv: format of the cache; None for that of the stack.
        stack: the software; None for the newest that serves.
        method: the cost model.
        options: options of the method.
        prices: a file of prices; None for the shipped ones.
        demand: the requests under load; None where all come at once.
        prefix: share of each prompt that lies in the cache already.
        trusted: whether the model may be code.
        engine: settings of the engine.
        speculation: tokens that are guessed for a step; None for none.
        calibration: constants that runs of clients told; None for those of the stack.
    """

    model: str
    site: Site
    running_sequences: int = 1
    input: int = 1024
    output: int = 128
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    replicas: int = 1
    dtype: str | None = None
    weights: str | None = None
    kv: str | None = None
    stack: str | None = None
    method: str | Method = DEFAULT
    options: Mapping[str, str] = field(default_factory=dict)
    prices: Path | None = None
    demand: Demand | None = None
    prefix: float = 0.0
    trusted: bool = False
    engine: Engine = field(default_factory=Engine)
    speculation: Speculation | None = None
    calibration: ServingCalibration | None = None

    @property
    def length(self) -> int:
        """Tokens of a sequence at its end."""
        return self.input + self.output

    @property
    def device_count(self) -> int:
        """Devices of a replica."""
        return self.tensor * self.pipeline * self.data

    @property
    def split(self) -> dict[str, int]:
        """Ranks and replicas by the names of their options."""
        return {
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "data": self.data,
            "expert": self.expert,
            "replicas": self.replicas,
        }

    @property
    def weights_only_type(self) -> str:
        """The type of 8 or 4 bits that the device has no arithmetic of, "" for another type.

        Weights are kept in it, and products have 16 bits.
        """
        word = ALIASES.get(str(self.dtype).lower(), str(self.dtype).lower())
        peaks = catalog.device(self.site.device).datasheet.peak_flop_per_s
        return word if word in LOW_BYTES and word not in peaks else ""

    def phases(self) -> Phases:
        """Return the seconds and bytes of the phases of the service.

        Raises:
            InputError: for a network that does not answer, a split that cannot be, and unknown
                names.
        """
        shape = self._shape()
        plan = Plan(data=self.data, tensor=self.tensor, pipeline=self.pipeline, expert=self.expert)
        # A sequence for each data rank: whether the split is possible does not depend on more.
        step = PlanStep(plan, microbatch=1, global_batch=self.data, pads_tokens=True)
        plan = check_step(shape, step, "serve").plan
        weights_option = parse_format(self.weights, "--weights")
        kv = parse_format(self.kv, "--kv")
        problem = self._make_problem(shape, plan)
        # The user's format, the type that only weights have, or the format of the file.
        weights = weights_option or self.weights_only_type or _file_format(shape)
        part = _quantised_part(shape, weights)
        guesses = self._guesses(problem, plan, weights, kv, part)
        return Phases(problem, plan, weights, kv, self.engine, guesses, self.calibration, part)

    def _guesses(
        self, problem: PlanProblem, plan: Plan, weights: str, kv: str, quantised_part: str
    ) -> Guesses | None:
        """Return who guesses tokens for a step, None without; raises `InputError`."""
        speculation = self.speculation
        if speculation is None:
            return None
        if speculation.draft == PROMPT_LOOKUP:  # which needs no network
            return Guesses(speculation, drafter=None)
        if speculation.draft in LAYER_METHODS:
            head = draft_head(problem, plan, weights, kv, self.engine, quantised_part)
            return Guesses(speculation, head)
        # The draft network runs on the same devices, but it is not shared out as the large one.
        draft_service = replace(
            self, model=speculation.draft, data=1, expert=1, demand=None, speculation=None
        )
        return Guesses(speculation, draft_service.phases())

    def price_prompts(self, phases: Phases, sequences: int) -> StepCost:
        """Return the time to read so many prompts, but for the part that the cache has of them."""
        cached = count_cached_tokens(self.input, self.prefix)
        prompts = phases.price_prefill(sequences, self.input - cached, cached)
        if phases.guesses is None:
            return prompts
        return prompts.add(phases.guesses.price_prefill(sequences, self.input - cached, cached))

    @property
    def uncached_tokens(self) -> int:
        """The tokens of a prompt that the cache has not."""
        return self.input - count_cached_tokens(self.input, self.prefix)

    def readers(self) -> Service:
        """Return the service of replicas that read prompts, split as the demand has it."""
        demand = self.demand or Demand()
        return replace(
            self,
            tensor=demand.prefill_tensor or self.tensor,
            data=demand.prefill_data or self.data,
            expert=demand.prefill_expert or self.expert,
        )

    def _shape(self) -> Shape:
        """Return the network at the length of a request; raises `InputError`."""
        self.engine.check_length(self.input, self.output)
        trained_shape = read_language_model(self.model, trusted=self.trusted)
        settings = trained_shape.kind_settings
        if settings["kind"] != "decoder":
            raise InputError(f"serve: {trained_shape.label} is no decoder: it has no next token")
        positions = int(settings["max_length"])
        has_enough_positions = positions >= self.length
        if settings["positions"] == "learned" and not has_enough_positions:
            self._refuse_length(positions)
        # Rotary positions go on beyond the trained length; learned ones do not.
        length = None if has_enough_positions else self.length
        shape = read_language_model(self.model, length, self.trusted)
        if self.data > 1 and not shape.experts:
            text = f"serve: --data shares out experts, and {self.model} has none"
            raise InputError(f"{text}; nearest: --replicas {self.data * self.replicas}")
        if shape.experts and self.data % self.expert:
            ranks = -(-self.data // self.expert) * self.expert
            text = f"serve: --expert {self.expert} does not divide --data {self.data}"
            raise InputError(f"{text}, the ranks that share out experts; nearest: --data {ranks}")
        if not 0 <= self.prefix <= 1:
            raise InputError(f"serve: --prefix is a share from 0 to 1, not {self.prefix:g}")
        return shape

    def _refuse_length(self, positions: int) -> None:
        """Raise `InputError` for a request that is longer than the positions of the network."""
        if self.input < positions:  # a shorter answer fits
            option, tokens = "--output", positions - self.input
        else:
            option, tokens = "--input", positions - self.output
        text = f"serve: {self.length} tokens, and {self.model} has {positions} positions"
        raise InputError(f"{text}; nearest: {option} {max(1, tokens)}")

    def _make_problem(self, shape: Shape, plan: Plan) -> PlanProblem:
        """Return the problem of the devices of a replica; raises `InputError`."""
        method = cost_model(self.method)
        default_software = defaults_for(catalog.device(self.site.device), plan, use="serving")
        options = dict(self.options)
        if "stack" in method.options:  # else a method without stacks; `options` win
            stack_option = default_software.stack if self.stack is None else self.stack
            options = {"stack": stack_option, **options}
        cluster = build_cluster(self.site, self.device_count)
        # A type that only weights can have says nothing of products.
        dtype = None if self.weights_only_type else self.dtype
        problem = make_problem(shape, cluster, dtype, method, options, use="serving")
        stack = problem.method.settings.stack
        if not catalog.stack(stack).serving:
            nearest = f"nearest: --stack {default_software.stack}"
            raise InputError(f"serve: stack {stack} has no constants of serving; {nearest}")
        if stack == default_software.stack and self.stack is None:
            # The user named no stack: intervals may cover others.
            return replace(problem, software=default_software)
        return problem


def _file_format(shape: Shape) -> str:
    """Return the format in which the file of a network keeps its weights, "" without one.

    Raises:
        InputError: for a GGUF type that servers do not run.
    """
    file_type = shape.family.weights
    if not file_type:
        return ""
    weight_format = find_quantised_type(file_type, BYTES_BY_FORMAT)
    if weight_format is None and file_type not in PLAIN_FILE_TYPES:
        fault = f"{shape.label} has weights of {file_type}, which one's own machine alone runs"
        raise InputError(f"serve: {fault}; nearest: --stack llama.cpp")
    return weight_format or ""


def _quantised_part(shape: Shape, weights: str) -> str:
    """Return the weights that lie in a format: those that the file says, of experts in MXFP4."""
    if weights == "mxfp4" and shape.experts:
        return STORED_EXPERTS
    stated = shape.family.weights
    is_stated = bool(weights and stated) and find_quantised_type(stated, BYTES_BY_FORMAT) == weights
    return shape.family.stored if is_stated else STORED_ALL


def parse_format(word: str | None, option: str) -> str:
    """Return the format that an option names, "" for None: of weights, or of keys and values.

    Raises:
        InputError: for an unknown format.
    """
    if word is None:
        return ""
    formats = list(BYTES_BY_FORMAT)
    plain_word = ALIASES.get(word.lower(), word)
    name = find_quantised_type(plain_word, formats)
    if name is None:
        raise unknown(option, word, formats)
    return name


@dataclass(frozen=True)
class FittingChange:
    """A change with which a service fits.

    Args:
        option: the change, such as `--tensor 2`.
        needed_bytes: memory that a device needs then.
    """

    option: str
    needed_bytes: float


def find_fitting_change(service: Service) -> FittingChange | None:
    """Return the first change, from the least to the largest, with which a service fits."""
    for option, smaller_service in _smaller_services(service):
        try:
            memory = memory_of(
                smaller_service.phases(),
                smaller_service.running_sequences,
                smaller_service.length,
                smaller_service.input,
            )
        except InputError:  # such a service cannot be
            continue
        if not memory.over_bytes:
            return FittingChange(option, memory.needed_bytes)
    return None


def _smaller_services(service: Service) -> Iterator[tuple[str, Service]]:
    """Yield changes that save memory, as the option and the changed service."""
    if service.kv not in LOW_CACHES:
        yield f"--kv {LOW_CACHES[0]}", replace(service, kv=LOW_CACHES[0])
    if service.running_sequences > 1:
        largest = largest_running_sequences(service.phases(), service.length, service.input)
        if largest:
            yield f"--running-sequences {largest}", replace(service, running_sequences=largest)
    if service.expert < service.data:
        yield f"--expert {service.data}", replace(service, expert=service.data)
    # From what changes least to what changes most.
    for factor in (2, 4, 8):
        tensor = factor * service.tensor
        yield f"--tensor {tensor}", replace(service, tensor=tensor)
    if not service.weights:
        yield "--weights int4", replace(service, weights="int4")
