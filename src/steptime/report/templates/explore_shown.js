"use strict";
// What the page shows of a result: sentences, tiles, charts, table, command line and sources.
const byId = (id) => document.getElementById(id);

// Words for numbers, as units.py writes them.
const digits = (value, count = 4) => String(Number(value.toPrecision(count)));
function prefixed(value, unit, steps) {
  const [factor, prefix] = steps.find(([least]) => Math.abs(value) >= least) ?? steps.at(-1);
  return `${digits(value / factor)} ${prefix}${unit}`;
}
const seconds = (value) => (value ? prefixed(value, "s",
  [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]]) : "0 s");
const size = (value) => prefixed(Number(value.toPrecision(4)), "B",
  [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]);
const grouped = (value, most = 0) => value.toLocaleString("en", { maximumFractionDigits: most });
const money = (value) => `$${value < 1e6 ? value.toLocaleString("en",
  { minimumFractionDigits: value < 1000 ? 2 : 0, maximumFractionDigits: value < 1000 ? 2 : 0 })
  : prefixed(value, "", [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]]).replace(" ", "")}`;
const shortMoney = (value) => (value < 1e4 ? `$${digits(value, 6)}`
  : `$${prefixed(value, "", [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])}`);
const hoursText = (value) => (value >= 1000 ? grouped(value) : digits(value, 3));

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function draw(found) {
  const { choice, values, rows } = found;
  const most = rows.at(-1);
  const on = `${grouped(most.workers)} × ${choice.device.name}`;
  const epochs = `${digits(choice.epochs, 6)} epoch${choice.epochs === 1 ? "" : "s"}`;
  const faster = most.workers > 1 ? `${digits(most.speedup, 3)} times as fast as one; ` : "";
  byId("headline").textContent = `${choice.network.name} on ${on}: ${faster}`
    + `${epochs} take ${hoursText(most.hours)} hours and cost ${money(most.cost)}`
    + `${most.fits ? "." : ", if the memory were large enough."}`;
  byId("headline").classList.toggle("bad", !most.fits);
  byId("tiles").replaceChildren(...[
    ["workers", grouped(most.workers)], ["step", seconds(most.step_s)],
    ["speed-up", `${digits(most.speedup, 4)}×`],
    ["examples/s", grouped(Number(most.samples_per_s.toPrecision(4)), 2)],
    ["hours", hoursText(most.hours)], ["cost", money(most.cost)],
  ].map(([name, value]) => {
    const tile = document.createElement("div");
    tile.append(element("dt", name), element("dd", value));
    return tile;
  }));
  byId("notes").replaceChildren(...notes(found).map(([text, bad]) =>
    element("li", text, bad ? "bad" : "")));
  charts(rows, choice);
  table(rows, choice);
  byId("command").textContent = command(choice, values, rows);
  sources(choice, values);
  byId("batch-label").textContent =
    choice.scaling === "weak" ? "Batch of a worker" : "Batch of all workers";
}

function charts(rows, choice) {
  for (const name of ["speedup", "hours"]) { // one point is no line
    byId(`chart-${name}`).parentElement.hidden = rows.length < 2;
  }
  lineChart(byId("chart-speedup"), "Speed-up by workers", rows, (row) => row.speedup,
    (value) => `${digits(value, 3)}×`, (row) => row.workers);
  barChart(byId("chart-parts"), "Step time by part and workers", rows, (row) => [
    ["forward", row.forward_s], ["backward", row.backward_s], ["update", row.update_s],
    ["exchange", row.comm_s[choice.collective]],
  ], seconds);
  lineChart(byId("chart-hours"), "Hours of training by workers", rows, (row) => row.hours,
    (value) => `${hoursText(value)} h`);
  barChart(byId("chart-cost"), "Cost of training by workers", rows,
    (row) => [["cost", row.cost]], shortMoney);
}

function listed(numbers) {
  const shown = numbers.slice(0, 8).map((n) => grouped(n)).join(", ");
  return numbers.length > 8 ? `${shown}, ... (${numbers.length} in all)` : shown;
}

function notes({ choice, values, rows, refused }) {
  const { device, link, method, network } = choice;
  const found = [];
  const most = rows.at(-1), count = most.batch_per_worker;
  const needs = `a worker needs ${size(most.peak_memory_bytes)} for ${grouped(count)} `
    + `example${count > 1 ? "s" : ""}`;
  const has = device.memory_bytes === null ? `; the memory of ${device.name} is not known`
    : `, ${device.name} has ${size(device.memory_bytes)}`;
  found.push([needs + has + (most.fits ? "" : ": it does not fit"), !most.fits]);
  const large = rows.filter((row) => !row.fits);
  if (large.length) {
    found.push([`does not fit with ${listed(large.map((row) => row.workers))} `
      + `worker${large.length > 1 || large[0].workers > 1 ? "s" : ""}: `
      + "the times are those that it would take", true]);
  }
  if (refused.length) {
    found.push([`${listed(refused)} workers cannot share a batch of `
      + `${grouped(choice.batch)} examples: left out`, true]);
  }
  const pays = stopsPaying(rows, data.pays);
  if (pays !== null) {
    found.push([`stops paying at ${grouped(pays)} workers: from the row before, throughput grows `
      + `less than ${digits(data.pays)} times as much as the number of workers`]);
  }
  const idle = rows.filter((row) => row.global_batch < row.workers * row.batch_per_worker);
  if (idle.length) {
    found.push([`${listed(idle.map((row) => row.workers))} workers do not divide the `
      + "batch evenly: the step is that of the largest share"]);
  }
  const { between, inside } = choice.fabric;
  const links = choice.collective === "hierarchical" && inside ? [between, inside] : [between];
  for (const one of links) {
    if (!method.as_paleo && one.latency_s === null) {
      found.push([`${one.name}: no latency is known, so none is counted`]);
    }
  }
  if (method.as_paleo) found.push(["Paleo's rules know no latency and no type but float32"]);
  if (method.cycle && !choice.rates[2]) {
    found.push([`${device.name}: no clock is known, so no kernel takes at least a cycle`]);
  }
  if (!method.cycle && device.launch_s === null) {
    found.push([`${device.name}: the host's time to issue an op is not known and left out`]);
  }
  found.push(...network.notes[values.method].map((note) => [note]));
  const used = new Set(["memory_GB", "memory_GB_per_s", "clock_MHz", "launch_us", "GB_per_s",
    "latency_us", method.as_paleo ? "float32" : values.dtype]);
  for (const one of [device, link]) {
    const open = one.unverified.filter((figure) => used.has(figure));
    if (open.length) found.push([`${one.name}: to be verified: ${open.join(", ")}`]);
  }
  return found;
}

