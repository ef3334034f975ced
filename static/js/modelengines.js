// The engines of a model: live load, and latencies of the time that the page shows. A head that is clicked sorts.
import { attr, el, hide, keyed, redraw, svg, text } from "./dom.js";
import { barsOf, busy, byLabel, mean, QUEUE_HOT, ROLE, staleFor, stateOf } from "./engines.js";
import { byteRate, indices, latencyText, MISSING, number, percent, roughly, span } from "./format.js";
import { gettext } from "./i18n.js";
import { bars } from "./meters.js";
import { say } from "./say.js";

const share = (value) => (value == null ? MISSING : `${percent(value)} %`);
const count = (value) => (value == null ? MISSING : number(value));
const busyOf = (row) => mean(row.tensor.map((tensor, index) => busy(tensor, row.dram[index])));

const ORDER = Object.keys(ROLE);

// name, head, value to sort by (of {row, figures}), class.
const COLUMNS = [
  ["engine", gettext("engine"), null, ""],
  ["node", gettext("node, GPUs"), ({ row }) => row.node, "opt"],
  ["state", gettext("state"), ({ row }) => row.state, ""],
  ["busy", gettext("busy"), ({ row }) => busyOf(row), ""],
  ["waiting", gettext("queue"), ({ row }) => row.waiting, "r"],
  ["running", gettext("running"), ({ row }) => row.running, "r opt"],
  ["kv", gettext("KV cache"), ({ row }) => row.kv_usage, "r opt"],
  ["hits", gettext("prefix hits"), ({ figures }) => figures?.prefix_hits.value, "r opt"],
  ["bytes", gettext("KV moved"), ({ figures }) => figures?.transfer_bytes_per_s.value, "r opt"],
  ["ttft", gettext("TTFT p99"), ({ figures }) => figures?.ttft.p99.value, "r opt"],
  ["itl", gettext("ITL p99"), ({ figures }) => figures?.itl.p99.value, "r opt"],
  ["since", gettext("in state"), ({ row, now }) => now - row.state_since, "r opt"],
];

function makeRow(open) {
  const cells = Object.fromEntries(COLUMNS.map(([name, , , className]) => [name, el("td", { class: className })]));
  const label = el("a", {});
  const chart = svg("svg", { class: "bars mini", viewBox: "0 0 44 26", preserveAspectRatio: "none", "aria-hidden": "true" });
  const working = el("span", { class: "num" });
  const state = el("span");
  const node = el("tr", {}, ...Object.values(cells));
  cells.engine.append(label);
  cells.busy.append(chart, " ", working);
  cells.state.append(state);
  let row = null;
  node.addEventListener("dblclick", () => open(row));
  return {
    node,
    paint({ row: next, figures, now }) {
      row = next;
      const { letter } = ROLE[row.role] ?? { letter: "s" };
      attr(node, "data-engine", row.engine);
      attr(label, "href", `/engines/${encodeURIComponent(row.engine)}`);
      redraw(label, `${letter} ${row.label}`, () => [el("span", { class: `chip ${letter}` }, el("b", {}, row.label))]);
      text(cells.node, row.node ? `${row.node} ${indices(row.gpu_indices)}` : MISSING);
      paintState(state, row, now);
      bars(chart, letter === "s" ? "fill-s" : `fill-${letter}`, barsOf(row));
      text(working, share(busyOf(row)));
      text(cells.waiting, count(row.waiting));
      cells.waiting.classList.toggle("hot", (row.waiting ?? 0) >= QUEUE_HOT);
      text(cells.running, count(row.running));
      text(cells.kv, share(row.kv_usage));
      text(cells.hits, share(figures?.prefix_hits.value));
      const { value, unit } = byteRate(figures?.transfer_bytes_per_s.value);
      text(cells.bytes, unit ? `${value} ${unit}` : value);
      text(cells.ttft, latencyText(figures?.ttft.p99.value));
      text(cells.itl, latencyText(figures?.itl.p99.value));
      text(cells.since, roughly(now - row.state_since));
    },
  };
}

function paintState(node, row, now) {
  const stale = staleFor(row, now);
  if (stale !== null) return say(node, "warn", gettext("stale %(age)s", { age: span(stale) }));
  const [kind, word] = stateOf(row);
  say(node, row.held ? "warn" : kind, row.held ? gettext("held") : word);
  attr(node, "title", row.reason || null);
  if (!kind && !row.held) attr(node, "class", "");
  return undefined;
}

// open(row): its dialog. paint(live rows, figures by engine and role, now, words of the time range).
export function makeEngines(panel, open) {
  const table = panel.querySelector("table");
  const meta = panel.querySelector("[data-meta]");
  let sorted = { name: "engine", down: false };
  let last = null;
  const heads = COLUMNS.map(([name, words, , className]) => {
    const button = el("button", { type: "button" }, words);
    const node = el("th", { class: className, scope: "col" }, button);
    button.addEventListener("click", () => {
      sorted = { name, down: sorted.name === name ? !sorted.down : name !== "engine" && name !== "node" };
      if (last) paint(...last);
    });
    return { name, node };
  });
  table.tHead.append(el("tr", {}, ...heads.map(({ node }) => node)));

  function order(a, b) {
    const of = COLUMNS.find(([name]) => name === sorted.name)[2];
    if (!of) return (sorted.down ? -1 : 1) * (ORDER.indexOf(a.row.role) - ORDER.indexOf(b.row.role) || byLabel(a.row, b.row));
    const [x, y] = [of(a), of(b)];
    if (x == null || y == null) return (x == null) - (y == null) || byLabel(a.row, b.row);
    return (sorted.down ? -1 : 1) * (typeof x === "string" ? x.localeCompare(y) : x - y) || byLabel(a.row, b.row);
  }

  function paint(rows, figures, now, words) {
    last = [rows, figures, now, words];
    for (const { name, node } of heads) attr(node, "aria-sort", name === sorted.name ? (sorted.down ? "descending" : "ascending") : null);
    const items = rows.map((row) => ({ row, now, figures: figures.get(`${row.engine} ${row.role}`) })).sort(order);
    keyed(table.tBodies[0], items, ({ row }) => row.id, () => makeRow(open));
    const ready = rows.filter((row) => row.state === "ready").length;
    text(meta, gettext("%(ready)s of %(all)s ready · load now, the rest over %(time)s", { ready: number(ready), all: number(rows.length), time: words }));
    hide(table, rows.length === 0);
    hide(panel.querySelector("[data-empty]"), rows.length > 0);
  }
  return paint;
}
