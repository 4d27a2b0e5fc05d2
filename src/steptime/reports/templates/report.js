"use strict";
const { columns, networks, specs, samples, kinds } = JSON.parse(byId("report").textContent);

// Charts are drawn when they come into sight, the others while the reader reads.
const drawing = new Map();
function draw(place) {
  if (!drawing.has(place)) {
    const spec = specs[place.id.replace("plot-", "")];
    const controls = element("div");
    place.before(controls);
    place.parentElement.append(...downloads(place.id, spec));
    drawing.set(place, chart(place, spec, controls).catch((error) => {
      place.textContent = `This plot could not be drawn: ${error.message}`;
      throw error;
    }));
  }
  return drawing.get(place);
}
const pause = () => new Promise((done) => { setTimeout(done); }); // what the reader does comes first
async function drawAll() {
  let failed = 0;
  for (const place of document.querySelectorAll("section .plot")) {
    await pause();
    await draw(place).catch(() => { failed += 1; });
  }
  document.body.dataset.plots = failed ? `${failed} failed` : "ready";
  document.body.dataset.drawn = performance.now().toFixed();
}
const near = new IntersectionObserver((seen) => seen.filter((one) => one.isIntersecting)
  .forEach((one) => draw(one.target).catch(() => {})), { rootMargin: "300px" });

// The table: rows are made of what is in sight of its filter, at first a few.
const FIRST = matchMedia("(max-width: 700px)").matches ? 6 : 25; // on a phone a row is a card
const table = byId("results"), words = byId("filter")?.elements.words;
let order = networks.map((_, row) => row), all = networks.length <= 2 * FIRST;
const texts = networks.map((_, row) => columns.filter(({ sort }) => !sort)
  .map(({ cells }) => cells[row]).join(" ").toLowerCase());
// A word is a part of what a row says, a number all of one of its numbers: 8 is not 80.
const has = (text, word) => (/^\d+$/.test(word) ? text.split(/[\s,]+/).includes(word)
  : text.includes(word));

function cell(column, row) {
  const { key, cells, sort } = column, text = cells[row];
  const made = element(column === columns[0] ? "th" : "td", "", { className: sort ? "number" : "" });
  made.dataset.name = column.heading;
  if (column === columns[0]) {
    made.scope = "row";
    made.append(element("a", text, { href: `#network=${encodeURIComponent(networks[row].name)}` }));
  } else if (text && key.endsWith("_fraction")) {
    made.append(element("span", text, { className: "bar" }));
    made.firstChild.style.setProperty("--filled", `${Math.min(100, 100 * sort[row])}%`);
  } else if (key === "status" && !text.startsWith("ok")) {
    made.append(element("span", text, { className: text === "not measured" ? "quiet" : "failed" }));
  } else made.textContent = text;
  return made;
}

function fill() {
  const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = order.filter((row) => asked.every((word) => has(texts[row], word)));
  const shown = all ? found : found.slice(0, FIRST);
  table.tBodies[0].replaceChildren(...shown.map((row) => {
    const made = element("tr");
    made.append(...columns.map((column) => cell(column, row)));
    return made;
  }));
  byId("filter").querySelector("output").textContent = found.length < networks.length
    ? `${grouped(found.length)} of ${grouped(networks.length)} networks`
    : `${grouped(networks.length)} network${networks.length === 1 ? "" : "s"}`;
  byId("more").hidden = shown.length === found.length;
  byId("more").textContent = `Show all ${grouped(found.length)}`;
}

// Rows without a value stay last, in either direction.
function sortBy(heading, { cells, sort }) {
  const descending = heading.getAttribute("aria-sort") === "ascending";
  table.querySelectorAll("thead th").forEach((one) => one.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const value = (row) => (sort ? sort[row] : cells[row] || null);
  const compare = (a, b) => (sort ? a - b : a.localeCompare(b, "en", { numeric: true }));
  order.sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    return descending ? compare(b, a) : compare(a, b);
  });
  fill();
}

