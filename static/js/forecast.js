// What another split would do, simulated under the traffic of late: a row per figure, now against then with the interval.
import { modelUrl, read } from "./act.js";
import { el, svg } from "./dom.js";
import { latencyText, MISSING, number, percent } from "./format.js";
import { gettext } from "./i18n.js";
import { emptied, failed } from "./panels.js";

const AGAIN_MS = 900;
const BUSY_LIMIT = 0.85;
const BUSY = { prefill: gettext("Prefill busy"), decode: gettext("Decode busy"), mixed: gettext("Mixed busy") };
const SAME = 0.02; // a figure that changes by less is the same

// Asks until every split is there or refused. told({basis, splits, refused, error}) after each answer; stop() ends it.
export function askForecast(model, mode, splits, told) {
  let stopped = false;
  async function again() {
    const query = splits.map((split) => `&split=${encodeURIComponent(split)}`).join("");
    const { ok, document } = await read(modelUrl(model, `forecast?mode=${mode}${query}`));
    if (stopped) return;
    told(ok ? document : { error: document.error ?? document.reasons?.[0], splits: {} });
    if (ok && Object.values(document.splits).includes(null)) setTimeout(again, AGAIN_MS);
  }
  again();
  return () => {
    stopped = true;
  };
}

const of = (figures, role) => figures.pools.find((pool) => pool.role === role);
const money = (value) => (value == null ? MISSING : `$${number(value, 2)}`);
const share = (value) => (value == null ? MISSING : `${percent(value)} %`);
const latencyRow = (name, key, quantile, limit = null) => ({
  name,
  value: (figures) => figures[key][quantile],
  interval: (figures) => figures.interval?.[key][quantile],
  words: latencyText,
  limit,
});

function rowsFor(slo, then) {
  const busy = then.pools.map(({ role }) => ({
    name: BUSY[role],
    value: (figures) => of(figures, role)?.busy_share ?? null,
    interval: (figures) => figures.interval?.busy_share?.[role],
    words: share,
    limit: BUSY_LIMIT,
    busy: true,
  }));
  return [
    latencyRow(gettext("TTFT p99"), "ttft_ms", "p99", slo.ttft_ms),
    latencyRow(gettext("TTFT p50"), "ttft_ms", "p50"),
    latencyRow(gettext("ITL p99"), "itl_ms", "p99", slo.itl_ms),
    latencyRow(gettext("KV transfer p99"), "transfer_ms", "p99"),
    ...busy,
    { name: gettext("Effective GPUs"), value: (figures) => figures.effective_gpus, interval: (figures) => figures.interval?.effective_gpus, words: (value) => number(value, 1) },
    { name: gettext("Cost per hour"), value: (figures) => figures.cost_per_hour, interval: () => null, words: money },
    { name: gettext("Cost per 1M out"), value: (figures) => figures.cost_per_million_tokens, interval: (figures) => figures.interval?.cost_per_million_tokens, words: money },
  ];
}

// [kind of say, words] on a figure, the limit first.
export function verdict({ limit, busy, words }, now, then, interval) {
  if (then == null) return ["idle", MISSING];
  const high = interval?.[1] ?? then;
  if (limit && then > limit) return ["bad", gettext("over %(limit)s", { limit: words(limit) })];
  if (limit && high > limit) return ["warn", gettext("upper end over %(limit)s", { limit: words(limit) })];
  if (limit) return ["ok", busy ? gettext("under %(limit)s", { limit: words(limit) }) : gettext("under SLO %(limit)s", { limit: words(limit) })];
  if (now == null || Math.abs(then - now) <= SAME * Math.max(now, then)) return ["idle", gettext("same")];
  return then < now ? ["ok", gettext("lower")] : ["idle", gettext("higher")];
}

