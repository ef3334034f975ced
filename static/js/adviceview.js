// The advisor's answer as panels: verdict, key figures, checks, forecasts of the modes, what would change the verdict.
import { firstTokenPanel, ratePanels } from "./advicecharts.js";
import { el, svg } from "./dom.js";
import { ROLE } from "./engines.js";
import { latency, latencyText, MISSING, number, percent, rate } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { MODES } from "./opwords.js";

const STATES = { pass: ["ok", gettext("pass")], fail: ["bad", gettext("fail")], unknown: ["idle", gettext("not known")] };
export const TITLES = {
  decode_share: gettext("Decode share of request time"),
  kv_network: gettext("KV per request against the network"),
  prefix_hits: gettext("KV already on the decode side"),
  gpus: gettext("GPUs"),
  transport: gettext("Transport"),
  short_prompts: gettext("Not only short requests"),
};
export const LIMITS = {
  decode_share: gettext("70 % or more"),
  kv_network: gettext("500 MB or less, or 100 Gb/s or more"),
  prefix_hits: gettext("under 80 %"),
  gpus: gettext("16 or more"),
  transport: "RDMA",
  short_prompts: gettext("512 in or more, or 100 out or more"),
};
const VERDICTS = { yes: gettext("yes"), no: gettext("no"), not_enough_data: gettext("not enough data"), try_canary: gettext("try a canary") };
export const GLYPHS = { yes: ["ok", "✓"], no: ["bad", "✕"], not_enough_data: ["idle", "○"], try_canary: ["warn", "▲"] };
const INPUTS = { prompt: gettext("prompt"), output: gettext("answer"), "prefix hits": gettext("prefix hits"), GPUs: gettext("GPUs"), network: gettext("network"), transport: gettext("transport"), "TTFT target": gettext("TTFT target"), "ITL target": gettext("ITL target"), GPU: gettext("GPU"), "prefill GPU": gettext("prefill GPU"), "decode GPU": gettext("decode GPU"), "KV precision": gettext("KV precision") };

export const title = ({ verdict, mode }) => {
  if (verdict === "yes") return mode === "conditional" ? gettext("Disaggregate per request (conditional)") : gettext("Disaggregate");
  if (verdict === "try_canary") return mode === "conditional" ? gettext("Try a canary of deciding per request") : gettext("Try a canary of disaggregation");
  return verdict === "no" ? gettext("Stay monolithic") : gettext("Not enough data");
};

const signed = (share) => (share == null ? gettext("no limit") : `${share < 0 ? "−" : "+"}${percent(Math.abs(share))} %`);
const bytes = (value) => (value >= 1e9 ? { value: number(value / 1e9, 2), unit: "GB" } : { value: number(value / 1e6), unit: "MB" });

// What the best split costs per million output tokens beside monolithic serving; "" where one of them keeps the targets nowhere.
function costWords({ forecasts, gain }) {
  const [whole, split] = ["monolithic", gain?.mode].map((mode) => forecasts.find((each) => each.mode === mode)?.cost_per_million_tokens);
  return whole && split ? gettext("$%(split)s against $%(whole)s per 1M output tokens", { split: number(split, 2), whole: number(whole, 2) }) : "";
}

function verdictNode(advice) {
  const [kind, glyph] = GLYPHS[advice.verdict];
  const passed = advice.checks.filter((check) => check.state === "pass").length;
  const gain = advice.gain
    ? [el("b", { class: "num money" }, signed(advice.gain.ratio), el("small", {}, advice.gain.ratio == null ? gettext("monolithic serving keeps the targets at no rate") : gettext("requests/s within the targets against monolithic, %(low)s to %(high)s", { low: signed(advice.gain.low), high: signed(advice.gain.high) })), el("small", {}, costWords(advice)))]
    : [];
  return el(
    "div",
    { class: "verdict" },
    el("strong", {}, el("span", { class: `verdict-glyph ${kind}`, "aria-hidden": "true" }, glyph), title(advice)),
    ...gain,
    el("span", { class: "soft full" }, el("span", { lang: "en" }, advice.sentence), ` ${gettext("%(passed)s of %(all)s checks pass.", { passed, all: advice.checks.length })}`),
  );
}

function figuresNode({ transfer, inputs, charts, kv_terms: terms }) {
  const prefill = charts.first_token?.mean_prefill_ms;
  const ofPrefill = (ms) => (prefill ? gettext("%(share)s % of prefill time", { share: percent(ms / prefill) }) : "");
  const size = bytes(transfer.kv_bytes_per_request);
  const wire = (gbps, ms, note) => [gettext("on the wire at %(gbps)s Gb/s", { gbps: number(gbps, Number.isInteger(gbps) ? 0 : 1) }), latency(ms), [ofPrefill(ms), note].filter(Boolean).join(", ")];
  const rows = [
    [gettext("KV per token"), { value: number(transfer.kv_bytes_per_token), unit: "B" }, terms ? gettext("2 × %(layers)s layers × %(kv_heads)s heads × %(head_dim)s × %(element_bytes)s B", terms) : ""],
    [gettext("KV per request"), size, gettext("%(n)s tokens, no prefix hit", { n: number(transfer.tokens) })],
    inputs.network_gbps === 100 ? wire(400, transfer.wire_ms_at_400_gbps, "") : wire(100, transfer.wire_ms_at_100_gbps, ""),
    wire(inputs.network_gbps, transfer.wire_ms, inputs.transport === "tcp" ? gettext("your network; TCP is taken to reach half of it") : gettext("your network")),
  ];
  return el("dl", { class: "quad" }, ...rows.map(([name, { value, unit }, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, unit)), el("dd", {}, note))));
}

