"use strict";
const SPLIT = ["tensor", "context", "pipeline", "virtual", "data", "expert"];
const keyOf = (at) => AXES.map((name) => at[name]).join("\n");
const cells = new Map(data.cells.map((cell) => [keyOf(cell.at), cell]));
const percent = (share) => `${digits(100 * share, 3)} %`;
const rounded = (value) => (value < 1 ? digits(value, 3) : grouped(Number(value.toPrecision(4)), 2));
const paid = (cost, what) => (cost ? `${rounded(what)} ${cost.currency}` : "-");
const unpacked = ([names, ...rows]) => rows.map((row) =>
  Object.fromEntries(names.map((name, place) => [name, row[place]])));

function splitText(plan, microbatch) {
  const wide = SPLIT.filter((name) => (plan[name] ?? 1) > 1).map((name) => `${name} ${plan[name]}`);
  const more = [plan.zero && `ZeRO ${plan.zero}`, plan.sequence && "sequence parallel",
    (plan.recompute ?? "none") !== "none" && `recompute ${plan.recompute}`,
    microbatch > 1 && `microbatch ${microbatch}`].filter(Boolean);
  return [...wide, ...more].join(", ") || "one device";
}

function show(cell) {
  const { best, at } = cell;
  const { memory, mfu, cost, training, energy } = best;
  byId("headline").textContent = `${at.model}: ${best.answer}`;
  tiles([
    ["step", seconds(best.step_s), span(best.low_s, best.high_s)],
    [`${best.unit}/s`, grouped(best.tokens_per_s), `${grouped(best.tokens_per_s_per_device)} a device`],
    ["memory", prefixed(memory.needed_bytes, "B"), memory.usable_bytes
      ? `of ${prefixed(memory.usable_bytes, "B")}` : "of unknown room"],
    [`${cost?.currency ?? "cost"} per hour`, cost ? rounded(cost.hour) : "-",
      cost ? `${cost.date}` : "no price is known"],
    ...(training ? [
      [`hours of ${prefixed(training.tokens, "")} ${best.unit}`, hoursText(training.train_h),
        `${hoursText(training.low_h)} to ${hoursText(training.high_h)}`],
      [`${cost?.currency ?? "cost"} of them`, cost ? rounded(training.cost) : "-",
        training.energy_kwh === null ? "" : `${grouped(training.energy_kwh)} kWh`],
    ] : []),
    ["MFU", percent(mfu.full), mfu["6N"] === null ? ""
      : `half ${percent(mfu.half)}, 6N ${percent(mfu["6N"])}`],
    ...(energy ? [["a device", `${digits(energy.device_w, 3)} W`, ""]] : []),
  ]);
  byId("notes").replaceChildren(...[
    `Best of ${grouped(cell.considered)} splits, of which ${grouped(cell.fitting)} fit: `
      + `${splitText(best.plan, best.microbatch)}.`,
    ...(best.bubble > 0
      ? [`Devices of the pipeline wait ${percent(best.bubble)} of their time.`] : []),
    ...best.exposed_communication.filter((one) => one.exposed_s > 0.005 * best.step_s).map((one) =>
      `${one.group} ranks: ${one.collective} over ${one.level} takes ${seconds(one.total_s)}, of `
      + `which the step waits ${seconds(one.exposed_s)}.`),
    ...(cell.drawn.pipeline.length > 1 ? []
      : ["The pipeline has too many parts to be simulated, and drawn, one by one."]),
    ...best.notes,
  ].map((text) => element("li", text)));
  put("why", unpacked(cell.drawn.why));
  put("memory", unpacked(cell.drawn.memory));
  if (data.charts.pipeline) put("pipeline", unpacked(cell.drawn.pipeline), 1, cell.pipeline_px);
  byId("alike").textContent = `= ${grouped(cell.alike)} of all that fit are so near to the fastest `
    + "that this prediction does not tell them apart.";
  fill(byId("splits"), [
    ["split", (row) => splitText(row, row.microbatch)],
    ["step", (row) => `${row.alike ? "= " : ""}${seconds(row.step_s)}`],
    ["80 % of steps", (row) => span(row.low_s, row.high_s)], ["memory", (row) => prefixed(row.needed_bytes, "B")],
    ...(cost ? [["a step", (row) => paid(cost, row.cost_per_step)]] : []),
  ], cell.rows, () => {});
}

// Every device and number beside, for the same network, length and batch; a row leads to its choice.
function beside(values) {
  const all = data.axes.device.flatMap((device) => data.axes.device_count.map((device_count) =>
    cells.get(keyOf({ ...values, device, device_count }))));
  put("speed", all.filter((cell) => cell.best).map(({ at, best }) => ({
    device_count: best.device_count, device: at.device, step_s: best.step_s, low_s: best.low_s, high_s: best.high_s,
  })));
  const found = (write) => (cell) => (cell.best ? write(cell.best) : "");
  fill(byId("devices"), [
    ["device", (cell) => `${cell.at.device_count} × ${cell.at.device}`],
    ["step", found((best) => seconds(best.step_s))],
    ["80 % of steps", found((best) => span(best.low_s, best.high_s))],
    ["speed of a device", found((best) => grouped(best.tokens_per_s_per_device))],
    ["per hour", found((best) => paid(best.cost, best.cost?.hour))],
    ...(all.some((cell) => cell.best?.training) ? [
      ["training", found((best) => `${hoursText(best.training.train_h)} h`)],
      ["its cost", found((best) => paid(best.cost, best.training.cost ?? 0))]] : []),
    ["memory", found((best) => prefixed(best.memory.needed_bytes, "B"))],
    ["split", (cell) => (cell.best ? splitText(cell.best.plan, cell.best.microbatch) : cell.failed)],
  ], all, (made, cell) => {
    linked(made, cell.at, keyOf(cell.at) === keyOf(values));
    made.lastChild.className = cell.failed ? "bad" : "";
  });
}

function update() {
  const values = chosen(), cell = cells.get(keyOf(values));
  keep(values);
  byId("shown").hidden = !cell.best;
  byId("headline").classList.toggle("bad", !cell.best);
  if (cell.best) show(cell);
  else byId("headline").textContent = `${values.device_count} × ${values.device}: ${cell.failed}`;
  beside(values);
  byId("command").textContent = quoted(["steptime", "plan", values.model,
    ...["device", "device_count", "global_batch", ...(values.length ? ["length"] : [])].flatMap((name) =>
      [`--${name.replaceAll("_", "-")}`, values[name]]), ...cell.where, ...data.words]);
  byId("result").textContent = JSON.stringify({ at: values, best: cell.best ?? null });
}

const [bar, words] = data.charts.why.layer;
bar.encoding.color.legend = null; // no bar is shorter
data.charts.why.layer.push({ // words have room to the right of the longest bar
  transform: [{ calculate: "1.5 * datum.right", as: "room" }], mark: { type: "point", opacity: 0 },
  encoding: { x: { ...words.encoding.x, field: "room" }, y: words.encoding.y },
});
begin(update);
