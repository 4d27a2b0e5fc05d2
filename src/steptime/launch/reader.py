"""Read a launch command, a script or a recipe as a job.

The text may be a command line, a shell script, a file of Docker Compose or Kubernetes, or a tool's
own YAML, JSON or TOML. Nothing of it is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.files import path_exists
from steptime.launch.containers import (
    SHELLS,
    container_commands,
    is_container_file,
    parse_environment,
)
from steptime.launch.engines import EngineFormat, read_engine
from steptime.launch.job import (
    SERVING,
    JobBuilder,
    LaunchJob,
    complete_training,
)
from steptime.launch.launchers import TUNE_FLAGS, LaunchedProgram, unwrap_launchers
from steptime.launch.recipes import RecipeReader, find_recipe_reader, read_trainer_recipe
from steptime.launch.settings import (
    Files,
    ToolSettings,
    merge,
    parse_assignments,
    parse_mapping,
    parse_words,
    read_data,
)
from steptime.launch.shell import ShellCommand, read_script
from steptime.launch.tools import (
    axolotl,
    llamacpp,
    llamafactory,
    maxtext,
    megatron,
    nemo,
    sglang,
    torchtitan,
    torchtune,
    trainer,
    trtllm,
    vllm,
)
from steptime.launch.tools.deepspeed import read_deepspeed

CommandReader = Callable[[LaunchedProgram, Files], JobBuilder]

DATA_ENDINGS = {".yaml", ".yml", ".json", ".toml"}
SCRIPT_ENDINGS = {".sh", ".bash", ".sbatch", ".slurm", ".txt", ".ps1", ""}
MAX_FILE_BYTES = 1 << 20  # a recipe is small
LLAMA_CPP = {"llama-server", "llama-cli", "llama-bench", "llama-run", "server"}
MEGATRON_SCRIPTS = re.compile(r"pretrain_\w+\.py|finetune_(gpt|mcore)\w*\.py")
MEGATRON_OPTION = re.compile(r"--(tensor|pipeline|expert)[-_]model[-_]parallel[-_]size\b")
CONFIG_OPTIONS = ("config", "c", "config_file")  # options whose value is the file of a recipe
SCRIPT_FLAGS = frozenset({"do_train", "do_eval", "overwrite_output_dir", "trust_remote_code"})


def read_launch(
    text: str, folder: Path | None = None, device_count: int | None = None
) -> LaunchJob | None:
    """Read what starts a job; return None where the text is nothing of the kind.

    Args:
        text: a command line, or the path of a script or of a configuration file.
        folder: folder to which the paths of a command line are relative. Default: the current one.
        device_count: number of devices, where the user gives it beside the text.

    Raises:
        InputError: if it is such a text and cannot be read, with what and where.
    """
    # Several words that are no path are a command line.
    is_command_line = len(text.split()) > 1 and not path_exists(text)
    if is_command_line:
        return _finish(_read_script(text, Files(folder or Path())), device_count)
    path = Path(text).expanduser()
    ending = path.suffix.lower()
    is_readable_type = ending in DATA_ENDINGS or ending in SCRIPT_ENDINGS
    if not is_readable_type or not _is_small_file(path):
        return None  # a checkpoint or a network, for other readers
    content = path.read_text(encoding="utf-8-sig", errors="replace")
    files = Files(path.resolve().parent)
    if ending in DATA_ENDINGS:
        return _finish(_read_document(content, ending, text, files), device_count)
    return _finish(_read_script(content, files), device_count)


def _is_small_file(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= MAX_FILE_BYTES
    except OSError:
        return False


def _finish(job: JobBuilder | None, device_count: int | None) -> LaunchJob | None:
    """Fill in what follows from the facts of a job."""
    if job is None:
        return None
    if job.kind != SERVING:
        complete_training(job, device_count)
    # The degrees of a server say its devices: another number cannot change them.
    elif device_count is not None and job.find_count("devices") not in {None, device_count}:
        job.notes.append(
            f"the command starts {job.find_count('devices')} devices; --device-count is not used"
        )
    return job.finish()


def _read_script(text: str, files: Files) -> JobBuilder | None:
    """Return the job of the first command of a script that starts a known tool."""
    script = read_script(text)
    files.script_files.update(script.files)
    commands = [inner for outer in script.commands for inner in _open_shell_command(outer)]
    readable_commands = []
    for command in commands:
        reader = _find_command_reader(command)
        if reader is not None:  # other commands, such as `cd` and `pip`, start no known tool
            readable_commands.append((command, reader))
    if not readable_commands:
        return None
    first_command, first_reader = readable_commands[0]
    launch = unwrap_launchers(list(first_command.words), first_command.environment)
    job = first_reader(launch, files)
    distinct_commands = {command.words for command, _reader in readable_commands}
    if len(distinct_commands) > 1:
        job.notes.append(f"the first of {len(readable_commands)} launch commands is read")
    return job


def _open_shell_command(command: ShellCommand) -> list[ShellCommand]:
    """Return the commands of a shell that a command starts, `bash -c "..."`; else the command."""
    launch = unwrap_launchers(list(command.words), command.environment)
    if launch.program not in SHELLS or launch.words[:1] not in (["-c"], ["-lc"], ["-ec"]):
        return [command]
    script = " ".join(launch.words[1:2])  # the word behind `-c`; "" without one
    return [
        ShellCommand(inner.words, {**launch.environment, **inner.environment})
        for inner in read_script(script).commands
    ]


def _find_command_reader(command: ShellCommand) -> CommandReader | None:
    """Return the function that reads a command, None for a command of no known tool."""
    launch = unwrap_launchers(list(command.words), command.environment)
    program, words = launch.program, launch.words
    is_serve = words[:1] == ["serve"]  # `vllm serve`, whose arguments begin at index 1
    if program == "vllm" and is_serve:
        return _make_engine_reader(vllm.ENGINE, argument_start=1)
    if "vllm" in program and "api_server" in program:
        return _make_engine_reader(vllm.ENGINE)
    if "sglang.launch_server" in program:
        return _make_engine_reader(sglang.ENGINE)
    if program == "sglang" and is_serve:
        return _make_engine_reader(sglang.ENGINE, argument_start=1)
    if program in {"trtllm-serve", "trtllm-bench"}:
        return _make_engine_reader(trtllm.ENGINE)
    return _find_local_reader(launch) or _find_training_reader(launch)


def _find_local_reader(launch: LaunchedProgram) -> CommandReader | None:
    """Return the function that reads llama.cpp's server or `ollama run`, None for others."""
    has_option = any(word.startswith("-") for word in launch.words)
    if PurePath(launch.program).stem in LLAMA_CPP and has_option:  # `server` may be any program
        return lambda launch, files: llamacpp.read_llamacpp(launch.words, launch.environment)
    if launch.program == "ollama" and launch.words[:1] == ["run"]:
        return lambda launch, files: llamacpp.read_ollama(launch.words, launch.environment)
    return None


