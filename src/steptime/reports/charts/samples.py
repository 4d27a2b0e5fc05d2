"""The samples of each network in the order in which they were taken, disturbed ones marked."""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from steptime.core.units import seconds
from steptime.records.data import Data
from steptime.records.names import TOLD, hashed, named
from steptime.records.record import Record
from steptime.records.row import BESIDES, grouped
from steptime.reports.charts import EmptyPlotError, style

WIDTH, GAP = 215, 84
KINDS = {"quiet": "circle", "disturbed": "cross"}
SAID = "Up: mean time of a step in one sample, from 0. Across: number of the sample. Line: median."
GROUPS = """
    SELECT any_value(platform) AS platform, folder_rank, min(place) AS first, max(seq) AS seq,
        count(*) OVER () AS groups, list(place) AS places, max(step_s_max) AS slowest,
        min(step_s_min) AS fastest
    FROM flat WHERE origin = 'measured' AND status = 'ok' AND scope = '' AND samples_n > 0
    GROUP BY folder_rank, hash(workload_key, platform, method, method_version, method_options)
    ORDER BY slowest / fastest DESC, first LIMIT ?
"""
X = style.number("sample", "", format="d", grid=False, tickCount=4)
X["scale"] = {"nice": False, "padding": 8}
Y = style.number("seconds", "step (s)", "s", tickCount=3)


def chart(data: Data) -> style.Spec:
    """Return a panel a network: time of a sample [s] over its number; raises `EmptyPlotError`."""
    found = data.rows(GROUPS, style.MAX_PANELS)
    if not found:
        raise EmptyPlotError("samples: no record here holds samples of a step")
    told = dict.fromkeys(one for one in (*TOLD, *BESIDES) if one != "within")

    def chosen(ids: Sequence[int]) -> str:
        return (
            f"SELECT seq AS place, seq AS id, 0 AS within, {', '.join(told)} FROM flat "  # noqa: S608  # ours
            f"WHERE seq IN ({str(ids)[1:-1]})"
        )

    ids, told_ = named(data, hashed(chosen([row["seq"] for row in found]), BESIDES), chosen)
    names = dict(zip(ids.tolist(), told_, strict=True))
    several = len({row["platform"] for row in found}) > 1
    full: dict[str, list[style.Row]] = {}
    every = {
        rank: data.whole(rank, [place for row in rows for place in row["places"]])
        for rank, rows in grouped(found, itemgetter("folder_rank")).items()
    }
    for row in sorted(found, key=itemgetter("first")):
        held = every[row["folder_rank"]]
        on = f" on {row['platform']}" if several else ""
        panel = style.break_lines(names[row["seq"]] + on, WIDTH + GAP)
        taken = full.setdefault(panel, [])
        for place in sorted(row["places"]):
            taken += _points(held[place], panel, len(taken))
    rows = [point for points in full.values() for point in points]
    points = {"x": X, **marks(KINDS, ("sample", "time", "run", "kind"))}
    middle = style.layer("rule", {"y": {**Y, "aggregate": "median"}}, style="quiet")
    layers = {"layer": [middle, style.layer("point", points, size=22)]}
    kept, view = style.facet_panels(rows, "panel", layers, 3, GAP, width=WIDTH, height=70)
    total = found[0]["groups"]
    left_out = f" The {len(found)} of {total} networks that scatter most."
    caption = [
        SAID + (left_out if len(found) < total else ""),
        "Disturbed: other work took the processor during the sample.",
        data.source_of("measured"),
    ]
    if "facet" in view:
        resolve = {"scale": {"x": "independent", "y": "independent"}}
        gaps = {"row": 50 + 15 * max(row["panel"].count("|") for row in kept), "column": GAP}
        view |= {"resolve": resolve, "bounds": "flush", "spacing": gaps}
    return style.finish("Samples in the order taken", caption, kept, **view)


def marks(kinds: Mapping[str, str], told: Sequence[str]) -> style.Spec:
    """Return the encodings of seconds, and of `kinds` of samples by a colour and a sign each."""
    legend, names = {"title": None, "orient": "top"}, {"domain": list(kinds)}
    return {
        "y": Y,
        "color": style.name("kind", scale=names, legend=legend),
        "shape": style.name("kind", scale=names | {"range": list(kinds.values())}, legend=legend),
        "tooltip": style.tooltip(told),
    }


def _points(record: Record, panel: str, start: int) -> Iterator[style.Row]:
    quantity = record.quantities["step_s"]
    columns = zip(quantity.samples, quantity.runs, quantity.marks, strict=True)
    for index, (sample, run, disturbed) in enumerate(columns, start=start + 1):
        yield {
            "panel": panel,
            "sample": index,
            "seconds": sample,
            "run": run,
            "kind": "disturbed" if disturbed else "quiet",
            "time": seconds(sample),
        }
