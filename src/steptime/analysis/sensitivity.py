"""Which hyperparameters a number depends on: regressions, exact pairs, winners, failed cells."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from steptime.analysis import regression
from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.sensitivity_words import says
from steptime.core.errors import InputError, check_choice, unknown
from steptime.core.table import Column, Table
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.row import Row, more_is_better
from steptime.records.warmup import Floats

USUAL = ("published_flop_per_s", "flop_per_s", "examples_per_s", "predicted_flop_per_s")
USUAL_PAIRED = ("examples_per_s", "predicted_s")
NETWORK = ("batch", "phase", "optimizer", "replicas")
STEP = (*NETWORK, "dtype", "threads", "strategy", "input", "staging", "loaders", "prefetch")
SCALES = ("linear", "log")
MOST_LEVELS = 12  # that failures are told by; more are put together
SURE = 0.05
LARGEST_LOG = 700.0  # of a ratio that a number holds
DOUBLING = "doubling"
PLACE = ("family", "platform", "method")
METHOD, Y = '"at method"', '"at y"'  # columns beside those of networks
FILLS = tuple(f"weight_if_failed_{name}" for name in ("zero", "least", "greatest"))
CELLS = (
    *("hyperparameter", "weight", "low", "high", "importance"),
    *("effect_ratio", "effect_low", "effect_high", "effect_of", "effect_pairs"),
    *("win_log_odds", "win_low", "win_high", *FILLS, "note"),
)


def sensitivity_table(
    data: Data,
    of: str | None,
    on: str | None,
    platform: str | None,
    against: str | None,
    order: int,
    scale: str,
) -> Table:
    """Return the weights of hyperparameters, by family, platform and method.

    The summary is of the regression of most networks, `others` in it of the rest. Raises
    `InputError` for a name that the records do not hold.
    """
    if order not in (1, 2):
        raise InputError(f"--order: must be 1 or 2, not {order}")
    check_choice("scale", scale, SCALES)
    wanted = None if on is None else [name.strip() for name in on.split(",")]
    for name in wanted or ():
        check_choice("hyperparameter", name, (*data.hyperparameters, *STEP), "--on")
    of = of or _usual(data, USUAL_PAIRED if against else USUAL)
    made: list[tuple[list[Row], Row]] = []
    few = []
    for place, found in _networks(data, of, platform, against):
        one = Networks(found, wanted, (*data.hyperparameters, "batch"), scale == "log")
        told = one.told(order, against is not None)
        if told is None:
            few.append({**place, "networks": int((~one.lost).sum())})
        else:
            made.append(([{**place, **row} for row in told[0]], {**place, **told[1]}))
    made.sort(key=lambda one: -one[1]["networks"])
    first, *others = [one for _, one in made] or [{}]
    rows = [row for held, _ in made for row in held]
    head = {"quantity": of, "scale": scale, "order": order, "against": against}
    return Table(
        (
            *(map(Column, PLACE[:2]) if len(made) > 1 else ()),
            Column("hyperparameter"),
            Column("weight", form="+.3f"),
            Column("low", "from", form="+.3f"),
            Column("high", "to", form="+.3f"),
            Column("importance", form=".3f"),
            Column("effect_ratio", "effect", form=".3f"),
            Column("effect_of", "of"),
            Column("effect_pairs", "pairs", is_spare=True),
            *([Column("win_log_odds", "log-odds to win", form="+.3f")] if against else []),
            *([Column("note")] if any(row["note"] for row in rows) else []),
        ),
        rows,
        summary={**head, **first, "others": others, "too_few": few},
    )


def _usual(data: Data, names: Sequence[str]) -> str:
    """Return the quantity of which most is known, the first of these."""
    held = {table: data.columns(table) for table in ("results", "records")}
    known = [(table, name) for name in names for table in held if name in held[table]]
    counts = [data.one(f"SELECT count({n}) FROM {table}") for table, n in known]  # noqa: S608  # our names
    return known[counts.index(max(counts))][1]


def _networks(
    data: Data, of: str, platform: str | None, against: str | None
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Yield families and places with their networks: hyperparameters, `y`, and whether it failed.

    With `against`, `y` is the ratio to that platform, the other way round where less is better.
    """
    tables = {table: list(data.columns(table)) for table in ("results", "records")}
    table = next((one for one, held in tables.items() if of in held), None)
    if table is None or of in data.hyperparameters:
        raise unknown("quantity", of, sorted({*tables["results"], *tables["records"]}), "--of")
    way = "predicted_by" if of.startswith("predicted_") else "method"
    value = f"TRY_CAST({flat.name(of)} AS DOUBLE)"
    where = "true"
    if table == "records":
        value, where = f"CASE WHEN status = 'ok' THEN {value} END", "coalesce(scope, '') = ''"
    else:  # a prediction that does not fit failed
        value = f"CASE WHEN origin <> 'predicted' OR status IS NULL THEN {value} END"
    every = dict.fromkeys((*data.hyperparameters, *STEP, "family", "platform"))
    names = ", ".join(flat.name(one) for one in every if one in tables[table])
    data.rows(
        f"CREATE OR REPLACE TEMP TABLE numbers AS SELECT {names}, {way} AS {METHOD}, {value} "  # noqa: S608  # our names
        f"AS {Y} FROM {table} WHERE {where} AND ({Y} IS NOT NULL OR coalesce(status, 'ok') <> 'ok')"
    )
    places = data.rows(
        f"SELECT family, platform, {METHOD} AS method, count(DISTINCT dtype) AS dtypes "  # noqa: S608  # our names
        f"FROM numbers GROUP BY ALL HAVING count({Y}) > 0 ORDER BY ALL"
    )
    if not places:
        raise InputError(data.failed or f"nothing here has a number for {of}")
    seen = sorted({row["platform"] for row in places})
    for one in filter(None, (platform, against)):
        check_choice("platform", one, seen)
    if against:
        others = [one for one in seen if one != against]
        if platform == against or (platform is None and len(others) != 1):
            known = ", ".join(others) or "there is no other"
            raise InputError(f"--against {against}: name another with --platform ({known})")
        platform = platform or others[0]
    for row in places:
        if platform not in (None, row["platform"]):
            continue
        at = (row["family"], against)
        there = [one for one in places if (one["family"], one["platform"]) == at]
        several = any(one["dtypes"] > 1 for one in (row, *there))
        told = [*data.hyperparameters, *(NETWORK if against else STEP)]
        if several:
            told.append("dtype")
        names = ", ".join(flat.name(one) for one in dict.fromkeys(told) if one in tables[table])
        same = f"{METHOD} = {flat.text(row['method'])}"
        anyhow = all(one["method"] != row["method"] for one in there)  # none was measured so
        mine = f"(platform = {flat.text(row['platform'])} AND {same})"
        asked = mine
        both = "true"
        y = f"median({Y})"
        if against:
            asked += f" OR (platform = {flat.text(against)} AND {'true' if anyhow else same})"
            both = f"bool_or({mine}) AND NOT bool_and({mine})"
            sides = f"{y} FILTER ({mine})", f"{y} FILTER (NOT {mine})"
            y = " / ".join(sides if more_is_better(of) else sides[::-1])
        found = data.arrays(
            f"SELECT {names}, {y} AS y FROM numbers WHERE family = ? AND ({asked}) "  # noqa: S608  # our names
            f"GROUP BY ALL HAVING {both} ORDER BY ALL",
            row["family"],
        )
        yield {name: row[name] for name in PLACE}, found


