// The strip between the pools: which way KV goes, how much, how fast.
import { attr, el, figure, hide, redraw, svg, text } from "./dom.js";
import { byteRate, latency, latencyText, number } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { histogram } from "./meters.js";

const HEIGHT = 46;
const DECADES = 4; // the histogram's buckets run from 1 ms to 10 s
const LEAST_BUCKETS = 12;

const heights = (n) => Array.from({ length: n }, (_, index) => (n === 1 ? HEIGHT / 2 : 3 + ((HEIGHT - 6) * index) / (n - 1)));
const width = (n) => Math.max(1.2, Math.min(3, 14 / Math.max(1, n))).toFixed(1);

function paths(sources, sinks, moving) {
  const className = moving ? "go" : "off";
  const middle = HEIGHT / 2;
  const line = (n, d) => svg("path", { class: className, "stroke-width": moving ? width(n) : 2, d });
  // A straight line has no box for the gradient and would vanish, so it bends by a hair.
  const y = (value) => (value === middle ? middle + 0.1 : value);
  return [
    ...heights(sources).map((at) => line(sources, `M0 ${y(at)}C70 ${y(at)} 80 ${middle} 128 ${middle}`)),
    ...heights(sinks).map((at) => line(sinks, `M128 ${middle}C176 ${middle} 186 ${y(at)} 256 ${y(at)}`)),
  ];
}

// The part of the histogram worth showing: what has counts, with a margin, never fewer than LEAST_BUCKETS.
export function shownRange(counts) {
  const first = counts.findIndex((count) => count > 0);
  if (first < 0) return null;
  const last = counts.findLastIndex((count) => count > 0);
  let from = Math.max(0, first - 2);
  let to = Math.min(counts.length, last + 3);
  while (to - from < LEAST_BUCKETS && (from > 0 || to < counts.length)) {
    if (to < counts.length) to += 1;
    if (to - from < LEAST_BUCKETS && from > 0) from -= 1;
  }
  return [from, to];
}

const edgeMs = (index, buckets) => 10 ** ((DECADES * index) / buckets);

export function makeFlow() {
  const when = el("span");
  const art = svg("svg", { class: "flow-art", viewBox: `0 0 256 ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const speed = figure("dd");
  const p50 = figure("dd");
  const p99 = figure("dd");
  const term = (word, value) => el("div", {}, el("dt", {}, word), value.node);
  const list = el("dl", {}, term(gettext("rate"), speed), term("p50", p50), term("p99", p99));
  const chart = svg("svg", { class: "hist", viewBox: "0 0 95 24", preserveAspectRatio: "none", "aria-hidden": "true" });
  const ends = [el("span"), el("span"), el("span")];
  const legend = el("div", { class: "ends" }, ...ends);
  const note = el("p", { class: "off-note" });
  const node = el("div", { class: "flow" }, el("header", {}, el("b", {}, gettext("KV transfer")), when), art, list, chart, legend, note);

  function paintHistogram(row) {
    const counts = row.transfer_histogram;
    const range = shownRange(counts);
    hide(chart, !range);
    hide(legend, !range);
    if (!range) return;
    const [from, to] = range;
    const tail = counts.findIndex((_, index) => row.transfer.p99 != null && edgeMs(index, counts.length) > row.transfer.p99);
    histogram(chart, counts.slice(from, to), tail < 0 ? to : tail - from);
    const total = counts.reduce((sum, count) => sum + count, 0);
    text(ends[0], latencyText(edgeMs(from, counts.length)));
    text(ends[1], ngettext("%(n)s in 10 min", "%(n)s in 10 min", total, { n: number(total) }));
    text(ends[2], latencyText(edgeMs(to, counts.length)));
  }

  function paint(row, sources, sinks) {
    const off = row.mode === "monolithic";
    const moving = !off && (row.transfer_bytes_per_s ?? 0) > 0;
    text(when, off ? gettext("off") : gettext("1 min"));
    redraw(art, `${sources} ${sinks} ${moving}`, () => paths(sources, sinks, moving));
    hide(list, off);
    hide(note, !off);
    text(note, off ? gettext("Prefill and decode share each engine") : "");
    attr(node, "data-moving", moving);
    if (off) {
      hide(chart, true);
      hide(legend, true);
      return;
    }
    const bytes = byteRate(row.transfer_bytes_per_s);
    const middle = latency(row.transfer.p50);
    const high = latency(row.transfer.p99);
    speed.set(bytes.value, bytes.unit);
    p50.set(middle.value, middle.unit);
    p99.set(high.value, high.unit);
    paintHistogram(row);
  }

  return { node, paint };
}