export function range(now, then, interval, limit) {
  const [low, high] = interval ?? [then, then];
  const most = 1.15 * Math.max(now ?? 0, high, limit ?? 0, 1e-9);
  const x = (value) => Math.round((2000 * value) / most) / 10;
  const marks = [svg("path", { class: "grid", d: "M0 9H200" }), svg("rect", { class: "band", x: x(low), y: 4, width: Math.max(1, x(high) - x(low)), height: 10 }), svg("rect", { class: "then", x: x(then) - 1.5, y: 2, width: 3, height: 14 })];
  if (now != null) marks.push(svg("path", { class: "now", d: `M${x(now)} 4v10` }));
  if (limit) marks.push(svg("path", { class: "lim", d: `M${x(limit)} 0v18` }));
  return svg("svg", { class: "range", viewBox: "0 0 200 18", preserveAspectRatio: "none", "aria-hidden": "true" }, ...marks);
}

// "1.31 – 1.72 s": the unit once, unless they differ.
export function between(low, high) {
  const unit = / \S+$/.exec(high)?.[0] ?? "";
  return `${unit && low.endsWith(unit) ? low.slice(0, -unit.length) : low} – ${high}`;
}

function tableRow(row, before, after) {
  const [now, then, interval] = [before && row.value(before), row.value(after), row.interval(after)];
  const [kind, words] = verdict(row, now, then, interval);
  const same = before === after;
  return el(
    "tr",
    {},
    el("td", {}, row.name),
    el("td", { class: "r now" }, row.words(now)),
    el("td", { class: "r then" }, same ? "" : row.words(then)),
    el("td", { class: "r soft" }, interval ? between(...interval.map(row.words)) : MISSING),
    el("td", { class: "rc opt" }, then == null ? null : range(now, then, interval, row.limit)),
    el("td", {}, el("span", { class: `say ${kind}` }, words)),
  );
}

function table(slo, nowText, thenText, before, after) {
  const key = el("span", { class: "range-key" }, el("span", { class: "k-now" }, gettext("now")), el("span", { class: "k-then" }, gettext("then")), el("span", { class: "k-lim" }, gettext("limit")));
  const heads = [gettext("metric"), gettext("now %(split)s", { split: nowText }), thenText === nowText ? "" : gettext("then %(split)s", { split: thenText }), gettext("95 % interval")];
  const head = el("tr", {}, ...heads.map((words, index) => el("th", { class: index ? "r" : "" }, words)), el("th", { class: "rc opt" }, key), el("th", {}, gettext("verdict")));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-labelledby": "forecast-title" }, el("table", { class: "table fc" }, el("thead", {}, head), el("tbody", {}, ...rowsFor(slo, after).map((row) => tableRow(row, before, after)))));
}

const WIDTH = 1000;
const HEIGHT = 168;
const TOP = 14;
const FLOOR = 150;

// One point with its whisker per split; the limit is a dashed line.
function splitChart(title, splits, pick, limit, nowText, thenText) {
  const known = splits.filter(({ figures }) => figures);
  const most = 1.15 * Math.max(limit, ...known.map(({ figures }) => pick(figures).high));
  const y = (value) => Math.round(10 * (FLOOR - ((FLOOR - TOP) * value) / most)) / 10;
  const x = (index) => `${Math.round(10 * (8 + (84 * index) / Math.max(1, splits.length - 1))) / 10}%`;
  const marks = splits.flatMap(({ split, figures }, index) => {
    const kind = split === thenText ? "pick" : split === nowText ? "now" : "";
    const name = svg("text", { class: kind ? "strong" : "", x: x(index), y: 164, "text-anchor": "middle" }, split);
    if (!figures) return [name];
    const { value, low, high } = pick(figures);
    const point = svg("circle", { class: `pt ${kind}`, cx: x(index), cy: y(value), r: kind ? 4.5 : 3.5 });
    const said = kind ? [svg("text", { class: "strong", x: x(index), y: y(value) - 8, "text-anchor": "middle" }, latencyText(value))] : [];
    return [svg("line", { class: "whisk", x1: x(index), x2: x(index), y1: y(low), y2: y(high) }), point, name, ...said];
  });
  const frame = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", width: "100%", height: HEIGHT }, svg("path", { class: "axis", d: `M0 ${FLOOR}H${WIDTH}` }), svg("path", { class: "slo", d: `M0 ${y(limit)}H${WIDTH}` }));
  const words = svg("text", { class: "lab", x: "100%", y: y(limit) - 4, "text-anchor": "end" }, gettext("SLO %(limit)s", { limit: latencyText(limit) }));
  return el("div", {}, el("h3", {}, title), svg("svg", { class: "chart", height: HEIGHT, role: "img", "aria-label": title }, frame, words, ...marks));
}