class Networks:
    """The networks of one family and place, a row each; one that failed has no `y`, it is `lost`.

    Hyperparameters are columns of numbers. One of texts has a column of 0 and 1 for each text but
    the most frequent, `dtype=float32`; `bases` has that one. Those of `always` that never vary are
    in `never`.
    """

    def __init__(
        self,
        found: Mapping[str, Any],
        wanted: Sequence[str] | None,
        always: Sequence[str],
        log: bool,
    ) -> None:
        self.y = np.asarray(found["y"], float)
        self.log = log
        self.lost = np.isnan(self.y)
        self.columns: dict[str, Floats] = {}
        self.bases: dict[str, str] = {}
        self.never: list[str] = []
        for name in (name for name in found if name != "y"):
            made = self._as_numbers(name, found[name])
            known = {one: held[~self.lost] for one, held in made.items()}
            varying = {n: held for n, held in made.items() if (known[n] != known[n][:1]).any()}
            if made and not varying and name in (wanted or always):
                self.never.append(name)
            self.columns |= varying
        self.names = [n for n in self.columns if wanted is None or n.partition("=")[0] in wanted]
        ranks = [np.unique(held, return_inverse=True)[1] for held in self.columns.values()]
        self.codes = np.stack(ranks or [np.zeros(len(self.y), int)], axis=1)
        if log and (self.y <= 0).any():
            raise InputError("--scale log: not all numbers are above 0; leave it out")

    def _as_numbers(self, name: str, values: Any) -> dict[str, Floats]:
        """Return a hyperparameter as columns; none where no network says it."""
        number = values.dtype.kind == "f"
        same = set() if number else set(values.tolist())
        if len(same) == 1:  # as most are
            return {} if same == {None} else {f"{name}={same.pop()}": np.ones(len(values))}
        missing = np.isnan(values) if number else np.array([one is None for one in values])
        if missing.all():
            return {}
        if number and not missing.any():
            return {name: values}
        texts = np.where(missing, "unset", values.astype(str))
        levels, often = np.unique(texts, return_counts=True)
        base, *rarer = levels[np.argsort(-often, kind="stable")].tolist()
        self.bases |= {f"{name}={one}": base for one in rarer}
        return {f"{name}={one}": (texts == one).astype(float) for one in rarer or [base]}

    def told(self, order: int, paired: bool) -> tuple[list[Row], Row] | None:
        """Return the rows and the summary, None for fewer networks than weights."""
        ok = ~self.lost
        y = np.log2(self.y) if self.log else self.y
        if not self.names or ok.sum() < 3:
            return None
        held = [self.columns[name] for name in self.names]
        logs = [np.log2(one) if self.log and (one > 0).all() else one for one in held]
        z = regression.standard(np.stack(logs, axis=1), ok)
        every, parts = regression.terms(z, order)
        kept, others = regression.independent(every[ok])
        if ok.sum() < len(kept) + 2:
            return None
        fit = regression.fitted(every[ok][:, kept], y[ok], regression.DRAWS)
        fit |= self._if_failed(every[:, kept], y)
        right, worth = regression.held_out(z[ok], y[ok], order)
        names = [_term([self.names[i] for i in part]) for part in parts]
        rows: list[Row] = []
        curves: list[Row] = []
        for at, (name, part) in enumerate(zip(names, parts, strict=True)):
            row: Row = dict.fromkeys(CELLS) | {"hyperparameter": name}
            if at in kept:
                here = kept.index(at)
                row |= {key: float(fit[key][here]) for key in CELLS if key in fit}
                row["note"] = f"against {self.bases[name]}" if name in self.bases else None
            else:
                made_of = ", ".join(names[one] for one in others[at]) or "a constant"
                row["note"] = f"collinear with {made_of}"
            if len(part) == 1:
                effect, curve = self._effect(name)
                row |= {"importance": float(worth[at]), **effect}
                curves += curve
            rows.append(row)
        wins = self._wins(rows, z[ok]) if paired else None
        rows.sort(key=lambda row: -abs(row["weight"] or 0))
        never = dict.fromkeys(CELLS) | {"note": "never varies"}
        rows += [{**never, "hyperparameter": name} for name in self.never]
        return rows, {
            "networks": int(ok.sum()),
            "failed": int(self.lost.sum()),
            **{key: fit.get(key) for key in ("r2", "r2_low", "r2_high")},
            "r2_held_out": right,
            "weights": {row["hyperparameter"]: row["weight"] for row in rows},
            "never_varies": self.never,
            "curves": curves,
            "wins": wins,
            "failures": self._failures(),
        }

    def _effect(self, name: str) -> tuple[Row, list[Row]]:
        """Return what doubling a hyperparameter changes, all others equal, and that by level."""
        at = list(self.columns).index(name)
        values = self.columns[name]
        doubles = "=" not in name
        ok = np.flatnonzero(~self.lost & (self.y > 0) & ((values > 0) | (not doubles)))
        rank = self.codes[:, at]
        rest = regression.keys_of(np.delete(self.codes, at, axis=1))  # of what is alike in all else
        ok = ok[np.lexsort((rank[ok], rest[ok]))]
        a, b = (side[rest[ok[:-1]] == rest[ok[1:]]] for side in (ok[:-1], ok[1:]))
        told: Row = {"effect_of": DOUBLING if doubles else "having it", "effect_pairs": len(a)}
        if not len(a):
            return told, []
        grown = np.log(self.y[b] / self.y[a])
        steps = np.log2(values[b] / values[a]) if doubles else np.ones(len(a))
        ends = regression.clustered(grown / steps, rest[a])
        for key, end in zip(("effect_ratio", "effect_low", "effect_high"), ends, strict=True):
            told[key] = None if end is None or end > LARGEST_LOG else math.exp(end)
        curve: list[Row] = []
        height = 0.0
        levels = np.unique(values).tolist()
        for place in range(len(levels) - 1) if doubles else ():
            here = grown[(rank[a] == place) & (rank[b] == place + 1)]
            if not len(here):
                break
            of = {"hyperparameter": name, "pairs": len(here)}
            curve = curve or [{**of, "level": levels[0], "ratio": 1.0}]
            height += float(here.mean())
            if height > LARGEST_LOG:
                break
            curve.append({**of, "level": levels[place + 1], "ratio": math.exp(height)})
        return told, curve

    def _if_failed(self, x: Floats, y: Floats) -> dict[str, Floats]:
        """Return the weights if failed cells had 0, or the least or greatest of their neighbours.

        Where all neighbours failed, too, it is the least or greatest of all.
        """
        if not self.lost.any():
            return {}
        low, high = regression.neighbours(self.codes, y, np.flatnonzero(self.lost))

        def weights(fill: Floats) -> Floats:
            filled = y.copy()
            filled[self.lost] = fill
            return np.asarray(regression.fitted(x, filled)["weight"])

        fills = [*zip(FILLS, (np.zeros(len(low)), low, high), strict=True)]
        return {key: weights(fill) for key, fill in fills[self.log :]}  # 0 has no logarithm

    def _failures(self) -> list[Row]:
        """Return the share that failed by level of each hyperparameter, and if it depends on it."""
        found = []
        for name, values in self.columns.items() if self.lost.any() else ():
            levels, code = np.unique(values, return_inverse=True)
            several = min(len(levels), MOST_LEVELS)
            level = code * several // len(levels)
            p = regression.depends(level, self.lost)
            shares = {}
            for held in (level == one for one in range(several)):
                ends = dict.fromkeys((values[held].min(), values[held].max()))
                shares["..".join(f"{end:g}" for end in ends)] = float(self.lost[held].mean())
            depends = None if p is None else p * len(self.columns) < SURE
            found.append(
                {"hyperparameter": name, "failed_share": shares, "p": p, "depends": depends}
            )
        return found

    def _wins(self, rows: Sequence[Row], z: Floats) -> Row:
        """Return what tells where the first platform wins, and put log-odds into the rows."""
        wins = (self.y[~self.lost] > 1).astype(float)
        share = float(wins.mean())
        told: Row = {"share": share, "majority_share": max(share, 1 - share)}
        told |= dict.fromkeys(("accuracy_share", "separable", "ridge"))
        if share in (0.0, 1.0):
            return told
        kept, _ = regression.independent(z)
        apart = regression.separable(z[:, kept], wins > 0)
        ridge = regression.RIDGE if apart else 0.0
        made, reach, right = regression.logistic(z[:, kept], wins, ridge)
        for at, odds, off in zip(kept, made.tolist(), reach.tolist(), strict=True):
            rows[at].update(win_log_odds=odds, win_low=odds - off, win_high=odds + off)
        return told | {"accuracy_share": right, "separable": apart, "ridge": ridge}


