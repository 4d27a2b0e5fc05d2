"""The numbers and keys of many command lines are those that were written down.

A change of physics writes them anew (`golden.py capture tests/golden/golden.json`), and says in
docs/lab-book.md what was before and after.
"""

import gzip
import json
import math
import re
import tomllib

import pytest

import golden

END = re.compile(r"\bbounds\b|(\b|_)low(\b|_)").search
INTERVAL = re.compile(r"\bbounds\b|(\b|_)(low|high)(\b|_)").search
WRITTEN = json.loads(golden.COMMITTED.read_text(encoding="utf-8"))


def rename_path(path, names):
    """Return a path of `golden.flat` with each key under its new name."""
    return "".join(names.get(part, part) for part in re.split(r"([.#\[\]]+)", path))


def renames_of(line, tables):
    """Return the renames of a command line: those of its command, and of strong scaling."""
    kinds = [line.split()[0], *(["strong-scaling"] if "--scaling strong" in line else [])]
    return {old: new for kind in kinds for old, new in tables.get(kind, {}).items()}


def rename_line(line, options):
    """Return a command line of 0.15.0 as it is typed now; `options` is of `renamed.toml`."""
    command, *words = line.split()
    of_command = options | renames_of(line, options)
    arguments = [of_command.get(word, word) for word in words]
    if command == "explain":
        command, arguments = "why", [*arguments, "--from", "paleo"]
    return " ".join(golden.with_old_defaults((command, *arguments)))


def test_the_numbers_of_0_15_0_stand_under_the_new_names():
    """The table `renamed.toml` leads from each key and word of 0.15.0 to the one now.

    Ends of intervals are told by measurement campaigns since, and not compared.
    """
    names = tomllib.loads((golden.HERE / "renamed.toml").read_text("utf-8"))
    words, options, lists, gone = map(names.pop, ("values", "options", "lists", "gone"))
    moved = {line for lines in names.pop("faults").values() for line in lines}
    of_command = {key: names.pop(key) for key in list(names) if isinstance(names[key], dict)}
    packed = (golden.HERE / "golden-0.15.0.json.gz").read_bytes()
    before = {}
    for line, answer in json.loads(gzip.decompress(packed)).items():
        all_names = names | renames_of(line, of_command)
        values = {}
        for path, value in answer["values"].items():
            if isinstance(all_names.get(path), list):  # two ends that had one key
                values |= dict(zip(all_names[path], value, strict=True))
            else:
                new = words.get(path, {}).get(value) if isinstance(value, str) else None
                new_path = all_names.get(path) or rename_path(path, all_names)
                if not new_path.startswith(tuple(gone.get(line.split()[0], ()))):
                    values[new_path] = value if new is None else new
        before[rename_line(line, options)] = answer | {"values": drop_intervals(values)}
    now = {
        line: answer | {"values": drop_intervals(join_lists(answer, lists))}
        for line, answer in WRITTEN.items()
    }
    assert moved <= {*before} & {*now}
    for line in moved:
        del before[line], now[line]
    assert list(golden.differences(before, now)) == []


def drop_intervals(values):
    """Return values without ends of intervals, and texts without those in parentheses."""
    return {
        path: re.sub(r" \([^()]* to [^()]*\)", "", value) if isinstance(value, str) else value
        for path, value in values.items()
        if not INTERVAL(path)
    }


def join_lists(answer, lists):
    """Return the values of an answer with the texts that were one before, under their old keys."""
    joined = {
        old: "; ".join(answer["values"][new])
        for old, new in lists.items()
        if new in answer["values"] and old not in answer["values"]
    }
    return answer["values"] | joined


@pytest.mark.parametrize("line", WRITTEN)
def test_a_command_gives_what_was_written_down_and_intervals_hold_their_values(line):
    before = WRITTEN[line]
    code, text = golden.printed(tuple(line.split()))
    assert not list(golden.differences({line: before}, {line: golden.kept(code, text)}))
    if any(map(END, before["values"])):
        assert code == 0
        found = list(golden.intervals(json.loads(text)))
        assert found
        assert [(path, ends) for path, ends in found if ends != sorted(ends)] == []


@pytest.mark.parametrize("command", ["scale gpt2 --link ethernet-25 --replicas 1,8", "why gpt2"])
def test_an_interval_holds_its_value_where_sum_compensates(monkeypatch, command):
    """As it does from Python 3.12 on."""
    line = f"{command} --device v100-sxm2-16gb --method analytic"
    plain = sum

    def compensated(values, start=0):
        cells = list(values)
        exact = bool(cells) and all(type(cell) is float for cell in cells)
        return start + math.fsum(cells) if exact else plain(cells, start)

    monkeypatch.setattr("builtins.sum", compensated)
    code, text = golden.printed(tuple(line.split()))
    assert code == 0, text
    ends = [ends for _, ends in golden.intervals(json.loads(text))]
    assert ends
    assert ends == [sorted(three) for three in ends]


def test_an_interval_beside_its_value_is_seen():
    document = {
        "rows": [{"step_s": 3.0, "low_s": 1.0, "high_s": 2.0}],
        "bounds": {"a": [1, 2]},
        "a": 0,
    }
    assert list(golden.intervals(document)) == [
        (".rows[0].low_s", [1.0, 3.0, 2.0]), (".a", [1, 0, 2]),
    ]  # fmt: skip
    with pytest.raises(KeyError):
        list(golden.intervals({"low_s": 1.0, "step_s": 2.0}))


def test_every_case_is_written_down():
    assert set(WRITTEN) == {" ".join(case) for case in golden.cases(whole=False)}


def test_the_net_sees_a_moved_a_lost_and_a_changed_row():
    rows = [{"step_s": value} for value in (1.0, 2.0, 3.0)]
    before = dict(golden.flat(rows))
    for changed in ([rows[1], rows[0], rows[2]], rows[:2], [*rows[:2], {"step_s": 3.0 + 1e-9}]):
        assert dict(golden.flat(changed)) != before
    assert golden.same([1.0, 2.0], [1.0, 2.0 * (1 + 1e-13)])
    assert not golden.same(1.0, 1.0 + 1e-11)
    assert not golden.same(math.inf, 1.0)
