"""Seconds of a prompt and of a token of a language model on one's own machine.

A token takes the bytes of all weights and of the cache over the bandwidth that is reached, the work
to unpack weights of few bits, and a time for each kernel; parts of a network on several devices
follow each other. A prompt takes its products over the rate that they reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, hypot

from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.network.ops.expert_loads import experts_read
from steptime.planning.ranks.shape import Shape
from steptime.prediction.kernel import Interval
from steptime.serving.desktop.caches import LayerCache, layer_caches, number_bytes
from steptime.serving.desktop.machine import Machine, Placing
from steptime.serving.desktop.memory import DesktopDemand
from steptime.serving.desktop.stack import DesktopBackend
from steptime.serving.desktop.tensors import WeightTensor

LAYER_KERNELS = 8  # of a layer beside products and norms: rotations, cache, attention, sums
ROUTED_KERNELS = 6  # of a layer with experts beside: softmax, the largest ones, their sum
MATRIX_AXES = 2
PACKED_BITS = 16  # numbers of fewer bits are unpacked
ATTENTION_SHARE = 0.4  # of the rate of products that attention of a prompt reaches
HOST_SPREAD = 0.3  # in ln: what memory a host has is not known
PLAIN_TYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by what takes them.

    Args:
        products_s: reading and multiplying weights on devices.
        attention_s: reading the cache, and attention of a prompt.
        kernels_s: kernels beside their bytes.
        hops_s: from a device to the next.
        host_s: layers on the host.
    """

    products_s: float
    attention_s: float
    kernels_s: float
    hops_s: float
    host_s: float

    @property
    def seconds(self) -> float:
        """The sum."""
        device_s = self.products_s + self.attention_s + self.kernels_s
        return device_s + self.hops_s + self.host_s

    def with_interval(self, spread: float) -> Interval:
        """Return the seconds with their 80 % interval, wider where the host has a part."""
        step_s = self.seconds
        host_share = self.host_s / step_s if step_s else 0.0
        factor = exp(hypot(spread, HOST_SPREAD * host_share))
        return Interval(step_s, step_s / factor, step_s * factor)


