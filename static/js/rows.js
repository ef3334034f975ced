// The rows of one live topic: whole rows replace whole rows by id, one of type "gone" removes it. Tells when a frame was missed.
export class Rows {
  #rows = new Map();
  #types = new Map();
  seq = null;
  at = null;

  // Applies a frame. False: something between the last frame and this one is missing, so ask for a snapshot.
  apply(frame) {
    const snapshot = frame.kind === "snapshot";
    if (!snapshot && (this.seq === null || frame.seq !== this.seq + 1)) return false;
    if (snapshot) this.#rows.clear();
    for (const row of frame.rows) {
      if (row.type === "gone") this.#rows.delete(row.id);
      else this.#rows.set(row.id, row);
    }
    this.#types.clear();
    this.seq = frame.seq;
    this.at = frame.at;
    return true;
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
