"""Values that people type: one parser for each kind, the same for texts, numbers and lists."""

import re

import pytest

from every import every
from steptime.core.errors import InputError
from steptime.core.values import (
    parse_bytes,
    parse_count,
    parse_counts,
    parse_devices,
    parse_duration,
    parse_models,
    parse_number,
    parse_price,
    parse_range,
    parse_seconds,
    parse_share,
)

MIB, GIB = 2**20, 2**30


@every(
    ("parse", "value", "wanted"),
    [
        (parse_count, "1B", 10**9),
        (parse_count, "1.2M", 1_200_000),
        (parse_count, "1e3", 1000),
        (parse_count, "2k", 2000),
        (parse_count, 1e9, 10**9),
        (parse_count, "0.3M", 300_000),
        (parse_number, "1.5T", 1.5e12),
        (parse_number, "2.5", 2.5),
        (parse_number, 1e-3, 1e-3),
        (parse_seconds, "500ms", 0.5),
        (parse_seconds, "0.5", 0.5),
        (parse_seconds, 0.5, 0.5),
        (parse_seconds, "2s", 2.0),
        (parse_seconds, "10min", 600.0),
        (parse_bytes, "24GB", 24e9),
        (parse_bytes, "24GiB", 24 * GIB),
        (parse_bytes, "512 MiB", 512 * MIB),
        (parse_bytes, 1024, 1024),
        (parse_price, "$2.50", 2.5),
        (parse_price, 2.5, 2.5),
        (parse_share, "5%", 0.05),
        (parse_share, 0.05, 0.05),
        (parse_counts, "16,32", [16, 32]),
        (parse_counts, [16, 32], [16, 32]),
        (parse_counts, "1k..4k x2", [1000, 2000, 4000]),
        (parse_counts, 64, [64]),
        (parse_devices, "A100, H100", ["A100", "H100"]),
        (parse_devices, ["A100", "H100"], ["A100", "H100"]),
        (parse_models, "fc:layers=4,nodes=64,resnet50", ["fc:layers=4,nodes=64", "resnet50"]),
    ],
)
def test_a_value_is_the_same_as_text_and_as_number(parse, value, wanted):
    found = parse(value, "--x")
    assert found == wanted
    assert type(found) is type(wanted) or isinstance(found, float)


@every(
    ("parse", "value", "message"),
    [
        *((parse_count, text, "must be a whole number") for text in ("", "nan", "2.5", "24GB")),
        (parse_count, "-3", "must be at least 1, not -3"),
        (parse_count, True, "must be a whole number"),
        (parse_count, "1e99", "is larger than 2^53"),
        *((parse_number, text, "must be a number above 0") for text in ("", "nan", "-1", "5s")),
        *((parse_seconds, text, "must be a number above 0") for text in ("", "nan", "-1s", "x")),
        (parse_seconds, "5GB", "unknown unit in '5GB'; known: ns, us, ms, s, min, h, d"),
        (parse_bytes, "5ms", "unknown unit in '5ms'; known: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"),
        *((parse_bytes, text, "write it as 24GB or 24GiB") for text in ("", "nan", "-1GB", "0")),
        (parse_price, "-2", "must be a number above 0"),
        (parse_share, "5", "is a share such as 5% or 0.05"),
        (parse_range, "1..2.5", "must be a whole number"),
        (parse_devices, "A100,,H100", "has an empty name"),
        (parse_devices, "A100,A100", "'A100' is given twice"),
        (parse_devices, "", "has an empty name"),
    ],
)
def test_a_wrong_value_is_one_line(parse, value, message):
    with pytest.raises(InputError, match=re.escape(message)) as error:
        parse(value, "--x")
    assert str(error.value).startswith("--x: ")
    assert len(str(error.value).splitlines()) == 1


def test_a_time_has_the_unit_of_its_option():
    assert parse_duration("12h", "--days", "d") == 0.5
    assert parse_duration("3", "--days", "d") == 3.0
    assert parse_duration("5us", "--latency-us", "us") == pytest.approx(5.0)
