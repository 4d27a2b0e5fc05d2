"use strict";
// The choice lives in the form and in the address. Times of a step are looked up in what Python
// computed; here they are only joined: exchange, speed-up, hours, cost.
const data = JSON.parse(byId("data").textContent);
const form = byId("choice");
const field = (name) => form.elements.namedItem(name);
const planes = new Uint8Array(byId("times").bytes);
const times = numbers(planes.subarray(0, 4 * data.numbers));
const bounds = planes.subarray(4 * data.numbers); // how far a step's bounds are, in logarithms
const FIELDS = Object.keys(data.start);
const USUAL = "usual", OWN = "own", LARGEST = 2 ** 53;

// The numbers of four planes: the least bytes of all of them, then the next, ...
function numbers(planes) {
  const count = planes.length / 4;
  return new Float32Array(planes.map((_, at) => planes[(at % 4) * count + (at >> 2)]).buffer);
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
  const shown = [field("collective").value, field("method").value];
  document.querySelectorAll("[data-only]").forEach((label) => {
    label.hidden = !label.dataset.only.split(" ").some((one) => shown.includes(one));
  });
  byId("latency").hidden = data.methods[field("method").value]?.as_paleo ?? false;
}

const used = (name) => !field(name).closest("[hidden]");
const texts = () => Object.fromEntries(FIELDS.map((name) =>
  [name, used(name) ? field(name).value.trim() : data.start[name]]));

