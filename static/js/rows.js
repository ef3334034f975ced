// The rows of one live topic: whole rows replace whole rows by id. Tells when a frame was missed.
export class Rows {
  #rows = new Map();
  #types = new Map();
  epoch = null;
  seq = null;
  at = null;

  // Applies a frame. False: something between the last frame and this one is missing, so ask for a snapshot.
  apply(frame) {
    const snapshot = frame.kind === "snapshot";
    const follows = this.seq !== null && frame.seq === this.seq + 1 && (frame.epoch ?? this.epoch) === this.epoch;
    const repeated = this.seq !== null && frame.seq === this.seq && (frame.epoch ?? this.epoch) === this.epoch;
    if (!snapshot && !follows && !repeated) return false;
    if (snapshot) this.#rows.clear();
    for (const row of frame.rows ?? []) this.#rows.set(row.id, row);
    for (const id of frame.gone ?? []) this.#rows.delete(id);
    this.#types.clear();
    this.epoch = frame.epoch ?? this.epoch;
    this.seq = frame.seq;
    this.at = frame.at;
    return true;
  }

  get empty() {
    return this.#rows.size === 0;
  }

  get(id) {
    return this.#rows.get(id);
  }

  // All rows of one type, in the server's order. Kept until the next frame.
  of(type) {
    if (this.#types.size === 0) {
      for (const row of this.#rows.values()) {
        const list = this.#types.get(row.type) ?? [];
        list.push(row);
        this.#types.set(row.type, list);
      }
    }
    return this.#types.get(type) ?? [];
  }
}
