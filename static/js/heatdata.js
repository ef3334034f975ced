// The cells of the GPU heat: share of work per GPU and time step, with the role the GPU had then. Knows nothing of drawing.
import { busy } from "./engines.js";

const LETTER = { prefill: "p", decode: "d", mixed: "m" };

export class HeatData {
  #cells = new Map(); // uuid -> {roles: [letter], shares: [0..1 or null]}
  #sums = new Map(); // uuid -> {step, sum, count} of the newest step

  // `columns` steps of `step` seconds; `end` (exclusive) is the index of the step after the newest one.
  constructor(step, columns) {
    this.step = step;
    this.columns = columns;
    this.end = 0;
  }

  get start() {
    return (this.end - this.columns) * this.step;
  }

  get uuids() {
    return [...this.#cells.keys()];
  }

  cells(uuid) {
    return this.#cells.get(uuid) ?? this.#blank();
  }

  #blank() {
    return { roles: new Array(this.columns).fill(""), shares: new Array(this.columns).fill(null) };
  }

  // history: {start (s), step_s, gpus: [{uuid, roles: "ppd…", shares: [..]}]}, one letter and one value per step.
  load(history, now) {
    this.#cells.clear();
    this.#sums.clear();
    this.end = Math.floor(now / this.step) + 1;
    const shift = Math.round(history.start / this.step) - (this.end - this.columns);
    for (const gpu of history.gpus) {
      const cells = this.#blank();
      gpu.shares.forEach((share, index) => {
        const at = index + shift;
        if (at < 0 || at >= this.columns) return;
        cells.shares[at] = share;
        cells.roles[at] = gpu.roles[index];
      });
      this.#cells.set(gpu.uuid, cells);
    }
  }

  #advance(step) {
    const by = Math.min(this.columns, step + 1 - this.end);
    if (by <= 0) return;
    for (const { roles, shares } of this.#cells.values()) {
      roles.splice(0, by);
      shares.splice(0, by);
      for (let n = 0; n < by; n += 1) {
        roles.push("");
        shares.push(null);
      }
    }
    this.end = step + 1;
  }

  // Adds the newest sample of an engine's GPUs, each sample once.
  add(engine, now) {
    this.#advance(Math.floor(now / this.step));
    if (engine.sampled_at == null) return;
    const step = Math.floor(engine.sampled_at / this.step);
    const column = step - (this.end - this.columns);
    if (column < 0 || column >= this.columns) return;
    const letter = LETTER[engine.role] ?? "m";
    engine.gpu_uuids.forEach((uuid, index) => {
      const share = busy(engine.tensor[index], engine.dram[index]);
      if (share === null) return;
      if (!this.#cells.has(uuid)) this.#cells.set(uuid, this.#blank());
      const cells = this.#cells.get(uuid);
      const sum = this.#sums.get(uuid);
      if (sum?.at === engine.sampled_at) return;
      const next = sum?.step === step ? { step, sum: sum.sum + share, count: sum.count + 1 } : { step, sum: share, count: 1 };
      this.#sums.set(uuid, { ...next, at: engine.sampled_at });
      cells.roles[column] = letter;
      cells.shares[column] = next.sum / next.count;
    });
  }
}
