"use strict";
const plots = [...document.querySelectorAll(".plot")].map((place) => {
  const spec = JSON.parse(document.getElementById(place.id.replace("plot-", "spec-")).textContent);
  const controls = document.createElement("div");
  place.before(controls);
  return chart(place, spec, controls).catch((error) => {
    place.textContent = `This plot could not be drawn: ${error.message}`;
    throw error;
  });
});
Promise.allSettled(plots).then((ends) => {
  const failed = ends.filter((end) => end.status === "rejected").length;
  document.body.dataset.plots = failed ? `${failed} failed` : "ready";
});

document.querySelectorAll(".wide table").forEach(named);

// Sort the table of results by a column; rows without a value stay last.
const table = document.getElementById("results");
table?.querySelectorAll("thead button").forEach((button, column) => {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const descending = heading.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("thead th").forEach((th) => th.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.sort;
    const numeric = heading.classList.contains("number");
    const order = (a, b) => (numeric ? a - b : a.localeCompare(b));
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return descending ? order(b, a) : order(a, b);
    });
    body.append(...rows);
  });
});