const p99 = (key) => (figures) => {
  const value = figures[key].p99 ?? 0;
  const [low, high] = figures.interval?.[key].p99 ?? [value, value];
  return { value, low, high };
};

// Strain of a split: how much of its SLO the worse of the two uses; smaller is better.
export const strain = (figures, slo) => Math.max((figures.ttft_ms.p99 ?? Infinity) / slo.ttft_ms, (figures.itl_ms.p99 ?? Infinity) / slo.itl_ms);

export function basisWords(basis) {
  if (!basis) return "";
  return gettext("at %(rate)s req/s, prompts of %(prompt)s and answers of %(output)s tokens, as in the last %(minutes)s min · simulated", {
    rate: number(basis.rate, basis.rate < 10 ? 2 : 1),
    prompt: number(basis.prompt_tokens),
    output: number(basis.output_tokens),
    minutes: number(basis.minutes),
  });
}

// How far the forecast of the present split is from what is measured now: how much to believe the others.
function errorWords(before, model) {
  if (!before || !model) return "";
  const off = (key, name, measured) => (measured && before[key].p99 != null ? gettext("%(name)s %(off)s % (measured %(value)s)", { name, off: number(Math.round(100 * (before[key].p99 / measured - 1))), value: latencyText(measured) }) : "");
  const parts = [off("ttft_ms", "TTFT p99", model.ttft.p99), off("itl_ms", "ITL p99", model.itl.p99), off("transfer_ms", gettext("KV transfer p99"), model.transfer.p99)].filter(Boolean);
  return parts.length ? gettext("Forecast of now against what is measured now: %(errors)s", { errors: parts.join(", ") }) : gettext("Nothing is measured now to compare the forecast with.");
}

function notes(after, basis) {
  const found = [...after.notes, ...(after.guesses ?? []).map((guess) => gettext("guessed: %(what)s", { what: guess }))];
  if (basis.prefix_cached) found.push(gettext("%(n)s leading tokens are taken as cached", { n: number(basis.prefix_cached) }));
  return found;
}

// The panel's nodes. `answers`: the newest of askForecast; `model`: its live row or null.
export function forecastNodes({ answers, splits, nowText, thenText, slo, model, again }) {
  if (answers.error) {
    const retry = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
    retry.addEventListener("click", again);
    return [failed(gettext("Could not forecast: %(error)s", { error: answers.error }), retry)];
  }
  if (answers.refused) return [emptied(gettext("No forecast yet"), answers.refused)];
  const figures = (split) => answers.splits[split]?.figures ?? null;
  const [before, after] = [figures(nowText), figures(thenText)];
  const refused = answers.splits[thenText]?.refused;
  if (refused) return [failed(gettext("No forecast of %(split)s: %(error)s", { split: thenText, error: refused }))];
  if (!after) return [el("div", { class: "body stack sk", "data-making": thenText }, ...Array.from({ length: 3 }, () => el("div", { class: "skeleton" })))];
  const all = splits.map((split) => ({ split, figures: figures(split) }));
  const charts = splits.length > 2 ? [el("div", { class: "pairs" }, splitChart(gettext("TTFT p99 at every split"), all, p99("ttft_ms"), slo.ttft_ms, nowText, thenText), splitChart(gettext("ITL p99 at every split"), all, p99("itl_ms"), slo.itl_ms, nowText, thenText))] : [];
  const foot = [before && errorWords(before, model), ...notes(after, answers.basis)].filter(Boolean).join(" · ");
  return [table(slo, nowText, thenText, before, after), ...charts, el("p", { class: "panel-foot" }, foot)];
}
