"use strict";
// Charts follow the room of their place and the colours that the reader's system asks for.
const looks = JSON.parse(document.getElementById("config").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const NARROW = 560, PANEL = 110; // pixels: of a phone, and of a panel's axis and gap

// A chart alone takes all the room; of panels as many stand side by side as there is room for.
function fitted(spec, room) {
  const panels = spec.concat ?? (spec.facet ? [spec.spec] : null);
  if (!panels) {
    return { ...spec, width: "container", autosize: { type: "fit-x", contains: "padding" } };
  }
  const width = Math.min(panels[0].width, room - PANEL);
  const columns = Math.max(1, Math.min(spec.columns, Math.floor(room / (width + 60))));
  const cells = panels.map((panel) => ({ ...panel, width }));
  return spec.concat ? { ...spec, columns, concat: cells } : { ...spec, columns, spec: cells[0] };
}

// Beside panels there is no room for a legend: it stands above them, on a phone below any chart.
function look(room, panels) {
  const look = looks[dark.matches ? "dark" : "light"];
  const legend = { ...look.legend, direction: "vertical", columns: 1, orient: "top" };
  if (room >= NARROW) return panels ? { ...look, legend } : look;
  Object.assign(legend, { orient: "bottom", labelLimit: room - PANEL });
  return { ...look, legend, axis: { ...look.axis, labelLimit: 180, tickCount: 4 } };
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
    const { view } = await vegaEmbed(place, fitted(spec, room), {
      renderer: "svg", ast: true, bind: controls, config: look(room, spec.facet), downloadFileName: place.id,
      actions: { export: true, source: false, compiled: false, editor: false },
      tooltip: { theme: dark.matches ? "dark" : "light" },
    });
    place.view = view;
    if (value !== null) await view.signal("network", value).runAsync();
  };
  place.redraw = draw;
  window.addEventListener("resize", draw);
  dark.addEventListener("change", draw);
  return draw();
}

// On a phone a row of a table is a card, in which each cell stands beside its heading.
function named(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, place) => { cell.dataset.name = names[place]; });
  }
}
