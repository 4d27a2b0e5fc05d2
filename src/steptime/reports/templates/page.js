"use strict";
// What is packed is unpacked, then the scripts run one after the other.
async function unpack(place) {
  const bytes = Uint8Array.from(atob(place.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  place.textContent = await new Response(stream).text();
}

function run(place) {
  const script = document.createElement("script");
  script.textContent = place.textContent;
  place.replaceWith(script);
}

const ready = Promise.all([...document.querySelectorAll(".packed")].map(unpack))
  .then(() => document.querySelectorAll(".code").forEach(run))
  .catch((error) => {
    const said = `This page needs a browser of 2023 or later: ${error.message}`;
    document.body.prepend(Object.assign(document.createElement("p"), { textContent: said }));
    throw error;
  });