const panel = (id, words, meta, ...nodes) => el("section", { class: "panel", "aria-labelledby": id }, el("header", {}, el("h2", { id }, words), el("span", { class: "meta" }, meta)), ...nodes);
const table = (id, className, heads, rows) => el("div", { class: "scroll", tabindex: "0", role: "group", "aria-labelledby": id }, el("table", { class: `table ${className}` }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)));
const head = (words, className = "") => el("th", { class: className }, words);

export function basis({ source, samples, window_s, confidence }) {
  const parts = [samples == null ? "" : ngettext("%(n)s request", "%(n)s requests", samples, { n: number(samples) }), window_s == null ? "" : gettext("over %(window)s s", { window: number(window_s) }), confidence == null ? "" : gettext("%(share)s % sure", { share: percent(confidence) })];
  return parts.filter(Boolean).join(" · ") || (source.startsWith("computed") ? gettext("computed") : gettext("given"));
}

function checkRow(check) {
  const [kind, words] = STATES[check.state];
  return el(
    "tr",
    {},
    el("td", {}, el("span", { class: `say ${kind}` }, words)),
    el("td", { class: "wrap" }, TITLES[check.name] ?? check.title, el("span", { class: "why", lang: "en" }, check.sentence)),
    el("td", { class: "r wrap" }, el("b", { class: "num" }, check.value_text), el("span", { class: "why" }, basis(check))),
    el("td", { class: "r soft wrap" }, LIMITS[check.name] ?? check.threshold_text),
  );
}

function range({ low, high, requests_per_second: value }, most) {
  const x = (each) => Math.round((1900 * each) / most) / 10;
  return svg("svg", { class: "range", viewBox: "0 0 200 18", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { class: "grid", d: "M0 9H200" }), svg("rect", { class: "band", x: x(low), y: 4, width: Math.max(1, x(high) - x(low)), height: 10 }), svg("rect", { class: "then", x: Math.max(0, x(value) - 1.5), y: 2, width: 3, height: 14 }));
}

function forecastRow(each, advice, most) {
  const name = el("td", { class: "wrap" }, MODES[each.mode], el("span", { class: "why" }, each.layout || gettext("no layout")));
  const picked = each.mode === advice.mode ? "pick" : "";
  if (!each.requests_per_second) return el("tr", { class: picked }, name, el("td", { class: "soft wrap", colspan: 6 }, gettext("keeps the targets at no rate on these GPUs")));
  const spread = each.high > each.low ? `${rate(each.low)} – ${rate(each.high)}` : MISSING;
  const over = (value, limit) => `r${value != null && value > limit ? " hot" : ""}`;
  const { ttft_ms: ttft, itl_ms: itl } = advice.inputs.slo;
  return el(
    "tr",
    { class: picked },
    name,
    el("td", { class: "r" }, el("b", { class: "num" }, rate(each.requests_per_second))),
    el("td", { class: "r soft" }, spread),
    el("td", { class: "rc opt" }, range(each, most)),
    el("td", { class: over(each.ttft_p99_ms, ttft) }, latencyText(each.ttft_p99_ms)),
    el("td", { class: over(each.itl_p99_ms, itl) }, latencyText(each.itl_p99_ms)),
    el("td", { class: "r" }, number(each.cost_per_million_tokens, 2)),
  );
}

function forecastPanel(advice) {
  const most = Math.max(1e-9, ...advice.forecasts.map((each) => Math.max(each.high, each.requests_per_second)));
  const heads = [head(gettext("mode")), head(gettext("requests/s"), "r"), head(gettext("95 % interval"), "r"), head("", "rc opt"), head(gettext("TTFT p99"), "r"), head(gettext("ITL p99"), "r"), head(gettext("$ / 1M out"), "r")];
  const meta = advice.inputs.seeds ? ngettext("highest rate within the targets, simulated with %(n)s draw", "highest rate within the targets, simulated with %(n)s draws", advice.inputs.seeds) : gettext("highest rate within the targets, closed form");
  const gain = advice.gain ? [el("p", { class: "panel-foot", lang: "en" }, advice.gain.sentence)] : [];
  return panel("modes-title", gettext("Forecast of the three modes"), meta, table("modes-title", "fc offers", heads, advice.forecasts.map((each) => forecastRow(each, advice, most))), ...gain);
}