def _make_engine_reader(engine: EngineFormat, argument_start: int = 0) -> CommandReader:
    """Return the function that reads an engine's command; its arguments begin at an index."""
    return lambda launch, files: read_engine(engine, launch.words[argument_start:], files)


RECIPE_PROGRAMS: dict[str, RecipeReader] = {
    "axolotl": axolotl.read_axolotl,
    "axolotl.cli.train": axolotl.read_axolotl,
    "llamafactory-cli": llamafactory.read_llamafactory,
    "automodel": nemo.read_nemo,
    "nemo_automodel": nemo.read_nemo,
}


def _find_training_reader(launch: LaunchedProgram) -> CommandReader | None:
    """Return the function that reads the command of a training, None for other commands."""
    program = launch.program
    if program in RECIPE_PROGRAMS:
        return _make_recipe_reader(RECIPE_PROGRAMS[program])
    if _is_megatron(launch):
        return lambda launch, files: megatron.read_megatron(launch, launch.words, files)
    if program == "tune":
        return _read_tune
    if any("maxtext" in word.lower() for word in [program, *launch.words[:2]]):
        return _make_recipe_reader(maxtext.read_maxtext, is_required=False)  # the base is its own
    if "torchtitan" in program or program == "run_train.sh":
        return _read_titan
    has_batch = any(word.startswith("--per_device_train_batch_size") for word in launch.words)
    is_trainer = program in {"trl", "swift"} or bool(launch.launcher) or has_batch
    return _read_training_script if is_trainer else None  # a script that a launcher starts trains


def _is_megatron(launch: LaunchedProgram) -> bool:
    """Return whether a command is one of Megatron: any script that takes its degrees is."""
    program = launch.program
    has_degrees = any(MEGATRON_OPTION.match(word) for word in launch.words)
    return program == "megatron" or bool(MEGATRON_SCRIPTS.fullmatch(program)) or has_degrees


def _make_recipe_reader(read_recipe: RecipeReader, is_required: bool = True) -> CommandReader:
    """Return a reader of a command that names a recipe, whose keys its options override."""

    def read_command(launch: LaunchedProgram, files: Files) -> JobBuilder:
        return read_recipe(_collect_settings(launch.words, files, is_required), launch, files)

    return read_command


