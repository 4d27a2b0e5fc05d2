"use strict";
// The model of `steptime scale`, evaluated on the data of `predict/export.py`; seconds and bytes.
// Each function names the Python function whose numbers it must give (tests compare them).

// work.timed: a kernel is [FLOP at batch 0, growth, bytes at batch 0, growth, ... of each term].
function timed(kernels, batch, rates, overlap) {
  let compute = 0, memory = 0, longer = 0;
  for (const kernel of kernels) {
    const flop = kernel[0] + kernel[1] * batch;
    const arithmetic = flop ? Math.max(rates.cycle, flop / rates.flop) : 0;
    let traffic = 0;
    for (let i = 2; i < kernel.length; i += 2) {
      const bytes = kernel[i] + kernel[i + 1] * batch;
      traffic += Math.max(rates.cycle, bytes / rates.bytes);
    }
    compute += arithmetic;
    memory += traffic;
    longer += Math.max(arithmetic, traffic);
  }
  const totals = { none: compute + memory, op: longer, layer: Math.max(compute, memory) };
  return totals[overlap] + kernels.length * rates.launch;
}

// grid.step_seconds with estimate.rates, update_rates and behind_host: [forward, backward, update].
function stepSeconds(work, batch, base, method, share) {
  const [flop, bytes, cycle, launch, issue] = base;
  const reached = { flop: flop * share, bytes: bytes * share, cycle, launch };
  const peak = { flop, bytes, cycle, launch };
  let end = 0, issued = 0;
  return work.parts.map((groups, part) => {
    const rates = part === 2 && method.update_at_peak ? peak : reached;
    let seconds = 0, kernels = 0;
    for (const [times, ...group] of groups) {
      seconds += times * timed(group, batch, rates, method.overlap);
      kernels += times * group.length;
    }
    if (issue === null) return seconds;
    issued += kernels;
    const finished = kernels ? Math.max(end + seconds, issued * issue) : end;
    const found = finished - end;
    end = finished;
    return found;
  });
}

// collectives.COLLECTIVES and PALEO, which has no latency and whose mixing costs one worker too.
// `between` and `inside` have a latency_s (null: not known) and bytes_per_s; without `inside` every
// worker has a link of its own. `memory_bytes_per_s` is what adding up takes, null for nothing.
function exchanges(size, n, fabric) {
  const { between, inside, per_node, servers, share, as_paleo, memory_bytes_per_s } = fabric;
  const over = (link, bytes) =>
    (as_paleo ? 0 : link.latency_s ?? 0) + bytes / link.bytes_per_s / share;
  const message = (bytes) => over(between, bytes);
  const near_by = (bytes) => over(inside ?? between, bytes);
  const add = (bytes) => as_paleo || !memory_bytes_per_s ? 0 : 3 * bytes / memory_bytes_per_s;
  const roundsOf = (count) => count > 1 ? 32 - Math.clz32(count - 1) : 0;
  const node = Math.min(n, per_node), nodesOf = Math.ceil(n / per_node);
  const near = inside ? node : 1, nodes = inside ? nodesOf : n;
  const slowest = (bytes) => bytes / share / Math.min(
    nodes > 1 ? between.bytes_per_s : Infinity,
    near > 1 ? (inside ?? between).bytes_per_s : Infinity,
  );
  const rounds = [roundsOf(near), roundsOf(nodes)];
  const halvings = 31 - Math.clz32(n), insideHalvings = 31 - Math.clz32(near);
  let halves = 0, added = 0;
  for (let step = 1; step <= halvings; step += 1) {
    const half = size / 2 ** step;
    halves += step <= insideHalvings ? near_by(half) : message(half * near);
    added += half;
  }
  if (n > 2 ** halvings) {
    halves += near > 1 ? near_by(size) : message(size);
    added += size;
  }
  const spread = size / node, all = rounds[0] + rounds[1];
  const crossing = 2 * (nodes - 1);
  const paleo_rounds = roundsOf(n);
  return {
    "one-to-all": as_paleo ? 2 * (n - 1) * message(size)
      : 2 * ((near - 1) * near_by(size) + (n - near) * message(size)) + add((n - 1) * size),
    tree: as_paleo ? 2 * paleo_rounds * message(size)
      : 2 * (rounds[0] * near_by(0) + rounds[1] * message(0)) + slowest(2 * size)
        + (n > 1 ? add(size) : 0),
    butterfly: as_paleo ? paleo_rounds * message(size)
      : rounds[0] * near_by(size) + rounds[1] * message(size * near) + add(all * size),
    "butterfly-mixing": as_paleo ? message(size) : n === 1 ? 0
      : (nodes > 1 ? message(size * near) : near_by(size)) + add(size),
    ring: (2 * (n - 1) - crossing) * near_by(0) + crossing * message(0)
      + slowest(2 * (n - 1) / n * size) + add((n - 1) / n * size),
    "halving-doubling": 2 * halves + add(added),
    hierarchical: 2 * (node - 1) * near_by(spread)
      + 2 * (nodesOf - 1) * message(spread / nodesOf * node)
      + add((node - 1) * spread + (nodesOf - 1) / nodesOf * spread),
    "parameter-server":
      n > 1 ? 2 * Math.max(n, near * servers) * message(size / servers) : 0,
  };
}

// scaling.stops_paying: the first number of workers that is not worth its devices, null for none.
function stopsPaying(rows, pays) {
  const worth = (few, many) => many.samples_per_s / few.samples_per_s - 1
    >= pays * (many.workers / few.workers - 1);
  return rows.find((row, place) => place > 0 && !worth(rows[place - 1], row))?.workers ?? null;
}

// scaling.data_parallel with training_cost.bill; rows without enough examples are left out.
function scalingRows(choice) {
  const { device, method } = choice;
  const row = (n, examples) => {
    const [forward_s, backward_s, update_s] =
      stepSeconds(choice.work, examples, choice.rates, method, choice.share[0]);
    const compute_s = forward_s + backward_s + update_s;
    const comm_s = exchanges(choice.work.gradient_bytes, n, choice.fabric);
    const step_s = compute_s + comm_s[choice.collective];
    const global_batch = choice.scaling === "weak" ? n * examples : choice.batch;
    const peak_memory_bytes =
      Math.round(Math.max(...choice.work.memory.map(([a, b]) => a + b * examples)));
    return {
      workers: n, global_batch, batch_per_worker: examples, forward_s, backward_s, update_s,
      compute_s, comm_s, step_s, samples_per_s: global_batch / step_s, peak_memory_bytes,
      fits: device.memory_bytes === null || peak_memory_bytes <= device.memory_bytes,
    };
  };
  const alone = row(1, choice.batch);
  const possible = choice.workers.filter(
    (n) => choice.scaling === "weak" || n <= choice.batch || method.as_paleo,
  );
  const rows = possible.map((n) => {
    const found = row(n, choice.scaling === "weak" ? choice.batch : Math.ceil(choice.batch / n));
    const speedup = found.samples_per_s / alone.samples_per_s;
    const epoch_s = choice.samples / found.global_batch * found.step_s;
    const train_s = choice.epochs * epoch_s;
    const hours = train_s / 3600;
    return {
      ...found, speedup, efficiency: speedup / n, epoch_s, train_s, hours,
      device_hours: hours * n, cost: choice.price * hours * n,
    };
  });
  return { rows, refused: choice.workers.filter((n) => !possible.includes(n)) };
}
