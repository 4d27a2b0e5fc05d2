"""Every key of a data file has a reader, and a key without one is refused."""

import re
from pathlib import Path

import pytest

from every import every
from steptime.core.errors import InputError
from steptime.core.signatures.typed import convert_table
from steptime.core.toml_files import DATA, read_packaged_toml, read_toml
from steptime.hardware import catalog
from steptime.hardware.architectures import FILE, Architectures, architectures
from steptime.hardware.device_file import DETAIL_SI_FIELDS, DETAILS, LEVEL_RATES, device_from_table
from steptime.hardware.topology import KINDS
from steptime.planning.ranks.site import Site

SOURCE = Path(catalog.__file__).parents[1]
CODE = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
CHECKED = {"tensor_clock_MHz"}  # holds the peaks of `test_peaks.py` against their clock
TABLE = {
    "name": "own",
    "kind": "gpu",
    "source": "by hand",
    "memory_GB_per_s": 100,
    "peak_TFLOP_per_s": {"float32": 1},
}
FILES = sorted(path for path in (DATA / "devices").glob("*.toml") if path.stem != "aliases")


def is_read(name: str) -> bool:
    """Whether some code asks for an attribute, or for a key of the details of a device."""
    attribute = re.compile(rf"\.{name}\b|details\.get\(\"{name}\"|\(\"{name}\", ")
    return any(attribute.search(code) for code in CODE.values())


def test_every_key_of_details_is_read():
    for key in DETAILS.keys() - CHECKED - set(LEVEL_RATES):
        name = DETAIL_SI_FIELDS[key][0] if key in DETAIL_SI_FIELDS else key
        known = {"usable_GiB": "usable_share", "link": "node_link", "base_clock_MHz": "clock_hz"}
        assert is_read(known.get(key, name)), key


@every("path", FILES, ids=lambda path: path.stem)
def test_every_key_of_a_device_is_known(path):
    assert read_toml(path).get("details", {}).keys() <= DETAILS.keys()


def test_an_unknown_key_is_refused_with_its_place():
    for key in ("l3_MB", "price_usd", "Cores"):
        with pytest.raises(InputError, match=rf"own.toml: .*details.*{key}"):
            device_from_table({**TABLE, "details": {key: 1}}, "own.toml")


def test_a_base_clock_is_not_above_the_boosted_one():
    details = {"base_clock_MHz": 1200}
    device_from_table({**TABLE, "clock_MHz": 1200, "details": details}, "own.toml")
    with pytest.raises(InputError, match=r"own\.toml: 'details\.base_clock_MHz' must not"):
        device_from_table({**TABLE, "clock_MHz": 1100, "details": details}, "own.toml")


def test_sites_topologies_and_usable_memory_have_no_other_keys():
    for name, site in read_packaged_toml("sites.toml").items():
        assert catalog.device(name).name == name
        assert site.keys() <= set(Site._fields) - {"device"}, name
        for key in ("inside", "link", "host_link"):
            if key in site:
                catalog.link(site[key])
    for name, row in read_packaged_toml("topologies.toml").items():
        assert row["kind"] in KINDS, name
    makers = {device.datasheet.maker for device in catalog.devices()}
    assert read_packaged_toml("usable.toml").keys() <= makers


def test_every_trait_and_use_of_architectures_is_asked_for():
    rules = architectures()
    for name in (*rules.traits, *rules.tiles):
        assert any(f'"{name}"' in code for code in CODE.values()), name


def test_tables_of_architectures_name_families_makers_and_series_that_devices_have():
    rules, datasheets = architectures(), [device.datasheet for device in catalog.devices()]
    makers = {datasheet.maker or "" for datasheet in datasheets}
    series = {datasheet.series for datasheet in datasheets}
    for name, trait in rules.traits.items():
        assert set(trait.families or ()) <= set(rules.families), name
        assert set(trait.makers or ()) <= makers, name
        assert set(trait.series or ()) <= series, name
    for table in (
        *rules.tiles.values(),
        rules.set_tiles,
        rules.contraction_step,
        rules.since,
    ):
        assert table.on.keys() <= set(rules.families)


@every("path", ["", "traits.old", "tiles.batched", "set_tiles", "contraction_step", "since"])
def test_an_unknown_key_of_architectures_is_refused(path):
    table = read_toml(DATA / FILE)
    inner = table
    for key in filter(None, path.split(".")):
        inner = inner[key]
    inner["famlies"] = ["Hopper"]
    with pytest.raises(InputError, match="unknown key 'famlies'"):
        convert_table(table, Architectures, FILE)


def test_an_apple_gpu_has_memory_and_16_bit():
    gpus = [device for device in catalog.devices() if device.name.endswith("-gpu")]
    for device in (gpu for gpu in gpus if gpu.datasheet.maker == "Apple"):
        assert device.datasheet.memory_bytes, device.name
        assert device.datasheet.usable_bytes < device.datasheet.memory_bytes
        assert (
            device.datasheet.peak_flop_per_s["float16"]
            == device.datasheet.peak_flop_per_s["float32"]
        )
