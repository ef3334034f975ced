// The KPI strip. One painter per figure; the labels and windows stand in the template.
import { attr, el, figure, hide, redraw, text } from "./dom.js";
import { byteRate, latency, latencyText, MISSING, number, percent, rate } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { limitMeter, meter, spark } from "./meters.js";
import { say } from "./say.js";

const ROLES = [
  ["prefill", "p", "fill-p", gettext("prefill")],
  ["decode", "d", "fill-d", gettext("decode")],
  ["mixed", "m", "fill-m", gettext("mixed")],
];

export function parts(cell, { second = false, line = null } = {}) {
  const big = figure("span", "big");
  const small = second ? figure("span", "second") : null;
  const curve = line ? spark(line) : null;
  cell.querySelector(".line").replaceChildren(big.node, ...(small ? [small.node] : []), ...(curve ? [curve.node] : []));
  const foot = cell.querySelector(".foot");
  const note = el("span", { class: "say ok" });
  foot.replaceChildren(note);
  return { big, second: small, spark: curve, meter: cell.querySelector(".meter"), foot, note };
}

const dollars = (value) => number(value, value < 9.995 ? 2 : 0);
const sign = (row) => (row.cost_guess ? "≈ $" : "$"); // a list price that nobody gave is a guess
const most = (values) => Math.max(0, ...(values ?? []).filter((value) => value != null));

function requests(cell) {
  const at = parts(cell, { line: "ln thin x2" });
  return (row) => {
    const peak = Math.max(most(row.spark.requests_per_s), row.requests_per_s ?? 0);
    at.big.set(rate(row.requests_per_s), gettext("req/s"));
    at.spark.set(row.spark.requests_per_s);
    meter(at.meter, [{ className: "fill-x2", value: row.requests_per_s ?? 0 }], (peak || 1) * 1.1, peak || null);
    const lost = ngettext("%(n)s lost", "%(n)s lost", row.failed, { n: number(row.failed) });
    say(at.note, row.failed ? "bad" : "ok", peak ? gettext("%(lost)s · peak %(peak)s", { lost, peak: rate(peak) }) : lost);
    attr(at.foot, "title", gettext("Lost or failed by us in the last 5 minutes; the tick is the highest rate of the last 3 minutes"));
  };
}

// TTFT and ITL: the worst model by share of its SLO.
function slo(cell, name) {
  const at = parts(cell, { second: true, line: "ln thin x2" });
  return (row) => {
    const { p50, p99 } = row[name];
    const limit = row[`${name}_slo_ms`];
    setPair(at, p50, p99);
    at.spark.set(row.spark[`${name}_p99`]);
    attr(at.spark.node.firstElementChild, "class", limit && p99 > limit ? "ln thin x" : "ln thin x2");
    limitMeter(at.meter, p99, limit);
    if (p99 == null || !limit) return say(at.note, "idle", gettext("no requests in 5 min"));
    const model = row[`${name}_model`];
    const gap = latencyText(Math.abs(p99 - limit));
    if (p99 > limit) return say(at.note, "bad", gettext("%(gap)s over SLO · %(model)s", { gap, model }));
    return say(at.note, "ok", gettext("%(gap)s under SLO %(limit)s", { gap, limit: latencyText(limit) }));
  };
}

export function setPair(at, p50, p99) {
  const high = latency(p99);
  const middle = latency(p50);
  at.big.set(high.value, high.unit && `${high.unit} p99`);
  at.second.set(middle.value, middle.unit && `${middle.unit} p50`);
  hide(at.second.node, p50 == null);
}

function transfer(cell) {
  const at = parts(cell, { second: true, line: "ln thin x2" });
  return (row) => {
    const { p50, p99, count } = row.transfer;
    const peak = Math.max(most(row.spark.transfer_p99), p99 ?? 0);
    setPair(at, p50, p99);
    at.spark.set(row.spark.transfer_p99);
    meter(at.meter, [{ className: "fill-x2", value: p99 ?? 0 }], (peak || 1) * 1.1, peak || null);
    attr(at.foot, "title", gettext("The tick is the highest p99 of the last 3 minutes"));
    const failed = ngettext("%(n)s failed", "%(n)s failed", row.transfers_failed, { n: number(row.transfers_failed) });
    if (!count && !row.transfers_failed) return say(at.note, "idle", gettext("nothing transferred in 5 min"));
    const { value, unit } = byteRate(row.transfer_bytes_per_s);
    return say(at.note, row.transfers_failed ? "bad" : "ok", `${value} ${unit} · ${failed}`);
  };
}