function table(rows, choice) {
  const columns = [
    ["workers", (row) => grouped(row.workers)],
    ["batch of all", (row) => grouped(row.global_batch)],
    ["forward", (row) => seconds(row.forward_s)], ["backward", (row) => seconds(row.backward_s)],
    ["update", (row) => seconds(row.update_s)],
    ["exchange", (row) => seconds(row.comm_s[choice.collective])],
    ["step", (row) => seconds(row.step_s)], ["speed-up", (row) => digits(row.speedup)],
    ["efficiency", (row) => `${digits(100 * row.efficiency, 3)} %`],
    ["hours", (row) => hoursText(row.hours)], ["cost", (row) => money(row.cost)],
    ["memory", (row) => (row.fits ? "" : "\u2715 ") + size(row.peak_memory_bytes)],
  ];
  const line = (cells, kind) => {
    const made = document.createElement("tr");
    made.append(...cells.map((text) => element(kind, text, "number")));
    return made;
  };
  byId("rows").tHead.replaceChildren(line(columns.map(([name]) => name), "th"));
  byId("rows").tBodies[0].replaceChildren(...rows.map((row) => {
    const made = line(columns.map(([, write]) => write(row)), "td");
    made.classList.toggle("bad", !row.fits);
    return made;
  }));
}

function command(choice, values, rows) {
  const words = ["steptime", "scale", choice.network.name, "--device", choice.device.text,
    "--network", choice.link.name, "--batch", choice.batch,
    "--workers", rows.map((row) => row.workers).join(","), "--scaling", choice.scaling,
    "--collective", choice.collective, "--method", values.method];
  if (choice.latency_us !== null) words.push("--latency-us", values.latency);
  if (choice.fabric.inside) words.push("--inside", choice.fabric.inside.name);
  if (choice.collective === "hierarchical") words.push("--per-node", choice.per_node);
  if (choice.collective === "parameter-server") words.push("--servers", choice.servers);
  if (values.dtype !== "float32") words.push("--dtype", values.dtype);
  ["ppp_comp", "ppp_comm"].forEach((name, place) => {
    if (choice.share[place] !== 1) words.push("--option", `${name}=${values[name]}`);
  });
  words.push("--samples", choice.samples, "--epochs", values.epochs, "--price", values.price);
  words.push("--json");
  return words.map((word) => quoted(String(word))).join(" ");
}

const quoted = (word) =>
  (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function sources(choice, values) {
  const { device, link, method } = choice;
  const [flop, bytes] = choice.rates;
  const left = data.left_out.map((one) => `${one.model} with ${one.method}: ${one.reason}`);
  const shares = Object.entries(data.software).filter(([name]) => name !== "none")
    .map(([name, pair]) => `${name} ${pair.join(" / ")}`);
  const lines = [
    ["made by", `steptime ${data.version}`],
    ["method", `${values.method} ${method.version}; ppp_comp = ${values.ppp_comp}, `
      + `ppp_comm = ${values.ppp_comm}, collective = ${choice.collective}`],
    ["step", `training with ${data.optimizer}, ${values.dtype}, data parallel; `
      + `${grouped(choice.work.parameters)} parameters, ${size(choice.work.gradient_bytes)} of `
      + "gradients exchanged after the backward pass"],
    ["device", `${device.name}: ${digits(flop / 1e12)} TFLOP/s, ${digits(bytes / 1e9)} GB/s `
      + `at ppp 1. ${device.source}${device.note ? `. ${device.note}` : ""}`],
    ["link", `${link.name}: ${digits(link.bytes_per_s / 1e9)} GB/s at ppp 1. ${link.source}`
      + `${link.note ? `. ${link.note}` : ""}`],
    ["software", `shares of compute peak / link's rate: ${shares.join(", ")} `
      + "(Qi, Sparks, Talwalkar, ICLR 2017)"],
    ["cost", "every device is paid for each second of the training"],
    ["limits", `batches ${data.batches.map((n) => grouped(n)).join(" to ")} of a worker`],
    ["left out", left.length ? left.join("; ") : "nothing"],
  ];
  byId("sources").replaceChildren(...lines.map(([name, text]) => {
    const made = document.createElement("tr");
    const head = element("th", name);
    head.scope = "row";
    made.append(head, element("td", text));
    return made;
  }));
}

