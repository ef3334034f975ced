// Handoffs by pair: prefill engines down, decode engines across, p99 in each cell; failures framed. A cell leads to its requests.
import { el, redraw } from "./dom.js";
import { byLabel } from "./engines.js";
import { byteRate, latencyText, MISSING, number } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { emptied } from "./panels.js";

const STEPS = 5;

// Step 1 to STEPS of a value among all: by rank, so that one slow pair does not make all others look alike.
function rankOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return (value) => 1 + Math.min(STEPS - 1, Math.floor((STEPS * sorted.findIndex((each) => each >= value)) / sorted.length));
}

function side(ids, labels) {
  return [...new Set(ids)].map((id) => ({ id, label: labels[id]?.[0] ?? id })).sort(byLabel);
}

function title(pair) {
  const { value, unit } = byteRate(pair.bytes_per_s.value);
  const count = ngettext("%(n)s handoff", "%(n)s handoffs", pair.handoffs.value, { n: number(pair.handoffs.value) });
  return `${count} · p50 ${latencyText(pair.handoff.p50.value)} · ${value} ${unit}`;
}

function cell(pair, from, to, rank, href) {
  if (!pair) return el("td", { class: "dim" }, MISSING);
  const p99 = pair.handoff.p99.value;
  const failed = pair.failed.value;
  const words = latencyText(p99);
  const classes = [p99 == null ? "" : `k${rank(p99)}`, failed ? "fail" : ""].join(" ").trim();
  const link = el("a", { href, "aria-label": `${from.label} → ${to.label}: ${words}, ${title(pair)}` }, words);
  return el("td", { class: classes, title: title(pair) }, link, failed ? el("small", {}, `✕ ${number(failed)}`) : null);
}

// href(prefill, decode): of the requests of a pair.
export function paintMatrix(body, { pairs, labels }, href) {
  redraw(body, JSON.stringify([pairs, labels]), () => {
    if (!pairs.length) return [emptied(gettext("No handoffs in this time"), gettext("Each pair of a prefill and a decode engine that hands KV over has a cell here."))];
    const rows = side(pairs.map((pair) => pair.prefill), labels);
    const columns = side(pairs.map((pair) => pair.decode), labels);
    const known = new Map(pairs.map((pair) => [`${pair.prefill} ${pair.decode}`, pair]));
    const rank = rankOf(pairs.map((pair) => pair.handoff.p99.value).filter((value) => value != null));
    const head = el("tr", {}, el("th", {}, el("span", { class: "sr" }, gettext("Prefill"))), ...columns.map((to) => el("th", { scope: "col" }, el("span", { class: "d-ink" }, to.label))));
    const lines = rows.map((from) => el("tr", {}, el("th", { scope: "row" }, el("span", { class: "p-ink" }, from.label)), ...columns.map((to) => cell(known.get(`${from.id} ${to.id}`), from, to, rank, href(from.id, to.id)))));
    return [el("table", { class: "matrix" }, el("thead", {}, head), el("tbody", {}, ...lines))];
  });
}

export const failedPairs = (pairs) => pairs.reduce((sum, pair) => sum + (pair.failed.value ?? 0), 0);
