"""The devices of a JAX step: a mesh of replicas, or a single device."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from steptime.measure.backends.jax import program

REPLICATED = P()  # on every device


class JaxSpread:
    """The devices of a step, each with a replica that has the same weights and inputs of its own.

    What a program is given and gives lies on each device as that has it, `inputs` one behind the
    other. JAX is told that the rest is the same everywhere: true of weights that `allreduce` keeps
    so; statistics of batch norm, and all that is `independent`, are each replica's own.
    """

    def __init__(self, devices: list[jax.Device]) -> None:
        self.mesh = Mesh(np.array(devices), (program.REPLICAS,)) if len(devices) > 1 else None
        # replicated over all devices, or the only device
        self.sharding: Any = NamedSharding(self.mesh, P()) if self.mesh else devices[0]

    def put(self, values: Any) -> Any:
        """Return values on every device."""
        return jax.device_put(values, self.sharding, may_alias=False)

    def put_inputs(self, inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Return inputs, each sharded along its first axis."""
        shardings = {
            name: NamedSharding(self.mesh, spec) if self.mesh else self.sharding
            for name, spec in self.specs(inputs).items()
        }
        arrays: dict[str, jax.Array] = jax.device_put(dict(inputs), shardings, may_alias=False)
        return arrays

    def specs(self, inputs: Mapping[str, Any]) -> dict[str, P]:
        """Return the sharding of inputs; an input without an axis is replicated."""
        return {
            name: P(program.REPLICAS) if np.ndim(array) else P() for name, array in inputs.items()
        }

    def jit(self, function: Callable[..., Any], specs: Any = REPLICATED, **options: Any) -> Any:
        """Return a function compiled for the devices, `specs` those of its arguments."""
        if self.mesh:
            function = jax.shard_map(
                function, mesh=self.mesh, in_specs=specs, out_specs=REPLICATED, check_vma=False
            )
        return jax.jit(function, **options)
