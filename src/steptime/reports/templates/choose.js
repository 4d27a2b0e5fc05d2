"use strict";
// Rows are filtered by the choice, and shown; all of their numbers are Python's.
const NAMES_OF = Object.keys(data.rows);
const rows = data.rows.step_s.map((_, place) => Object.fromEntries(NAMES_OF.map((name) =>
  [name, data.axes[name]?.[data.rows[name][place]] ?? data.rows[name][place]])));
// The rows of a choice, whatever its value of one axis is.
const across = (values, free) => rows.filter((row) =>
  AXES.every((name) => name === free || row[name] === values[name]));
const within = (row) => (row.high_s === null ? "" : span(row.low_s, row.high_s));
const found = (name, write) => (row) => (row[name] === null ? "" : write(row[name]));
const room = (row) => (data.usable[row.device] ? prefixed(data.usable[row.device], "B") : "");
const FAILED = { oom: "out of memory", unsupported: "no known peak of this type" };
const COLUMNS = [
  ["step", found("step_s", seconds)], ["80 % of steps", within],
  ["communication", found("communication_s", seconds)],
  ["examples/s", found("examples_per_s", (value) => grouped(Number(value.toPrecision(4)), 2))],
  ["speed-up", found("speedup", (value) => digits(value))],
  ["hours", found("train_h", hoursText)], ["cost", found("cost", money)],
  ["memory", found("needed_bytes", (value) => prefixed(value, "B"))],
  ["of room", (row) => (row.needed_bytes && data.usable[row.device]
    ? `${grouped(100 * row.needed_bytes / data.usable[row.device])} %` : "")],
  ["note", (row) => FAILED[row.status] ?? ""],
];
const PRICE = ["per hour", (row) => (row.device in data.prices ? money(data.prices[row.device]) : "")];
// Without a price nobody can say that a device is cheap enough.
const affordable = (row) => field("max_price").value === ""
  || data.prices[row.device] <= Number(field("max_price").value);

function draw(name, shown) {
  const known = shown.filter((row) => row.step_s !== null && row[name] !== null);
  put(name, known.map((row) => ({
    ...row, replicas: Number(row.replicas), forward: row.forward_s, backward: row.backward_s,
    update: row.update_s, communication: row.communication_s,
  })), name === "parts" ? 1 : 2);
}

function show(values, row) {
  const bad = FAILED[row.status], epochs = data.training.epochs;
  byId("headline").textContent = `${row.model} in ${row.precision} on ${grouped(Number(row.replicas))} × ${row.device}: `
    + (bad ?? `${digits(epochs, 6)} epoch${epochs === 1 ? " takes" : "s take"} `
      + (row.train_h < 0.1 ? seconds(3600 * row.train_h) : `${hoursText(row.train_h)} hours`)
      + (row.cost === null ? "" : ` and ${epochs === 1 ? "costs" : "cost"} ${money(row.cost)}`));
  byId("headline").classList.toggle("bad", Boolean(bad));
  byId("shown").hidden = row.step_s === null;
  if (row.step_s !== null) {
    tiles([
      ["step", seconds(row.step_s), within(row)],
      ["examples/s", grouped(Number(row.examples_per_s.toPrecision(4)), 2)],
      ["speed-up", `${digits(row.speedup)}×`], ["hours", hoursText(row.train_h)],
      ["cost", money(row.cost), data.offers[row.device]],
      ["memory", prefixed(row.needed_bytes, "B"),
        room(row) ? `${bad ? "does not fit" : "fits"}: of ${room(row)}` : "of unknown room"],
    ]);
    const shown = across(values, "replicas");
    for (const name of Object.keys(data.charts)) draw(name, shown);
    fill(byId("rows"), [["replicas", (one) => one.replicas], ...COLUMNS], shown, (made, one) => {
      made.classList.toggle("chosen", one === row);
      made.classList.toggle("bad", one.status !== "ok");
    });
  }
}

function update() {
  const values = chosen(), [row] = across(values);
  keep(values);
  if (row) show(values, row);
  else {
    byId("shown").hidden = true;
    byId("headline").textContent = `${values.device}: no listed batch fits, or no peak is known`;
    byId("headline").classList.add("bad");
  }
  const by = byId("sort").value, end = (one) => [one.status !== "ok", one[by] ?? Infinity];
  const all = across(values, "device"), beside = all.filter(affordable).sort((one, other) => {
    const [a, b] = [end(one), end(other)];
    return a[0] - b[0] || a[1] - b[1];
  });
  const dearer = all.length - beside.length;
  byId("hidden-devices").textContent = dearer ? `${dearer} device${dearer === 1 ? "" : "s"} above `
    + `${money(Number(field("max_price").value))} an hour, or without a price, left out.` : "";
  const types = new Set(beside.map((one) => one.precision));
  fill(byId("devices"), [["device", (one) => one.device],
    ...(types.size > 1 ? [["type", (one) => one.precision]] : []), ["batch", (one) => grouped(one.examples)],
    PRICE, ...COLUMNS.filter(([name]) => name !== "communication")], beside, (made, one) => {
    linked(made, { ...values, device: one.device }, one === row);
    made.classList.toggle("bad", one.status !== "ok");
  });
  byId("command").textContent = quoted(["steptime", "scale", values.model, "--device",
    values.device, ...(values.dtype ? ["--dtype", values.dtype] : []), "--link", values.link, "--batch", row?.examples ?? 1, "--replicas", values.replicas,
    ...data.words]);
  byId("result").textContent = JSON.stringify({ at: values, row: row ?? null });
}

byId("sort").addEventListener("input", update);
begin(update);
