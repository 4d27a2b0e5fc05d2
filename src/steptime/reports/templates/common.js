"use strict";
// What the pages of choices and of plans share: the choice, words for numbers, tiles, tables, a line
// to copy. The choice lives in the form and in the address; what is shown of it was computed by Python.
const data = JSON.parse(byId("data").textContent);
const form = byId("choice");
const AXES = Object.keys(data.axes);
const FILTERS = data.filters ?? []; // numbers that hide rows
const field = (name) => form.elements.namedItem(name);
const chosen = () => Object.fromEntries(AXES.map((name) => [name, field(name).value]));
const filters = () => Object.fromEntries(FILTERS.map((name) => [name, field(name).value])
  .filter(([, value]) => value !== ""));
const fragment = (at) => `#${new URLSearchParams({ ...at, ...filters() })}`;
const keep = (values) => {
  if (location.hash !== fragment(values)) history.replaceState(null, "", fragment(values));
};

// Show the first choice, and again after each; what an address names that is not here is said.
function begin(update) {
  const fromFragment = () => {
    const faults = [];
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      if (data.axes[name]?.includes(value)) field(name).value = value;
      else if (FILTERS.includes(name) && Number(value) >= 0) field(name).value = value;
      else faults.push(`the address asks for ${cut(name)} '${cut(value)}', which this page has not`);
    }
    update();
    byId("errors").hidden = !faults.length;
    byId("errors").replaceChildren(...faults.map((text) => element("p", text)));
  };
  for (const name of AXES) field(name).value = data.start[name];
  fromFragment();
  form.addEventListener("input", () => { byId("errors").hidden = true; update(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", fromFragment);
  byId("copy").addEventListener("click", copy);
}

const short = (value) => seconds(Number(value.toPrecision(3)));
const span = (low, high) => `${short(low)} to ${short(high)}`;
const hoursText = (value) => (value >= 1000 ? grouped(value) : digits(value, 3));
const money = (value) => (value === null ? "no price" : `$${value < 1000 ? value.toFixed(2)
  : grouped(value)}`);
const cut = (text) => (text.length > 60 ? `${text.slice(0, 60)}...` : text);

function tiles(all) {
  byId("tiles").replaceChildren(...all.map(([name, value, below]) => {
    const tile = element("div");
    tile.append(element("dt", name), element("dd", value));
    if (below) tile.append(element("dd", below, { className: "quiet" }));
    return tile;
  }));
}

// Fill a table: a column is its heading and what it writes of a row; `mark` changes a made row.
function fill(place, columns, rows, mark) {
  const line = (cells, kind) => {
    const made = element("tr");
    made.append(...cells.map((text) => element(kind, text, { className: "number" })));
    return made;
  };
  place.tHead.replaceChildren(line(columns.map(([name]) => name), "th"));
  place.tBodies[0].replaceChildren(...rows.map((row) => {
    const made = line(columns.map(([, write]) => write(row)), "td");
    mark(made, row);
    return made;
  }));
  named(place);
}

// The first cell of a row leads to the choice of it; bad rows and the one chosen are marked.
function linked(made, at, isChosen) {
  const link = element("a", made.cells[0].textContent, { href: fragment(at) });
  made.cells[0].replaceChildren(link);
  made.classList.toggle("chosen", isChosen);
}

// Draw rows in their chart, which is hidden with less than so many.
function put(name, rows, least = 1, height = 0) {
  const place = byId(`chart-${name}`), spec = data.charts[name];
  place.parentElement.hidden = rows.length < least;
  if (place.parentElement.hidden) return;
  spec.data.values = rows;
  if (height) spec.height = height;
  if (place.redraw) place.redraw();
  else {
    place.parentElement.append(...downloads(name, spec));
    chart(place, spec);
  }
}

// Words as a shell takes them.
const quoted = (words) => words.map(String).map((word) =>
  (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");

function copy() {
  const button = byId("copy");
  const select = () => {
    getSelection().selectAllChildren(byId("command"));
    button.textContent = "Selected";
  };
  const done = () => { button.textContent = "Copied"; };
  if (navigator.clipboard) {
    navigator.clipboard.writeText(byId("command").textContent).then(done, select);
  } else select();
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}