def _collect_settings(
    words: Sequence[str], files: Files, is_required: bool = False
) -> ToolSettings:
    """Return the settings of the recipes that the words name, then those of the words.

    Args:
        words: arguments of a command.
        files: files of the job.
        is_required: every file that is named must be there, not the one behind `--config` alone.

    Raises:
        InputError: if a recipe is not there.
    """
    settings = parse_words(words, SCRIPT_FLAGS)
    config = settings.text(*CONFIG_OPTIONS)
    # `--config FILE name=value`: what stands behind the file are settings, too.
    words_behind_file = [
        word for name in CONFIG_OPTIONS for word in settings.values.get(name, ())[1:]
    ]
    assigned_settings = parse_assignments([*settings.positional, *words_behind_file])
    paths = [word for word in assigned_settings.positional if Path(word).suffix in DATA_ENDINGS]
    if config:
        paths.append(config)
    recipe = ToolSettings()
    for path in paths:
        data = files.read_mapping(path)
        if data is None and (is_required or config == path):
            raise InputError(f"{path}: there is no such file, and it says what the job trains")
        recipe = merge(recipe, parse_mapping(data or {}))
    return merge(merge(recipe, assigned_settings), settings)  # options win over files


def _read_tune(launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read `tune run [--nproc_per_node N] RECIPE --config FILE [key=value ...]`."""
    words = launch.words[1:] if launch.words[:1] == ["run"] else launch.words
    options_end = 0  # index of the recipe
    while options_end < len(words) and words[options_end].startswith("-"):
        option = words[options_end]
        stands_alone = "=" in option or option.lstrip("-") in TUNE_FLAGS
        options_end += 1 if stands_alone else 2  # the option alone, or with its value
    recipe = words[options_end] if options_end < len(words) else ""
    arguments = words[options_end + 1 :]
    program = LaunchedProgram(
        program=recipe,
        words=arguments,
        launcher="torchrun",  # `tune run` takes its options and calls it
        settings=parse_words(words[:options_end]),
        environment=launch.environment,
    )
    return torchtune.read_torchtune(_collect_settings(arguments, files), program, files)


def _read_titan(launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read a torchtitan run, whose TOML an option or `CONFIG_FILE` names."""
    settings = parse_words(launch.words)
    path = settings.text("job.config_file", "config_file") or launch.environment.get("CONFIG_FILE")
    recipe = parse_mapping((files.read_mapping(path) if path else None) or {})
    if path and not recipe.values:
        raise InputError(f"{path}: there is no such file, and it says what the job trains")
    return torchtitan.read_torchtitan(merge(recipe, settings), launch, files)


def _read_training_script(launch: LaunchedProgram, files: Files) -> JobBuilder:
    """Read a script with training arguments, or with one file of them."""
    settings = _collect_settings(launch.words, files)
    read_recipe = find_recipe_reader(settings)
    return (read_recipe or read_trainer_recipe)(settings, launch, files)


def _read_document(content: str, ending: str, source: str, files: Files) -> JobBuilder | None:
    """Return the job of a YAML, JSON or TOML file, None where it is the file of no known tool."""
    try:
        data = read_data(content, ending, source)
    except InputError:
        return None  # its own reader, if it is a network, names the fault
    if is_container_file(data):
        return _read_containers(data, source, files)
    if not isinstance(data, Mapping):
        return None
    settings = parse_mapping(data)
    launch = LaunchedProgram("", [])  # a file alone has no command
    if read_recipe := find_recipe_reader(settings):
        return read_recipe(settings, launch, files)
    return _read_configuration(data, settings, source, files)


def _read_configuration(
    data: Mapping[str, Any], settings: ToolSettings, source: str, files: Files
) -> JobBuilder | None:
    """Read a configuration that names no model: of Accelerate, DeepSpeed or vLLM."""
    job = JobBuilder(tool="accelerate", kind="train")
    if "distributed_type" in data:  # a configuration of Accelerate
        trainer.read_accelerate(job, data, files)
        return job
    if "zero_optimization" in data or "train_micro_batch_size_per_gpu" in data:
        job.tool = "deepspeed"
        read_deepspeed(job, source, Files(Path(source).resolve().parent))
        return job
    if "tensor_parallel_size" in settings and "gpu_memory_utilization" in settings:  # of vLLM
        return read_engine(vllm.ENGINE, vllm.list_words(settings), files)
    return None


def _read_containers(data: Any, source: str, files: Files) -> JobBuilder:
    """Return the job of the first container that starts a known tool.

    Raises:
        InputError: if none does.
    """
    environment = parse_environment(files.find_text(".env") or "")
    commands = list(container_commands(data, environment))
    for command in commands:
        reader = _find_command_reader(command)
        if reader is not None:
            return reader(unwrap_launchers(list(command.words), command.environment), files)
    programs = ", ".join(shorten(" ".join(command.words)) for command in commands[:3])
    raise InputError(f"{source}: no container starts a known tool: {programs or 'no command'}")
