"""Models of transformers without the library: its classes and main inputs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

# The imports below (E402) need torch: without it they would fail before the file is skipped.
from torch import nn  # noqa: E402

from steptime.core.errors import InputError  # noqa: E402
from steptime.measure.backends.native import transformers_models  # noqa: E402
from steptime.measure.backends.native.transformers_models import (  # noqa: E402
    describe_input_fault,
    find_class,
    find_inputs,
    prepare_config,
)

pytestmark = pytest.mark.framework


def test_a_class_whose_library_is_missing_names_the_library():
    placeholder = type("SoundModel", (), {"_backends": ["torchaudio"]})
    library = SimpleNamespace(SoundModel=placeholder)
    with pytest.raises(InputError, match=r"SoundModel needs torchaudio, not installed"):
        find_class(library, "SoundModel", "transformers:sound")


class SeesAndIsTold(nn.Module):
    """A model that names two main inputs, an image first."""

    main_input_name = ("pixel_values", "task_inputs")

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 16, stride=16)

    def forward(self, pixel_values, task_inputs):
        return self.patches(pixel_values).mean((2, 3)) + task_inputs[:, :1]


def test_the_first_of_several_main_inputs_is_proposed_first():
    _, inputs = find_inputs(SeesAndIsTold(), SimpleNamespace(image_size=32))
    assert inputs["pixel_values"] == ((2, 3, 32, 32), "float32")
    assert [*inputs] == ["pixel_values", "task_inputs"]


class StacksFrames(nn.Module):
    """A model of sound whose frames are stacked by four before it."""

    main_input_name = "input_features"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4 * 20, 8)

    def forward(self, input_features):
        return self.layer(input_features)


def test_features_are_as_wide_as_the_first_layer_where_the_configuration_misleads():
    _, inputs = find_inputs(StacksFrames(), SimpleNamespace(num_mel_bins=20))
    assert inputs["input_features"][0][-1] == 4 * 20


class StacksMaskedFrames(StacksFrames):
    """A model of sound that must be told which frames count."""

    def forward(self, input_features, input_features_mask):
        return super().forward(input_features) * input_features_mask[..., None]


def test_a_mask_that_a_model_requires_is_as_long_as_its_main_input():
    _, inputs = find_inputs(StacksMaskedFrames(), SimpleNamespace(num_mel_bins=20))
    assert inputs["input_features"] == ((2, 128, 80), "float32")
    assert inputs["input_features_mask"] == ((2, 128), "int64")


class IsGivenFeatures(nn.Module):
    """A model whose class inherits the main input of the class around it."""

    main_input_name = "state"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 8)

    def forward(self, action_embeds, **_):
        return self.layer(action_embeds)


def test_a_main_input_that_a_class_does_not_take_is_its_first_argument_instead():
    _, inputs = find_inputs(IsGivenFeatures(), SimpleNamespace(hidden_size=8))
    assert inputs == {"action_embeds": ((2, 128, 24), "float32")}


class ReadsContext(nn.Module):
    """A model that reads the features of another model, wider than its own."""

    main_input_name = "noise_embeds"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.context = nn.Linear(40, 8)

    def forward(self, noise_embeds, context_hidden_states):
        return self.layers[0](noise_embeds) + self.context(context_hidden_states)


def test_features_beside_the_main_input_are_as_wide_as_a_layer_takes():
    _, inputs = find_inputs(ReadsContext(), SimpleNamespace(hidden_size=8))
    assert inputs["noise_embeds"] == ((2, 128, 8), "float32")
    assert inputs["context_hidden_states"] == ((2, 128, 40), "float32")


def test_the_fault_of_a_model_is_that_with_all_of_its_arguments():
    class LosesItsWay(ReadsContext):
        config = SimpleNamespace(hidden_size=8)

        def forward(self, noise_embeds, context_hidden_states):
            raise ValueError(f"no way from {noise_embeds.dim()} to {context_hidden_states.dim()}")

    fault = describe_input_fault(LosesItsWay())
    assert fault.endswith("ValueError: no way from 3 to 3")
    assert "context_hidden_states=2x" in fault


def test_a_value_that_decides_a_size_is_the_fault_with_its_line():
    class RepeatsByValue(nn.Module):
        main_input_name = "input_ids"
        config = SimpleNamespace()

        def forward(self, input_ids):
            return torch.zeros(int(input_ids.max()))

    fault = describe_input_fault(RepeatsByValue())
    assert "a value decides a size or a branch (test_transformers_models.py, line " in fault
    assert "return torch.zeros(int(input_ids.max()))" in fault


class NeverFits(nn.Module):
    """A model whose own layers do not fit each other, whatever it is given."""

    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 16, stride=16), nn.Conv2d(8, 4, 1)
        self.run_count = 0

    def forward(self, pixel_values, **_):
        self.run_count += 1
        return self.second(self.first(pixel_values))


def test_a_model_that_never_fits_is_not_tried_with_all_inputs(monkeypatch):
    monkeypatch.setattr(transformers_models, "without_values", lambda module: module)
    model = NeverFits()
    assert find_inputs(model, SimpleNamespace(image_size=32)) == (model, {})
    assert model.run_count < 26  # of more than a hundred proposals; eight shapes, three times each


class ReadsValues(NeverFits):
    """A model that reads a value of its input, whatever it is given."""

    def forward(self, pixel_values, **_):
        self.run_count += 1
        return pixel_values * float(pixel_values.sum())


def test_a_model_that_reads_values_is_not_tried_with_all_inputs(monkeypatch):
    monkeypatch.setattr(transformers_models, "without_values", lambda module: module)
    model = ReadsValues()
    find_inputs(model, SimpleNamespace(image_size=32))
    assert model.run_count < 10


class Languages(SimpleNamespace):
    """A configuration with languages, of which none is chosen."""

    def to_dict(self) -> dict[str, object]:
        return vars(self)


def test_a_model_of_several_languages_runs_in_its_first():
    config = Languages(languages=("en_XX", "de_DE"), default_language=None, use_cache=True)
    prepare_config(config)
    assert (config.default_language, config.use_cache) == ("en_XX", False)
    chosen = Languages(languages=("en_XX", "de_DE"), default_language="de_DE")
    prepare_config(chosen)
    assert chosen.default_language == "de_DE"
