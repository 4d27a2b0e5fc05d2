"""What a stack leaves out of predictions for a CPU is said, and only there."""

from every import every
from steptime.build import make_workload, read_model
from steptime.prediction.steps.step_model import StepModel


@every(
    ("network", "device", "stack", "said"),
    [
        ("deep_mnist", "epyc-7763", "jax", True),
        ("deep_mnist", "v100", "jax", False),
        ("fc", "epyc-7763", "jax", False),  # no convolution
        ("deep_mnist", "epyc-7763", "torch-eager", False),
    ],
)
def test_slow_convolutions_of_xla_are_said(network, device, stack, said):
    workload = make_workload(read_model(network), 2)
    model = StepModel(workload, device, method="analytic", options={"stack": stack})
    assert any("convolutions on a CPU" in one for one in model.remarks()) == said
