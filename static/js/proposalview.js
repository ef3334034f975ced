// The parts of a proposal's page: what changes, the figures, the inputs, the alternatives, the other model, what came of it.
import { el } from "./dom.js";
import { between, range, verdict } from "./forecast.js";
import { clockSeconds, latencyText, MISSING, number, percent, rate, span } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { MODES, roleWord } from "./opwords.js";
import { emptied } from "./panels.js";
import { layoutWords, poolWords } from "./proposalwords.js";

const INK = { prefill: "p-ink", decode: "d-ink", mixed: "m-ink" };
const money = (value, digits = 2) => (value == null ? MISSING : `$${number(value, digits)}`);
const share = (value) => (value == null ? MISSING : `${percent(value)} %`);
const late = (value) => (value == null ? gettext("cannot keep up") : latencyText(value));
const scroll = (id, node) => el("div", { class: "scroll", tabindex: "0", role: "group", "aria-labelledby": id }, node);
const head = (...cells) => el("thead", {}, el("tr", {}, ...cells.map(([words, className = ""]) => el("th", { class: className }, words))));

// ---- what would change
export function changeNodes({ row, proposal }) {
  const roles = [...new Set([...proposal.before, ...proposal.pools].map((pool) => pool.role))];
  const of = (pools, role) => pools.find((pool) => pool.role === role);
  const sizes = (role, pools) => (pools === proposal.pools ? (row.sizes[role] ?? 0) : (of(pools, role)?.engines ?? 0));
  const lines = roles.map((role) => {
    const [from, to] = [sizes(role, proposal.before), sizes(role, proposal.pools)];
    const shape = of(proposal.pools, role) ?? of(proposal.before, role);
    const was = of(proposal.before, role);
    const other = was && shape && (was.gpu !== shape.gpu || was.tensor_parallel !== shape.tensor_parallel);
    const moved = from === to ? el("span", { class: "soft" }, gettext("stays")) : el("b", { class: "num" }, `${to > from ? "+" : "−"}${number(Math.abs(to - from))}`);
    return el("tr", {}, el("td", {}, el("span", { class: INK[role] }, roleWord(role))), el("td", { class: "r num" }, number(from)), el("td", { class: "r" }, el("b", { class: "num" }, number(to))), el("td", { class: "r" }, moved), el("td", { class: "soft wrap" }, other ? `${poolWords({ ...was, engines: from })} → ${poolWords({ ...shape, engines: to })}` : `TP${shape.tensor_parallel} ${shape.gpu}`));
  });
  const mode = row.mode === row.mode_before ? [] : [el("p", { class: "panel-foot" }, gettext("Mode: %(before)s → %(after)s", { before: MODES[row.mode_before], after: MODES[row.mode] }))];
  const modified = proposal.modified?.pools ? [el("p", { class: "panel-foot" }, gettext("Proposed was %(layout)s; a person chose this instead.", { layout: layoutWords(proposal.pools) }))] : [];
  return [scroll("change-title", el("table", { class: "table" }, head([gettext("pool")], [gettext("now"), "r"], [gettext("then"), "r"], [gettext("engines"), "r"], [gettext("hardware")]), el("tbody", {}, ...lines))), ...mode, ...modified];
}

// ---- present against predicted, with the interval of the predictions' own error
function latencyLine(name, key, limit, now, then) {
  const value = then[key];
  const interval = value == null ? null : [value * (1 - then.error), value * (1 + then.error)];
  const [kind, words] = interval ? verdict({ limit, words: latencyText }, now[key], value, interval) : ["bad", gettext("cannot keep up")];
  return el("tr", {}, el("td", {}, name), el("td", { class: "r now" }, late(now[key])), el("td", { class: "r then" }, late(value)), el("td", { class: "r soft" }, interval ? between(...interval.map(latencyText)) : MISSING), el("td", { class: "rc opt" }, interval && range(now[key], value, interval, limit)), el("td", {}, el("span", { class: `say ${kind}` }, words)));
}

const plainLine = (name, now, then, note = "") => el("tr", {}, el("td", {}, name), el("td", { class: "r now" }, now), el("td", { class: "r then" }, then), el("td", { class: "r soft" }, MISSING), el("td", { class: "rc opt" }), el("td", { class: "soft" }, note));

