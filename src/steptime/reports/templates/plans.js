"use strict";
const SPLIT = ["tensor", "context", "pipeline", "virtual", "data", "expert"];
const keyOf = (at) => AXES.map((name) => at[name]).join("\n");
const cells = new Map(data.cells.map((cell) => [keyOf(cell.at), cell]));
const percent = (share) => `${digits(100 * share, 3)} %`;
const rounded = (value) => (value < 1 ? digits(value, 3) : grouped(Number(value.toPrecision(4)), 2));
const paid = (currency, amount) => (amount === null ? "-" : `${rounded(amount)} ${currency}`);
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
  const { memory, currency, training } = best;
  const mfu = Object.fromEntries(best.mfu.map((row) => [row.name, row.share]));
  byId("headline").textContent = `${at.model}: ${cell.headline.join("; ")}`;
  tiles([
    ["step", seconds(best.step_s), span(best.any_stack_low_s, best.any_stack_high_s)],
    [`${best.unit}/s`, grouped(best.tokens_per_s), `${grouped(best.tokens_per_s_per_device)} a device`],
    ["memory", prefixed(memory.needed_bytes, "B"), memory.usable_bytes
      ? `of ${prefixed(memory.usable_bytes, "B")}` : "of unknown room"],
    [`${currency ?? "cost"} per hour`, currency ? rounded(best.cost_per_hour) : "-",
      best.price_date ?? "no price is known"],
    ...(training ? [
      [`hours of ${prefixed(training.tokens, "")} ${best.unit}`, hoursText(training.train_h),
        `${hoursText(training.any_stack_low_h)} to ${hoursText(training.any_stack_high_h)}`],
      [`${currency ?? "cost"} of them`, currency ? rounded(best.cost_total) : "-",
        training.energy_kwh === null ? "" : `${grouped(training.energy_kwh)} kWh`],
    ] : []),
    ["MFU", percent(mfu.full), mfu["6N"] === null ? ""
      : `half ${percent(mfu.half)}, 6N ${percent(mfu["6N"])}`],
    ...(best.device_power_w ? [["a device", `${digits(best.device_power_w, 3)} W`, ""]] : []),
  ]);
  byId("notes").replaceChildren(...[
    `Best of ${grouped(cell.considered_count)} splits, of which ${grouped(cell.fitting_count)} fit: `
      + `${splitText(best.plan, best.microbatch)}.`,
    ...(best.bubble_share > 0
      ? [`Devices of the pipeline wait ${percent(best.bubble_share)} of their time.`] : []),
    ...best.exposed_communication.filter((row) => row.exposed_communication_s > 0.005 * best.step_s).map((row) =>
      `${row.group} ranks: ${row.collective} over ${row.link} takes ${seconds(row.communication_s)}, of `
      + `which the step waits ${seconds(row.exposed_communication_s)}.`),
    ...(cell.drawn.pipeline.length > 1 ? []
      : ["The pipeline has too many parts to be simulated, and drawn, one by one."]),
    ...best.notes,
  ].map((text) => element("li", text)));
  put("why", unpacked(cell.drawn.why));
  put("memory", unpacked(cell.drawn.memory));
  if (data.charts.pipeline) put("pipeline", unpacked(cell.drawn.pipeline), 1, cell.pipeline_px);
  byId("alike").textContent = `= ${grouped(cell.as_fast_count)} of all that fit are so near to the fastest `
    + "that this prediction does not tell them apart.";
  fill(byId("splits"), [
    ["split", (row) => splitText(row, row.microbatch)],
    ["step", (row) => `${row.is_as_fast ? "= " : ""}${seconds(row.step_s)}`],
    ["80 % of steps", (row) => span(row.any_stack_low_s, row.any_stack_high_s)], ["memory", (row) => prefixed(row.needed_bytes, "B")],
    ...(currency ? [["a step", (row) => paid(currency, row.cost_per_step)]] : []),
  ], cell.rows, () => {});
}

// Every device and number beside, for the same network, length and batch; a row leads to its choice.
function beside(values) {
  const all = data.axes.device.flatMap((device) => data.axes.device_count.map((device_count) =>
    cells.get(keyOf({ ...values, device, device_count }))));
  put("speed", all.filter((cell) => cell.best).map(({ at, best }) => ({
    device_count: best.device_count, device: at.device, step_s: best.step_s, low_s: best.any_stack_low_s, high_s: best.any_stack_high_s,
  })));
  const found = (write) => (cell) => (cell.best ? write(cell.best) : "");
  fill(byId("devices"), [
    ["device", (cell) => `${cell.at.device_count} × ${cell.at.device}`],
    ["step", found((best) => seconds(best.step_s))],
    ["80 % of steps", found((best) => span(best.any_stack_low_s, best.any_stack_high_s))],
    ["speed of a device", found((best) => grouped(best.tokens_per_s_per_device))],
    ["per hour", found((best) => paid(best.currency, best.cost_per_hour))],
    ...(all.some((cell) => cell.best?.training) ? [
      ["training", found((best) => `${hoursText(best.training.train_h)} h`)],
      ["its cost", found((best) => paid(best.currency, best.cost_total))]] : []),
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
    ...["device", "device_count", "global_batch", ...["length", "dtype"].filter((name) => values[name])].flatMap((name) =>
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