function effective(cell) {
  const at = parts(cell, { second: true });
  const chips = ROLES.map(([role, letter, , word]) => ({ role, word, node: el("span", { class: `chip ${letter}` }) }));
  const idle = el("span", { class: "chip s" });
  const stale = el("span", { class: "say warn" });
  at.foot.replaceChildren(el("span", { class: "legend" }, ...chips.map(({ node }) => node), idle, stale));
  return (row) => {
    const of = (role) => row.effective_by_role[role] ?? 0;
    at.big.set(number(row.effective_gpus, 1), gettext("of %(n)s", { n: number(row.gpus) }));
    const known = row.effective_gpus != null && row.gpus > 0;
    if (row.idle_per_hour == null) at.second.set(known ? percent(row.effective_gpus / row.gpus) : MISSING, gettext("% busy"));
    else at.second.set(`${sign(row)}${dollars(row.idle_per_hour)}`, gettext("/h idle"));
    hide(at.second.node, !known);
    meter(at.meter, ROLES.map(([role, , className]) => ({ className, value: of(role) })), Math.max(1, row.gpus));
    for (const { role, word, node } of chips) {
      redraw(node, number(of(role), 1), () => [number(of(role), 1), el("span", { class: "sr" }, ` ${word}`)]);
      attr(node, "title", gettext("%(role)s: %(n)s effective GPUs", { role: word, n: number(of(role), 1) }));
      hide(node, !known || !(role in row.effective_by_role));
    }
    text(idle, gettext("%(n)s idle", { n: number(row.gpus - (row.effective_gpus ?? 0), 1) }));
    hide(idle, !known || row.gpus_stale > 0);
    text(stale, gettext("%(n)s stale left out", { n: number(row.gpus_stale) }));
    hide(stale, !row.gpus_stale);
  };
}

function output(cell) {
  const at = parts(cell);
  return (row) => {
    if (row.cost_per_hour != null && row.output_tokens_per_s) {
      at.big.set(`${sign(row)}${number((row.cost_per_hour / (row.output_tokens_per_s * 3600)) * 1e6, 2)}`, gettext("/ 1M tok"));
      attr(at.note, "class", "");
      attr(at.foot, "title", `${gettext("All GPUs of the fleet, at the prices of the price book, by the tokens of the last minute")}${row.cost_guess ? ` · ${gettext("≈ some at a list price, a guess")}` : ""}`);
      text(at.note, gettext("%(n)s tok/s · $%(cost)s/h", { n: rate(row.output_tokens_per_s), cost: dollars(row.cost_per_hour) }));
      return;
    }
    at.big.set(rate(row.output_tokens_per_s), gettext("tok/s"));
    const each = row.requests_per_s && row.output_tokens_per_s != null ? row.output_tokens_per_s / row.requests_per_s : null;
    const perGpu = row.effective_gpus && row.output_tokens_per_s != null ? row.output_tokens_per_s / row.effective_gpus : null;
    attr(at.note, "class", "");
    attr(at.foot, "title", perGpu === null ? null : gettext("%(n)s tok/s per effective GPU", { n: number(perGpu) }));
    text(at.note, each === null ? gettext("no requests in 1 min") : gettext("%(n)s tok per request", { n: number(each) }));
  };
}

export function makeKpis(strip) {
  const cell = (name) => strip.querySelector(`[data-kpi="${name}"]`);
  const painters = [
    requests(cell("requests")),
    slo(cell("ttft"), "ttft"),
    slo(cell("itl"), "itl"),
    transfer(cell("transfer")),
    effective(cell("effective")),
    output(cell("output")),
  ];
  return (row, stale) => {
    strip.classList.toggle("is-stale", stale);
    for (const paint of painters) paint(row);
  };
}