// The fragment, `#network=resnet50&device=K80&...`; a name may be short or in other letters.
function fromFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  const values = { ...data.start };
  const faults = [];
  for (const [name, text] of given) {
    const known = name === "workers" ? "replicas" : name; // an address of an older page: 1,2,...,8
    if (!FIELDS.includes(known)) faults.push([null, `the address has no '${cut(name)}'`]);
    else values[known] = spelled(known, known === "replicas" ? text.split(",").at(-1) : text);
  }
  const shares = given.has("ppp_comp") || given.has("ppp_comm");
  if (shares && !given.has("software")) values.software = OWN;
  put(values);
  for (const name of FIELDS) {
    if (field(name).tagName === "SELECT" && field(name).selectedIndex < 0) {
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
  return [...field(name).options].find((one) => one.value.toLowerCase() === wanted)?.value ?? text;
}

function toFragment(values) {
  const kept = FIELDS.filter((name) =>
    used(name) && values[name] !== "" && (!name.startsWith("ppp_") || values.software === OWN));
  return `#${new URLSearchParams(kept.map((name) => [name, values[name]]))}`;
}

// A number from text; a fault is thrown as a sentence.
function read(text, what, { most = LARGEST, whole = false } = {}) {
  const form = whole ? /^\d{1,16}$/ : /^(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?$/;
  const value = form.test(text) ? Number(text) : NaN;
  if (!(value > 0 && value <= most)) {
    const range = whole ? `a whole number from 1 to ${grouped(most)}`
      : `a number above 0${most < LARGEST ? ` and at most ${most}` : ""}`;
    throw Error(`${what}: must be ${range}, not '${cut(text)}'`);
  }
  return value;
}

// What the texts choose, checked; every fault is pushed as [field, sentence].
function chosen(values, faults) {
  const number = (name, what, limits) => {
    try {
      return read(values[name], what, limits);
    } catch (error) {
      faults.push([name, error.message]);
      return null;
    }
  };
  const named = (list, name) => list.find((one) => one.name === values[name]);
  const choice = {
    network: named(data.models, "network"), device: named(data.devices, "device"),
    link: named(data.links, "link"), inside: named(data.links, "inside") ?? null,
    method: data.methods[values.method], scaling: values.scaling,
    batch: number("batch", "batch", { whole: true, most: data.batches.at(-1) }),
    samples: number("samples", "examples", { whole: true }),
    epochs: number("epochs", "epochs"),
    own_price: values.price === "" ? null : number("price", "price"),
    latency_us: values.latency === "" ? null : number("latency", "latency"),
    share: ["ppp_comp", "ppp_comm"].map((name) => number(name, name, { most: 1 })),
  };
  if (faults.length) return choice;
  const { network, device, method } = choice;
  choice.place = data.devices.indexOf(device);
  choice.price = choice.own_price ?? device.offer?.[0] ?? null;
  choice.collective = values.collective === USUAL ? method.collective : values.collective;
  const asked = method.as_paleo ? method.cells[0] : `${values.dtype} ${values.optimizer}`;
  const cells = network.steps[values.method];
  if (!cells) {
    faults.push(["network", network.left_out[values.method]]);
    return choice;
  }
  const order = [...method.cells].sort((a, b) => // of the asked optimizer first
    b.endsWith(` ${values.optimizer}`) - a.endsWith(` ${values.optimizer}`));
  choice.cell = [asked, ...order].find((name) => cells[name]?.at[choice.place] >= 0);
  if (!choice.cell) faults.push(["device", `${device.name}: no peak is known for any listed type`]);
  else choice.work = cells[choice.cell];
  choice.asked = asked;
  [choice.dtype, choice.optimizer] = choice.cell?.split(" ") ?? [];
  const at = (name) => data.layout[name].indexOf(Number(values[name]));
  choice.layout = (((choice.inside ? 1 : 0) * data.layout.per_node.length + at("per_node"))
    * data.layout.links_per_node.length + at("links_per_node")) * data.layout.servers.length
    + at("servers");
  const most = Number(values.replicas);
  choice.replicas = data.replicas.filter((n) => n === most || (n < most && !(n & (n - 1))));
  return choice;
}

// The value at a batch: exact where it is listed, else on a line between its neighbours, of the
// logarithms for times.
function between(values, batch, log) {
  const after = data.batches.findIndex((one) => one >= batch);
  const x = data.batches[after], low = data.batches[after - 1];
  if (x === batch) return values[after];
  const [a, b] = [values[after - 1], values[after]];
  if (!log || !(a > 0)) return a + (b - a) * (batch - low) / (x - low);
  return a * (b / a) ** (Math.log(batch / low) / Math.log(x / low));
}

function parts(choice, batch, place = choice.place) {
  const start = choice.work.at[place], last = choice.work.update[place];
  const at = (place) => between(times.subarray(place), batch, true);
  const hosted = choice.method.hosted || data.devices[place].hosted;
  const update = hosted ? at(last) : times[last];
  const [share] = choice.share;
  const backward = at(start + data.batches.length) / share;
  return [at(start) / share, backward, update / (choice.method.as_paleo ? 1 : share)];
}

// The least and the most seconds of a step of one device: alone a lower bound has no other.
function ends(choice, batch, step_s, place = choice.place) {
  const start = choice.work.ends[place];
  if (start < 0) return [step_s, null];
  const at = (i) => between(bounds.subarray(i), batch, false) / data.ends_per_e;
  return [step_s * Math.exp(-at(start)), step_s * Math.exp(at(start + data.batches.length))];
}

// Seconds of an exchange from its coefficients, which `explore_data.coefficients` explains.
function exchange(name, n, choice) {
  const { tables, of } = choice.method.exchanges[name];
  const [far, near, added, ...moved] = tables[of[choice.layout]][data.replicas.indexOf(n)];
  const { link, device, work } = choice, inside = choice.inside ?? link;
  const latency = choice.latency_us === null ? link.latency_s ?? 0 : choice.latency_us * 1e-6;
  const rate = choice.method.as_paleo ? "bytes_per_s" : "reached_bytes_per_s";
  let slowest = 0;
  for (let i = 0; i < moved.length; i += 2) {
    slowest = Math.max(slowest, moved[i] / link[rate] + moved[i + 1] / inside[rate]);
  }
  const moved_s = far * latency + near * (choice.inside ? inside.latency_s ?? 0 : latency)
    + work.gradient_bytes * slowest / choice.share[1]
    + (link.adds ? work.gradient_bytes * added / device.memory_bytes_per_s : 0);
  return moved_s + (moved_s && !Object.keys(link.measured).length ? choice.method.start_s : 0);
}

function scalingRows(choice) {
  const { device, method, batch } = choice;
  const row = (n, examples) => {
    const [forward_s, backward_s, update_s] = parts(choice, examples);
    const comm_s = Object.fromEntries(Object.keys(method.exchanges).map((name) =>
      [name, exchange(name, n, choice)]));
    const compute_s = forward_s + backward_s + update_s;
    const step_s = compute_s + comm_s[choice.collective];
    const [low_s, high_s] = ends(choice, examples, compute_s)
      .map((end) => end && end + comm_s[choice.collective]);
    const global_batch = choice.scaling === "weak" ? n * examples : batch;
    const memory = choice.network.memory[`${choice.dtype} ${choice.optimizer}`];
    const peak_memory_bytes = Math.round(between(memory, examples, false));
    return {
      workers: n, global_batch, batch_per_worker: examples, forward_s, backward_s, update_s,
      compute_s, comm_s, step_s, low_s, high_s,
      samples_per_s: global_batch / step_s, peak_memory_bytes,
      fits: device.memory_bytes === null
        || peak_memory_bytes + device.held_bytes <= device.memory_bytes,
    };
  };
  const alone = row(1, batch);
  const possible = choice.replicas.filter(
    (n) => choice.scaling === "weak" || n <= batch || method.as_paleo);
  return possible.map((n) => {
    const found = row(n, choice.scaling === "weak" ? batch : Math.ceil(batch / n));
    const speedup = found.samples_per_s / alone.samples_per_s;
    const epoch_s = choice.samples / found.global_batch * found.step_s;
    const train_s = choice.epochs * epoch_s, device_hours = train_s / 3600 * n;
    return {
      ...found, speedup, efficiency: speedup / n, epoch_s, train_s, hours: train_s / 3600,
      device_hours, cost: choice.price === null ? null : choice.price * device_hours,
    };
  });
}

// Each device alone, at the batch that Python found to be its best, as `steptime choose` has it.
function deviceRows(choice, sort) {
  const { samples, epochs, work, network } = choice;
  const memory = network.memory[`${choice.dtype} ${choice.optimizer}`];
  const rows = data.devices.flatMap((device, place) => {
    const best = work.best[place];
    if (best < 0) return [];
    const batch = data.batches[best];
    const step_s = parts(choice, batch, place).reduce((sum, part) => sum + part);
    const [low_s, high_s] = ends(choice, batch, step_s, place);
    const steps = epochs * samples / batch, hours = steps * step_s / 3600;
    const joules = work.ends[place] < 0 ? 0 : times[work.at[place] + 2 * data.batches.length];
    return [{
      device, batch, step_s, low_s, high_s, samples_per_s: batch / step_s, hours,
      cost: device.offer && device.offer[0] * hours, energy: joules * steps / 3.6e6 || null,
      memory: memory[best],
    }];
  });
  const of = (row) => row[sort] ?? Infinity; // what is not known comes last
  return rows.sort((a, b) => (of(a) === of(b) ? 0 : of(a) - of(b)));
}

// The first number of replicas that is not worth its devices, as scaling.stops_paying has it.
function stopsPaying(rows) {
  const worth = (few, many) => many.samples_per_s / few.samples_per_s - 1
    >= data.pays * (many.workers / few.workers - 1);
  return rows.find((row, place) => place > 0 && !worth(rows[place - 1], row))?.workers ?? null;
}
