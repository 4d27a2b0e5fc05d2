"use strict";
// The page: the choice lives in the form and in the URL fragment; results follow every change.
const data = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("choice");
const field = (name) => form.elements.namedItem(name);
const USUAL = "usual", OWN = "own";
const MOST_ROWS = 200, MOST_WORKERS = 1e6, LARGEST = 2 ** 53;
const FIELDS = ["network", "device", "link", "latency", "dtype", "method", "software", "ppp_comp",
  "ppp_comm", "batch", "scaling", "workers", "collective", "inside", "per_node", "servers",
  "samples", "epochs", "price"];

function options(name, pairs) {
  field(name).replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
}

function fill() {
  options("network", data.models.map((model) => [model.name, model.name]));
  options("device", data.devices.map((device) => [device.name, device.name]));
  const links = data.links.map((link) =>
    [link.name, `${link.name} (${digits(link.bytes_per_s / 1e9)} GB/s)`]);
  options("link", links);
  options("inside", [["", "as between nodes"], ...links]);
  options("dtype", Object.keys(data.dtypes).map((name) => [name, name]));
  options("method", Object.keys(data.methods).map((name) => [name, name]));
  const shares = Object.entries(data.software).map(([name, [comp, comm]]) =>
    [name, name === "none" ? "none: the peaks are reached" : `${name} ${comp} / ${comm}`]);
  options("software", [...shares, [OWN, "own numbers"]]);
  const collectives = data.collectives.map((name) => [name, name]);
  options("collective", [[USUAL, "the method's own"], ...collectives]);
}

function put(values) {
  for (const name of FIELDS) {
    const control = field(name);
    control.value = values[name];
    if (control.tagName === "SELECT" && control.value !== values[name]) control.selectedIndex = -1;
  }
  showShares();
  showOnly();
}

function showShares() {
  const preset = data.software[field("software").value];
  if (preset) [field("ppp_comp").value, field("ppp_comm").value] = preset;
}

// Fields that the method or the collective does not use are away, and away from the address.
function showOnly() {
  const collective = field("collective").value;
  document.querySelectorAll("[data-only]").forEach((label) => {
    label.hidden = label.dataset.only !== collective;
  });
  byId("latency").hidden = data.methods[field("method").value]?.as_paleo ?? false;
}

const used = (name) => !field(name).closest("[hidden]");

function texts() {
  return Object.fromEntries(FIELDS.map((name) =>
    [name, used(name) ? field(name).value.trim() : data.start[name]]));
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
  const kept = FIELDS.filter((name) =>
    used(name) && values[name] !== "" && (!name.startsWith("ppp_") || values.software === OWN));
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

// `1,2,4`, `1..8`, `1..128 x2` or `1,2,4,...,128`, which goes on by adding or multiplying; sorted.
function workerList(text) {
  const found = [];
  const parts = text.split(",").map((part) => part.trim());
  parts.forEach((part, place) => {
    const range = /^(\d+)\.\.(\d+)(?:\s*([+x])(\d+))?$/.exec(part);
    if (range) found.push(...ranged(...range.slice(1)));
    else if (part !== "...") found.push(whole(part, "workers", MOST_WORKERS));
    else found.push(...between(found, whole(parts[place + 1] ?? "", "workers", MOST_WORKERS)));
  });
  if (found.length > MOST_ROWS) throw Error(`workers: at most ${MOST_ROWS} numbers`);
  found.sort((a, b) => a - b);
  const twice = found.find((n, place) => n === found[place - 1]);
  if (twice !== undefined) throw Error(`workers: ${twice} is given twice`);
  return found;
}

function ranged(from, to, how = "+", by = "1") {
  const [low, high, step] = [from, to, by].map((text) => whole(text, "workers", MOST_WORKERS));
  if (high < low || (how === "x" && step < 2)) {
    throw Error(`workers: '${cut(`${from}..${to} ${how}${by}`)}' is no range`);
  }
  const found = [];
  for (let n = low; n <= high; n = how === "x" ? n * step : n + step) {
    found.push(n);
    if (found.length > MOST_ROWS) throw Error(`workers: at most ${MOST_ROWS} numbers`);
  }
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
    latency_us: values.latency === "" ? null
      : take("latency", () => positive(values.latency, "latency", LARGEST)),
    per_node: take("per_node", () => whole(values.per_node, "devices a node", MOST_WORKERS)),
    servers: take("servers", () => whole(values.servers, "servers", MOST_WORKERS)),
    share: ["ppp_comp", "ppp_comm"].map((name) =>
      take(name, () => positive(values[name], name, 1))),
  };
  if (!network || !device || !link || !method || faults.length) return choice;
  choice.collective = values.collective === USUAL ? method.collective : values.collective;
  const latency_s = choice.latency_us === null ? link.latency_s : choice.latency_us * 1e-6;
  choice.fabric = {
    between: { ...link, latency_s }, inside: named(data.links, "inside") ?? null,
    per_node: choice.per_node, servers: choice.servers,
    share: choice.share[1], as_paleo: method.as_paleo,
    memory_bytes_per_s: link.measured ? null : device.memory_bytes_per_s,
  };
  choice.work = network.work[values.method]?.[data.dtypes[values.dtype]];
  choice.rates = device.rates[values.method][values.dtype];
  if (!choice.work) faults.push(["network", network.left_out[values.method]]);
  if (!choice.rates) {
    const wanted = method.as_paleo ? "float32" : values.dtype;
    faults.push(["device", `${device.name}: no peak is known for ${wanted}; `
      + `known: ${device.peaks.join(", ")}`]);
  }
  return choice;
}

let last = null; // the last good choice, its texts and its rows

function update(faults = []) {
  const values = texts();
  const choice = chosen(values, faults);
  if (!faults.length) {
    const { rows, refused } = scalingRows(choice);
    if (rows.length) {
      last = { choice, values, rows, refused };
      if (location.hash !== toFragment(values)) history.replaceState(null, "", toFragment(values));
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
    lines.push(last ? "What is shown is still the result of the choice before."
      : "There is no result yet.");
  }
  byId("errors").hidden = !faults.length;
  byId("errors").replaceChildren(...lines.map((line) => element("p", line)));
  byId("shown").classList.toggle("old", faults.length > 0 && last !== null);
  byId("headline").classList.toggle("old", faults.length > 0);
  byId("shown").hidden = last === null;
  const answer = last && {
    texts: last.values, collective: last.choice.collective, rows: last.rows,
    stops_paying: stopsPaying(last.rows, data.pays),
  };
  byId("result").textContent =
    JSON.stringify({ ...answer, old: faults.length > 0, faults: faults.map(([, text]) => text) });
}

function copy() {
  const button = byId("copy");
  const select = () => {
    getSelection().selectAllChildren(byId("command"));
    button.textContent = "Selected";
  };
  const done = () => { button.textContent = "Copied"; };
  const text = byId("command").textContent;
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, select);
  else select();
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

fill();
update(fromFragment());
form.addEventListener("input", (event) => {
  if (event.target.name === "software") showShares();
  if (event.target.name.startsWith("ppp_")) field("software").value = OWN;
  showOnly();
  update();
});
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", () => update(fromFragment()));
window.addEventListener("resize", () => { if (last) charts(last.rows, last.choice); });
byId("copy").addEventListener("click", copy);
