"""A machine of one's own: its devices, its host, and which part of a network lies where."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from steptime.core.errors import InputError
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.serving.desktop.stack import CPU, DesktopBackend, DesktopStack
from steptime.serving.desktop.tensors import EMBEDDING, Weights, WeightTensor

UNIFIED_HOST_BYTES_PER_S = 2.4e11  # that cores of an Apple M1 Max reach (AnandTech, 2021)
HOST_LINK_SHARE = 0.8  # of the rate of PCIe that copies of weights reach


@dataclass(frozen=True)
class Machine:
    """A machine that runs a language model.

    Args:
        device: its devices, all alike.
        device_count: number of devices.
        host: the CPU beside them.
        stack: the software.
        is_split_by_rows: whether devices share each product; else each has layers.
    """

    device: Device
    device_count: int
    host: Device
    stack: DesktopStack
    is_split_by_rows: bool = False

    @property
    def backend(self) -> DesktopBackend:
        """How the stack runs on the devices."""
        return self.stack.backend(self.device)

    @property
    def host_backend(self) -> DesktopBackend:
        """How the stack runs on the host."""
        return self.stack.backends.get(CPU, self.backend)

    @property
    def is_unified(self) -> bool:
        """Whether devices and host share one memory."""
        return has_trait(self.device, "unified_memory") or self.device.kind == "cpu"

    @property
    def host_bytes_per_s(self) -> float:
        """The bandwidth of the memory of the host."""
        if self.is_unified and self.device.kind != "cpu":
            return min(self.device.datasheet.memory_bytes_per_s, UNIFIED_HOST_BYTES_PER_S)
        return self.host.datasheet.memory_bytes_per_s

    @property
    def host_link_bytes_per_s(self) -> float:
        """The rate at which weights are copied from the host to a device."""
        if self.is_unified:
            return self.host_bytes_per_s
        rate = self.device.datasheet.details.get("link_GB_per_s")
        return HOST_LINK_SHARE * (float(str(rate)) * 1e9 if rate else self.host_bytes_per_s)


@dataclass(frozen=True)
class Placing:
    """Which layers of a network lie on devices, as `--gpu-layers` and `--cpu-moe` have it.

    Args:
        weights: the weights.
        device_count: number of devices.
        gpu_layers: layers on devices, the head counted as one; None for all.
        cpu_moe: layers whose experts stay on the host.
        loads_embedding: whether the table of embeddings lies on the first device.
        is_split_by_rows: whether devices share each product.
    """

    weights: Weights
    device_count: int = 1
    gpu_layers: int | None = None
    cpu_moe: int = 0
    loads_embedding: bool = False
    is_split_by_rows: bool = False

    def __post_init__(self) -> None:
        layers = self.weights.layers
        if self.gpu_layers is not None and self.gpu_layers < 0:
            raise InputError(f"--gpu-layers: 0 to {layers + 1}, not {self.gpu_layers}")
        if self.cpu_moe and not any(tensor.is_routed for tensor in self.weights.tensors):
            raise InputError("--cpu-moe: the network has no experts; nearest: --gpu-layers N")

    @property
    def layers_on_device(self) -> int:
        """Layers on devices, the head counted as one."""
        layers = self.weights.layers + 1
        return layers if self.gpu_layers is None else min(layers, self.gpu_layers)

    @property
    def has_head(self) -> bool:
        """Whether the head lies on a device: it is the last to go there."""
        return self.layers_on_device > self.weights.layers

    @cached_property
    def device_layers(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each device: the last ones, in equal parts; by rows each has all."""
        layers = self.weights.layers
        device_range = range(max(0, layers - self.layers_on_device), layers)
        # By rows every device has a part of each layer.
        if self.is_split_by_rows or self.device_count == 1:
            return (tuple(device_range),) * self.device_count
        parts = []
        for i in range(self.device_count):
            start = i * len(device_range) // self.device_count
            end = (i + 1) * len(device_range) // self.device_count
            parts.append(tuple(device_range[start:end]))
        return tuple(parts)

    @cached_property
    def host_layers(self) -> range:
        """The layers that stay on the host."""
        return range(max(0, self.weights.layers - self.layers_on_device))

    def device_tensors(self, device_number: int) -> list[WeightTensor]:
        """Return the tensors of a device that products read; by rows those of all."""
        tensors = []
        for layer in self.device_layers[device_number]:
            keeps_experts_on_host = layer < self.cpu_moe
            for tensor in self.weights.by_layer[layer]:
                is_on_host = tensor.is_routed and keeps_experts_on_host
                if not is_on_host:
                    tensors.append(tensor)
        # The head follows the last layer.
        is_last = device_number == self.device_count - 1
        if self.has_head and (is_last or self.is_split_by_rows):
            tensors += self.weights.head
        return tensors

    @cached_property
    def host_tensors(self) -> list[WeightTensor]:
        """The tensors on the host that products read."""
        tensors = [tensor for layer in self.host_layers for tensor in self.weights.by_layer[layer]]
        # The first layers lie on the host; of device layers below `cpu_moe` only the experts.
        first_device_layer = len(self.host_layers)
        for layer in range(first_device_layer, min(self.cpu_moe, self.weights.layers)):
            tensors += [tensor for tensor in self.weights.by_layer[layer] if tensor.is_routed]
        if not self.has_head:
            tensors += self.weights.head
        return tensors

    def device_weights_bytes(self, device_number: int) -> float:
        """Return the bytes of weights on a device."""
        size_bytes = float(_sum_bytes(self.device_tensors(device_number)))
        if self.is_split_by_rows:
            size_bytes /= self.device_count
        # The first device looks tokens up, in a table that a tied head has already.
        has_table = any(tensor.role == EMBEDDING for tensor in self.device_tensors(device_number))
        if self.loads_embedding and device_number == 0 and not has_table:
            size_bytes += self.weights.embedding_bytes
        return size_bytes

    @property
    def host_weights_bytes(self) -> float:
        """The bytes of weights on the host, with the table of embeddings where it stays there."""
        table_bytes = 0 if self.loads_embedding else self.weights.embedding_bytes
        has_table = any(tensor.role == EMBEDDING for tensor in self.host_tensors)
        return float(_sum_bytes(self.host_tensors) + (0 if has_table else table_bytes))


def _sum_bytes(tensors: Sequence[WeightTensor]) -> int:
    """Return the bytes of some tensors."""
    return sum(tensor.size_bytes for tensor in tensors)
