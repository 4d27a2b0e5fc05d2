"use strict";
// What every page has: parts of it, words for numbers, and charts, which follow the room of their
// place and the colours that the reader's system asks for.
const byId = (id) => document.getElementById(id);
const element = (name, text, more = {}) =>
  Object.assign(document.createElement(name), { textContent: text ?? "" }, more);
const looks = JSON.parse(byId("config").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const NARROW = 560, NAMES = 150; // pixels: of a phone, and of names there
const LEAST = 80, PANEL = 110; // pixels of a panel, and of its axis and gap, mostly

// A chart alone takes all the room; of panels as many stand side by side as there is room for.
function fitted(whole, room, less) {
  const spec = room < NARROW ? narrow(whole) : whole;
  if (several(spec)) return panelled(spec, room, less);
  return {
    ...spec, ...stepped(spec), width: "container", autosize: { type: "fit-x", contains: "padding" },
  };
}

const several = (spec) => spec.vconcat || spec.hconcat || spec.concat || spec.facet;

// Each panel is `less` pixels narrower than there would be room for.
function panelled(spec, room, less) {
  if (spec.vconcat) {
    return { ...spec, vconcat: spec.vconcat.map((one) => panelled(one, room, less)) };
  }
  if (spec.hconcat) {
    const { hconcat, ...rest } = spec;
    return panelled({ ...rest, concat: hconcat, columns: hconcat.length }, room, less);
  }
  const panels = spec.concat ?? (spec.facet ? [spec.spec] : [spec]);
  const own = panels[0].width ?? panels[0].vconcat?.[0].width ?? room;
  const width = Math.max(LEAST, Math.min(own, room - PANEL) - less);
  const columns = Math.max(1, Math.min(spec.columns ?? 1, Math.floor(room / (width + 60))));
  const sized = ({ vconcat, title, ...panel }) => ({
    ...panel, ...(title && { title: { ...title, limit: room - PANEL } }),
    ...(vconcat ? { vconcat: vconcat.map(sized) } : { width }),
  });
  const cells = panels.map(sized);
  if (spec.concat) return { ...spec, columns, concat: cells };
  if (!spec.facet) return cells[0];
  const limit = spec.facet.header?.labelLimit;
  const header = { ...spec.facet.header, labelLimit: Math.min(limit ?? room, room - PANEL - less) };
  return { ...spec, columns, facet: { ...spec.facet, header }, spec: cells[0] };
}

// On a phone the entries of a legend stand one below the other, and names leave room for the rest.
function narrow({ data, ...spec }) {
  const told = (key, value) => {
    if (key === "axis" && value?.labelLimit > NAMES) return { ...value, labelLimit: NAMES };
    if (key === "minExtent") return Math.min(value, NAMES);
    return key === "legend" && value ? { ...value, columns: 1 } : value;
  };
  return { ...JSON.parse(JSON.stringify(spec, told)), ...(data && { data }) };
}

// Rows of so many pixels each are a height: Vega fits nothing beside a height that it finds itself.
function stepped(spec) {
  const y = spec.encoding?.y ?? spec.layer?.find((one) => one.encoding?.y?.field)?.encoding.y;
  if (!spec.height?.step || !y) return {};
  return { height: spec.height.step * new Set(spec.data.values.map((row) => row[y.field])).size };
}

// Beside panels there is no room for a legend: it stands above them, on a phone below any chart.
function look(room, panels, less) {
  const look = looks[dark.matches ? "dark" : "light"];
  const legend = { ...look.legend, direction: "vertical", columns: 1 };
  legend.orient = panels?.vconcat ? "bottom" : "top";
  if (room >= NARROW) return panels ? { ...look, legend } : look;
  Object.assign(legend, { orient: "bottom", labelLimit: room - PANEL - less });
  const middle = "slice(datum.label, 0, 5) + '\u2026' + slice(datum.label, -14)";
  const axisDiscrete = { labelExpr: `length(datum.label) > 22 ? ${middle} : datum.label` };
  return { ...look, legend, axis: { ...look.axis, labelLimit: NAMES, tickCount: 4 }, axisDiscrete };
}

// Draw a chart now, and again whenever its room or the colours change; `ast` keeps Vega from
// compiling code from text, which the page's policy forbids.
function chart(place, spec, controls) {
  let drawn = null;
  const draw = async () => {
    const room = place.clientWidth, state = `${room} ${dark.matches}`;
    if (!room || drawn === state) return;
    drawn = state;
    const value = place.view?.signal && spec.params ? place.view.signal("network") : null;
    place.view?.finalize();
    const { title, config, ...untitled } = spec; // a heading and looks, which the page has
    const embedded = async (less) => {
      const { view } = await vegaEmbed(place, fitted(untitled, room, less), {
        renderer: many(spec) ? "canvas" : "svg", ast: true, bind: controls, actions: false,
        config: look(room, several(spec) && spec, less),
        tooltip: { theme: dark.matches ? "dark" : "light" },
      });
      const over = Math.ceil(place.querySelector("svg, canvas").getBoundingClientRect().width - room);
      if (over <= 0 || less > NAMES / 2 || !several(spec)) return view;
      view.finalize(); // names took more room than most do
      return embedded(less + over + 4);
    };
    const view = place.view = await embedded(0);
    if (value !== null) await view.signal("network", value).runAsync();
  };
  place.redraw = () => { drawn = null; return draw(); };
  window.addEventListener("resize", draw);
  dark.addEventListener("change", draw);
  return draw();
}

// Of many marks a picture of pixels is drawn faster and scrolls better.
const many = (spec) => (spec.data?.values ?? []).length > 1500;

// Buttons that save a chart as a figure that stands alone: light, with its title and its source.
function downloads(name, spec) {
  return ["svg", "png"].map((format) => {
    const button = element("button", format.toUpperCase(), { type: "button", className: "save" });
    button.setAttribute("aria-label", `Save this figure as ${format.toUpperCase()}`);
    button.addEventListener("click", async () => {
      const place = document.createElement("div");
      const alone = { ...spec, config: looks.light };
      const { view } = await vegaEmbed(place, alone, { ast: true, actions: false });
      const link = document.createElement("a");
      link.download = `${name.replace("plot-", "")}.${format}`;
      link.href = await view.toImageURL(format, 2);
      view.finalize();
      link.click();
    });
    return button;
  });
}

// Words for numbers, as units.py writes them.
const digits = (value, count = 4) => String(Number(value.toPrecision(count)));
const STEPS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const SMALL = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
function prefixed(value, unit, steps = STEPS) {
  const [factor, prefix] = steps.find(([least]) => Math.abs(value) >= least) ?? steps.at(-1);
  return `${digits(value / factor)} ${prefix}${unit}`;
}
const seconds = (value) => (value ? prefixed(value, "s", SMALL) : "0 s");
const grouped = (value, most = 0) => value.toLocaleString("en", { maximumFractionDigits: most });

// On a phone a row of a table is a card, in which each cell stands beside its heading.
function named(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, place) => { cell.dataset.name = names[place]; });
  }
}
