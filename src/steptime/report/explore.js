"use strict";
// The page: the choice lives in the form and in the URL fragment; results follow every change.
const data = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("choice");
const byId = (id) => document.getElementById(id);
const field = (name) => form.elements.namedItem(name);
const USUAL = "usual", OWN = "own";
const MOST_ROWS = 200, MOST_WORKERS = 1e6, LARGEST = 2 ** 53;
const FIELDS = ["network", "device", "link", "dtype", "method", "software", "ppp_comp", "ppp_comm",
  "batch", "scaling", "workers", "collective", "samples", "epochs", "price"];

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
const hoursText = (value) => (value >= 1000 ? grouped(value) : digits(value, 3));

function options(name, pairs) {
  field(name).replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
}

function fill() {
  options("network", data.models.map((model) => [model.name, model.name]));
  options("device", data.devices.map((device) => [device.name, device.name]));
  options("link", data.links.map((link) =>
    [link.name, `${link.name} (${digits(link.bytes_per_s / 1e9)} GB/s)`]));
  options("dtype", Object.keys(data.dtypes).map((name) => [name, name]));
  options("method", Object.keys(data.methods).map((name) => [name, name]));
  const shares = Object.entries(data.software).map(([name, [comp, comm]]) =>
    [name, name === "none" ? "none: the peaks are reached" : `${name} ${comp} / ${comm}`]);
  options("software", [...shares, [OWN, "own numbers"]]);
  options("collective", [[USUAL, "the method's own"], ...data.collectives.map((name) => [name, name])]);
}

function put(values) {
  for (const name of FIELDS) {
    const control = field(name);
    control.value = values[name];
    if (control.tagName === "SELECT" && control.value !== values[name]) control.selectedIndex = -1;
  }
  showShares();
}

function showShares() {
  const preset = data.software[field("software").value];
  if (preset) [field("ppp_comp").value, field("ppp_comm").value] = preset;
}

function texts() {
  return Object.fromEntries(FIELDS.map((name) => [name, field(name).value.trim()]));
}

// The fragment, `#network=resnet50&device=K80&...`; a name may be short or in other letters.
function fromFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  const values = { ...data.start };
  const faults = [];
  for (const [name, text] of given) {
    if (!FIELDS.includes(name)) faults.push([null, `the address has no '${cut(name)}'`]);
    else values[name] = spelled(name, text);
  }
  if (!given.has("software") && (given.has("ppp_comp") || given.has("ppp_comm"))) {
    values.software = OWN;
  }
  put(values);
  for (const name of FIELDS) {
    const control = field(name);
    if (control.tagName === "SELECT" && control.selectedIndex < 0) {
      faults.push([name, `unknown ${name} '${cut(values[name])}'`]);
    }
  }
  return faults;
}

function spelled(name, text) {
  if (field(name).tagName !== "SELECT") return text;
  const wanted = text.toLowerCase();
  const alias = name === "device"
    && Object.keys(data.aliases).find((short) => short.toLowerCase() === wanted);
  if (alias) return data.aliases[alias];
  const found = [...field(name).options].find((option) => option.value.toLowerCase() === wanted);
  return found ? found.value : text;
}

const cut = (text) => (text.length > 60 ? `${text.slice(0, 60)}...` : text);

function toFragment(values) {
  const kept = FIELDS.filter((name) => !name.startsWith("ppp_") || values.software === OWN);
  return `#${new URLSearchParams(kept.map((name) => [name, values[name]]))}`;
}

// Numbers from text; a fault is thrown as a sentence.
function whole(text, what, most) {
  if (!/^\d{1,16}$/.test(text)) throw Error(`${what}: must be a whole number, not '${cut(text)}'`);
  const value = Number(text);
  if (value < 1 || value > most) throw Error(`${what}: must be 1 to ${grouped(most)}, not ${text}`);
  return value;
}