@dataclass(frozen=True)
class _NetworkPart:
    """A part of a network on a device or on the host.

    Args:
        tensors: its weights that products read.
        caches: what its layers keep of a sequence.
        device: the device, or the CPU.
        backend: how the stack runs on it.
        bytes_per_s: the bandwidth of its memory.
        sharing_devices: devices that share the part: each has some rows of every matrix, and
            does as large a share of all work.
    """

    tensors: Sequence[WeightTensor]
    caches: Sequence[LayerCache]
    device: Device
    backend: DesktopBackend
    bytes_per_s: float
    sharing_devices: int = 1

    def weights_s(self, shape: Shape, tokens: int, head_tokens: int) -> float:
        """Return the seconds of all products of so many tokens that pass at once.

        Args:
            shape: the network.
            tokens: the tokens that pass through the layers.
            head_tokens: those of them that get a next token.
        """
        rate = self.product_flop_per_s()
        vector_rate = self.device.datasheet.vector_peak("float32") or rate
        total_s = 0.0
        for tensor in self.tensors:
            if not tensor.is_matrix:
                continue
            is_head = tensor.layer is None
            passing_tokens = head_tokens if is_head else tokens
            read_share, multiplied_share = _read_and_multiplied_shares(shape, tensor, tokens)
            read_s = read_share * tensor.size_bytes / self.weight_bytes_per_s
            unpack_flop = tensor.type.decode_flop * self.backend.weight_flop_share  # of a number
            unpack_s = read_share * tensor.numbers * unpack_flop / vector_rate
            compute_s = 2 * passing_tokens * multiplied_share * tensor.numbers / rate
            # Reading and unpacking hide behind arithmetic, or the other way round.
            total_s += max(read_s + unpack_s, compute_s)
        return total_s / self.sharing_devices

    @property
    def weight_bytes_per_s(self) -> float:
        """The bandwidth at which weights are read."""
        is_stacked = has_trait(self.device, "stacked_memory")
        share = self.backend.hbm_share if is_stacked else self.backend.bandwidth_share
        return share * self.bytes_per_s

    def product_flop_per_s(self) -> float:
        """Return the rate of products of many tokens."""
        peaks = self.device.datasheet.peak_flop_per_s
        peak = max(peaks[name] for name in PLAIN_TYPES if name in peaks)
        product_rate = self.backend.product_share * peak
        # Weights of few bits are unpacked by the vector units, which can be slower.
        is_packed = any(tensor.type.bits < PACKED_BITS for tensor in self.tensors)
        vector_peak = self.device.datasheet.vector_peak("float32")
        if is_packed and vector_peak:
            return min(product_rate, self.backend.vector_share * vector_peak)
        return product_rate

    def cache_s(self, sequences: int, context: float, cached_number_bytes: float) -> float:
        """Return the seconds to read the cache of sequences with so many tokens in it."""

        def layer_bytes(cache: LayerCache) -> float:
            token_bytes = cached_number_bytes * cache.token_numbers
            return sequences * (token_bytes * _attended_tokens(cache, context) + cache.state_bytes)

        size_bytes = sum(map(layer_bytes, self.caches))
        device_bytes_per_s = self.bytes_per_s * self.backend.cache_share
        return size_bytes / (device_bytes_per_s * self.sharing_devices)

    def attention_s(self, tokens: int, past: float) -> float:
        """Return the seconds of attention of a prompt's tokens behind `past` others."""
        flop = sum(
            4 * tokens * cache.query_numbers * _attended_tokens(cache, past + tokens / 2)
            for cache in self.caches
        )
        return flop / (ATTENTION_SHARE * self.product_flop_per_s() * self.sharing_devices)

    def kernel_count(self) -> int:
        """Return the kernels of a step."""
        products = sum(1 for tensor in self.tensors if tensor.is_matrix or _is_norm(tensor))
        routed = sum(1 for tensor in self.tensors if tensor.role == "ffn_down_exps")
        return products + LAYER_KERNELS * len(self.caches) + ROUTED_KERNELS * routed


def predict_decode(
    shape: Shape, machine: Machine, placing: Placing, demand: DesktopDemand, context: float
) -> StepTimes:
    """Return the seconds of a step that gives each sequence a token at a mean context."""
    cached_number_bytes = number_bytes(demand.cache_type)
    sequences = demand.sequences
    devices, host = _divide_network(shape, machine, placing)
    host_s = (
        host.weights_s(shape, sequences, head_tokens=sequences)
        + host.cache_s(sequences, context, cached_number_bytes)
        + host.kernel_count() * host.backend.kernel_s
    )
    return StepTimes(
        products_s=sum(part.weights_s(shape, sequences, sequences) for part in devices),
        attention_s=sum(part.cache_s(sequences, context, cached_number_bytes) for part in devices),
        kernels_s=sum(part.kernel_count() * part.backend.kernel_s for part in devices),
        hops_s=_hops_s(machine, placing, devices),
        host_s=host_s,
    )


