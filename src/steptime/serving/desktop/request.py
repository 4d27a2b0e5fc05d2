"""A question about a language model on one's own machine, and its prediction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from steptime.core.errors import InputError, unknown
from steptime.core.spelling import to_snake_case
from steptime.formats.gguf.types import file_types
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.shape import Shape
from steptime.prediction.kernel import Interval
from steptime.serving.desktop.caches import parse_cache_type
from steptime.serving.desktop.machine import Machine, Placing
from steptime.serving.desktop.memory import (
    DesktopDemand,
    DesktopMemory,
    longest_context,
    predict_memory,
)
from steptime.serving.desktop.speed import PLAIN_TYPES, StepTimes, predict_decode, predict_prefill
from steptime.serving.desktop.stack import DEFAULT, DesktopStack, find_stack
from steptime.serving.desktop.tensors import Weights, is_gguf, weights_of

DEFAULT_HOST = "ryzen-9-7950x"  # of a desktop: two channels of DDR5-5200
STACK_OF_TYPE = {"gguf": DEFAULT, "mlx": "mlx", "exl": "exllama"}
FILE_TYPE_OF_DTYPE = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
FILE_TYPES_BY_FORMAT = {  # other words for weights, in the types of each kind of file
    "gguf": {"int4": "q4_k_m", "int8": "q8_0", "float8": "q8_0", "float4": "q4_k_m"},
    "mlx": {"int4": "mlx_4bit", "int8": "mlx_8bit", "float8": "mlx_8bit", "float4": "mlx_4bit"},
    "exl": {"int4": "exl_4bpw", "int8": "exl_8bpw", "float8": "exl_8bpw", "float4": "exl_4bpw"},
}
DTYPE_OF_WORD = {"4bit": "int4", "8bit": "int8", "fp8": "float8", "fp4": "float4", "awq": "int4"}
DTYPE_OF_WORD |= {"gptq": "int4", "f16": "float16", "bf16": "bfloat16", "fp16": "float16"}
DESKTOP_TYPE_PREFIX = re.compile(r"(i?q|tq)\d_|mlx_|exl_")  # the beginning of such a type
SHARED_TYPES = {"mxfp4", "f16", "bf16", "f32"}  # which other stacks read as well


@dataclass(frozen=True)
class DesktopRequest:
    """A language model on one's own machine.

    Args:
        model: the network, a text.
        device: the device, or its name.
        device_count: number of devices.
        is_split_by_rows: whether devices share each product.
        stack: the software; "" for that of the weights.
        weights: the type of the weights; None for that of the file or of the data type.
        dtype: data type of weights that are not quantised.
        kv: the type of keys and values.
        input_tokens: tokens of a prompt.
        output_tokens: tokens that are made of it.
        sequences: sequences at once.
        context: tokens that the cache has room for; None for those of a sequence.
        gpu_layers: layers on devices, the head counted as one; None for all.
        cpu_moe: layers whose experts stay on the host.
        ubatch: tokens that pass at once; None for the stack's.
        has_flash_attention: whether attention is one fused kernel.
        host: the CPU beside the devices, a name; None for a usual desktop.
        memory_bytes: memory of the device; None for that of its file.
    """

    model: str
    device: str | Path | Device
    device_count: int = 1
    is_split_by_rows: bool = False
    stack: str = ""
    weights: str | None = None
    dtype: str | None = None
    kv: str | None = None
    input_tokens: int = 1024
    output_tokens: int = 128
    sequences: int = 1
    context: int | None = None
    gpu_layers: int | None = None
    cpu_moe: int = 0
    ubatch: int | None = None
    has_flash_attention: bool = True
    host: str | None = None
    memory_bytes: float | None = None

    def resolve(self) -> DesktopCase:
        """Return the network, the machine and what is asked of it.

        Raises:
            InputError: for unknown names, and for options that do not go together.
        """
        shape = self._shape()
        stack = find_stack(self.stack or self._usual_stack())
        device = self._device()
        file_type = self._file_type(stack, device)
        weights = weights_of(shape, file_type)
        host = device if device.kind == "cpu" else catalog.device(self.host or DEFAULT_HOST)
        machine = Machine(device, self.device_count, host, stack, self.is_split_by_rows)
        stack.backend(device)  # raises for a device that the stack does not run on
        if not any(name in device.datasheet.peak_flop_per_s for name in PLAIN_TYPES):
            raise InputError(f"{device.name}: no peak is known of {', '.join(PLAIN_TYPES)}")
        placing = Placing(
            weights,
            device_count=self.device_count,
            gpu_layers=self.gpu_layers,
            cpu_moe=self.cpu_moe,
            loads_embedding=stack.memory.loads_embedding,
            is_split_by_rows=self.is_split_by_rows,
        )
        needed_context = self.input_tokens + self.output_tokens
        demand = DesktopDemand(
            context=self.context or max(needed_context, stack.default_context),
            sequences=self.sequences,
            cache_type=parse_cache_type(self.kv),
            ubatch=self.ubatch or stack.memory.ubatch,
            has_flash_attention=self.has_flash_attention,
        )
        if demand.context < needed_context:
            text = f"{needed_context:,} tokens of a sequence"
            raise InputError(f"--context {demand.context}: is less than {text}")
        return DesktopCase(self, shape, machine, placing, demand)

    def _shape(self) -> Shape:
        """Return the network; raises `InputError` for what is no decoder."""
        shape = read_language_model(self.model, trusted=True)
        if shape.kind_settings["kind"] != "decoder":
            raise InputError(f"{shape.label} is no decoder: it has no next token")
        return shape

    def _device(self) -> Device:
        """Return the device with the memory that the user names."""
        device = catalog.device(self.device)
        if self.memory_bytes is None:
            return device
        return device.with_figures(memory_bytes=self.memory_bytes)

    def _usual_stack(self) -> str:
        """Return the stack that runs the type of the weights."""
        row = file_types().get(to_snake_case(self.weights or ""), {})
        return STACK_OF_TYPE[row.get("stack", "gguf")]

    def _file_type(self, stack: DesktopStack, device: Device) -> str:
        """Return the type of the file; "" for that of a GGUF file. Raises `InputError`."""
        weights_word = to_snake_case(self.weights or "")
        # The file itself says its types.
        if not weights_word and is_gguf(self.model):
            return ""
        usual_dtype = "bfloat16" if "bfloat16" in device.datasheet.peak_flop_per_s else "float16"
        word = weights_word or self.dtype or usual_dtype
        dtype = DTYPE_OF_WORD.get(word, word)  # or the name of a type of file
        # A type of so many bits is one of the types that such a stack's files have.
        types_of_format = FILE_TYPE_OF_DTYPE | FILE_TYPES_BY_FORMAT[stack.weights]
        file_type = types_of_format.get(dtype, dtype)
        stack_types = types_of_stack(stack)
        if file_type not in stack_types:
            text = self.weights or file_type
            raise unknown("--weights", text, stack_types, f"stack {stack.name}")
        return file_type


@dataclass(frozen=True)
class DesktopCase:
    """A network, a machine, and what is asked of it.

    Args:
        request: the question.
        shape: the network.
        machine: the machine.
        placing: which layers lie where.
        demand: what is asked.
    """

    request: DesktopRequest
    shape: Shape
    machine: Machine
    placing: Placing
    demand: DesktopDemand

    @property
    def weights(self) -> Weights:
        """The weights of the network."""
        return self.placing.weights

    @property
    def trained_length(self) -> int:
        """Tokens of the longest sequence that the network is made for."""
        return int(self.shape.settings["max_length"])

    def predict_memory(self) -> DesktopMemory:
        """Return the memory of the fullest device."""
        return predict_memory(self.shape, self.machine, self.placing, self.demand)

    def predict(self) -> DesktopPrediction:
        """Return the memory and the times."""
        case = (self.shape, self.machine, self.placing, self.demand)  # what each prediction needs
        request, stack = self.request, self.machine.stack
        memory = predict_memory(*case)
        mean_context = request.input_tokens + request.output_tokens / 2
        decode = predict_decode(*case, mean_context)
        prefill = predict_prefill(*case, request.input_tokens)
        return DesktopPrediction(
            memory=memory,
            decode=decode,
            prefill=prefill,
            tpot=decode.with_interval(stack.decode_spread),
            ttft=prefill.with_interval(stack.prefill_spread),
            longest_context=longest_context(*case, max(self.trained_length, self.demand.context)),
        )


@dataclass(frozen=True)
class DesktopPrediction:
    """Memory and times of a language model on one's own machine.

    Args:
        memory: the memory of the fullest device.
        decode: seconds of a token by what takes them.
        prefill: seconds of the prompts by what takes them.
        tpot: time of a token with its 80 % interval [s].
        ttft: time of the prompts with their 80 % interval [s].
        longest_context: tokens of the longest context that fits; None where memory is unknown.
    """

    memory: DesktopMemory
    decode: StepTimes
    prefill: StepTimes
    tpot: Interval
    ttft: Interval
    longest_context: int | None


def types_of_stack(stack: DesktopStack) -> list[str]:
    """Return the types of weights that a stack runs, those of 16 bits first."""
    plain = ["bf16", "f16", "f32"]
    quantised = [
        name
        for name, row in file_types().items()
        # Types without a stack are those of GGUF files.
        if row.get("stack", "gguf") == stack.weights and name not in plain
    ]
    return [*plain, *quantised]


def names_desktop_weights(word: str | None) -> bool:
    """Whether a word names weights that stacks of one's own machine alone run: `q4_k_m`.

    A word of that form counts as well, so that the message on an unknown one lists these types.
    """
    plain = to_snake_case(word or "")
    is_type = plain in file_types() and plain not in SHARED_TYPES
    return is_type or DESKTOP_TYPE_PREFIX.match(plain) is not None