// `now` and `then`: estimates of the planner's model at the load that was planned for.
export function estimateTable(id, slo, now, then) {
  if (then?.error == null) return emptied(gettext("No figures"), gettext("This proposal came without figures of both layouts."));
  const cost = now.cost_per_hour || then.cost_per_hour ? [plainLine(gettext("Cost per hour"), money(now.cost_per_hour), money(then.cost_per_hour)), plainLine(gettext("Cost per 1M out"), money(now.cost_per_million_tokens), money(then.cost_per_million_tokens))] : [];
  const key = el("span", { class: "range-key" }, el("span", { class: "k-now" }, gettext("now")), el("span", { class: "k-then" }, gettext("then")), el("span", { class: "k-lim" }, gettext("limit")));
  const heads = head([gettext("metric")], [gettext("present"), "r"], [gettext("predicted"), "r"], [gettext("interval"), "r"], [key, "rc opt"], [gettext("verdict")]);
  const rows = [
    latencyLine(gettext("TTFT p99"), "ttft_p99_ms", slo.ttft_ms, now, then),
    latencyLine(gettext("ITL p99"), "itl_p99_ms", slo.itl_ms, now, then),
    plainLine(gettext("Within both targets"), share(now.attained), share(then.attained)),
    plainLine(gettext("Busier pool works"), share(now.busy), share(then.busy), gettext("bottleneck: %(pool)s", { pool: roleWord(then.bottleneck) })),
    plainLine(gettext("GPUs"), number(now.gpus), number(then.gpus)),
    ...cost,
  ];
  return scroll(id, el("table", { class: "table fc" }, heads, el("tbody", {}, ...rows)));
}

export const figuresNodes = ({ proposal, model }) => [estimateTable("figures-title", model.slo, proposal.present, proposal.predicted), el("p", { class: "panel-foot" }, gettext("Both in the planner's closed form, at the load it planned for. The interval is how far such figures are off."))];

// ---- inputs
const pair = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];

// Kinds of request, the commonest first: a cell is stored as [requests, prompt tokens, answer tokens, cached ones].
const cellsOf = (mix) => (mix?.cells ?? []).map(([requests, prompt, answer]) => ({ requests, prompt, answer })).sort((a, b) => b.requests - a.requests);
const sum = (cells, of) => cells.reduce((total, cell) => total + of(cell), 0);

function mixRows(cells) {
  const total = sum(cells, (cell) => cell.requests);
  if (!total) return [];
  const rows = cells.slice(0, 6).map((cell) => el("tr", {}, el("td", { class: "r num" }, number(Math.round(cell.prompt))), el("td", { class: "r num" }, number(Math.round(cell.answer))), el("td", { class: "r num" }, share(cell.requests / total))));
  const rest = cells.length > 6 ? [el("p", { class: "panel-foot" }, ngettext("and %(n)s more kind of request", "and %(n)s more kinds of request", cells.length - 6, { n: number(cells.length - 6) }))] : [];
  return [scroll("inputs-title", el("table", { class: "table" }, head([gettext("prompt, tokens"), "r"], [gettext("answer, tokens"), "r"], [gettext("of requests"), "r"]), el("tbody", {}, ...rows))), ...rest];
}

export function inputNodes({ proposal: { inputs } }) {
  if (inputs.rate == null) return [emptied(gettext("Not kept"), gettext("What this proposal was made from was not kept."))];
  const cells = cellsOf(inputs.mix);
  const total = sum(cells, (cell) => cell.requests);
  const mean = (name) => (total ? number(Math.round(sum(cells, (cell) => cell.requests * cell[name]) / total)) : MISSING);
  const list = [
    ...pair(gettext("window"), ngettext("%(span)s, %(n)s request", "%(span)s, %(n)s requests", inputs.samples, { span: span(inputs.window_s), n: number(inputs.samples) })),
    ...pair(gettext("load"), gettext("%(n)s req/s", { n: rate(inputs.rate) })),
    ...pair(gettext("expected"), gettext("%(n)s req/s (%(low)s – %(high)s)", { n: rate(inputs.expected_rate), low: rate(inputs.expected_low), high: rate(inputs.expected_high) })),
    ...(inputs.peak ? pair(gettext("known peak"), inputs.peak) : []),
    ...pair(gettext("mean lengths"), gettext("%(prompt)s in, %(answer)s out", { prompt: mean("prompt"), answer: mean("answer") })),
    ...pair(gettext("burst"), gettext("%(n)s × Poisson", { n: number(inputs.burst, 1) })),
    ...pair(gettext("seen by users"), gettext("TTFT p99 %(ttft)s, ITL p99 %(itl)s", { ttft: latencyText(inputs.ttft_p99_ms), itl: latencyText(inputs.itl_p99_ms) })),
    ...pair(gettext("engines against the model"), gettext("prefill × %(prefill)s, decode × %(decode)s", { prefill: number(inputs.prefill_correction, 2), decode: number(inputs.decode_correction, 2) })),
  ];
  return [el("div", { class: "body" }, el("dl", { class: "kv" }, ...list)), ...mixRows(cells)];
}

export const inputsAt = ({ proposal: { inputs } }) => (inputs.at_s == null ? "" : clockSeconds(inputs.at_s));

