"""The setup of a rank: network, device, data types and the constants of its stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import check_choice
from steptime.core.workload import FULL_TRAINING, NO_OPTIMIZER, Tuning, Workload
from steptime.hardware.constants import split_flags
from steptime.hardware.device import Device
from steptime.hardware.stack import Stack
from steptime.planning.caches import Caches
from steptime.planning.ranks import single_device
from steptime.planning.ranks.shape import Shape
from steptime.prediction.low_products import find_low_weight_bytes
from steptime.prediction.method import Method
from steptime.prediction.steps.step_model import StepModel
from steptime.prediction.training import (
    LOW_BYTES,
    graph_dtype,
    training_constants,
)


class Constants(NamedTuple):
    """The numbers and the flags of a stack for one use, by name."""

    numbers: Mapping[str, float]
    flags: Mapping[str, bool]


@dataclass(frozen=True, eq=False)
class RankSetup:
    """The network, device, data types and constants of a rank, for training or serving.

    Attributes:
        shape: the network.
        device: the device.
        method: the prediction method, under its options.
        dtype: the data type.
        gradient_bits: the bits of a gradient in memory, 0 for the stack's own.
        use: "training" or "serving".
        tuning: which parameters are trained.
        optimizer: the optimizer of a training.
        caches: the caches of functions of this rank.
    """

    shape: Shape
    device: Device
    method: Method
    dtype: str
    gradient_bits: int = 0
    use: str = "training"
    tuning: Tuning = FULL_TRAINING
    optimizer: str = "adam"
    caches: Caches = field(default_factory=Caches, repr=False, kw_only=True)

    @property
    def is_training(self) -> bool:
        """Whether the network is trained, not served."""
        return self.use == "training"

    @cached_property
    def low_dtype(self) -> str:
        """The type of 8 or 4 bit in which products run, "" without one."""
        return self.dtype if self.dtype in LOW_BYTES else ""

    @cached_property
    def base_dtype(self) -> str:
        """The type of activations."""
        return "bfloat16" if self.low_dtype else self.dtype.removesuffix("-mixed")

    @cached_property
    def is_mixed(self) -> bool:
        """Whether a training keeps weights in a wider type than it computes in."""
        return self.is_training and bool(self.low_dtype or precision(self.dtype).mixed)

    @cached_property
    def workload_dtype(self) -> str:
        """The data type as a workload names it: `bfloat16-mixed`."""
        return f"{self.base_dtype}-mixed" if self.is_mixed else self.base_dtype

    @cached_property
    def step_model(self) -> StepModel:
        """Prices the graphs of ranks on the device."""
        # Hyperparameters and batch stay open here: `with_graph` brings the graph of each rank.
        workload = Workload(
            model=self.shape.family.name,
            params={},
            batch_per_replica=1,
            dtype=self.workload_dtype,
            phase="train" if self.is_training else "infer",
            optimizer=self.optimizer if self.is_training else NO_OPTIMIZER,
            tuning=self.tuning,
        )
        return StepModel(workload, self.device, method=self.method, low=self.low_dtype)

    @property
    def stack(self) -> Stack:
        """The software stack that runs the network."""
        return self.step_model.stack

    @property
    def calibrated_device(self) -> Device:
        """The device with the rates that kernels reach."""
        return self.step_model.effective_device

    @cached_property
    def weight_dtype(self) -> str:
        """The type of weights in memory."""
        return precision(graph_dtype(self.workload_dtype, self.stack.master_weights)).weights

    @cached_property
    def compute_dtype(self) -> str:
        """The type that products compute in, where it is not `low_dtype`."""
        return precision(self.workload_dtype).compute

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of a weight."""
        return float(SIZE_BYTES[self.weight_dtype])

    @cached_property
    def has_master_states(self) -> bool:
        """Whether `state_bytes` of training count float32 weights beside those of 16 bit."""
        return self.stack.master_weights and precision(self.workload_dtype).mixed

    @cached_property
    def weight_copy_bytes(self) -> float:
        """Bytes of a weight's copy in the type of products; 0 where it is the weight itself."""
        if self.weight_dtype == self.compute_dtype:
            return 0.0
        return float(SIZE_BYTES[self.compute_dtype])

    @cached_property
    def layer_weight_bytes(self) -> float:
        """Bytes of a weight of the layers with its copies."""
        if not self.low_dtype:
            return self.end_weight_bytes
        low_bytes = find_low_weight_bytes(self.stack, self.device, self.low_dtype)
        both_bytes = self.weight_bytes + LOW_BYTES[self.low_dtype]
        return both_bytes if low_bytes is None else low_bytes

    @property
    def end_weight_bytes(self) -> float:
        """Bytes of a weight of embedding and head with its copy: no product of 8 bit reads it."""
        return self.weight_bytes + self.weight_copy_bytes

    @cached_property
    def constants(self) -> Constants:
        """The constants of the stack for this use, adapted to data type and optimizer."""
        device_constants = self.calibrated_device.constants
        if not self.is_training:
            numbers, flags = split_flags(self.use, device_constants)
        else:
            numbers, flags = training_constants(
                device_constants, self.workload_dtype, self.stack.master_weights
            )
            state_dtype = "float32" if self.is_mixed else self.base_dtype
            # Optimizer states in fewer bits need fewer bytes than the stack's constant says.
            numbers["state_bytes"] -= single_device.saved_state_bytes(self.tuning, state_dtype)
            # With 8-bit products some stacks have gradients in other bits (0: in the usual ones).
            if self.low_dtype and numbers["low_gradient_bytes"]:
                numbers["gradient_bytes"] = numbers["low_gradient_bytes"]
        if self.gradient_bits:  # the user's choice wins
            numbers["gradient_bytes"] = self.gradient_bits / 8
        return Constants(numbers, flags)

    def constant(self, name: str) -> float:
        """Return a constant of the stack for this use.

        A constant that the stack does not set has its neutral value.

        Raises:
            InputError: if this use has no constant of this name.
        """
        values = self.constants.numbers
        if name not in values:
            check_choice("constant", name, values, self.use)
        return values[name]

    def flag(self, name: str) -> bool:
        """Return a flag of the stack for this use.

        Raises:
            InputError: if this use has no flag of this name.
        """
        flags = self.constants.flags
        return flags[check_choice("flag", name, flags, self.use)]
