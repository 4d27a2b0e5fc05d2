"""Fine-tuning as a change of the graph: what is frozen, adapters beside products, few-bit weights.

A frozen weight is a buffer: it has no gradient, no state and no update, and what is read only for
its gradient is not kept. Adapters (`network.adapters`) have weights of their own. Weights of few
bits (Dettmers et al. 2023, section 3) are made wide before each product that reads them, in either
pass, and dropped.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from steptime.core.adapters import EXTRA_NAMES
from steptime.core.errors import InputError, shorten
from steptime.core.graph import Graph
from steptime.core.workload import Tuning
from steptime.network.graph_editor import CONSTANT, GraphEditor, find_head_weight
from steptime.network.stored_weights import store_quantised

MESSAGE_NAMES = 3  # names of weights or modules in a message
ORIGINAL = "original"  # what the name of the frozen copy of a saved module ends with
ADDED_NAMES = (*EXTRA_NAMES, ORIGINAL, CONSTANT)  # ends of names of tensors that are no parameters
HEAD = "output"
SAVED_NAMES = {  # modules of other software, by what peft's users call them
    **dict.fromkeys(("embed_tokens", "wte", "tok_embeddings", "word_embeddings"), "embedding"),
    **dict.fromkeys(("lm_head", "embed_out", "output_layer"), HEAD),
    "norm": "final_norm",
    "wpe": "position",
}


def apply_tuning(graph: Graph, tuning: Tuning) -> Graph:
    """Return a forward graph under a fine-tuning: the same output, other weights trained.

    Raises `InputError` where nothing is trained.
    """
    if tuning == Tuning():
        return graph
    is_inference_on_few_bits = tuning.weights and tuning.stored and not tuning.has_frozen_weights
    if is_inference_on_few_bits:
        return store_quantised(graph, tuning.weights, tuning.stored)
    # "saved" as in peft's `modules_to_save`: trained as a whole, and saved beside the adapter
    saved = _find_saved(graph, tuning)
    trained = _find_trained(graph, tuning) | saved
    frozen = [name for name in graph.weights if name not in trained]
    editor = _edit(graph, tuning, frozen)
    # peft trains a copy of a saved module, and keeps the original in memory
    for name in sorted(saved):
        editor.add_buffer(f"{name}/{ORIGINAL}", graph.tensors[name])
    trained_weights = [name for name in graph.weights if name in trained]
    return replace(
        graph,
        tensors=editor.tensors,
        ops=tuple(editor.ops),
        weights=(*trained_weights, *editor.weights),
        outputs=tuple(editor.results.get(name, name) for name in graph.outputs),
        buffers=(*graph.buffers, *frozen, *editor.buffers),
        frozen=(*graph.frozen, *frozen, *editor.buffers),
    )


def _edit(graph: Graph, tuning: Tuning, frozen: Iterable[str]) -> GraphEditor:
    """Return an editor that has all ops of a graph, with those of the fine-tuning beside them."""
    editor = GraphEditor(graph, tuning, [*graph.frozen, *frozen])
    for op in graph.ops:
        editor.append(op)
    if tuning.has_adapter and not editor.weights:
        raise InputError(f"--lora on={tuning.on}: {graph.name} has no such product; on=all has all")
    return editor


def _find_trained(graph: Graph, tuning: Tuning) -> set[str]:
    """Return the weights of the network that a fine-tuning trains by their names."""
    if not tuning.has_frozen_weights:
        return set(graph.weights)
    trained: set[str] = set()
    for pattern in filter(None, tuning.train.split(",")):
        names = {name for name in graph.weights if fnmatchcase(name, pattern)}
        if not names:
            name_examples = ", ".join(graph.weights[:MESSAGE_NAMES])
            raise InputError(
                f"--train {shorten(pattern)}: no weight is named so; some are {name_examples}"
            )
        trained |= names
    return trained


def _find_saved(graph: Graph, tuning: Tuning) -> set[str]:
    """Return the weights of the modules that are trained whole beside an adapter."""
    saved: set[str] = set()
    for module in filter(None, tuning.saved.split("+")):
        weights = _find_module_weights(graph, module)
        if not weights:
            modules = dict.fromkeys(_modules_of(graph.weights))
            name_examples = ", ".join(list(modules)[:MESSAGE_NAMES])
            raise InputError(
                f"--modules-to-save {shorten(module)}: {graph.name} has no such module; "
                f"some are {name_examples}"
            )
        saved |= weights
    return saved


def _find_module_weights(graph: Graph, module: str) -> set[str]:
    """Return the weights of a module, by our name of it or by that of other software."""
    names = {module, SAVED_NAMES.get(module, module)}
    weights = {name for name in graph.weights if names & set(_split_name(name))}
    is_tied_head = not weights and HEAD in names  # the head reads the embedding's weight
    if is_tied_head:
        return {find_head_weight(graph)} & {*graph.weights}
    return weights


def _split_name(name: str) -> list[str]:
    """Return the parts of a weight's path: `block1/norm1/w` is block1, norm1 and w."""
    return re.split(r"[/.]", name)


def _modules_of(names: Iterable[str]) -> list[str]:
    """Return the modules of weights that lie in no layer, by their names."""
    return [_split_name(name)[0] for name in names if len(_split_name(name)) <= 2]
