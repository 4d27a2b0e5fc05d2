"""The recipes (YAML, JSON, TOML) of training tools, known by their keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from steptime.launch.job import JobBuilder
from steptime.launch.launchers import LaunchedProgram
from steptime.launch.settings import Files, ToolSettings, split_names
from steptime.launch.tools import (
    axolotl,
    llamafactory,
    maxtext,
    nemo,
    torchtitan,
    torchtune,
    trainer,
)

RecipeReader = Callable[[ToolSettings, LaunchedProgram, Files], JobBuilder]


def read_trainer_recipe(
    settings: ToolSettings, launch: LaunchedProgram, files: Files
) -> JobBuilder:
    """Read a file of training arguments."""
    return trainer.read_trainer(launch, settings, files)


@dataclass(frozen=True)
class RecipeKeys:
    """The keys by which the recipe of a tool is known.

    Attributes:
        read: reads such a recipe.
        required: keys of which each is there.
        any_of: keys of which one is there; none where `required` is enough.
        prefixes: beginnings of keys of which one is there; none where the keys are enough.
    """

    read_recipe: RecipeReader
    required: frozenset[str] = frozenset()
    any_of: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def match(self, keys: Collection[str]) -> bool:
        """Return whether a recipe with these keys is one of the tool."""
        has_any = not self.any_of or not self.any_of.isdisjoint(keys)
        has_prefix = not self.prefixes or any(key.startswith(self.prefixes) for key in keys)
        return self.required <= set(keys) and has_any and has_prefix


RECIPES = (
    RecipeKeys(axolotl.read_axolotl, required=split_names("base_model")),
    RecipeKeys(
        llamafactory.read_llamafactory,
        required=split_names("model_name_or_path"),
        any_of=split_names("finetuning_type cutoff_len neat_packing"),
    ),
    RecipeKeys(
        torchtune.read_torchtune, any_of=split_names("model._component_ tokenizer._component_")
    ),
    RecipeKeys(nemo.read_nemo, prefixes=("step_scheduler.",)),
    RecipeKeys(torchtitan.read_torchtitan, required=split_names("model.flavor")),
    RecipeKeys(
        torchtitan.read_torchtitan,
        any_of=split_names("training.seq_len"),
        prefixes=("parallelism.",),
    ),
    RecipeKeys(maxtext.read_maxtext, any_of=split_names("per_device_batch_size max_target_length")),
    RecipeKeys(maxtext.read_maxtext, prefixes=("ici_", "dcn_")),
    RecipeKeys(
        read_trainer_recipe,
        any_of=split_names(
            "per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing"
        ),
    ),
)


def find_recipe_reader(settings: ToolSettings) -> RecipeReader | None:
    """Return the reader of a recipe by its keys, None where they are those of no known tool."""
    if any(key.startswith("zero_optimization") for key in settings.values):
        return None  # a DeepSpeed configuration, which names no model
    return next((recipe.read_recipe for recipe in RECIPES if recipe.match(settings.values)), None)
