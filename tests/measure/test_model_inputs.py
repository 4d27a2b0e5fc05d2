"""The inputs that models of libraries are tried with, on weights that no memory holds."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from steptime.measure.backends.native.inputs import runs_with  # noqa: E402
from steptime.measure.backends.native.making import without_values  # noqa: E402
from steptime.measure.backends.native.model_inputs import (  # noqa: E402  # behind the skip
    complete_inputs,
    list_rare_image_specs,
    list_signal_specs,
    propose_model_inputs,
)


def test_weights_beyond_any_memory_are_copied_without_values():
    side = 2**18  # 256 GiB of float32
    module = torch.nn.Linear(side, side, bias=False, device="meta")
    copied = without_values(module)
    assert copied.weight.shape == (side, side)
    assert copied.weight.device.type == "cpu"


class SkipsItsDefault(torch.nn.Module):
    """Makes its mask itself, but not where it is exported, as LongT5 does."""

    def forward(self, x, mask=None):
        if mask is None and not torch.compiler.is_exporting():
            mask = torch.ones_like(x)
        return x * mask


def test_inputs_are_tried_as_a_module_is_exported():
    module, one = SkipsItsDefault(), {"x": ((2, 3), "float32")}
    both = {**one, "mask": ((2, 3), "float32")}
    assert runs_with(module, one)
    assert not runs_with(module, one, as_exported=True)
    assert runs_with(module, both, as_exported=True)
    assert not torch.compiler.is_exporting()


def test_an_argument_that_lacks_has_the_shapes_that_its_name_tells():
    config = SimpleNamespace(image_size=32)
    words = {"input_ids": ((2, 8), "int64")}
    proposals = list(complete_inputs(words, ["pixel_values"], config, 2))
    assert {**words, "pixel_values": ((2, 3, 32, 32), "float32")} in proposals
    assert not list(complete_inputs(words, ["a", "b", "c"], config, 2))
    tasks = next(complete_inputs(words, ["task_inputs"], SimpleNamespace(task_seq_len=77), 2))
    assert tasks == {**words, "task_inputs": ((2, 77), "int64")}


def test_images_that_few_models_take_are_a_pair_and_a_large_one():
    """Models that match two views take both; some cut an image into several of their size."""
    config = SimpleNamespace(image_size=8, num_channels=1)
    images = [((2, 2, 1, 8, 8), "float32"), ((2, 1, 1536, 1536), "float32")]
    assert list_rare_image_specs(config, 2) == images


def test_a_coder_of_sound_takes_the_channels_of_its_first_layer():
    layers = (torch.nn.Conv1d(5, 4, 3), torch.nn.Conv1d(4, 2, 3))
    assert list_signal_specs(torch.nn.Sequential(*layers), 2) == [((2, 5, 16_000), "float32")]
    assert list_signal_specs(torch.nn.Linear(2, 2), 2) == []


def test_a_model_of_decisions_reads_states_actions_returns_and_times():
    config = SimpleNamespace(state_dim=17, act_dim=6)
    sizes = [
        {name: shape for name, (shape, _) in inputs.items()}
        for inputs in propose_model_inputs("states", config, 2)
    ]
    trajectory = {"states": (2, 128, 17), "actions": (2, 128, 6), "returns_to_go": (2, 128, 1)}
    assert {**trajectory, "timesteps": (2, 128)} in sizes
