"use strict";
// What the page shows of a result: sentences, tiles, charts, table, command line and sources.
const TRAINED = { adam: "Adam", sgd: "SGD" };

// A step's seconds, and between which they lie: 80 % of what is measured, or a bound.
const within = (row) => (row.low_s === row.step_s ? `\u2265 ${seconds(row.step_s)}`
  : seconds(row.step_s));
const short = (value) => seconds(Number(value.toPrecision(2)));
const span = (row) => (row.high_s === null ? "" : `${short(row.low_s)} to ${short(row.high_s)}`);

function draw(choice, values, rows) {
  const most = rows.at(-1);
  const faster = most.workers > 1 ? `${digits(most.speedup, 3)} times as fast as one; ` : "";
  const cost = most.cost === null ? "" : ` and cost ${money(most.cost)}`;
  byId("headline").textContent = `${choice.network.name} on ${grouped(most.workers)} × `
    + `${choice.device.name}: ${faster}${digits(choice.epochs, 6)} `
    + `epoch${choice.epochs === 1 ? " takes" : "s take"} ${hoursText(most.hours)} hours${cost}`
    + `${most.fits ? "." : ", if the memory were large enough."}`;
  byId("headline").classList.toggle("bad", !most.fits);
  tiles([
    ["replicas", grouped(most.workers)], ["step", within(most), span(most)],
    ["speed-up", `${digits(most.speedup)}×`],
    ["examples/s", grouped(Number(most.samples_per_s.toPrecision(4)), 2)],
    ["hours", hoursText(most.hours)], ["cost", money(most.cost)],
  ]);
  byId("notes").replaceChildren(...notes(choice, values, rows).map(([text, bad]) =>
    element("li", text, bad ? "bad" : "")));
  charts(rows, choice);
  table(rows, choice);
  devicesTable(choice, values);
  byId("command").textContent = command(choice, values, rows);
  sources(choice, values);
  field("price").placeholder = choice.device.offer ? digits(choice.device.offer[0]) : "";
  byId("batch-label").textContent = choice.scaling === "weak" ? "Batch of each" : "Batch of all";
}

function charts(rows, choice) {
  const drawn = rows.map((row) => ({
    replicas: row.workers, speedup: row.speedup, hours: row.hours, cost: row.cost,
    forward: row.forward_s, backward: row.backward_s, update: row.update_s,
    exchange: row.comm_s[choice.collective],
  }));
  for (const [name, spec] of Object.entries(data.charts)) {
    const place = byId(`chart-${name}`);
    const line = name === "speedup" || name === "hours"; // one point is no line
    place.parentElement.hidden = line ? rows.length < 2 : name === "cost" && choice.price === null;
    if (place.parentElement.hidden) continue;
    spec.data.values = drawn;
    if (place.view) place.view.data("rows", structuredClone(drawn)).runAsync();
    else if (place.redraw) place.redraw();
    else {
      place.parentElement.append(...downloads(name, spec));
      chart(place, spec);
    }
  }
}

