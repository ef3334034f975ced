// The key figures of a model over the time that the page shows: each with its window, limit and one sentence.
import { attr, el, hide, redraw } from "./dom.js";
import { byteRate, latencyText, MISSING, number, percent, rate } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { parts, setPair } from "./kpis.js";
import { limitMeter, meter } from "./meters.js";
import { say } from "./say.js";

const sum = (figures) => (figures.some((figure) => figure.value != null) ? figures.reduce((total, figure) => total + (figure.value ?? 0), 0) : null);

function makeCell(name, title, options) {
  const when = el("span", { class: "meta" });
  const node = el("div", { class: "kpi", "data-kpi": name }, el("dt", {}, title, when), el("dd", { class: "line" }), el("dd", { class: "meter" }), el("dd", { class: "foot" }));
  return { node, when, at: parts(node, options) };
}

function paintRequests(at, figures) {
  at.big.set(rate(figures.requests_per_s.value), gettext("req/s"));
  const { requests, failed, cancelled } = figures;
  if (!requests.value) return say(at.note, "idle", gettext("no requests in this time"));
  meter(at.meter, [{ className: "fill-bad", value: failed.value }], requests.value);
  attr(at.foot, "title", gettext("%(n)s finished, %(cancelled)s cancelled by their clients; the meter shows the part that failed", { n: number(requests.value), cancelled: number(cancelled.value) }));
  return say(at.note, failed.value ? "bad" : "ok", ngettext("%(n)s failed of %(all)s", "%(n)s failed of %(all)s", failed.value, { n: number(failed.value), all: number(requests.value) }));
}

function paintSlo(at, { p50, p99 }, limit) {
  setPair(at, p50.value, p99.value);
  limitMeter(at.meter, p99.value, limit);
  if (p99.value == null) return say(at.note, "idle", gettext("no streamed answers in this time"));
  const words = { gap: latencyText(Math.abs(p99.value - limit)), limit: latencyText(limit) };
  if (p99.value > limit) return say(at.note, "bad", gettext("%(gap)s over SLO %(limit)s", words));
  return say(at.note, "ok", gettext("%(gap)s under SLO %(limit)s", words));
}

// Of the pool that moves KV: with a connector that pulls, the decode engines.
function paintTransfer(at, pools) {
  const moving = [...pools].sort((a, b) => (b.transfers.value ?? 0) - (a.transfers.value ?? 0))[0];
  setPair(at, moving?.transfer.p50.value, moving?.transfer.p99.value);
  const failed = sum(pools.map((pool) => pool.failed)) ?? 0;
  const expired = sum(pools.map((pool) => pool.leases_expired)) ?? 0;
  meter(at.meter, [{ className: "fill-bad", value: failed }], Math.max(1, (moving?.transfers.value ?? 0) + failed));
  if (!moving) return say(at.note, "idle", gettext("nothing transferred in this time"));
  const { value, unit } = byteRate(sum(pools.map((pool) => pool.bytes_per_s)));
  const lost = ngettext("%(n)s failed", "%(n)s failed", failed, { n: number(failed) });
  attr(at.foot, "title", ngettext("%(n)s lease expired", "%(n)s leases expired", expired, { n: number(expired) }));
  return say(at.note, failed || expired ? "bad" : "ok", `${value} ${unit} · ${lost}`);
}

const FILL = { prefill: "fill-p", decode: "fill-d", mixed: "fill-m" };

function paintEffective(at, pools) {
  const [held, working] = [sum(pools.map((pool) => pool.use.gpus)), sum(pools.map((pool) => pool.use.effective))];
  at.big.set(number(working, 1), gettext("of %(n)s", { n: number(held, held % 1 ? 1 : 0) }));
  const known = working != null && held > 0;
  at.second.set(known ? percent(working / held) : MISSING, gettext("% busy"));
  hide(at.second.node, !known);
  meter(at.meter, pools.map((pool) => ({ className: FILL[pool.role] ?? "fill-x2", value: pool.use.effective.value ?? 0 })), Math.max(1, held ?? 0));
  return say(at.note, known ? "" : "idle", known ? gettext("%(n)s idle", { n: number(held - working, 1) }) : gettext("no GPU told its activity"));
}

function paintOutput(at, figures) {
  at.big.set(rate(figures.output_tokens_per_s.value), gettext("tok/s"));
  const cached = figures.cached.value;
  meter(at.meter, [{ className: "fill-x2", value: cached ?? 0 }], 1);
  return say(at.note, "", cached == null ? "" : gettext("%(n)s % of prompt tokens cached", { n: percent(cached) }));
}

// paint({figures, pools, transfers}, {words, stale}).
export function makeModelKpis(strip, slo) {
  const pair = { second: true };
  const cells = {
    requests: makeCell("requests", gettext("Requests")),
    ttft: makeCell("ttft", gettext("Time to first token"), pair),
    itl: makeCell("itl", gettext("Inter-token latency"), pair),
    transfer: makeCell("transfer", gettext("KV transfer"), pair),
    effective: makeCell("effective", gettext("Effective GPUs"), pair),
    output: makeCell("output", gettext("Output")),
  };
  strip.append(...Object.values(cells).map(({ node }) => node));
  return ({ figures, pools, transfers }, { words, stale }) => {
    strip.classList.toggle("is-stale", stale);
    for (const { when } of Object.values(cells)) redraw(when, words, () => [words]);
    paintRequests(cells.requests.at, figures);
    paintSlo(cells.ttft.at, figures.ttft, slo.ttft_ms);
    paintSlo(cells.itl.at, figures.itl, slo.itl_ms);
    paintTransfer(cells.transfer.at, transfers);
    paintEffective(cells.effective.at, pools);
    paintOutput(cells.output.at, figures);
  };
}
