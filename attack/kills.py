"""Kills of commands that write: acknowledged records stay, none is doubled, no process stays.

A scenario is one command in a folder. It is killed again and again in the state that the kill
before left, until it ends by itself; then all its records must be there once, and a new folder
begins.
"""

from __future__ import annotations

import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attack.tally import Tally
from attack.victims import SIGNALS, Act, End, Point, run, warm

EVENT_SHARE = 0.6  # of the kills come at an event, the others after a share of the time
UNHURT_SHARE = 0.1  # of the runs meet no signal
MAX_RUNS_PER_KILL = 50
HARM = ("lost", "doubled", "orphans", "left in TMPDIR", "tracebacks")


@dataclass
class Story:
    """The past of one folder.

    Attributes:
        folder: the folder.
        runs: number of runs so far.
        complete: the records that an undisturbed run leaves.
        records: the records after the last run.
        acknowledged: number of records that must be there.
        state: what the scenario prepared.
    """

    folder: Path
    runs: int = 0
    complete: frozenset[Hashable] = frozenset()
    records: frozenset[Hashable] = frozenset()
    acknowledged: int = 0
    state: Any = None


@dataclass(frozen=True)
class Scenario:
    """A command, its share of 1,000 kills, and the check after each of them.

    Attributes:
        name: the command, for people.
        kills: its number of 1,000 kills.
        prepare: writes the files of a new folder.
        act: the command in a folder.
        records: the records that the folder keeps; a doubled record stands there twice.
        acknowledged: the number of records that one run said to be kept.
        check: further faults, in words.
        is_repeatable: whether two folders end with the same records.
    """

    name: str
    kills: int
    prepare: Callable[[Story], None]
    act: Callable[[Story], Act]
    records: Callable[[Story], Iterable[Hashable]]
    acknowledged: Callable[[End], int] = lambda _: 0
    check: Callable[[Story, End], str] = lambda _story, _end: ""
    is_repeatable: bool = True


def attack(scenario: Scenario, kills: int, seed: int, scratch: Path) -> Tally:
    """Return the result of so many kills of a scenario."""
    rng = random.Random(f"{seed} {scenario.name}")  # noqa: S311  # draws, no secret
    tally = Tally({}, harm=HARM)
    signals = Counter[signal.Signals]()
    event_kills = 0
    story = _begin_story(scenario, scratch, 0)
    usual = warm(scenario.act(story), story.folder)
    _judge(scenario, story, usual, tally)
    complete = frozenset(scenario.records(story)) if scenario.is_repeatable else frozenset()
    number = 1
    story = _begin_story(scenario, scratch, number)
    usual = run(scenario.act(story), story.folder)  # as quick as all that follow
    _judge(scenario, story, usual, tally)
    is_over = True
    while signals.total() < kills:
        if is_over:
            number += 1
            story = _begin_story(scenario, scratch, number)
            story.complete = complete
        point = None if rng.random() < UNHURT_SHARE else _draw_point(rng, usual)
        end = run(scenario.act(story), story.folder, point)
        story.runs += 1
        _judge(scenario, story, end, tally)
        is_over = not end.was_sent
        if point and end.was_sent:
            signals[point.number] += 1
            event_kills += point.event > 0
        if story.runs > MAX_RUNS_PER_KILL * kills:
            tally.wrong.append("it is never killed")
            break
    counts = " ".join(str(signals[number]) for number in SIGNALS)
    tally.first = {"command": scenario.name, "kills": signals.total(), "KILL TERM INT": counts}
    tally.first["at an event"] = event_kills
    return tally


def _begin_story(scenario: Scenario, scratch: Path, number: int) -> Story:
    name = scenario.name.replace(" ", "-").replace(",", "")
    story = Story(scratch / f"{name}-{number}")
    story.folder.mkdir(parents=True)
    scenario.prepare(story)
    return story


def _draw_point(rng: random.Random, usual: End) -> Point:
    number = rng.choice(SIGNALS)
    is_torn = rng.random() < 0.5
    if rng.random() < EVENT_SHARE:
        return Point(number, rng.randint(1, max(1, usual.events)), is_torn)
    return Point(number, seconds=rng.uniform(0.0, usual.seconds))


def _judge(scenario: Scenario, story: Story, end: End, tally: Tally) -> None:
    """Add to the tally the effect of a run on its folder."""
    records = Counter(scenario.records(story))
    acknowledged = scenario.acknowledged(end)
    story.acknowledged += acknowledged
    is_undisturbed = not end.was_sent
    expected = story.records | (story.complete if is_undisturbed else frozenset())
    lost = max(0, len(expected - records.keys()), story.acknowledged - records.total())
    doubled = records.total() - len(records)
    faults = [scenario.check(story, end)]
    if is_undisturbed and end.code:
        faults.append(f"exit code {end.code}")
    faults = [fault for fault in faults if fault]
    harm = (lost, doubled, end.orphans, len(end.left), end.has_traceback)
    tally.add({"ended by itself": is_undisturbed, "acknowledged": acknowledged})
    tally.add(dict(zip(HARM, harm, strict=True)))
    if any(harm) or faults:
        text = f"lost {lost}, doubled {doubled}, orphans {end.orphans}, left {end.left}: {faults}"
        print(f"{scenario.name}: {text}: {end.code} {end.said[-1500:]}", file=sys.stderr)
    tally.wrong += faults
    story.records = frozenset(records)
    story.acknowledged = records.total()
