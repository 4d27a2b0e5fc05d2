"""The weights, the cache and the memory of the ranks that serve one copy of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import ceil, inf
from typing import TYPE_CHECKING

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.workload import STORED_ALL, Plan
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.products import is_left_wide
from steptime.planning.problem import PlanProblem
from steptime.prediction.low_products import LOW_KINDS
from steptime.prediction.training import FIRST, LAST, piece_of
from steptime.serving.attention_shape import ATTENDING, AttentionShape, find_attention_shapes
from steptime.serving.calibration import ServingCalibration
from steptime.serving.engine import Engine
from steptime.serving.kernels import BYTES_BY_FORMAT, HALF_BYTES, stored_bytes
from steptime.serving.profile_run import ProfileRun, read_profile_run

if TYPE_CHECKING:
    from steptime.serving.speculation import Guesses

SMALL_DEVICE_BYTES = 70 * 1024**3  # vLLM's `EngineArgs` have lower limits for smaller devices
UNLIMITED_TOKENS = 1e8  # a limit of a step's tokens from here on stands for none


class Replica:
    """The ranks that serve one copy of a language model, with what each keeps in its memory.

    Args:
        problem: the network, the devices and the method.
        plan: the split: `tensor` and `pipeline`; `data` ranks share out sequences and, in each of
            their `expert` groups, experts.
        weight_format: format of the layers' weights, "" for the one of the problem.
        cache_format: format of keys and values, "" for the one of the stack.
        engine: settings of the engine, which replace constants of stack and calibration.
        guesses: speculation, None without.
        calibration: constants that replace those of the stack.
        quantised_part: the weights that lie in the format, as a file may leave those of attention.
    """

    def __init__(
        self,
        problem: PlanProblem,
        plan: Plan,
        weight_format: str = "",
        cache_format: str = "",
        engine: Engine | None = None,
        guesses: Guesses | None = None,
        calibration: ServingCalibration | None = None,
        quantised_part: str = STORED_ALL,
    ) -> None:
        self.problem = problem
        self.quantised_part = quantised_part
        self.plan = plan
        self.guesses = guesses
        self.engine = engine or Engine()
        self.weight_format = weight_format or problem.rank.low_dtype or problem.rank.weight_dtype
        self.cache_format = cache_format or _default_cache_format(problem)
        self.device = _find_device(problem)
        self.apply_calibration(calibration)

    def apply_calibration(self, calibration: ServingCalibration | None) -> None:
        """Set the constants that replace those of the stack: of a calibration, then the engine."""
        fitted = {} if calibration is None else calibration.constants
        self._replaced_constants = {**fitted, **self.engine.constants()}
        self._device_factor = 1.0
        if calibration is not None:
            problem = self.problem
            self._device_factor = calibration.factor_of(problem.shape, problem.device.name)

    def constant(self, name: str) -> float:
        """Return a constant of the engine, the calibration or the stack, the first that has it."""
        value = self._replaced_constants.get(name)
        return self.problem.rank.constant(name) if value is None else value

    def limit(self, name: str) -> float:
        """Return a limit of the software, which may be lower on small devices.

        vLLM's `EngineArgs` take devices below 70 GiB, and the A100, for small. A setting of the
        engine comes before both.
        """
        # A setting of the engine comes before the stack's.
        if name in self._replaced_constants:
            return self._replaced_constants[name]
        device = self.problem.device
        memory_bytes = device.datasheet.memory_bytes or inf
        is_small = memory_bytes < SMALL_DEVICE_BYTES or has_trait(device, "low_server_limits")
        # 0 where the stack has no lower limit.
        small_limit = self.constant(f"small_{name}") if is_small else 0.0
        return small_limit or self.constant(name)

    @cached_property
    def piece_counts(self) -> Mapping[str, int]:
        """Number of copies of each piece in the network: the ends, and each kind of layer."""
        kinds = self.problem.shape.kinds
        return {FIRST: 1, **{name: kinds.count(name) for name in dict.fromkeys(kinds)}, LAST: 1}

    def build_graph(self, tokens: int) -> Graph:
        """Build a rank's graph of a step of so many tokens, as if of one sequence."""
        shape = self.problem.shape
        # Tokens of all ranks that share experts pass as one sequence, split over the ranks.
        ranks = min(self.plan.expert, self.plan.data)
        rank_plan = Plan(tensor=self.plan.tensor, expert=ranks, data=ranks)
        weight_dtype = precision(self.problem.rank.weight_dtype)
        builder = Builder(shape.family.name, weight_dtype, training=False, plan=rank_plan)
        length = ranks * -(-tokens // ranks)  # rounded up, so that all ranks have equally many
        max_length = max(length, int(shape.kind_settings["max_length"]))
        settings = {**shape.kind_settings, "length": length, "max_length": max_length}
        batch = 1
        try:
            return builder.graph(shape.family.build(builder, settings, batch))
        except ShapeError as error:
            raise InputError(f"serve: {error}") from None

    @cached_property
    def _token_graph(self) -> Graph:
        """The graph of one token, from which weights and attention are read."""
        return self.build_graph(1)

    @cached_property
    def attention(self) -> Mapping[str, tuple[AttentionShape, ...]]:
        """The attention of a rank's layers, by the name of the piece."""
        graph = self._token_graph
        settings = self.problem.shape.kind_settings
        pieces = dict.fromkeys(piece_of(op.name) for op in graph.ops if op.kind in ATTENDING)
        return {piece: find_attention_shapes(graph, piece, settings) for piece in pieces}

    @cached_property
    def piece_bytes(self) -> dict[str, float]:
        """Bytes of the weights on a device by piece: the ends, and one layer of each kind."""
        graph = self._token_graph
        pieces = (FIRST, *dict.fromkeys(self.problem.shape.kinds), LAST)
        piece_bytes = dict.fromkeys(pieces, 0.0)
        product_weights: set[str] = set()
        for op in graph.ops:
            if op.kind in LOW_KINDS and not is_left_wide(op.name, op.kind, self.quantised_part):
                _activations, *weights = op.inputs
                product_weights.update(weights)
        for name in graph.weights:
            piece = piece_of(name)
            spec = graph.tensors[name]
            if piece not in piece_bytes:  # a further layer of the same kind
                continue
            is_matrix = name in product_weights and len(spec.shape) > 1
            # Embedding, head and what is no matrix stay in 16 bits.
            if is_matrix and piece not in (FIRST, LAST):
                piece_bytes[piece] += stored_bytes(spec, self.weight_format)
            else:
                piece_bytes[piece] += HALF_BYTES * spec.size
        return piece_bytes

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights on a device: of a pipeline, of its fullest stage."""
        layer_bytes = dict(self.piece_bytes)
        first_bytes = layer_bytes.pop(FIRST)
        last_bytes = layer_bytes.pop(LAST)
        layers_bytes = sum(self.piece_counts[name] * size for name, size in layer_bytes.items())
        has_both_ends = self.plan.pipeline == 1
        # In a pipeline, embedding and head lie on different devices.
        ends_bytes = first_bytes + last_bytes if has_both_ends else max(first_bytes, last_bytes)
        return self._fullest_stage(layers_bytes) + ends_bytes

    def _fullest_stage(self, layers_bytes: float) -> float:
        """Return the bytes of the stage with the most layers, from those of all layers."""
        layer_count = len(self.problem.shape.kinds)
        return layers_bytes * ceil(layer_count / self.plan.pipeline) / layer_count

    @cached_property
    def kv_token_bytes(self) -> float:
        """Bytes of a token in the cache of a device, in all layers."""
        return self.kv_bytes(1) - self.kv_bytes(0)

    def kv_bytes(self, tokens: int) -> float:
        """Return the bytes of a sequence in the cache of a device; windows drop old tokens."""
        layers = self.attention.keys() & self.piece_counts.keys()
        layers_bytes = sum(
            self.piece_counts[name] * self.layer_kv_bytes(name, tokens) for name in layers
        )
        guesses_bytes = 0.0 if self.guesses is None else self.guesses.kv_bytes(tokens)
        return self._fullest_stage(layers_bytes) + guesses_bytes

    def layer_kv_bytes(self, name: str, tokens: int) -> float:
        """Return the bytes of a sequence in the cache of one layer of a kind, on a device."""
        number_bytes = BYTES_BY_FORMAT[self.cache_format]
        size_bytes = 0.0
        for attention in self.attention.get(name, ()):
            numbers = attention.token_numbers * attention.cached_tokens(tokens)
            size_bytes += number_bytes * numbers + attention.state_bytes
        return size_bytes

    @cached_property
    def fixed_bytes(self) -> dict[str, float]:
        """Bytes of a device beside the cache, by part.

        Activations are those of the largest step, of its layers or of sampling, whichever are
        larger; 0 if a step may have any number of tokens.
        """
        tokens = self.limit("step_tokens")
        activations_bytes = 0.0
        if tokens < UNLIMITED_TOKENS:  # else they depend on the prompts, and are counted with these
            activations_bytes = max(self.activation_bytes(tokens), self.sampler_bytes(tokens))
        guesses_bytes = 0.0 if self.guesses is None else self.guesses.weight_bytes
        return {
            "weights_bytes": self.weight_bytes + guesses_bytes,
            "activations_bytes": activations_bytes,
            "buffers_bytes": self.constant("buffer_bytes"),
            "context_bytes": self.constant("context_bytes"),
        }

    @cached_property
    def usable_bytes(self) -> float:
        """Bytes of a device that the engine uses.

        The share is of all memory, or of the memory beside the fixed parts (flag `of_rest`). A
        share that a user sets for SGLang is of weights and cache alone.
        """
        room_bytes = self.problem.rank.room_bytes
        share = self.constant("memory_share")
        fixed_bytes = sum(self.fixed_bytes.values())
        is_sglang = self.problem.method.settings.stack.startswith("sglang")
        if is_sglang and self.engine.memory_share is not None:
            weights_bytes = self.fixed_bytes["weights_bytes"]
            # A share that a user sets for SGLang is of weights and cache alone.
            return min(room_bytes, share * room_bytes + fixed_bytes - weights_bytes)
        is_share_of_remainder = self.problem.rank.flag("of_rest")
        if not is_share_of_remainder:
            return share * room_bytes
        if fixed_bytes > room_bytes:  # they do not fit
            return room_bytes
        return fixed_bytes + share * (room_bytes - fixed_bytes)

    @cached_property
    def room_bytes(self) -> float:
        """Bytes of a device that are left for the cache, negative if weights do not fit."""
        return self.usable_bytes - sum(self.fixed_bytes.values())

    @cached_property
    def profile_run(self) -> ProfileRun:
        """The sizes that decide the memory of a step."""
        shapes = [shape for layer in self.attention.values() for shape in layer]
        passing_numbers = max(shape.passing_numbers for shape in shapes)
        return read_profile_run(self.problem.shape, self.plan, passing_numbers)

    def activation_bytes(self, tokens: float) -> float:
        """Return the bytes of the tensors that live while a step reads so many tokens."""
        return self.profile_run.forward_bytes(tokens)

    def max_sampled_sequences(self, step_tokens: float) -> float:
        """Return the largest number of sequences for which a step samples tokens."""
        return min(self.engine.max_sequences or self.limit("max_sequences"), step_tokens)

    def sampler_bytes(self, step_tokens: float) -> float:
        """Return the bytes of logits while a step samples as many tokens as it may."""
        sequences = self.max_sampled_sequences(step_tokens)
        return self.profile_run.sampler_bytes(sequences, self.constant("sampled_bytes"))


def _default_cache_format(problem: PlanProblem) -> str:
    """Return the format of keys and values: float8 for low products, if the stack does that."""
    rank = problem.rank
    has_float4 = "float4" in problem.device.datasheet.peak_flop_per_s
    is_low_with_float4 = has_float4 and rank.flag("cache_four")
    is_low = rank.low_dtype and (is_low_with_float4 or rank.flag("cache_low"))
    return "float8" if is_low else rank.weight_dtype


def _find_device(problem: PlanProblem) -> Device:
    """Return the calibrated device, with the peak that low products reach."""
    rank = problem.rank
    device = rank.calibrated_device
    if not rank.low_dtype:
        return device
    peaks = {**device.datasheet.peak_flop_per_s}
    peaks[rank.low_dtype] *= rank.constant("low_share")
    return device.with_figures(peak_flop_per_s=peaks)
