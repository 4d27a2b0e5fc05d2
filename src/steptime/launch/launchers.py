"""Programs that start another one: `torchrun`, `accelerate launch`, `deepspeed`, `srun`, `docker`.

Each is taken off the front of a command; what it says of devices and sharding is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from steptime.launch.settings import FALSE_WORDS, ToolSettings, normalize, parse_words, split_names

ACCELERATE_FLAGS = split_names(
    "multi_gpu use_deepspeed use_fsdp use_megatron_lm cpu tpu m module no_python quiet debug "
    "same_network use_xpu mps ipex"
)
TORCHRUN_FLAGS = frozenset({"standalone", "m", "module", "no_python", "use_env"})
DEEPSPEED_FLAGS = frozenset(
    {"module", "no_python", "no_local_rank", "no_ssh", "enable_each_rank_log"}
)
TUNE_FLAGS = frozenset({"standalone"})
DOCKER_FLAGS = split_names(
    "rm it i t d detach privileged init read_only interactive tty no_healthcheck"
)
FIRST_IMAGE_INDEX = 2  # of the words of `docker run IMAGE`
SRUN_FLAGS = split_names(
    "exclusive overlap unbuffered u label l pty no_kill k verbose v quiet overcommit "
    "kill_on_bad_exit contiguous"
)
SRUN_VARIABLES = {"nodes": "SLURM_NNODES", "gpus_per_node": "SLURM_GPUS_PER_NODE"}  # by option
MPIRUN_VALUES = split_names(
    "n np c x h host hostfile machinefile npernode ppn bind_to map_by rank_by wdir"
)
SIMPLE_PREFIXES = {
    *("exec", "nohup", "sudo", "time", "stdbuf", "uv", "poetry", "eval"),
    "trtllm-llmapi-launch",  # of TensorRT-LLM, between srun and its server
}
PYTHON = re.compile(r"python\d*(\.\d+)?")
IMAGES = (  # of containers, by a part of the image's name, with the command that they start
    ("vllm", ("vllm", "serve")),
    ("llama.cpp", ("llama-server",)),
    ("llama-cpp", ("llama-server",)),
)


@dataclass
class LaunchedProgram:
    """A program with what its launchers say.

    Attributes:
        program: name of the program or module: `vllm`, `sglang.launch_server`, `train.py`.
        words: its arguments.
        launcher: `torchrun`, `accelerate`, `deepspeed` or "".
        settings: options of the launcher.
        environment: variables that the program sees.
    """

    program: str
    words: list[str]
    launcher: str = ""
    settings: ToolSettings = field(default_factory=ToolSettings)
    environment: dict[str, str] = field(default_factory=dict)


def unwrap_launchers(words: list[str], environment: Mapping[str, str]) -> LaunchedProgram:
    """Return the program that a command starts, behind its launchers.

    Args:
        words: words of the command.
        environment: variables of the script and of the command.
    """
    launch = LaunchedProgram("", list(words), environment=dict(environment))
    while launch.words:
        name = PurePath(launch.words[0]).name
        if not _take_launcher_or_prefix(name, launch):
            launch.program, launch.words = name, launch.words[1:]
            break
    return launch


def _take_launcher_or_prefix(name: str, launch: LaunchedProgram) -> bool:
    """Take one launcher off the words; return whether there was one."""
    words = launch.words
    if name in SIMPLE_PREFIXES or name == "env" or (name == "run" and len(words) > 1):  # `uv run`
        launch.words = words[1:]
        return True
    if _is_assignment(name):  # `NAME=value COMMAND`
        variable, _, value = words[0].partition("=")
        launch.environment[variable] = value
        launch.words = words[1:]
        return True
    if name in {"srun", "mpirun", "numactl", "taskset", "timeout", "nsys"}:
        launch.words = _skip_options(words[1:], name, launch)
        return True
    if name in {"docker", "podman", "singularity", "apptainer"}:
        return _take_container(launch)
    return _take_training_launcher(name, launch) or (
        PYTHON.fullmatch(name) is not None and _take_python(launch)
    )


def _is_assignment(word: str) -> bool:
    """Return whether a word is `NAME=value`."""
    variable, equals, _ = word.partition("=")
    return bool(equals) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable) is not None


def _take_training_launcher(name: str, launch: LaunchedProgram) -> bool:
    """Take torchrun, Accelerate's or DeepSpeed's launcher off the words, if one is there."""
    second_word = launch.words[1] if len(launch.words) > 1 else ""
    if name == "torchrun" or second_word == "torch.distributed.run":
        _take_launcher(launch, "torchrun", TORCHRUN_FLAGS, launcher_word_count=1)
    elif name == "accelerate" and second_word == "launch":
        _take_launcher(launch, "accelerate", ACCELERATE_FLAGS, launcher_word_count=2)
    elif name == "deepspeed":
        _take_launcher(launch, "deepspeed", DEEPSPEED_FLAGS, launcher_word_count=1)
    else:
        return False
    return True


def _take_python(launch: LaunchedProgram) -> bool:
    """Take `python`, `python -m MODULE` or `python -m torch.distributed.launch` off the words."""
    words = launch.words[1:]
    while words and words[0] in {"-u", "-O", "-X", "-W"}:  # options of Python itself
        words = words[1:]
    if words[:1] == ["-m"] and len(words) > 1:
        module, arguments = words[1], words[2:]
        if module in {"torch.distributed.run", "torch.distributed.launch"}:
            launch.words = ["torchrun", *arguments]
        elif module == "accelerate.commands.launch":
            launch.words = ["accelerate", "launch", *arguments]
        else:
            launch.words = [module, *arguments]
            launch.program = module
        return True
    launch.words = words  # `python script.py ...`; nothing is left of `python` alone
    return bool(words)


def _take_launcher(
    launch: LaunchedProgram, name: str, flags: frozenset[str], launcher_word_count: int
) -> None:
    """Take a launcher with its options, up to the script or module that it starts.

    The name of the launcher has `launcher_word_count` words: 1 for `torchrun`, 2 for
    `accelerate launch`.
    """
    words = launch.words[launcher_word_count:]
    options: list[str] = []
    while words:
        word = words[0]
        if not word.startswith("-"):  # the program that is started
            break
        options.append(word)
        words = words[1:]
        is_flag = normalize(word.partition("=")[0]) in flags
        # If a script follows, the option's value was a shell variable that is not set.
        has_value = bool(words) and not words[0].endswith(".py")
        if not is_flag and "=" not in word and has_value:
            options.append(words[0])
            words = words[1:]
        if word in {"-m", "--module"}:  # the module that is started is the next word
            break
    launch.launcher, launch.settings = name, parse_words(options, flags)
    launch.words = words


def _skip_options(words: list[str], name: str, launch: LaunchedProgram) -> list[str]:
    """Return the words behind the options of `srun` and the like."""
    option_words = list[str]()
    remaining = words
    while remaining and remaining[0].startswith("-"):
        option = remaining[0]
        option_words.append(option)
        remaining = remaining[1:]
        for _ in range(_count_option_values(name, option)):
            # A value that looks like an option is one: the value was an empty variable.
            if remaining and not remaining[0].startswith("-"):
                option_words.append(remaining[0])
                remaining = remaining[1:]
    if name == "timeout":
        return remaining[1:]  # behind the duration
    if name == "srun":
        # As srun sets them for what it starts.
        for option, values in parse_words(option_words).values.items():
            variable = SRUN_VARIABLES.get(option)
            if variable and values:
                launch.environment[variable] = values[0]
    return remaining


def _count_option_values(launcher: str, option: str) -> int:
    """Return the number of words that are values of an option of `srun` and the like."""
    if "=" in option:  # `--option=value`
        return 0
    option_name = normalize(option)
    if launcher == "srun":
        return int(option_name not in SRUN_FLAGS)
    if launcher == "mpirun":
        takes_pair = option_name == "mca"  # `--mca NAME VALUE`
        return 2 if takes_pair else int(option_name in MPIRUN_VALUES)
    # Short options of `timeout`, `taskset` and `nsys` that have a value.
    return int(launcher == "numactl" or option_name in {"n", "s", "k", "c", "o", "t"})


def _take_container(launch: LaunchedProgram) -> bool:
    """Take `docker run [OPTIONS] IMAGE` off the words; the image says what it starts."""
    # The image is the first word that names a known tool and is not the value of an option, such as
    # the folder of a volume (`-v /data/vllm:/data`). What follows it is for the container.
    for index, word in enumerate(launch.words):
        if index < FIRST_IMAGE_INDEX or not _is_image_of_tool(word):
            continue
        follows_option = _takes_value(launch.words[index - 1])
        is_surely_image = "vllm/" in word  # such as vllm/vllm-openai, whatever stands before it
        if is_surely_image or not follows_option:
            launch.words = image_command(word, [], launch.words[index + 1 :])
            return True
    return False


def _is_image_of_tool(word: str) -> bool:
    """Return whether a word looks like `registry/image:tag` of a tool that is read here."""
    is_image = "/" in word and not word.startswith(("-", "/", ".")) and "=" not in word
    tools = ("sglang", "tensorrt", *(part for part, _command in IMAGES))
    return is_image and any(tool in word for tool in tools)


def _takes_value(option: str) -> bool:
    """Return whether a word of `docker run` is an option whose value is the next word."""
    if not option.startswith("-") or "=" in option or option in {"--rm", "-it"}:
        return False
    return normalize(option) not in DOCKER_FLAGS


def image_command(image: str, entrypoint: list[str], words: list[str]) -> list[str]:
    """Return the command of a container.

    Args:
        image: name of the image.
        entrypoint: the entry point that is asked for; empty for the image's own.
        words: arguments of the container.
    """
    if entrypoint:
        return [*entrypoint, *words]
    leading_word = words[0] if words else ""
    has_options_only = not words or leading_word.startswith("-")
    is_model = "/" in leading_word and not leading_word.startswith("/")  # `owner/model`, no program
    if has_options_only or is_model:  # the image's own entry point reads the words
        for name_part, command in IMAGES:
            if name_part in image:
                return [*command, *words]
    return words


def visible_devices(environment: Mapping[str, str]) -> int | None:
    """Return the number of devices that `CUDA_VISIBLE_DEVICES` or a Slurm job names."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        value = environment.get(name, "").strip()
        is_first_device = value == "0"  # although "0" is among FALSE_WORDS
        is_index_list = value.lower() not in FALSE_WORDS | {"-1"}
        if is_first_device or is_index_list:
            return sum(bool(index.strip()) for index in value.split(","))
    return None
