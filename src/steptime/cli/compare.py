"""The command `compare`: one side against the other, pair by pair."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from steptime.analysis import pairs, watch
from steptime.analysis.analyses import analysis
from steptime.analysis.verdict import screen_words
from steptime.cli.analysis import MOST_SHOWN
from steptime.core.errors import InputError, shorten
from steptime.core.progress import note
from steptime.core.question import Text, argument, choice, flag, option, optional, question
from steptime.core.table import UNSUCCESSFUL, Answer, JsonRows, LazySequence, Table, columns, cut
from steptime.core.units import QUANTITIES, counted, percent, seconds, si
from steptime.core.values import parse_share
from steptime.questions.options import refuse
from steptime.records.data import Data

SHOWN_UNPAIRED = 8
RATIO = ("a_shown=a", "b_shown=b", "ratio[ratio_low,ratio_high]:.3g=b / a [95 %]")


@question(long="reading the records")
def compare(
    whole: bool,
    folders: Annotated[
        list[Path],
        argument(
            "DIR", "One folder: predicted beside measured. Two: the second against the first."
        ),
    ],
    platforms: Text = optional("A,B", "Platform B against A, in one folder."),
    by: Text = optional("COLUMN", "Each level of a column against the first: host, threads, ..."),
    against: Text = optional("VALUE", "With --by: the level the others face."),
    any_dtype: bool = flag("With --platforms or --by: pair types with other types."),
    quantity: str = option("NAME", "step_s, peak_bytes, ...", "step_s"),
    fail_on: Text = choice(
        watch.FAIL_ON, "Of two folders: exit with 3 on slower, faster, changed or vanished."
    ),
    margin: Text = optional("SHARE", "Smaller changes count as none. Default: 5%."),
) -> Answer:
    """Compare predictions, folders, or the levels of any column.

    Ratios of medians with intervals, verdicts, and what has no partner. A
    column is platform, host, gpu, threads, dtype, method, predicted_by,
    staging, folder, any option or hyperparameter. The exit code is 0
    whatever the verdict, but with --fail-on.
    """
    two = len(folders) == 2 and not by
    if by and platforms:
        raise InputError("--by and --platforms: give one of them")
    if not by and (len(folders) > 2 or (platforms and len(folders) > 1)):
        raise InputError("compare takes one folder, two folders, or one with --platforms A,B")
    at_least = parse_share(margin or "5%", "--margin")
    if not (by or platforms):
        refuse({"--any-dtype": any_dtype}, "{} goes with --platforms A,B or --by COLUMN")
    if not by:
        refuse({"--against": against}, "{} goes with --by COLUMN")
    if not two:
        refuse({"--fail-on": fail_on, "--margin": margin}, "{} goes with two folders")
    data = Data.load(folders, note)
    if by:
        found = pairs.by_column(data, by, quantity, against=against, any_dtype=any_dtype)
        sides = [found.against, ", ".join(found.levels)]
    elif two:
        found = pairs.two_folders(data, quantity, at_least)
        sides = [str(folder) for folder in folders]
    elif platforms:
        sides = [name.strip() for name in platforms.split(",")]
        if len(sides) != 2:
            raise InputError(f"--platforms is two names, A,B, not {shorten(platforms)}")
        found = pairs.two_platforms(data, sides[0], sides[1], quantity, any_dtype=any_dtype)
    else:
        found = pairs.predicted_and_measured(data, quantity)
        sides = ["predicted", "measured"]
    lonely = len(found.unpaired["id"])
    shown = np.arange(len(found) if whole else min(len(found), MOST_SHOWN))
    alone = np.arange(lonely if whole else min(lonely, SHOWN_UNPAIRED))
    found.learn(np.r_[found.columns["b"][shown], found.unpaired["id"][alone]])
    document: dict[str, Any] = {
        **dict(zip("ab", sides, strict=True)),
        "by": by,
        "quantity": quantity,
        "levels": found.of_levels(),
        "pairs": found.rows(shown),
        "unpaired": found.unpaired_rows(alone),
        "errors": found.summary(),
    }
    notes, code = _verdict(document, data, found, fail_on) if two or by else ([], 0)
    notes = notes if by or fail_on or margin else []
    seen = {name: column[shown] for name, column in found.columns.items()}
    judged = any(seen["verdict"])
    said = [
        f"unpaired: {row['name']} ({row['platform']}): {row['reason']}"
        for row in ([] if whole else document["unpaired"])
    ]
    more = lonely - SHOWN_UNPAIRED
    said += [f"unpaired: and {more:,} more; --json has all"] if more > 0 else []
    differ = bool(found.differences(shown))
    tables = LazySequence(
        min(1, len(found)), lambda: [_table(document, judged, differ, len(found))][: len(found)]
    )
    return Answer(document, tables, [*_notes(document, seen, judged), *said, *notes], code=code)


def _verdict(
    document: dict[str, Any], data: Any, found: Any, fail_on: str | None
) -> tuple[list[str], int]:
    """Add what changed between two folders, or which nodes are slow; return it in words, a code."""
    if not document["by"]:
        seen = watch.watch(found)
        document |= seen
        failed = fail_on and any(seen[key] for key in watch.FAIL_ON[fail_on])
        return watch.sentences(seen), UNSUCCESSFUL if failed else 0
    if document["by"] != "host":
        return [], 0
    nodes = analysis("nodes").answer(data)
    said = analysis("nodes").says(nodes)
    document["nodes"] = {"summary": nodes.summary, "says": said, "rows": nodes.rows}
    return said, 0


def _notes(document: dict[str, Any], seen: Mapping[str, Any], judged: bool) -> list[str]:
    summary = document["errors"]
    if not len(seen["ratio"]):
        quantity = document["quantity"]
        types = [{r["dtype"] for r in document["unpaired"] if r["side"] == x} for x in "ab"]
        apart = all(types) and not set.intersection(*types) and document["a"] != "predicted"
        hint = "; their types differ: --any-dtype pairs them" if apart else ""
        return [f"nothing to compare: no network has its {quantity} on both sides{hint}"]
    notes = []
    mean, count = summary["geometric_mean_ratio"], summary["pairs"]
    if document["by"]:
        said = screen_words(document["quantity"])
        notes += [_of_level(row, said) for row in document["levels"]]
    elif not judged and document["a"] != "predicted":
        notes.append(f"b / a is {mean:.3g} in the geometric mean ({count} pairs)")
    elif not judged:
        notes.append(
            f"median error of a against b {percent(summary['median_error'])} "
            f"({counted(count, 'pair')}); b / a is {mean:.3g} in the geometric mean; "
            f"{percent(summary['within_factor_2'])} lie within a factor of 2"
        )
    if (seen["steady"] == 0).any():
        notes.append("no steady state on a side of some pairs: their intervals are wide")
    if judged and seen["single"].any():
        notes.append("one run on a side: its interval leaves out how processes differ; use --runs")
    return notes


def _of_level(row: dict[str, Any], said: Mapping[str, str]) -> str:
    """Return the line on a level: its ratio in the mean, and how many pairs have which verdict."""
    if not row["pairs"]:
        return f"{row['level']}: no pair"
    words = [f"{row[w]} {said.get(w, w)}" for w in ("faster", "slower", "same", "unsure") if row[w]]
    mean = f"b / a is {row['geometric_mean_ratio']:.3g} in the geometric mean"
    return f"{row['level']}: {mean} ({'; '.join([counted(row['pairs'], 'pair'), *words])})"


def _table(document: dict[str, Any], judged: bool, differ: bool, total: int) -> Table:
    quantity, by = document["quantity"], document["by"]
    level = [f"level={by}"] if by and len(document["levels"]) > 1 else []
    verdict = ["verdict_shown=verdict on b"] if judged else []
    plain = ["verdict=verdict on b"] if judged else []
    differs = ["?differ=a | b"] if differ else []
    said = ["name=network", *level, "replicas", "?platform", "?dtype=type", "?method", *differs]
    pairs, row = document["pairs"], partial(_row, quantity=quantity)
    return Table(
        columns(*said, *RATIO, *verdict),
        replace(pairs, row=row) if isinstance(pairs, JsonRows) else [*map(row, pairs)],
        f"{quantity}: b = {document['b']} against a = {document['a']}",
        below=cut(total - len(pairs)),
        full=columns(*said, "a", "b", "ratio", "ratio_low", "ratio_high", *plain),
    )


def _row(row: dict[str, Any], quantity: str) -> dict[str, Any]:
    unit = QUANTITIES[quantity][0] if quantity in QUANTITIES else ""
    say = seconds if unit == "s" else partial(si, unit=unit)
    sides = row["a"], row["b"]
    a, b = (one["value"] for one in sides)
    said = {"a": a, "b": b, "a_shown": say(a), "b_shown": say(b)}
    either = {
        name: " | ".join(dict.fromkeys(side[name] for side in sides))
        for name in ("platform", "dtype", "method")
    }
    name = row["name"] + (f" {row['scope']}" if row["scope"] else "")
    differ = ", ".join(row["differ"])
    verdict = screen_words(quantity).get(row["verdict"], row["verdict"])
    shown = {"name": name, "differ": differ, "verdict_shown": verdict}
    return {**row, **either, **said, **shown}