if (table) {
  table.classList.toggle("many", columns.length > 11);
  table.tHead.rows[0].append(...columns.map((column) => {
    const made = element("th", "", { scope: "col", className: column.sort ? "number" : "" });
    made.append(element("button", column.heading, { type: "button", onclick: () => sortBy(made, column) }));
    return made;
  }));
  fill();
  words.addEventListener("input", fill);
  byId("filter").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => { all = true; fill(); });
  table.addEventListener("click", (event) => {
    if (getSelection().isCollapsed && !event.target.closest("a, button")) {
      event.target.closest("tbody tr")?.querySelector("a").click();
    }
  });
}

// One network, as the address says: `#network=` and its name.
const KINDS = { q: "quiet", d: "disturbed", w: "warm-up" };
const dialog = byId("network");

function facts(lines) {
  const made = element("table", "", { className: "facts" });
  lines.forEach(([name, value]) => {
    const row = made.insertRow();
    row.append(element("th", name, { scope: "row" }), element("td", value));
  });
  return made;
}

function strip({ at, values, kinds, slowest_s: slowest, number }, title) {
  const rows = values.map((value, place) => ({
    sample: (at ? at[place] : place) + 1, seconds: slowest * value / 65535,
    time: seconds(slowest * value / 65535), kind: KINDS[kinds[place]],
  }));
  const counts = Object.entries(KINDS).map(([letter, kind]) => [kind, kinds.split(letter).length - 1]);
  const which = at ? `${rows.length} of ${number} samples, the fastest and the slowest of each stretch`
    : `${number} samples`;
  const said = counts.filter(([, count]) => count).map(([kind, count]) => `${count} ${kind}`);
  return { caption: `Time of a step, in the order taken: ${which} (${said.join(", ")}).`,
    spec: { ...samples, title, data: { values: rows } } };
}

// Where the time goes: a bar for each kind of op, measured beside predicted where both are known.
function shares(found, title) {
  const rows = found.flatMap(([kind, ...sides]) => ["measured", "predicted"].map((side, at) => ({
    kind, side, share: sides[2 * at], seconds: sides[2 * at + 1],
  }))).filter(({ share }) => share !== null && Math.abs(share) > 0.0005).map((row) => ({
    ...row, of_the_step: `${(100 * row.share).toPrecision(3)} %`,
    time: row.seconds === null ? "" : seconds(row.seconds),
  }));
  return { caption: "Share of the step by kind of op; below, what no op accounts for.",
    spec: { ...kinds, title, data: { values: rows } } };
}

function opened() {
  const asked = new URLSearchParams(location.hash.slice(1)).get("network");
  const row = networks.findIndex(({ name }) => name === asked);
  if (row < 0) return dialog?.close();
  const one = networks[row], body = dialog.lastElementChild;
  const known = columns.slice(1).map(({ heading, cells }) => [heading, cells[row]])
    .filter(([, text]) => text);
  byId("network-name").textContent = one.name;
  body.replaceChildren(...(one.paragraphs ?? []).map((line) => element("p", line)));
  const drawn = [];
  const figures = { samples: one.samples && strip(one.samples, one.name),
    breakdown: one.kinds?.length && shares(one.kinds, one.name) };
  for (const [name, figure] of Object.entries(figures).filter(([, known]) => known)) {
    const made = element("figure"), place = element("div", "", { className: "plot", id: `of-${name}` });
    made.append(place, element("figcaption", figure.caption), ...downloads(name, figure.spec));
    body.append(made);
    drawn.push([place, figure.spec]);
  }
  body.append(facts([...known, ...(one.facts ?? [])]));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  drawn.forEach(([place, spec]) => chart(place, spec));
}
dialog?.addEventListener("close", () => {
  if (location.hash.startsWith("#network=")) history.replaceState(null, "", "#networks");
});
dialog?.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
window.addEventListener("hashchange", opened);

document.querySelectorAll("section > .wide table, details .wide table").forEach((one) => {
  if (one !== table) named(one);
});
document.querySelectorAll("#acceptance td, #acceptance-nodes td").forEach((cell) => {
  cell.classList.toggle("failed", ["fail", "not measured"].includes(cell.textContent));
});
document.querySelectorAll("section .plot").forEach((place) => near.observe(place));
opened();
document.body.dataset.opened = performance.now().toFixed(); // read by benchmarks/report_page.py
const plots = [drawAll()];
