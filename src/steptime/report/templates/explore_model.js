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
// `between` and `inside` have a latency_s (null: not known) and bytes_per_s.
function exchanges(size, n, fabric) {
  const { between, inside, per_node, servers, share, as_paleo } = fabric;
  const over = (link, bytes) =>
    (as_paleo ? 0 : link.latency_s ?? 0) + bytes / link.bytes_per_s / share;
  const message = (bytes) => over(between, bytes);
  const rounds = n > 1 ? 32 - Math.clz32(n - 1) : 0;
  const halvings = 31 - Math.clz32(n);
  let halves = n > 2 ** halvings ? 2 * message(size) : 0;
  for (let step = 1; step <= halvings; step += 1) halves += 2 * message(size / 2 ** step);
  const near = Math.min(n, per_node), nodes = Math.ceil(n / per_node);
  return {
    "one-to-all": 2 * (n - 1) * message(size),
    tree: 2 * rounds * message(size),
    butterfly: rounds * message(size),
    "butterfly-mixing": n > 1 || as_paleo ? message(size) : 0,
    ring: 2 * (n - 1) * message(size / n),
    "halving-doubling": halves,
    hierarchical: 2 * (near - 1) * over(inside ?? between, size / near)
      + 2 * (nodes - 1) * message(size / near / nodes * near),
    "parameter-server": n > 1 ? 2 * Math.max(n, servers) * message(size / servers) : 0,
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
    const started = Math.ceil(Number(hours.toFixed(9)));
    return {
      ...found, speedup, efficiency: speedup / n, epoch_s, train_s, hours,
      device_hours: hours * n, cost: choice.price * started * n,
    };
  });
  return { rows, refused: choice.workers.filter((n) => !possible.includes(n)) };
}
