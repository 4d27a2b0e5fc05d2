"""The network of a launched job: an id on a hub, a file of weights, or a folder."""

from __future__ import annotations

import re
from pathlib import Path

from steptime.core.errors import InputError
from steptime.launch.job import LaunchJob
from steptime.network.families import find_network_name, names


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
    if ":" in model and model.startswith("transformer:"):
        return model
    if (folder / model / "config.json").is_file():
        return str(folder / model / "config.json")
    if model.endswith(".gguf") and (folder / model).is_file():
        return str(folder / model)
    models = set(names())
    for text in _shortened(model):
        if (name := find_network_name(text)) in models:
            return name
    return None


def _shortened(model: str) -> list[str]:
    """Return a name without its organisation and ending, then without its last words.

    The tag of Ollama that says a size is a part of the name: `llama3.1:8b-instruct-q8_0`.
    """
    last = model.rstrip("/").rpartition("/")[2]
    names = [re.sub(r"\.gguf$|:.*$", "", last)]
    if re.search(r":\d+(\.\d+)?[bm]\b", last, re.IGNORECASE):
        names.insert(0, last.replace(":", "-"))
    shortened = []
    for name in names:
        words = re.split(r"[-_]", name)
        shortened += [name, *("-".join(words[:count]) for count in range(len(words), 1, -1))]
    return [*shortened, re.split(r"[-_]", names[-1])[0]]