def predict_prefill(
    shape: Shape, machine: Machine, placing: Placing, demand: DesktopDemand, tokens: int
) -> StepTimes:
    """Return the seconds until prompts of so many tokens are read, one for each sequence.

    Layers of the host run on a device where there is one: their weights are copied there for each
    microbatch.
    """
    devices, host = _divide_network(shape, machine, placing)
    all_tokens = tokens * demand.sequences
    chunk = min(demand.ubatch, all_tokens)
    chunks = ceil(all_tokens / chunk)
    # The tokens that lie before a chunk, in the mean over the chunks of a prompt.
    mean_past = tokens / 2 * (1 - chunk / all_tokens)
    head_tokens = 1  # a chunk ends one prompt at most, as good as always
    host_s = host.weights_s(shape, chunk, head_tokens) + host.attention_s(chunk, mean_past)
    if placing.layers_on_device:  # the faster of the host itself, and a copy of its weights
        host_bytes = sum(tensor.size_bytes for tensor in host.tensors)
        copy_s = host_bytes / machine.host_link_bytes_per_s
        copied_part = _device_part(machine, host.tensors, host.caches)
        host_s = min(host_s, copy_s + copied_part.weights_s(shape, chunk, head_tokens))
    return StepTimes(
        products_s=chunks * sum(part.weights_s(shape, chunk, head_tokens) for part in devices),
        attention_s=chunks * sum(part.attention_s(chunk, mean_past) for part in devices),
        kernels_s=chunks * sum(part.kernel_count() * part.backend.kernel_s for part in devices),
        hops_s=chunks * _hops_s(machine, placing, devices),
        host_s=chunks * host_s,
    )


def _device_part(
    machine: Machine,
    tensors: Sequence[WeightTensor],
    caches: Sequence[LayerCache],
    sharing_devices: int = 1,
) -> _NetworkPart:
    """Return the part of a network with these weights and caches on a device of a machine."""
    bytes_per_s = machine.device.datasheet.memory_bytes_per_s
    return _NetworkPart(
        tensors, caches, machine.device, machine.backend, bytes_per_s, sharing_devices
    )


def _divide_network(
    shape: Shape, machine: Machine, placing: Placing
) -> tuple[list[_NetworkPart], _NetworkPart]:
    """Return the parts of a network on devices, and the part on the host."""
    caches = layer_caches(shape)
    if placing.is_split_by_rows:  # one part, of which each device does a share
        row_caches = [caches[layer] for layer in placing.device_layers[0]]
        tensors = placing.device_tensors(0)
        devices = [_device_part(machine, tensors, row_caches, machine.device_count)]
    else:
        devices = [
            _device_part(machine, placing.device_tensors(i), [caches[layer] for layer in layers])
            for i, layers in enumerate(placing.device_layers)
        ]
    host_caches = [caches[layer] for layer in placing.host_layers]
    host = _NetworkPart(
        placing.host_tensors,
        host_caches,
        machine.host,
        machine.host_backend,
        machine.host_bytes_per_s,
    )
    return devices, host


def _hops_s(machine: Machine, placing: Placing, devices: Sequence[_NetworkPart]) -> float:
    """Return the seconds between devices: once a boundary, by rows twice a layer."""
    if placing.is_split_by_rows and machine.device_count > 1:
        exchanges = 2 * placing.weights.layers
        return exchanges * machine.backend.hop_s * (machine.device_count - 1) / ROWS_PER_HOP
    # The hidden state goes from each device with layers to the next one.
    devices_with_layers = sum(1 for part in devices if part.caches)
    return max(0, devices_with_layers - 1) * machine.backend.hop_s


ROWS_PER_HOP = 10  # exchanges of rows that take as long as a hop between layers: judged


def _read_and_multiplied_shares(
    shape: Shape, tensor: WeightTensor, tokens: int
) -> tuple[float, float]:
    """Return the shares of a tensor that tokens read, and that each of them multiplies."""
    if not tensor.is_routed:
        return 1.0, 1.0
    experts, *_ = tensor.shape
    per_token = shape.experts_per_token
    # Experts without tokens are not read; each token multiplies those that it chose.
    read_share = experts_read(experts, per_token, tokens) / experts
    return min(1.0, read_share), per_token / experts


def _attended_tokens(cache: LayerCache, context: float) -> float:
    """Return the tokens that a layer sees of a context."""
    return min(context, cache.window) if cache.window else context


def _is_norm(tensor: WeightTensor) -> bool:
    """Whether a tensor is the weight of a norm, which is a kernel of its own."""
    return len(tensor.shape) == 1 and not tensor.role.endswith("bias")