def _term(names: Sequence[str]) -> str:
    return f"{names[0]}^2" if len(names) > len(set(names)) else " x ".join(names)


ANALYSIS = Analysis(
    """Print which hyperparameters matter, and how strongly.

    A weight is of a linear regression of z-scores: by how many standard deviations the quantity
    changes with one of the hyperparameter, with a bootstrapped 95 % interval. The importance is the
    share of variance that is lost where the hyperparameter is shuffled, in networks left out of the
    fit. The effect is the geometric mean ratio of networks that are equal in all else. With
    --against it is all of the ratio of two platforms, above 1 where --platform is better.
    """,
    sensitivity_table,
    says,
    section="Which hyperparameters matter",
    chart="steptime.reports.charts.sensitivity:chart",
    settings=(
        Setting("of", "The quantity. Default: published or achieved FLOP/s, else the speed."),
        Setting("on", "Only these hyperparameters.", metavar="NAME,..."),
        Setting("platform", "Only networks of this platform."),
        Setting("against", "The ratio to this platform, network by network, whatever the dtype."),
        Setting("order", "1, or 2 for squares and products, too.", 1, int, "N"),
        Setting("scale", "Of z-scores: linear, or log (base 2).", "linear", str, "SCALE"),
    ),
    folders=16,
)
