"use strict";
// Small charts as SVG, drawn at the width of their place; text is set by textContent only.
const COLOURS = { forward: "#0072b2", backward: "#56b4e9", update: "#e69f00", exchange: "#d55e00" };
const HEIGHT = 250, LEFT = 58, RIGHT = 14, TOP = 12, BOTTOM = 44;

function shape(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// Powers of ten, or 1, 2, 5 of each where the range is short.
function logTicks(low, high) {
  const found = [];
  const factors = high / low < 30 ? [1, 2, 5] : [1];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1e-9; power += 1) {
    for (const factor of factors) found.push(Number(`${factor}e${power}`));
  }
  const inside = found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  const every = Math.ceil(inside.length / 7);
  return inside.filter((_, index) => index % every === 0);
}

function linearTicks(high) {
  const rough = high / 4;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * unit >= rough) * unit;
  return Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, index) => index * step);
}

function frame(place, label, width, ticks, y, written) {
  const height = HEIGHT;
  const svg = shape(document.createElement("div"), "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  place.replaceChildren(svg);
  for (const tick of ticks) {
    const at = { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) };
    shape(svg, "line", { ...at, stroke: "#e4e4e4" });
    shape(svg, "text", { x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end" }, written(tick));
  }
  shape(svg, "text", { x: (LEFT + width - RIGHT) / 2, y: height - 6, "text-anchor": "middle" },
    "workers");
  return svg;
}

// Numbers of workers under the axis from the last on, those that would touch left out.
function names(svg, rows, x) {
  let free = Infinity;
  for (const row of [...rows].reverse()) {
    const text = row.workers.toLocaleString("en");
    const half = text.length * 3.7;
    if (x(row) + half > free) continue;
    shape(svg, "text", { x: x(row), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, text);
    free = x(row) - half - 6;
  }
}

// A line over workers, both axes logarithmic; `ideal` of a row is drawn dashed.
function lineChart(place, label, rows, value, written, ideal) {
  const width = Math.max(240, place.clientWidth);
  const all = rows.flatMap((row) => (ideal ? [value(row), ideal(row)] : [value(row)]));
  let low = Math.min(...all), high = Math.max(...all);
  if (high / low < 1.5) [low, high] = [low / 1.3, high * 1.3];
  const first = rows[0].workers, last = rows.at(-1).workers;
  const across = width - LEFT - RIGHT - 24;
  const x = (row) => LEFT + 12 + (first === last ? across / 2
    : across * Math.log(row.workers / first) / Math.log(last / first));
  const y = (v) => HEIGHT - BOTTOM
    - (HEIGHT - BOTTOM - TOP) * Math.log(v / low) / Math.log(high / low);
  const svg = frame(place, label, width, logTicks(low, high), y, written);
  const path = (of) => rows.map((row) => `${x(row)},${y(of(row))}`).join(" ");
  if (ideal) {
    shape(svg, "polyline", { points: path(ideal), fill: "none", stroke: "#8a8a8a",
      "stroke-width": 1.5, "stroke-dasharray": "5 4" });
  }
  shape(svg, "polyline",
    { points: path(value), fill: "none", stroke: COLOURS.forward, "stroke-width": 2.5 });
  for (const row of rows) {
    const dot = shape(svg, "circle",
      { cx: x(row), cy: y(value(row)), r: 4.5, fill: COLOURS.forward });
    shape(dot, "title", {}, `${row.workers} workers: ${written(value(row))}`);
  }
  names(svg, rows, x);
}

// Bars over workers, one upon another: `parts` gives [name, value] of a row, first one lowest.
function barChart(place, label, rows, parts, written) {
  const width = Math.max(240, place.clientWidth);
  const whole = (row) => parts(row).reduce((sum, [, value]) => sum + value, 0);
  const high = Math.max(...rows.map(whole)) * 1.04;
  const band = (width - LEFT - RIGHT) / rows.length;
  const x = (row) => LEFT + band * (rows.indexOf(row) + 0.5);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / high;
  const svg = frame(place, label, width, linearTicks(high), y, written);
  const bar = Math.min(44, band * 0.7);
  for (const row of rows) {
    let from = 0;
    for (const [name, value] of parts(row)) {
      const drawn = shape(svg, "rect", { x: x(row) - bar / 2, y: y(from + value), width: bar,
        height: y(from) - y(from + value), fill: COLOURS[name] ?? COLOURS.forward });
      shape(drawn, "title", {}, `${row.workers} workers, ${name}: ${written(value)}`);
      from += value;
    }
  }
  names(svg, rows, x);
  const listed = parts(rows[0]).map(([name]) => name);
  if (listed.length > 1) place.append(legend(listed));
}

function legend(listed) {
  const made = document.createElement("p");
  made.className = "legend";
  for (const name of listed) {
    const item = document.createElement("span");
    item.textContent = name;
    item.style.setProperty("--colour", COLOURS[name]);
    made.append(item);
  }
  return made;
}
