"""What people see of more devices: a row a number of replicas, and what must be known."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from steptime.core.graph import PASSES
from steptime.core.table import Column, Table, columns, of_steps
from steptime.core.units import counted, seconds
from steptime.grids.replicas import ScalingRow, Sync, unpaid
from steptime.prediction.assumed import assumed_text
from steptime.prediction.collectives import COLLECTIVES, GROUP, Fabric
from steptime.prediction.step_model import StepModel


def table(document: Mapping[str, Any]) -> Table:
    """Return what more devices bring, a row a number of replicas."""
    parallel, scaling = document["parallel"], document["scaling"]
    over = f" over {document['link']}" if document["link"] else ""
    batch = f"batch {document['batch']}"
    if parallel != "model":
        batch += " a replica" if scaling == "weak" else " in all"
    kind = {"data": f"{scaling} scaling", "model": "model parallel", "hybrid": "hybrid"}[parallel]
    exchange = "" if parallel == "model" else f", {document['collective']}"
    rows = [_shown(row) for row in document["rows"]]
    steps = of_steps(_COLUMNS[parallel], rows)
    heads = [one for one in steps if any(row.get(one.key) is not None for row in rows)]
    how = f"{batch}, {kind} ({document['method']}{exchange})"
    title = f"{document['model']} on {document['device']}{over}, {how}"
    return Table(heads, rows, title, _remarks(document))


_BEFORE = ("replicas=replicas", "?global_batch=global batch")
_EACH = "?batch=per replica"
_AFTER = ("step_s[low_s,high_s]=step", "speedup=speed-up", "?efficiency",
          "?examples_per_s=speed", "?epoch_s=an epoch", "training_h=training",
          "cost_total=cost")  # fmt: skip
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "data": columns(*_BEFORE, _EACH, "?compute_s=compute", "exposed_communication_s=communication",
                    "hidden_s=hidden", *_AFTER),
    "model": columns(*_BEFORE, "forward", "backward", "update_s=update", *_AFTER),
    "hybrid": columns(*_BEFORE, _EACH, "data_s=data parallel", "model_s=model parallel",
                      "sync_s=communication", *_AFTER),
}  # fmt: skip


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    more: dict[str, Any] = {"hidden_s": row.get("overlap_s") or None}
    if row.get("train_s") is not None:
        more["training_h"] = row["train_s"] / 3600
    for part in ("data", "model"):
        if part in row:
            more[f"{part}_s"] = sum(row[part][f"{n}_s"] for n in PASSES)
    for part in ("forward", "backward"):
        if f"{part}_lower_s" in row:
            bounds = [seconds(row[f"{part}_{bound}_s"]) for bound in ("lower", "upper")]
            more[part] = " - ".join(dict.fromkeys(bounds))
    if "data" in row:
        more["sync_s"] = row["data"]["sync_s"]
    return {**dict.fromkeys(("cost_total", "epoch_s", "training_h")), **row, **more}


def _remarks(document: Mapping[str, Any]) -> list[str]:
    said = [assumed_text(document["assumed"])]
    if document["parallel"] == "data" and document["link"] and document["method"] != "paleo":
        if not document["overlap"]:
            said.append("all-reduce after the backward pass, not during it (--overlap)")
        if document["inside"] and document["links_per_node"] == 1:
            said.append(
                f"{document['per_node']} devices share a node's one link (--links-per-node)"
            )
    lines = [f"assumed: {'; '.join(filter(None, said))}"] if any(said) else []
    if little := unpaid((row["replicas"], row["examples_per_s"]) for row in document["rows"]):
        again = "" if document["rows"][-1]["replicas"] in little else "; it pays again after that"
        lines.append(
            f"stops paying at {little[0]} replicas: from the row before, throughput "
            f"grows less than half as much as the number of replicas{again}"
        )
    lines += document["notes"]
    noted = (row for row in document["rows"] if row["note"])
    lines += [f"{counted(row['replicas'], 'replica')}: {row['note']}" for row in noted]
    training = document["training"]
    if training is not None:
        epochs = counted(training["epochs"], "epoch")
        price = training["price"]
        each = f"{price:g} per hour, paid by the {training['billing']}" if price is not None else ""
        costs = f"; a device costs {each}" if each else ""
        lines.append(f"training: {epochs} of {training['examples']:,} examples{costs}")
    return lines


def notes_on(model: StepModel, parallel: str, rows: Sequence[ScalingRow], how: Sync) -> list[str]:
    """Return what a reader must know: what does not fit, has no effect, or is not counted."""
    largest = max(row.batch for row in rows)
    notes, needs = list(model.remarks(largest)), model.needs(largest)
    if parallel == "data" and not needs.fit(model.device):  # no device holds all splits
        lack = needs.too_large(model.device)
        batch = f"batch {largest} (optimizer {model.workload.optimizer}): "
        notes.insert(0, lack if [row.replicas for row in rows] == [1] else batch + lack)
    chosen, fabric = model.collective(how.collective), model.fabric
    if fabric is not None and parallel != "model":
        notes += [f"{chosen} does not use {name}" for name in _unused(fabric, chosen)]
    for name in fabric.without_latency if fabric and model.method.latency else ():
        mend = " (--latency-us)" if fabric and name == fabric.between.name else ""
        notes.append(f"{name}: no latency is known, so none is counted{mend}")
    return notes


def _unused(fabric: Fabric, collective: str) -> Iterator[str]:
    """Return the options, of those that have another value than by default, without effect."""
    if fabric.servers > 1 and collective in set(COLLECTIVES) - {"parameter-server"}:
        yield "--servers"
    alone = fabric.inside is None and fabric.links_per_node == 1
    if fabric.per_node != GROUP and alone and collective in set(COLLECTIVES) - {"hierarchical"}:
        yield "--per-node (it takes --inside or --links-per-node)"