// ---- alternatives
export function otherNodes({ proposal, model: { slo } }) {
  if (!proposal.alternatives.length) return [emptied(gettext("Nothing else"), gettext("No other layout came near."))];
  const over = (value, limit) => `r${value == null || value > limit ? " hot" : ""}`;
  const rows = proposal.alternatives.map(({ mode, pools, estimate = {}, why_not: why }) =>
    el("tr", {}, el("td", { class: "wrap" }, MODES[mode] ?? mode, el("span", { class: "why" }, layoutWords(pools))), el("td", { class: over(estimate.ttft_p99_ms, slo.ttft_ms) }, late(estimate.ttft_p99_ms)), el("td", { class: over(estimate.itl_p99_ms, slo.itl_ms) }, late(estimate.itl_p99_ms)), el("td", { class: "r opt" }, estimate.gpus == null ? MISSING : number(estimate.gpus)), el("td", { class: "wrap soft", lang: "en" }, why)),
  );
  return [scroll("others-title", el("table", { class: "table offers" }, head([gettext("layout")], [gettext("TTFT p99"), "r"], [gettext("ITL p99"), "r"], [gettext("GPUs"), "r opt"], [gettext("why not")]), el("tbody", {}, ...rows)))];
}

// ---- the other model of a trade
export function tradeNodes({ row, proposal: { trade, returned } }) {
  const lents = [...(trade.takes ?? []), ...(trade.gives_back ?? [])];
  const items = lents.map((lent) => el("li", {}, ngettext("%(n)s %(role)s engine of %(giver)s for %(taker)s", "%(n)s %(role)s engines of %(giver)s for %(taker)s", lent.engines, { n: number(lent.engines), role: roleWord(lent.role), giver: lent.giver, taker: lent.taker })));
  const end = trade.gives_back?.length ? gettext("They are given back.") : returned ? gettext("They were given back.") : gettext("They are given back when the need is gone.");
  const table = trade.giver_now && trade.giver_then ? [tradeTable(trade.giver_now, trade.giver_then)] : [];
  const layout = trade.giver_pools?.length ? [el("p", { class: "panel-foot" }, gettext("%(model)s afterwards: %(layout)s", { model: row.giver, layout: layoutWords(trade.giver_pools) }))] : [];
  return [el("div", { class: "body" }, el("ul", { class: "reasons" }, ...items, el("li", { class: "soft" }, end))), ...table, ...layout];
}

function tradeTable(now, then) {
  const line = (name, words, key) => el("tr", {}, el("td", {}, name), el("td", { class: "r now" }, words(now[key])), el("td", { class: "r then" }, words(then[key])));
  return scroll("trade-title", el("table", { class: "table fc" }, head([gettext("metric")], [gettext("present"), "r"], [gettext("predicted"), "r"]), el("tbody", {}, line(gettext("TTFT p99"), late, "ttft_p99_ms"), line(gettext("ITL p99"), late, "itl_p99_ms"), line(gettext("Within both targets"), share, "attained"), line(gettext("Busier pool works"), share, "busy"))));
}

// ---- afterwards
export function cameNodes({ row, proposal: { actual, predicted } }) {
  if (row.state === "open" || !row.operation) return [emptied(gettext("Nothing yet"), gettext("After it was carried out, the 15 minutes that follow stand here beside what was predicted."))];
  if (!Object.keys(actual).length) return [emptied(gettext("Not measured yet"), gettext("It is measured 15 minutes after its operation has ended."))];
  const gaps = (actual.gaps ?? []).map((gap) => el("li", {}, el("span", { class: "say warn wrap", lang: "en" }, gap)));
  const expected = actual.expected ?? {};
  const off = (key) => {
    const said = expected[key] ?? predicted[key];
    return said == null || !actual[key] ? MISSING : `${said >= actual[key] ? "+" : "−"}${number(Math.round(100 * Math.abs(said / actual[key] - 1)))} %`;
  };
  const line = (name, key) => el("tr", {}, el("td", {}, name), el("td", { class: "r" }, late(predicted[key])), el("td", { class: "r" }, actual.expected ? late(expected[key]) : MISSING), el("td", { class: "r" }, el("b", { class: "num" }, latencyText(actual[key]))), el("td", { class: "r soft" }, off(key)));
  const table = actual.ttft_p99_ms === undefined ? [] : [scroll("came-title", el("table", { class: "table" }, head([gettext("metric")], [gettext("predicted"), "r"], [gettext("for the load that came"), "r"], [gettext("actual"), "r"], [gettext("off by"), "r"]), el("tbody", {}, line(gettext("TTFT p99"), "ttft_p99_ms"), line(gettext("ITL p99"), "itl_p99_ms"))))];
  const load = actual.expected ? [el("p", { class: "panel-foot" }, gettext("It came %(rate)s req/s, %(prompt)s in, %(answer)s out.", { rate: rate(expected.rate), prompt: number(Math.round(expected.prompt_tokens)), answer: number(Math.round(expected.output_tokens)) }))] : [];
  return [...table, ...load, ...(gaps.length ? [el("ul", { class: "body reasons" }, ...gaps)] : [])];
}