function notes(choice, values, rows) {
  const { device, link, inside, method, network } = choice;
  const found = [];
  const most = rows.at(-1), count = most.batch_per_worker;
  const has = device.memory_bytes === null ? `; the memory of ${device.name} is not known`
    : `, ${device.name} has ${prefixed(device.memory_bytes, "B")}`;
  found.push([`a replica needs ${prefixed(most.peak_memory_bytes + device.held_bytes, "B")} for `
    + `${grouped(count)} example${count > 1 ? "s" : ""} in ${choice.dtype} with ${TRAINED[choice.optimizer]}${has}`
    + (most.fits ? "" : ": it does not fit"), !most.fits]);
  if (!method.cells.includes(choice.asked)) {
    found.push([`${values.method} is not listed for ${choice.asked.split(" ")[0]}: shown in `
      + `${choice.dtype}; the method analytic has all types`, true]);
  } else if (choice.cell !== choice.asked) {
    found.push([`${device.name} has no peak for ${choice.asked.split(" ")[0]} (known: `
      + `${Object.keys(device.peaks).join(", ")}): shown in ${choice.dtype}`, true]);
  }
  const large = rows.filter((row) => !row.fits).map((row) => grouped(row.workers));
  if (large.length) {
    found.push([`does not fit with ${large.join(", ")} replica${large.at(-1) === "1" ? "" : "s"}: `
      + "the times are those that it would take", true]);
  }
  const refused = choice.replicas.filter((n) => !rows.some((row) => row.workers === n));
  if (refused.length) {
    found.push([`${refused.join(", ")} replicas cannot share a batch of ${grouped(choice.batch)} `
      + "examples: left out", true]);
  }
  const shares = new Set(rows.map((row) => row.batch_per_worker));
  const open = [...shares].filter((batch) => !data.batches.includes(batch));
  if (open.length) {
    found.push([`batch ${open.join(", ")}: not listed, so times lie between those of its listed `
      + "neighbours (on a line of the logarithms)"]);
  }
  const pays = stopsPaying(rows);
  if (pays !== null) {
    found.push([`stops paying at ${grouped(pays)} replicas: from the row before, throughput grows `
      + `less than ${digits(data.pays)} times as much as the number of replicas`]);
  }
  const uneven = rows.filter((row) => row.global_batch < row.workers * row.batch_per_worker);
  if (uneven.length) {
    found.push([`${uneven.map((row) => row.workers).join(", ")} replicas do not divide the batch `
      + "evenly: the step is that of the largest share"]);
  }
  if (most.high_s !== null) {
    found.push([`${span(most)}: where 80 % of measured steps lie`]);
  }
  if (device.hosted && choice.share[0] < 1) {
    found.push(["the share of compute divides the host's part of a step, too: an upper limit"]);
  }
  for (const one of method.as_paleo ? [] : new Set([link, inside ?? link])) {
    if (one.latency_s === null && (one !== link || choice.latency_us === null)) {
      found.push([`${one.name}: no latency is known, so none is counted`]);
    }
  }
  if (method.as_paleo) {
    found.push(["Paleo's rules know no latency, no type but float32 and no optimizer but SGD"]);
  }
  for (const text of [...device.notes[values.method], ...network.notes[values.method]]) {
    found.push([text]);
  }
  const figures = new Set(["memory_GB", "memory_GB_per_s", "clock_MHz", "launch_us", "GB_per_s",
    "latency_us", choice.dtype.replace("-mixed", "")]);
  for (const one of [device, link]) {
    const wanted = one.unverified.filter((figure) => figures.has(figure));
    if (wanted.length) found.push([`${one.name}: to be verified: ${wanted.join(", ")}`]);
  }
  return found;
}

function table(rows, choice) {
  const most = rows.at(-1);
  const columns = [
    ["replicas", (row) => grouped(row.workers)],
    ["batch of all", (row) => grouped(row.global_batch)],
    ["forward", (row) => seconds(row.forward_s)], ["backward", (row) => seconds(row.backward_s)],
    ["update", (row) => seconds(row.update_s)],
    ["exchange", (row) => seconds(row.comm_s[choice.collective])],
    ["step", within],
    ...(most.high_s === null ? [] : [["from", (row) => short(row.low_s)],
      ["to", (row) => short(row.high_s)]]),
    ["speed-up", (row) => digits(row.speedup)],
    ["efficiency", (row) => `${digits(100 * row.efficiency, 3)} %`],
    ["hours", (row) => hoursText(row.hours)],
    ...(choice.price === null ? [] : [["cost", (row) => money(row.cost)]]),
    ["memory", (row) => (row.fits ? "" : "\u2715 ") + prefixed(row.peak_memory_bytes, "B")],
  ];
  fill(byId("rows"), columns, rows, (made, row) => made.classList.toggle("bad", !row.fits));
}

function devicesTable(choice, values) {
  const rows = deviceRows(choice, values.sort);
  const known = (name) => rows.some((row) => row[name] !== null);
  const columns = [
    ["device", (row) => row.device.name], ["batch", (row) => grouped(row.batch)],
    ["step", within],
    ...(known("high_s") ? [["from", (row) => (row.high_s === null ? "" : short(row.low_s))],
      ["to", (row) => (row.high_s === null ? "" : short(row.high_s))]] : []),
    ["examples/s", (row) => grouped(Number(row.samples_per_s.toPrecision(3)))],
    ["hours", (row) => hoursText(row.hours)],
    ["cost", (row) => (row.cost === null ? "" : money(row.cost))],
    ...(known("energy") ? [["kWh", (row) => (row.energy === null ? ""
      : grouped(Number(row.energy.toPrecision(3)), 2))]] : []),
    ["memory", (row) => prefixed(row.memory, "B")],
  ];
  fill(byId("devices"), columns, rows, (made, row) => {
    const link = element("a", row.device.name);
    link.href = toFragment({ ...values, device: row.device.name, price: "" });
    made.cells[0].replaceChildren(link);
    made.classList.toggle("chosen", row.device === choice.device);
  });
  const names = (fits) => data.devices.filter((_, place) => choice.work.best[place] < 0
    && (choice.work.at[place] >= 0) === fits).map((one) => one.name);
  byId("unfit").replaceChildren(...[["It does not fit", names(true)],
    [`No peak is known for ${choice.dtype}`, names(false)]].filter(([, some]) => some.length)
    .map(([what, some]) => element("p", `${what}: ${some.join(", ")}.`, "quiet")));
}

