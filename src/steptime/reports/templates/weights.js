"use strict";
// Rows are filtered by the choice, and shown; all of their numbers are Python's.
const NAMES_OF = Object.keys(data.rows);
const rows = data.rows.type.map((_, place) => Object.fromEntries(NAMES_OF.map((name) =>
  [name, data.axes[name]?.[data.rows[name][place]] ?? data.rows[name][place]])));
// The rows of a choice, whatever its value of one axis is.
const across = (values, free) => rows.filter((row) =>
  AXES.every((name) => name === free || row[name] === values[name]));
const speed = (value) => (value === null ? "" : grouped(Number(value.toPrecision(3)), 1));
// The hyphen (U+2011) keeps an interval on one line of a phone.
const within = (row) => (row.tokens_per_s_low === null ? ""
  : `[${speed(row.tokens_per_s_low)}\u2011${speed(row.tokens_per_s_high)}]`);
const usable = (row) => data.usable[row.device];
const share = (row) => (usable(row) ? `${grouped(100 * row.needed_bytes / usable(row))} %` : "");
const paid = (value) => (value === null ? "" : money(value));
const room = (row) => (row.longest_context === null ? "" : grouped(row.longest_context));
const COLUMNS = [
  ["fits", (row) => row.verdict], ["tokens/s", (row) => `${speed(row.tokens_per_s_per_user)} ${within(row)}`],
  ["prefill/s", (row) => speed(row.prefill_tokens_per_s)],
  ["longest context", room], ["memory", (row) => prefixed(row.needed_bytes, "B")], ["of room", share],
];
const COST = ["1 M tokens", (row) => paid(row.cost_per_million_tokens)];
const PRICE = ["per hour", (row) => (row.device in data.prices ? money(data.prices[row.device]) : "")];
// Without a price nobody can say that a device is cheap enough.
const affordable = (row) => field("max_price").value === ""
  || data.prices[row.device] <= Number(field("max_price").value);
const fast = (row) => row.tokens_per_s_per_user >= Number(field("min_speed").value);
// Numbers by which devices come, the smallest first. More bits keep more of the model's quality.
const ORDERS = {
  speed: (row) => [-row.bits_per_weight, -row.tokens_per_s_per_user],
  cost: (row) => [row.cost_per_million_tokens ?? Infinity, 0],
  context: (row) => [-(row.longest_context ?? 0), -row.tokens_per_s_per_user],
};
const MEMORY_LAYERS = data.charts.memory.layer; // the last one is of devices of known memory
const VERDICTS = { yes: 0, unknown: 1, no: 2 };
const SAYS = { yes: "fits", no: "does not fit", unknown: "of unknown room" };

function show(values, row) {
  const said = row.verdict === "no" ? `out of memory, needs ${prefixed(row.needed_bytes, "B")} of ${prefixed(usable(row), "B")}`
    : `${SAYS[row.verdict]}, ${speed(row.tokens_per_s_per_user)} tokens/s`;
  byId("headline").textContent = `${row.model} ${row.type} on ${row.device}: ${said}`;
  byId("headline").classList.toggle("bad", row.verdict === "no");
  tiles([
    ["tokens/s", speed(row.tokens_per_s_per_user), within(row)],
    ["prefill/s", speed(row.prefill_tokens_per_s), "tokens of a prompt"],
    ["memory", prefixed(row.needed_bytes, "B"),
      usable(row) ? `${SAYS[row.verdict]}: of ${prefixed(usable(row), "B")}` : SAYS.unknown],
    ["longest context", row.longest_context === null ? "unknown" : grouped(row.longest_context), "tokens"],
    ["file", prefixed(row.file_bytes, "B"), `${digits(row.bits_per_weight, 3)} bits a weight`],
    ["1 M tokens", money(row.cost_per_million_tokens), data.offers[row.device]],
  ]);
  const types = across(values, "weights").filter((one) => one.weights !== data.best_type);
  data.charts.memory.layer = usable(row) ? MEMORY_LAYERS : MEMORY_LAYERS.slice(0, 1);
  for (const name of Object.keys(data.charts)) {
    const colours = data.charts[name].layer.map(({ encoding }) => encoding.color).filter(Boolean);
    for (const { legend } of colours) legend.values = [...new Set(types.map((one) => one.verdict))];
    put(name, types.map((one) => ({ ...one, usable_bytes: usable(one) })), 2);
  }
  fill(byId("types"), [["weights", (one) => one.type], ["bits", (one) => digits(one.bits_per_weight, 3)],
    ["file", (one) => prefixed(one.file_bytes, "B")], ...COLUMNS, ...(row.device in data.prices ? [COST] : [])], types, (made, one) => {
    linked(made, { ...values, weights: one.weights }, one.type === row.type);
    made.classList.toggle("bad", one.verdict === "no");
  });
}

function listDevices(values, row) {
  const all = across(values, "device"), end = ORDERS[byId("sort").value];
  const beside = all.filter((one) => affordable(one) && fast(one)).sort((one, other) => {
    const [a, b] = [end(one), end(other)];
    return VERDICTS[one.verdict] - VERDICTS[other.verdict] || a[0] - b[0] || a[1] - b[1];
  });
  const left = all.length - beside.length;
  byId("hidden-devices").textContent = left
    ? `${left} device${left === 1 ? "" : "s"} too slow, too dear, or without a price, left out.` : "";
  fill(byId("devices"), [["device", (one) => one.device],
    ...(values.weights === data.best_type ? [["weights", (one) => one.type]] : []),
    ...COLUMNS, PRICE, COST], beside, (made, one) => {
    linked(made, { ...values, device: one.device }, one === row);
    made.classList.toggle("bad", one.verdict === "no");
  });
}

function update() {
  const values = chosen(), [row] = across(values);
  keep(values);
  byId("shown").hidden = !row;
  if (row) show(values, row);
  else {
    byId("headline").textContent = `${values.model} ${values.weights}: its software does not run on ${values.device}`;
    byId("headline").classList.add("bad");
  }
  listDevices(values, row);
  const named = row ? [...(row.option ? ["--weights", row.option] : []), "--stack", row.stack] : [];
  byId("command").textContent = quoted(["steptime", "choose", values.model, "--device", values.device,
    ...named, "--length", values.context, ...data.words]);
  byId("result").textContent = JSON.stringify({ at: values, row: row ?? null });
}

byId("sort").addEventListener("input", update);
begin(update);
