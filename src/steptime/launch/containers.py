"""Commands of containers in files of Docker Compose (services) and Kubernetes (pods)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from steptime.launch.launchers import image_command
from steptime.launch.shell import ShellCommand, read_script

_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash"}


def container_commands(data: Any, environment: Mapping[str, str]) -> Iterator[ShellCommand]:
    """Yield the command of each container.

    Args:
        data: a document of Compose or Kubernetes, or a list of them.
        environment: variables beside the file, such as those of `.env`.
    """
    for container in _containers(data):
        variables = {**environment, **_environment(container, environment)}
        entrypoint = _split_command(container.get("entrypoint"), variables)
        arguments = _split_command(container.get("args"), variables)
        command = _split_command(container.get("command"), variables)
        image = str(container.get("image", ""))
        # The image's entry point is replaced by `command` and gets `args` in Kubernetes; in Compose
        # it is replaced by `entrypoint` and gets `command`.
        is_kubernetes = "args" in container or container.get("_is_kubernetes")
        if is_kubernetes:
            words = image_command(image, command, arguments)
        else:
            words = image_command(image, entrypoint, command)
        script = _find_inline_script(words)
        if script is not None:
            for command_of_script in read_script(script).commands:
                environment_of_command = {**variables, **command_of_script.environment}
                yield ShellCommand(command_of_script.words, environment_of_command)
        elif words:
            yield ShellCommand(tuple(words), variables)


def _find_inline_script(words: list[str]) -> str | None:
    """Return the script of `sh -c SCRIPT` or `bash -lc SCRIPT`, None of another command."""
    if len(words) < 3:
        return None
    program, option, script, *_ = words
    runs_script = option.startswith("-") and "c" in option  # `-c`, `-lc`, `-ec`
    return script if program in SHELLS and runs_script else None


def is_container_file(data: Any) -> bool:
    """Return whether a document describes containers."""
    return any(True for _ in _containers(data))


def _containers(data: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the containers of Compose's services and of Kubernetes' pods, wherever they lie."""
    if isinstance(data, list):
        for document in data:
            yield from _containers(document)
    elif isinstance(data, dict):
        services = data.get("services")
        if isinstance(services, dict):  # of Compose
            yield from (service for service in services.values() if isinstance(service, dict))
            return
        for key, value in data.items():
            if key == "containers" and isinstance(value, list):
                yield from (  # marked, because `command` means another thing in Compose
                    {**container, "_is_kubernetes": True}
                    for container in value
                    if isinstance(container, dict)
                )
            else:
                yield from _containers(value)


def _environment(
    container: Mapping[str, Any], outer_variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a container: a mapping, `NAME=value` lines, or name and value."""
    entries = container.get("environment", container.get("env")) or {}
    values: dict[str, str] = {}
    if isinstance(entries, dict):
        for name, value in entries.items():
            if value is not None:
                values[str(name)] = str(value)
    else:
        for entry in entries:
            if isinstance(entry, dict) and "value" in entry:  # of Kubernetes
                values[str(entry.get("name"))] = str(entry["value"])
            elif isinstance(entry, str) and "=" in entry:  # of Compose
                name, _, value = entry.partition("=")
                values[name] = value
    return {name: _substitute_variables(value, outer_variables) for name, value in values.items()}


def _split_command(command: Any, variables: Mapping[str, str]) -> list[str]:
    """Return the words of a command that is a text or a list of words."""
    if isinstance(command, list):
        return [_substitute_variables(str(word), variables) for word in command]
    if not isinstance(command, str):  # none is stated
        return []
    # A text is split into words as a shell does; line breaks of YAML do not end the command.
    commands = read_script(_substitute_variables(" ".join(command.split("\n")), variables)).commands
    return list(commands[0].words) if commands else []


def _substitute_variables(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with `${NAME:-default}` replaced; an unknown variable is empty."""
    unescaped = text.replace("$$", "$")  # both formats write `$$` for a dollar sign
    return _VARIABLE.sub(
        lambda match: variables.get(match[1] or match[3], match[2] or ""), unescaped
    )


def parse_environment(text: str) -> dict[str, str]:
    """Return the variables of a `.env` file, whose lines are `NAME=value`."""
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)