function command(choice, values, rows) {
  const words = ["steptime", "scale", choice.network.name, "--device", choice.device.text,
    "--link", choice.link.name, "--batch", choice.batch,
    "--replicas", rows.map((row) => row.workers).join(","), "--scaling", choice.scaling,
    "--collective", choice.collective, "--method", values.method,
    "--dtype", choice.dtype, "--optimizer", choice.optimizer];
  if (choice.latency_us !== null) words.push("--latency-us", values.latency);
  if (choice.inside) words.push("--inside", choice.inside.name);
  for (const name of Object.keys(data.layout)) {
    if (values[name] !== data.start[name]) words.push(`--${name.replaceAll("_", "-")}`, values[name]);
  }
  ["ppp_comp", "ppp_comm"].forEach((name, place) => {
    if (choice.share[place] !== 1) words.push("--option", `${name}=${values[name]}`);
  });
  words.push("--samples", choice.samples, "--epochs", values.epochs);
  if (choice.price !== null) words.push("--price", choice.price);
  return quoted([...words, "--json"]);
}

function sources(choice, values) {
  const { device, link, method } = choice;
  const peaks = Object.entries(device.peaks).map(([name, peak]) => `${name} ${digits(peak)}`);
  const lines = [
    ["method", `${values.method} ${method.version}; share of compute ${values.ppp_comp}, of the `
      + `link ${values.ppp_comm}; collective ${choice.collective}`],
    ["step", `training with ${TRAINED[choice.optimizer]}, ${choice.dtype}, data parallel; `
      + `${grouped(choice.work.parameters)} parameters, `
      + `${prefixed(choice.work.gradient_bytes, "B")} of gradients exchanged after the backward pass`],
    ["device", `${device.name}: TFLOP/s ${peaks.join(", ")}; `
      + `${digits(device.memory_bytes_per_s / 1e9)} GB/s. ${device.source}`],
    ...(choice.own_price === null && device.offer
      ? [["price", `$${device.offer[0]} a device-hour unless told: ${device.offer[1]}`]] : []),
    ["link", `${link.name}: ${digits(link.bytes_per_s / 1e9)} GB/s. ${link.source}`],
  ];
  byId("sources").replaceChildren(...lines.map(([name, text]) => {
    const made = document.createElement("tr");
    made.append(Object.assign(element("th", name), { scope: "row" }), element("td", text));
    return made;
  }));
}

let last = null; // the last good choice, its texts and its rows

function update(faults = []) {
  const values = texts();
  const choice = chosen(values, faults);
  const rows = faults.length ? [] : scalingRows(choice);
  if (rows.length) {
    last = { choice, values, rows };
    if (location.hash !== toFragment(values)) history.replaceState(null, "", toFragment(values));
    byId("shown").hidden = false;
    draw(choice, values, rows);
  } else if (!faults.length) {
    faults.push(["replicas", `${choice.replicas.join(", ")} replicas cannot share a batch`]);
  }
  for (const name of FIELDS) {
    const wrong = faults.some(([at]) => at === name);
    field(name).classList.toggle("wrong", wrong);
    field(name).setAttribute("aria-invalid", String(wrong));
  }
  const lines = faults.map(([, text]) => text);
  const after = last ? "What is shown is still the result of the choice before."
    : "There is no result yet.";
  byId("errors").hidden = !faults.length;
  byId("errors").replaceChildren(...lines.concat(after).map((line) => element("p", line)));
  for (const id of ["shown", "headline"]) byId(id).classList.toggle("old", faults.length > 0);
  byId("shown").hidden = last === null;
  const answer = last && {
    texts: last.values, collective: last.choice.collective, dtype: last.choice.dtype,
    rows: last.rows, stops_paying: stopsPaying(last.rows),
  };
  byId("result").textContent =
    JSON.stringify({ ...answer, old: faults.length > 0, faults: lines });
}

// A first address that cannot be shown does not empty the page: the usual choice stands beside.
function open() {
  const faults = fromFragment();
  const wrong = faults.length || (chosen(texts(), faults), faults.length);
  if (!wrong) return update();
  const asked = texts();
  put(data.start);
  update();
  put(asked);
  return update(fromFragment());
}

open();
form.addEventListener("input", (event) => {
  if (event.target.name === "software") showShares();
  if (event.target.name.startsWith("ppp_")) field("software").value = OWN;
  showOnly();
  update();
});
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", () => update(fromFragment()));
byId("copy").addEventListener("click", copy);