// "7 : 6" of a split, "16 mixed" of one pool.
function enginesOf({ pools }) {
  if (pools.length === 1) return [el("span", { class: "m-ink" }, gettext("%(n)s mixed", { n: number(pools[0].engines) }))];
  return pools.flatMap(({ role, engines }, index) => [...(index ? [" : "] : []), el("span", { class: `${ROLE[role].letter}-ink` }, number(engines))]);
}

function splitsPanel({ charts: { splits }, inputs }) {
  const { ttft_ms: ttft, itl_ms: itl } = inputs.slo;
  const asked = { rate: rate(splits.requests_per_second) };
  const meta = splits.given ? gettext("%(rate)s req/s", asked) : gettext("%(rate)s req/s, what monolithic serving reaches", asked);
  const first = splits.layouts.find((each) => each.within);
  const over = (value, limit) => `r${value == null || value > limit ? " hot" : ""}`;
  const rows = splits.layouts.map((each) =>
    el(
      "tr",
      { class: each === first ? "pick" : "" },
      el("td", {}, ...enginesOf(each), el("span", { class: "why" }, `${each.pools.map((pool) => `TP${pool.gpus_per_engine}`).join(" : ")}${each.mode === "conditional" ? ` · ${MODES.conditional}` : ""}`)),
      el("td", { class: "r" }, number(each.gpus)),
      el("td", { class: over(each.ttft_p99_ms, ttft) }, latencyText(each.ttft_p99_ms)),
      el("td", { class: over(each.itl_p99_ms, itl) }, latencyText(each.itl_p99_ms)),
      el("td", { class: "r" }, number(each.cost_per_million_tokens, 2)),
    ),
  );
  const heads = [head(gettext("engines")), head(gettext("GPUs"), "r"), head(gettext("TTFT p99"), "r"), head(gettext("ITL p99"), "r"), head(gettext("$ / 1M out"), "r")];
  const foot = el("p", { class: "panel-foot" }, gettext("Amber misses the SLO. Closed form, ± 20 %: nothing else is both cheaper and quicker."));
  return panel("splits-title", gettext("Suggested split"), meta, table("splits-title", "offers", heads, rows), foot);
}

function flipsPanel({ flips, verdict }) {
  const rows = flips.flatMap((flip) => [
    el("dt", { title: flip.sentence }, INPUTS[flip.input] ?? flip.input, " ", el("b", { class: "num" }, flip.at), el("span", { class: "dim" }, ` ${gettext("instead of %(now)s", { now: flip.now })}`)),
    el("dd", {}, el("span", { class: `say ${GLYPHS[flip.verdict][0]}` }, VERDICTS[flip.verdict])),
  ]);
  const turned = new Set(flips.map((flip) => flip.input));
  const split = turned.has("prefill GPU") || turned.has("decode GPU");
  const rest = Object.keys(INPUTS).filter((name) => !turned.has(name) && (split ? name !== "GPU" : name !== "prefill GPU" && name !== "decode GPU"));
  const foot = rest.length ? [el("p", { class: "panel-foot" }, gettext("No value within 16 times its own changes it: %(inputs)s.", { inputs: rest.map((name) => INPUTS[name]).join(", ") }))] : [];
  return panel("flips-title", gettext("What would change the verdict"), gettext("one input, all else as it is; now: %(verdict)s", { verdict: VERDICTS[verdict] }), ...(rows.length ? [el("div", { class: "body" }, el("dl", { class: "kv" }, ...rows))] : []), ...foot);
}

// What is said above the answer while it is not the last one.
export function courseNode({ state, advice, share, ahead, reason }) {
  if (state === "done" || state === "failed") return reason ? el("div", { class: "banner warn" }, el("span", { class: "say warn wrap" }, reason)) : null;
  let words = ahead ? ngettext("%(n)s question comes first", "%(n)s questions come first", ahead) : gettext("Looking for the best layouts");
  if (advice) words = share == null ? gettext("This is the closed form; the simulation goes on") : gettext("This is the closed form; %(share)s % is simulated", { share: percent(share) });
  return el("div", { class: "banner course" }, el("span", { class: "say run" }, words), el("progress", { max: 1, value: share ?? (advice ? 0 : null), "aria-label": gettext("Simulation") }));
}

// url: of the chart library.
export function adviceNodes(advice, url) {
  const checks = [head(gettext("verdict")), head(gettext("check")), head(gettext("your value"), "r"), head(gettext("threshold"), "r")];
  const beside = el("div", { class: "stack c5" }, ...(advice.charts.splits ? [splitsPanel(advice)] : []), flipsPanel(advice));
  const least = firstTokenPanel(advice, url);
  return [
    el("section", { class: "panel", "aria-label": gettext("Verdict") }, verdictNode(advice), figuresNode(advice)),
    panel("checks-title", gettext("Five checks and the rule for short prompts"), gettext("decode share, GPUs and transport decide; the others warn"), table("checks-title", "ck", checks, advice.checks.map(checkRow))),
    forecastPanel(advice),
    least ? el("div", { class: "cols stretch" }, el("div", { class: "stack c7" }, least, ...ratePanels(advice, url)), beside) : beside,
  ];
}
