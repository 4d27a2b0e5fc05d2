"""Reads `adapter_config.json` of peft: the network of its base, and the options that train it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from steptime.core.adapters import ADAPTERS
from steptime.core.errors import InputError, shorten
from steptime.core.workload import LORA
from steptime.formats import Source, open_source
from steptime.formats.huggingface.config import Config, Table
from steptime.formats.huggingface.reading import describe_network
from steptime.network.families.family import Family

ADAPTER_FILE = "adapter_config.json"
DEFAULT_RANK = 8  # of peft
BASE_FIELD = "base_model_name_or_path"


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of the base of an adapter, with a remark on the options that add it.

    Raises:
        InputError: for an adapter that is not priced, or whose base is no folder or file here.
    """
    table: Any = source.table
    place = shorten(source.name)[1:-1]  # without quotes
    config = Config(table, place, head="")
    # raises for an adapter that is not priced, before its base is looked for
    find_adapter(config)
    base_path = find_base(Path(source.path).parent, table, place)
    base_source = open_source(str(base_path))
    base_table = base_source.table
    if not isinstance(base_table, dict) or "model_type" not in base_table:
        raise InputError(f"{place}: {BASE_FIELD}: {base_path.name} has no model_type")
    remark = f"its base alone is counted; the adapter is {describe_options(config)}"
    family = describe_network(base_table, place, [remark])
    return replace(family, source=f"an adapter of peft over {base_table['model_type']}")


def find_base(folder: Path, table: Table, place: str) -> Path:
    """Return the `config.json` of an adapter's base, beside the adapter or by its path."""
    name = table.get(BASE_FIELD)
    if not isinstance(name, str) or not name:
        raise InputError(f"{place}: {BASE_FIELD}: must be the path of the base")
    for candidate in (folder / name, Path(name)):
        for path in (candidate / "config.json", candidate):
            if path.is_file():
                return path
    options = describe_options(Config(table, place, head=""))
    advice = f"give the base's config.json and {options}; nothing is downloaded"
    raise InputError(f"{place}: {BASE_FIELD}: {shorten(name)} is no folder here; {advice}")


def find_adapter(config: Config) -> str:
    """Return the name of the adapter that a configuration of peft describes.

    Raises:
        InputError: for one that is not priced.
    """
    peft_type = config.table.get("peft_type")
    # several adapters share a type, and a flag such as `use_dora` tells them apart
    adapters_of_type = {name: row for name, row in ADAPTERS.items() if row.peft_type == peft_type}
    for name, adapter in adapters_of_type.items():
        is_flag_set = bool(adapter.flag and config.table.get(adapter.flag))
        if is_flag_set:
            return name
    names_without_flag = [name for name, adapter in adapters_of_type.items() if not adapter.flag]
    if not names_without_flag:
        types = dict.fromkeys(row.peft_type for row in ADAPTERS.values() if row.peft_type)
        raise InputError(
            f"{config.place}: peft_type: {shorten(peft_type)} is not known, only {', '.join(types)}"
        )
    return names_without_flag[0]


def describe_options(config: Config) -> str:
    """Return the options that add an adapter: `--lora r=16,on=q_proj+v_proj`."""
    name = find_adapter(config)
    dropout = config.get("lora_dropout", 0.0)
    values = {
        "r": config.count("r", DEFAULT_RANK),
        "on": _describe_targets(config, str(ADAPTERS[name].settings.get("on", ""))),
        "tokens": config.table.get("num_virtual_tokens", ""),
        "dropout": f"{dropout:g}" if dropout else "",
    }
    # only what the file states is written; the options have defaults of their own
    settings = [
        f"{key}={values[key]}"
        for key in ADAPTERS[name].settings
        if values.get(key) not in ("", None)
    ]
    settings_text = ",".join(settings)
    options = f"--lora {settings_text}" if name == LORA else f"--adapter {name},{settings_text}"
    trained_modules = config.table.get("modules_to_save")
    if isinstance(trained_modules, list) and trained_modules:
        options += f" --modules-to-save {','.join(map(str, trained_modules))}"
    return options


def _describe_targets(config: Config, default: str) -> str:
    """Return the products that an adapter changes, as its option takes them: `q_proj+v_proj`."""
    targets = config.table.get("target_modules")
    names = sorted({str(target) for target in targets}) if isinstance(targets, list) else []
    if names:
        return "+".join(names)
    return "linear" if targets == "all-linear" else default
