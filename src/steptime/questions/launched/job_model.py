"""The network of a launched job: an id on a hub, a file of weights, or a folder."""

from __future__ import annotations

import re
from pathlib import Path

from steptime.core.errors import InputError
from steptime.launch.job import LaunchJob
from steptime.network.families import find_network_name, list_names

MIN_NAME_WORDS = 2  # of a shortened name; the first word alone comes last


def find_model(job: LaunchJob, folder: Path) -> str:
    """Return model text for the network of a job.

    A folder with a `config.json` is read as such. An id or the name of a file of weights is known
    by its longest beginning that names a network: `gpt-oss-20b-unsloth-F16.gguf` is `gpt_oss_20b`.

    Args:
        job: the job.
        folder: folder to which its paths are relative.

    Raises:
        InputError: if the job names no network, or one that is not known.
    """
    if job.model is None:
        raise InputError(
            f"the {job.tool} job names no model; name it, and give the job by --from FILE"
        )
    network = find_network(job.model, folder)
    if network is not None:
        return network
    raise InputError(
        f"the {job.tool} job loads {job.model}, which is not among the networks (steptime list "
        "models); give its config.json as MODEL, and the job by --from FILE"
    )


def find_network(model: str, folder: Path) -> str | None:
    """Return model text for an id on a hub, a folder or a file of weights; None if not known."""
    # Readers of Megatron jobs write the network as model text already.
    if model.startswith("transformer:"):
        return model
    configuration = folder / model / "config.json"
    if configuration.is_file():
        return str(configuration)
    weights_file = folder / model
    if model.endswith(".gguf") and weights_file.is_file():
        return str(weights_file)
    networks = set(list_names())
    for shortened_name in _list_shortened_names(model):
        network = find_network_name(shortened_name)
        if network in networks:
            return network
    return None


def _list_shortened_names(model: str) -> list[str]:
    """Return a name without its organisation and ending, then without its last words.

    The tag of Ollama that says a size is a part of the name: `llama3.1:8b-instruct-q8_0`.
    """
    base_name = model.rstrip("/").rpartition("/")[2]
    name_without_tag = re.sub(r"\.gguf$|:.*$", "", base_name)
    full_names = [name_without_tag]
    has_size_tag = re.search(r":\d+(\.\d+)?[bm]\b", base_name, re.IGNORECASE)
    if has_size_tag:
        full_names.insert(0, base_name.replace(":", "-"))  # llama3:8b is llama3-8b
    shortened_names = []
    for full_name in full_names:
        # "llama-3-8b-instruct", "llama-3-8b" and "llama-3"
        shortened_names.append(full_name)
        words = re.split(r"[-_]", full_name)
        word_counts = range(len(words), MIN_NAME_WORDS - 1, -1)
        shortened_names += ["-".join(words[:word_count]) for word_count in word_counts]
    first_word = re.split(r"[-_]", name_without_tag)[0]  # "llama", tried last
    return [*shortened_names, first_word]
