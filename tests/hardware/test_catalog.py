"""The shipped devices and links, how they are found, and what a wrong file is told."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from places import ROOT
from steptime.core.errors import InputError
from steptime.core.toml_files import DATA, read_toml
from steptime.hardware import catalog, device_words, item_files
from steptime.hardware.device import device_hash
from steptime.measure import machine
from steptime.records.readers import sources

DEVICES = catalog.devices()
LINKS = [catalog.link(name) for name in catalog.link_names()]
PROBED = {
    "name": "my-cpu",
    "kind": "cpu",
    "source": 'a "probe" of C:\\here\nin two lines, \x7f included',
    "products": ["CPU of mine"],
    "memory_GB_per_s": 33.5,
    "memory_GB": None,
    "launch_us": 1,
    "peak_TFLOP_per_s": {"float32": 0.1, "bfloat16": 4e-1},
    "measured": {
        "threads": 2,
        "steady": True,
        "triad": [[1, 2.5], [3, 4e-7]],
        "matmul": {"sizes": [256, 512], "by size": {"256": 1e11}},
        "steps": [{"n": 1, "s": 0.5}],
    },
}


@every("device", DEVICES, ids=lambda device: device.name)
def test_shipped_devices_are_sane(device):
    assert device.name in (device.name.lower(), device.name.upper())  # Paleo's own: capitals
    assert device.datasheet.source
    assert device.datasheet.peak_flop_per_s
    assert 1e9 < device.datasheet.memory_bytes_per_s < 20e12
    for peak in device.datasheet.peak_flop_per_s.values():
        assert 1e10 < peak < 2e16
    for low, high in (("float64", "float32"), ("float32", "float16"), ("tf32", "float16")):
        if low in device.datasheet.peak_flop_per_s and high in device.datasheet.peak_flop_per_s:
            assert device.datasheet.peak_flop_per_s[low] <= device.datasheet.peak_flop_per_s[high]
    if device.datasheet.memory_bytes is not None:
        assert 2e9 < device.datasheet.memory_bytes < 600e9  # unified: up to 512 GB
    if device.datasheet.idle_w is not None and device.datasheet.peak_w is not None:
        assert device.datasheet.idle_w < device.datasheet.peak_w


@every("link", LINKS, ids=lambda link: link.name)
def test_shipped_links_are_sane(link):
    assert link.source
    assert 1e8 < link.bytes_per_s < 2e12
    assert link.latency_s is None or 1e-8 < link.latency_s < 1e-2


def test_names_are_unique_and_the_files():
    assert [device.name.lower() for device in DEVICES] == catalog.device_names()
    assert [link.name for link in LINKS] == catalog.link_names()
    short = [name.lower() for name in device_words.aliases()]
    assert len(set(short)) == len(short)
    assert not set(short) & set(catalog.device_names())
    products = [product.lower() for device in DEVICES for product in device.datasheet.products]
    assert len(set(products)) == len(products)


def test_figures_of_datasheets():
    a100 = catalog.device("a100-sxm4-80gb")
    assert a100.datasheet.peak_flop_per_s["bfloat16"] == pytest.approx(312e12)
    assert a100.datasheet.peak_flop_per_s["tf32"] == pytest.approx(156e12)
    assert a100.datasheet.peak_flop_per_s["float32"] == pytest.approx(6912 * 2 * 1.41e9, rel=1e-3)
    assert a100.datasheet.memory_bytes == 80e9
    assert a100.datasheet.memory_bytes_per_s == 2039e9
    v100 = catalog.device("v100-sxm2-16gb")
    assert v100.datasheet.peak_flop_per_s["float32"] == pytest.approx(5120 * 2 * 1.53e9, rel=1e-3)
    assert v100.datasheet.peak_flop_per_s["float16"] == 125e12
    h200 = catalog.device("h200-sxm")
    assert h200.datasheet.peak_flop_per_s["bfloat16"] == 989e12  # dense; 1979 only with sparsity
    assert h200.datasheet.memory_bytes_per_s == 4.8e12
    t4 = catalog.device("t4")
    assert t4.datasheet.peak_flop_per_s["float32"] == pytest.approx(2560 * 2 * 1.59e9, rel=1e-3)
    assert t4.datasheet.memory_bytes_per_s == 320e9
    assert t4.datasheet.peak_w == 70
    assert catalog.device("tpu-v2").datasheet.peak_flop_per_s == {
        "bfloat16": 45e12
    }  # 180 / 4 chips
    epyc = catalog.device("epyc-7742")
    assert epyc.datasheet.peak_flop_per_s["float32"] == pytest.approx(64 * 2.25e9 * 32)
    assert "float32" in epyc.datasheet.unverified
    assert catalog.link("nvlink-3").bytes_per_s == 12 * 25e9
    assert catalog.link("ethernet-10").bytes_per_s == 10e9 / 8


def test_what_is_not_published_is_unknown():
    assert catalog.device("a100-sxm4-80gb").datasheet.launch_s is None
    assert catalog.device("tpu-v5e").datasheet.peak_w is None
    assert catalog.device("epyc-7763").datasheet.memory_bytes is None
    assert catalog.link("neuronlink-3").latency_s is None


def test_a_link_states_between_what_its_latency_lies(tmp_path):
    nvlink = catalog.link("nvlink-4")
    assert nvlink.latency_s == pytest.approx(1.9e-6)
    assert nvlink.latency_range_s == pytest.approx((0.47e-6, 3.4e-6))
    assert sum(link.latency_s is None for link in LINKS if not link.note.startswith("Paleo")) == 7
    path = tmp_path / "x.toml"
    for ends in ("[2]", "[3, 2]", "[5, 8]", "[1, 3]", "[-1, 9]", '["a", 9]'):
        path.write_text(f'name="x"\nsource="s"\nGB_per_s=1\nlatency_us=4\nlatency_range_us={ends}')
        with pytest.raises(InputError, match=r"x\.toml: 'latency_range_us(\[\d\])?' must be"):
            catalog.link(path)


@every(
    ("short", "name"),
    [
        ("V100", "v100-sxm2-16gb"),
        ("A100", "a100-sxm4-80gb"),
        ("h100", "h100-sxm5"),
        ("H200", "h200-sxm"),
        ("t4", "t4"),
        ("T4", "t4"),
        ("P100", "p100-pcie-16gb"),
        ("A100-SXM4-80GB", "a100-sxm4-80gb"),
    ],
)
def test_names_in_any_case_and_short_names(short, name):
    assert catalog.device(short).name == name


def test_every_short_name_stands_for_a_shipped_device():
    for short, name in device_words.aliases().items():
        assert catalog.device(short).name == name


@every(
    ("word", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),  # what drivers report
        ("nvidia h200", "h200-sxm"),
        ("Tesla T4", "t4"),
        ("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz", "xeon-platinum-8280"),
        ("k80", "tesla-k80"),  # what schedulers and logs say: one GPU of the board, not Paleo's
        ("K40", "tesla-k40"),
        ("nvidia_h100_80gb_hbm3", "h100-sxm5"),
        ("V100", "v100-sxm2-16gb"),
        ("RTX 4090", "rtx-4090"),  # what people type
        ("rtx4090", "rtx-4090"),
        ("a100 80gb", "a100-sxm4-80gb"),  # the variant that A100 stands for is one of them
        ("A100-40GB", "a100-sxm4-40gb"),  # the module that clouds lend; the PCIe card is named
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("A100 80 GB PCIe", "a100-pcie-80gb"),
        ("h100 nvl", "h100-nvl"),
        ("H100 PCIe", "h100-pcie"),
        ("H100 SXM", "h100-sxm5"),
        ("gtx 1080", "gtx-1080"),  # the Ti is another card
        ("GTX 1080Ti", "gtx-1080-ti"),
        ("nvidia geforce rtx 3080 ti laptop gpu", "rtx-3080-ti-laptop"),
        ("3080 ti mobile", "rtx-3080-ti-laptop"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", "rtx-2080-max-q"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("RTX 8000", "quadro-rtx-8000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-blackwell"),
        ("rtx4060ti", "rtx-4060-ti"),
        ("4090", "rtx-4090"),
        ("7900xtx", "rx-7900-xtx"),
        ("Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("MI300X", "mi300x"),
        ("AMD Instinct MI250X", "mi250x"),
        ("Apple M3 Max", "m3-max-gpu"),
        ("Xeon 8380", "xeon-platinum-8380"),
        ("AMD EPYC 7763 64-Core Processor", "epyc-7763"),
        ("epyc 9654", "epyc-9654"),
        ("AWS Graviton3", "graviton3"),
        ("Jetson AGX Orin", "jetson-agx-orin-64gb"),
        ("Apple M2 Max", "m2-max-gpu"),
        ("Xeon 8480+", "xeon-platinum-8480-plus"),
        ("Ryzen 7950X", "ryzen-9-7950x"),
        ("Intel Arc B580", "arc-b580"),
        ("RTX 3080 Max-Q", "rtx-3080-max-q"),
        ("3080 16gb", None),  # there is a 3080 of 10 GB and of 12
        ("m4", None),
        ("96gb", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),  # a slice is not the device
        ("", None),
    ],
)
def test_one_reading_of_the_words_of_others(word, name):
    assert device_words.platform_of(word) == name
    assert sources.platform_of(word) == name or name is None
    assert machine.platform_name("cuda", word, None) == (name or machine.slug(word))


def test_figures_of_a_paper_are_found_by_their_own_name_under_its_method_only():
    own = [device.name for device in DEVICES if device.datasheet.only_by_name]
    assert sorted(own) == [
        *("CPU_I7", "GEFORCE_750_M", "GEFORCE_780_TI", "K20", "K20X", "K40", "K80", "TITAN_X"),
    ]
    for name in own:
        assert catalog.device(name, "paleo").name == name
        assert catalog.device(name.lower(), "paleo").name == name
        assert device_words.platform_of(name) not in own
    assert catalog.device("K80").name == catalog.device("k80", "calibrated").name == "tesla-k80"
    with pytest.raises(InputError, match=r"^device 'TITAN_X' is of Paleo's table: --method paleo"):
        catalog.device("TITAN_X")


@pytest.mark.slow
def test_every_word_of_a_shipped_device_means_that_device():
    for device in DEVICES:
        for word in (
            () if device.datasheet.only_by_name else (device.name, *device.datasheet.products)
        ):
            assert (
                device_words.find_devices(word)
                == device_words.find_devices(word.upper())
                == [device.name]
            ), word
            assert catalog.device(word.replace("-", " ")) == device, word


def test_a_users_own_device_is_a_platform_too():
    catalog.write_user_device(PROBED, "my-cpu")
    assert device_words.platform_of("My-CPU") == "my-cpu"


def test_details_are_read():
    a100 = catalog.device("a100-sxm4-80gb")
    assert a100.datasheet.multiprocessors == 108
    assert a100.datasheet.l2_bytes == 40 * 2**20
    assert a100.datasheet.process_nm == 7
    assert (a100.datasheet.maker, a100.datasheet.architecture, a100.datasheet.memory_type) == (
        "NVIDIA",
        "Ampere",
        "HBM2e",
    )
    assert catalog.device("mi300x").datasheet.multiprocessors == 304  # AMD's word: compute units
    assert catalog.device("epyc-7742").datasheet.cores == 64
    assert catalog.device("K80", "paleo").datasheet.multiprocessors is None
    for device in DEVICES:  # every file's l2_MiB is what the device has
        mib = device.datasheet.details.get("l2_MiB")
        assert device.datasheet.l2_bytes == (None if mib is None else mib * 2**20)


def test_the_hash_follows_figures_and_not_prose(tmp_path):
    text = 'name = "x"\nkind = "gpu"\nsource = "{}"\nmemory_GB_per_s = {}\n'
    text += "[peak_TFLOP_per_s]\nfloat32 = 1\n"
    hashes = []
    for source, bandwidth in (("one", 10), ("two", 10), ("one", 11)):
        path = tmp_path / "x.toml"
        path.write_text(text.format(source, bandwidth))
        hashes.append(device_hash(catalog.device(path)))
    assert len(hashes[0]) == 12
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_hash_follows_what_the_method_reads(tmp_path):
    bare, told = tmp_path / "bare.toml", tmp_path / "told.toml"
    text = 'name = "x"\nkind = "gpu"\nsource = "-"\nmemory_GB_per_s = 1\n'
    bare.write_text(text + "peak_TFLOP_per_s = {float32 = 1}\n")
    told.write_text(bare.read_text() + "details = {process_nm = 5}\n")
    one, other = catalog.device(bare), catalog.device(told)
    assert device_hash(one) == device_hash(other) == "d2c755fd55e6"  # of before
    reads = ("process_nm",)
    assert device_hash(one, reads) != device_hash(other, reads)


def test_vector_peaks_stand_apart(tmp_path):
    path = tmp_path / "x.toml"
    text = 'name = "x"\nkind = "gpu"\nsource = "-"\nmemory_GB_per_s = 1\n'
    text += "peak_TFLOP_per_s = {float32 = 40, float16 = 160}\n"
    path.write_text(text)
    assert catalog.device(path).datasheet.vector_peak("float16") == 40e12  # the peak of float32
    path.write_text(text + "vector_TFLOP_per_s = {float32 = 20}\n")
    device = catalog.device(path)
    assert (
        device.datasheet.vector_peak("float16") == device.datasheet.vector_peak("float32") == 20e12
    )
    path.write_text(text + "vector_TFLOP_per_s = {float32 = 20, float16 = 21}\n")
    assert catalog.device(path).datasheet.vector_peak("float16") == 21e12
    assert catalog.device("tpu-v2").datasheet.vector_peak("float32") is None


def test_one_device_needs_one_file(monkeypatch):
    files = []

    def count(path):
        files.append(path.name)
        return read_toml(path)

    monkeypatch.setattr(item_files, "read_toml", count)
    catalog.device("a100-sxm4-80gb")
    assert files == ["a100-sxm4-80gb.toml"]
    catalog.device("A100")
    assert files[1:] == ["a100-sxm4-80gb.toml"]
    catalog.device("RTX 4090 Mobile")
    assert files[2:] == ["rtx-4090-laptop.toml"]


def test_a_broken_file_of_the_user_stands_in_the_way_of_no_other_device():
    catalog.write_user_device(PROBED, "my-cpu")
    broken = item_files.user_folder("devices") / "broken.toml"
    broken.write_text("name = ")
    assert catalog.device("my-cpu").name == "my-cpu"
    assert catalog.device("RTX 4090").name == "rtx-4090"
    assert device_words.platform_of("Tesla T4") == "t4"
    assert "broken" in catalog.device_names()
    told = []
    assert {one.name for one in catalog.devices(told.append)} == {
        *(device.name for device in DEVICES),
        "my-cpu",
    }
    assert told == [
        f"{broken}: not TOML: Invalid value (at end of document); this device is left out"
    ]
    with pytest.raises(InputError, match="not TOML"):
        catalog.devices()
    with pytest.raises(InputError, match="not TOML"):
        catalog.device("broken")


def test_a_user_device_is_found_by_name_and_as_local():
    with pytest.raises(InputError, match="steptime calibrate"):
        catalog.device("local")
    path = catalog.write_user_device(PROBED, "my-cpu")
    assert path == item_files.user_folder("devices") / "my-cpu.toml"
    found = catalog.device("MY-CPU")
    assert found == catalog.device("local") == catalog.device(str(path))
    assert found.datasheet.source == PROBED["source"]
    assert found.measured == PROBED["measured"]
    assert found.datasheet.peak_flop_per_s == {"float32": 1e11, "bfloat16": 4e11}
    assert found.datasheet.memory_bytes is None
    assert found.datasheet.launch_s == pytest.approx(1e-6)
    assert "my-cpu" in catalog.device_names()
    assert found in catalog.devices()
    catalog.write_user_device(PROBED | {"name": "other"}, "other")
    assert catalog.device("local").name == "other"
    assert sorted(p.name for p in path.parent.iterdir()) == ["local", "my-cpu.toml", "other.toml"]


@every("name", ["t4", "V100", "local", "../x", "", "a b", "x" * 101])
def test_a_user_device_takes_no_name_of_others(name):
    with pytest.raises(InputError) as error:
        catalog.write_user_device(PROBED | {"name": name}, name)
    assert "\n" not in str(error.value)
    assert not item_files.user_folder("devices").exists()


def test_a_user_file_does_not_shadow_a_shipped_device():
    folder = item_files.user_folder("devices")
    folder.mkdir(parents=True)
    for name in ("T4", "V100"):  # V100 is a short name
        (folder / f"{name}.toml").write_text("")
        with pytest.raises(InputError, match=rf"{name}\.toml: a shipped device has this name"):
            catalog.device(name.lower())


def test_the_users_folder(monkeypatch, tmp_path):
    assert item_files.user_folder("devices").parent.name == "steptime-home"
    monkeypatch.delenv("STEPTIME_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert item_files.user_folder("devices") == tmp_path / "steptime" / "devices"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert item_files.user_folder("devices") == tmp_path / ".local/share/steptime/devices"


def test_an_unknown_link_is_told_its_neighbour():
    with pytest.raises(InputError, match="did you mean 'nvlink-3'"):
        catalog.link("nvlink3")


GOOD = """
name = "x"
kind = "gpu"
source = "me"
memory_GB_per_s = 10
peak_TFLOP_per_s = {float32 = 1}
"""


@every(
    ("old", "new", "says"),
    [
        ('source = "me"', "", "'source' is missing"),
        ('source = "me"', 'source = " "', "'source' must be a text"),
        ('source = "me"', "source = ", "not TOML: Invalid value (at line 4, column 10)"),
        ('"gpu"', '"gpus"', "unknown kind 'gpus'; did you mean 'gpu'?"),
        ("memory_GB_per_s", "memory_GBs", "unknown key 'memory_GBs'"),
        (
            "= 10",
            "= -10",
            "'memory_GB_per_s' must be positive, in the unit of its name (1e-06 to 1e+08), not",
        ),
        ("= 10", "= nan", "must be positive, in the unit of its name"),
        ("= 10", "= 1" + 400 * "0", "must be positive, in the unit of its name"),
        ("= 10", "= 1" + 5000 * "0", "not TOML"),
        (
            "= 10",
            "= true",
            "must be positive, in the unit of its name (1e-06 to 1e+08), not 'True'",
        ),
        ("float32", "fp32", "peak_TFLOP_per_s: unknown key 'fp32'; did you mean"),
        ("{float32 = 1}", "{}", "must be a table of dtypes"),
        ("{float32 = 1}", "[" * 5000, "nested too deeply"),
        ('source = "me"', 'source = "me"\nmeasured = 3', "'measured' must be a table"),
        ("{float32 = 1}", "{float32 = 1}\ndetails = 3", "'details' must be a table"),
        (
            "{float32 = 1}",
            "{float32 = 1}\ndetails = {cores = -2}",
            "'details.cores' must be one positive",
        ),
        (
            "{float32 = 1}",
            "{float32 = 1}\ndetails = {cores = 1.5}",
            "must be one positive whole number",
        ),
        ("{float32 = 1}", "{float32 = 1}\ndetails = {maker = 1}", "'details.maker' must be"),
        ("{float32 = 1}", "{float32 = 1}\nvector_TFLOP_per_s = {int8 = 0}", "must be positive"),
        (
            "{float32 = 1}",
            "{float32 = 1}\nvector_TFLOP_per_s = {fp8 = 1}",
            "vector_TFLOP_per_s: unknown key",
        ),
        ("{float32 = 1}", "{float32 = 1}\nonly_by_name = 1", "'only_by_name' must be true or"),
        ('source = "me"', 'source = "me"\nproducts = "x"', "'products' must be a list of texts"),
        ("= 10", "= 6e11", "(1e-06 to 1e+08), not '600000000000"),
        (
            "{float32 = 1}",
            "{float32 = 3e13}",
            "'peak_TFLOP_per_s.float32' must be positive, in the unit",
        ),
        (
            "{float32 = 1}",
            "{float32 = 1}\ndetails = {process_nm = 5e-9}",
            "in the unit of its name",
        ),
        ('"me"', '"me"\nidle_W = 30\ntdp_W = 20', "'idle_W' must be below 'tdp_W', not 30 of 20"),
    ],
)
def test_a_wrong_device_file_is_told_in_one_line(tmp_path, old, new, says):
    path = tmp_path / "x.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as error:
        catalog.device(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_text_file_is_told(tmp_path):
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        catalog.device(folder)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file in UTF-8"):
        catalog.link(binary)
    with pytest.raises(InputError, match="null byte"):
        catalog.device("nul\0.toml")


def test_a_folder_that_cannot_be_written_is_told(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be written: "):
        catalog.write_user_device(PROBED, "my-cpu")


@given(st.text(max_size=80))
def test_any_text_is_a_device_or_one_line(text):
    try:
        said = catalog.device(text).datasheet.source
    except InputError as error:
        said = str(error)
    assert said
    assert "\n" not in said


TYPED = ("platform", "cache_bytes", "memory")  # keys of what was measured that have a type


@given(
    st.dictionaries(
        st.text(max_size=10).filter(lambda key: key not in TYPED),
        st.recursive(
            st.booleans()
            | st.integers(-(2**53), 2**53)
            | st.floats(allow_nan=False)
            | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=8,
        ),
        max_size=4,
    )
)
def test_what_was_measured_comes_back(measured):
    table = PROBED | {"measured": measured}
    path = catalog.write_user_device(table, "my-cpu")
    assert catalog.device(path).measured == measured


def test_every_file_of_the_data_is_read():
    files = {path.stem for path in (DATA / "devices").iterdir()}
    assert files == {*(device.name.lower() for device in DEVICES), "aliases"}


def test_a_short_word_one_digit_from_a_short_name_is_refused_with_both():
    with pytest.raises(
        InputError, match=r"^ambiguous device 'a1000'; did you mean 'rtx-a1000' or "
    ):
        catalog.device("a1000")
    assert catalog.device("rtx a1000").name == "rtx-a1000"
    assert catalog.device("4090").name == "rtx-4090"


@every("number", ["6000", "5000", "4000"])
def test_a_number_that_later_cards_took_over_is_asked_back(number):
    with pytest.raises(InputError) as caught:
        catalog.device(f"RTX {number}")
    said = str(caught.value)
    assert said.startswith(f"ambiguous device 'RTX {number}'")
    assert f"'quadro-rtx-{number}'" in said
    assert f"'rtx-{number}-ada'" in said
    assert device_words.platform_of(f"rtx-{number}") is None


def test_a_stack_is_that_of_its_file_now(tmp_path, monkeypatch):
    shipped = (ROOT / "src/steptime/data/stacks/torch-eager.toml").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(shipped, encoding="utf-8")
    assert catalog.stack("s.toml").name == "torch-eager"
    Path("s.toml").write_text(shipped.replace('"torch-eager"', '"another"'), encoding="utf-8")
    assert catalog.stack("s.toml").name == "another"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"s\.toml"):
        catalog.stack("s.toml")


def test_what_a_device_calls_its_link_is_a_link_or_asked_back_with_those_it_may_be():
    """12 NVLinks of an A100 are `nvlink-3`, the 8 that an A800 has two thirds of it."""
    assert catalog.link("NVLink3 x12") == catalog.link("nvlink-3")
    assert catalog.link("nvlink 3 x8").bytes_per_s == 200e9
    assert catalog.link("PCIe4 x16").name == "pcie-4-x16"
    meant: dict[str, set[str]] = {}
    for device in catalog.devices():
        names = {one.name for one in catalog.links_of(device)}
        meant.setdefault(device.datasheet.node_link.lower(), set()).update(names)
    for name, links in meant.items():
        if len(links) == 1:
            assert {catalog.link(name).name} == links
        elif links:
            with pytest.raises(InputError, match=min(links)):
                catalog.link(name)