function positive(text, what, most) {
  const plain = /^(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?$/.test(text);
  const value = plain ? Number(text) : NaN;
  if (!(value > 0 && value <= most)) {
    const range = most === 1 ? "above 0 and at most 1" : "above 0";
    throw Error(`${what}: must be a number ${range}, not '${cut(text)}'`);
  }
  return value;
}

// `1,2,4` or `1,2,4,...,128`, which goes on by adding or multiplying; as the command line has it.
function workerList(text) {
  const found = [];
  const parts = text.split(",").map((part) => part.trim());
  parts.forEach((part, place) => {
    if (part !== "...") found.push(whole(part, "workers", MOST_WORKERS));
    else found.push(...between(found, whole(parts[place + 1] ?? "", "workers", MOST_WORKERS)));
  });
  if (found.length > MOST_ROWS) throw Error(`workers: at most ${MOST_ROWS} numbers`);
  found.sort((a, b) => a - b);
  const twice = found.find((n, place) => n === found[place - 1]);
  if (twice !== undefined) throw Error(`workers: ${twice} is given twice`);
  return found;
}

function between(before, end) {
  const [a, b, c] = before.slice(-3);
  if (c === undefined) throw Error("workers: '...' needs three numbers before it");
  const adds = a < b && b - a === c - b;
  if (!adds && !(a < b && b % a === 0 && b * b === a * c)) {
    throw Error(`workers: ${a},${b},${c},... neither adds nor multiplies evenly`);
  }
  const next = adds ? (n) => n + b - a : (n) => n * (b / a);
  const found = [];
  let n = next(c);
  for (; n < end; n = next(n)) {
    found.push(n);
    if (found.length > MOST_ROWS) throw Error(`workers: at most ${MOST_ROWS} numbers`);
  }
  if (n !== end) throw Error(`workers: ${a},${b},${c},... does not meet ${end}`);
  return found;
}

// What the texts choose, checked; every fault is pushed as [field, sentence].
function chosen(values, faults) {
  const take = (name, read) => {
    try {
      return read();
    } catch (error) {
      faults.push([name, error.message]);
      return null;
    }
  };
  const named = (list, name) => list.find((one) => one.name === values[name]);
  const network = named(data.models, "network"), device = named(data.devices, "device");
  const link = named(data.links, "link"), method = data.methods[values.method];
  const choice = {
    network, device, link, method, scaling: values.scaling,
    batch: take("batch", () => whole(values.batch, "batch", data.batches[1])),
    workers: take("workers", () => workerList(values.workers)),
    samples: take("samples", () => whole(values.samples, "examples", LARGEST)),
    epochs: take("epochs", () => positive(values.epochs, "epochs", LARGEST)),
    price: take("price", () => positive(values.price, "price", LARGEST)),
    share: ["ppp_comp", "ppp_comm"].map((name) =>
      take(name, () => positive(values[name], name, 1))),
  };
  if (!network || !device || !link || !method || faults.length) return choice;
  choice.collective = values.collective === USUAL ? method.collective : values.collective;
  choice.work = network.work[values.method]?.[data.dtypes[values.dtype]];
  choice.rates = device.rates[values.method][values.dtype];
  if (!choice.work) faults.push(["network", network.left_out[values.method]]);
  if (!choice.rates) {
    faults.push(["device", `${device.name}: no peak is known for ${values.dtype}; `
      + `known: ${device.peaks.join(", ")}`]);
  }
  return choice;
}

let last = null; // the last good choice, its texts and its rows

function update(faults = []) {
  const values = texts();
  const choice = chosen(values, faults);
  if (!faults.length) {
    const { rows, refused } = scalingRows(data, choice);
    if (rows.length) {
      last = { choice, values, rows, refused };
      history.replaceState(null, "", toFragment(values));
      draw(last);
    } else {
      faults.push(["workers",
        `${refused.join(", ")} workers cannot share a batch of ${choice.batch} examples`]);
    }
  }
  showFaults(faults);
}

function showFaults(faults) {
  for (const name of FIELDS) {
    const wrong = faults.some(([at]) => at === name);
    field(name).classList.toggle("wrong", wrong);
    field(name).setAttribute("aria-invalid", String(wrong));
  }
  const lines = faults.map(([, text]) => text);
  if (faults.length) {
    lines.push(last ? "Below is still the result of the choice before." : "There is no result yet.");
  }
  byId("errors").hidden = !faults.length;
  byId("errors").replaceChildren(...lines.map((line) => element("p", line)));
  byId("shown").classList.toggle("old", faults.length > 0 && last !== null);
  byId("shown").hidden = last === null;
  const answer = last ? { texts: last.values, collective: last.choice.collective, rows: last.rows } : {};
  byId("result").textContent =
    JSON.stringify({ ...answer, old: faults.length > 0, faults: faults.map(([, text]) => text) });
}

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
    + `${epochs} take ${hoursText(most.hours)} hours and cost ${money(most.cost)}.`;
  byId("tiles").replaceChildren(...[
    ["step", seconds(most.step_s)], ["speed-up", `${digits(most.speedup, 4)}×`],
    ["examples/s", grouped(Number(most.samples_per_s.toPrecision(4)), 2)],
    ["hours", hoursText(most.hours)], ["cost", money(most.cost)],
  ].map(([name, value]) => {
    const tile = document.createElement("div");
    tile.append(element("dt", `${name}, ${grouped(most.workers)} worker${most.workers > 1 ? "s" : ""}`),
      element("dd", value));
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
  lineChart(byId("chart-speedup"), "Speed-up by workers", rows, (row) => row.speedup,
    (value) => `${digits(value, 3)}×`, (row) => row.workers);
  barChart(byId("chart-parts"), "Step time by part and workers", rows, (row) => [
    ["forward", row.forward_s], ["backward", row.backward_s], ["update", row.update_s],
    ["exchange", row.comm_s[choice.collective]],
  ], seconds);
  lineChart(byId("chart-hours"), "Hours of training by workers", rows, (row) => row.hours,
    (value) => `${hoursText(value)} h`);
  barChart(byId("chart-cost"), "Cost of training by workers", rows,
    (row) => [["cost", row.cost]], money);
}

function notes({ choice, values, rows, refused }) {
  const { device, link, method, network } = choice;
  const found = [];
  const most = rows.reduce((one, row) => (row.peak_memory_bytes > one.peak_memory_bytes ? row : one));
  const needs = `a worker needs ${size(most.peak_memory_bytes)} for ${grouped(most.batch_per_worker)} `
    + `example${most.batch_per_worker > 1 ? "s" : ""}`;
  if (device.memory_bytes === null) found.push([`${needs}; the memory of ${device.name} is not known`]);
  else {
    found.push([`${needs}, ${device.name} has ${size(device.memory_bytes)}`
      + `${most.fits ? "" : ": it does not fit, the times are those it would take"}`, !most.fits]);
  }
  if (refused.length) {
    found.push([`${refused.map((n) => grouped(n)).join(", ")} workers cannot share a batch of `
      + `${grouped(choice.batch)} examples: left out`, true]);
  }
  const idle = rows.filter((row) => row.global_batch < row.workers * row.batch_per_worker);
  if (idle.length) {
    found.push([`${idle.map((row) => grouped(row.workers)).join(", ")} workers do not divide the `
      + "batch evenly: the step is that of the largest share"]);
  }
  if (method.latency && link.latency_s === null) {
    found.push([`${link.name}: no latency is known, so none is counted`]);
  }
  if (!method.latency) found.push(["Paleo's rules know no latency and no type but float32"]);
  if (method.cycle && !choice.rates[2]) {
    found.push([`${device.name}: no clock is known, so no kernel takes at least a cycle`]);
  }
  if (!method.cycle && device.launch_s === null) {
    found.push([`${device.name}: the host's time to issue an op is not known and left out`]);
  }
  found.push(...network.notes[values.method].map((note) => [note]));
  for (const one of [device, link]) {
    if (one.unverified.length) found.push([`${one.name}: to be verified: ${one.unverified.join(", ")}`]);
  }
  return found;
}

function table(rows, choice) {
  const columns = [
    ["workers", (row) => grouped(row.workers)], ["batch of all", (row) => grouped(row.global_batch)],
    ["forward", (row) => seconds(row.forward_s)], ["backward", (row) => seconds(row.backward_s)],
    ["update", (row) => seconds(row.update_s)],
    ["exchange", (row) => seconds(row.comm_s[choice.collective])],
    ["step", (row) => seconds(row.step_s)], ["speed-up", (row) => digits(row.speedup)],
    ["efficiency", (row) => `${digits(100 * row.efficiency, 3)} %`],
    ["hours", (row) => hoursText(row.hours)], ["cost", (row) => money(row.cost)],
    ["memory of a worker", (row) => size(row.peak_memory_bytes) + (row.fits ? "" : " does not fit")],
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
  const words = ["steptime", "scale", choice.network.name, "--device", choice.device.name,
    "--network", choice.link.name, "--batch", choice.batch,
    "--workers", rows.map((row) => row.workers).join(","), "--scaling", choice.scaling,
    "--collective", choice.collective, "--method", values.method];
  if (values.dtype !== "float32") words.push("--dtype", values.dtype);
  ["ppp_comp", "ppp_comm"].forEach((name, place) => {
    if (choice.share[place] !== 1) words.push("--option", `${name}=${values[name]}`);
  });
  words.push("--samples", choice.samples, "--epochs", values.epochs, "--price", values.price, "--json");
  return words.map((word) => quoted(String(word))).join(" ");
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function sources(choice, values) {
  const { device, link, method } = choice;
  const [flop, bytes] = choice.rates;
  const left = data.left_out.map((one) => `${one.model} with ${one.method}: ${one.reason}`);
  const lines = [
    ["made by", `steptime ${data.version}`],
    ["method", `${values.method} ${method.version}; ppp_comp = ${values.ppp_comp}, `
      + `ppp_comm = ${values.ppp_comm}, collective = ${choice.collective}`],
    ["step", `training with ${data.optimizer}, ${values.dtype}, data parallel; `
      + `${grouped(choice.work.parameters)} parameters, ${size(choice.work.gradient_bytes)} of `
      + "gradients exchanged after the backward pass"],
    ["device", `${device.name}: ${digits(flop / 1e12)} TFLOP/s, ${digits(bytes / 1e9)} GB/s at ppp 1. `
      + `${device.source}${device.note ? `. ${device.note}` : ""}`],
    ["link", `${link.name}: ${digits(link.bytes_per_s / 1e9)} GB/s at ppp 1. ${link.source}`
      + `${link.note ? `. ${link.note}` : ""}`],
    ["software", "shares of compute peak / link's rate: " + Object.entries(data.software)
      .filter(([name]) => name !== "none").map(([name, pair]) => `${name} ${pair.join(" / ")}`).join(", ")
      + " (Qi, Sparks, Talwalkar, ICLR 2017)"],
    ["cost", "every device is paid for each started hour of the training"],
    ["limits", `batches ${data.batches.map((n) => grouped(n)).join(" to ")} of a worker; `
      + `groups of ${data.group} devices in hierarchical, one server in parameter-server`],
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

function copy() {
  const button = byId("copy");
  const select = () => {
    getSelection().selectAllChildren(byId("command"));
    button.textContent = "Selected";
  };
  const done = () => { button.textContent = "Copied"; };
  if (navigator.clipboard) navigator.clipboard.writeText(byId("command").textContent).then(done, select);
  else select();
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

fill();
update(fromFragment());
form.addEventListener("input", (event) => {
  if (event.target.name === "software") showShares();
  if (event.target.name.startsWith("ppp_")) field("software").value = OWN;
  update();
});
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", () => update(fromFragment()));
window.addEventListener("resize", () => { if (last) charts(last.rows, last.choice); });
byId("copy").addEventListener("click", copy);
