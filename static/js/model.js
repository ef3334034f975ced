// The page of one model. Live rows paint the head and the engines with every frame; charts and figures of the chosen time are asked
// for anew when a frame comes and they are old enough. A panel that fails says so in its place.
import { modelUrl, read, setDown } from "./act.js";
import { paintAdvice } from "./advicepanel.js";
import { makeCanary } from "./canary.js";
import { now, setServerTime } from "./clock.js";
import { isOpen } from "./dialog.js";
import { el, hide, redraw, text } from "./dom.js";
import { follow } from "./follow.js";
import { number, span } from "./format.js";
import { gettext } from "./i18n.js";
import { key } from "./keys.js";
import { failedPairs, paintMatrix } from "./matrix.js";
import { makeCharts } from "./modelcharts.js";
import { makeEngines } from "./modelengines.js";
import { makeHead } from "./modelhead.js";
import { makeModelKpis } from "./modelkpis.js";
import { failed, guard } from "./panels.js";
import { makeRange } from "./range.js";
import { wordsOf } from "./splitcost.js";
import { takeAway } from "./takeaway.js";
import { paintHandoff, paintWaste } from "./usepanels.js";
import { walk } from "./walk.js";
import { isUtc } from "./zone.js";

const byId = (id) => document.getElementById(id);
const part = (panel, name) => byId(panel).querySelector(`[data-${name}]`);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const NAME = first.model.name;
const TOPIC = `model:${NAME}`;
let facts = first.model;
let refused = first.refused;

const feeds = follow({ topics: [TOPIC], frames: [first.frame], paint: (state) => paint(state), frame: () => due() && refresh(), missing: () => true });
const rows = feeds.rows(TOPIC);
const range = makeRange(byId("range"), { changed: () => refresh(true) });

// ---- questions to telemetry, each at most once at a time
function dataUrl(what) {
  const query = range.query();
  if (what === "waste") query.set("midnight", midnight());
  return `/data/models/${NAME.split("/").map(encodeURIComponent).join("/")}/${what}?${query}`;
}

function midnight() {
  const at = new Date(now() * 1000);
  if (isUtc()) at.setUTCHours(0, 0, 0, 0);
  else at.setHours(0, 0, 0, 0);
  return Math.round(at.getTime() / 1000);
}

// How old what is shown may get before a frame asks for it anew: a cell of the charts, about.
const everyMs = () => (range.span <= 3600 ? 10_000 : range.span <= 21_600 ? 60_000 : 300_000);
let askedAt = 0;
let round = 0;
let running = 0;
const due = () => range.live && !running && !document.hidden && Date.now() - askedAt > everyMs();

// ---- panels: what they need, how they paint it, and how often at most they are asked for (everyMs, or what tells it)
const plotlyUrl = byId("charts").dataset.plotly;
const charts = makeCharts(facts.slo, dataUrl);
for (const { chart } of charts) byId("charts").append(chart.node);
const kpis = makeModelKpis(byId("kpis"), facts.slo);
const figuresOf = new Map(); // engine and role -> its figures
// Figures of engines take the most time: asked for anew once the time range has moved by a cell, or when an engine has none.
let figuresStepMs = 0;
const figuresEveryMs = () => (rows.of("engine").every((row) => figuresOf.has(`${row.engine} ${row.role}`)) ? figuresStepMs : 0);
const everyOf = ({ everyMs: own }) => (typeof own === "function" ? own() : own);

const PANELS = [
  ...charts.map(({ source, chart }) => ({
    needs: [source, "markers"],
    paint: (found, state) => chart.paint(found[source].found, { ...state, markers: found.markers.found }, plotlyUrl),
    fail: (words, again) => chart.failed(words, again),
  })),
  { needs: ["figures", "pools", "transfers"], paint: ({ figures, pools: of, transfers }, state) => paintKpis(figures.found, of.found, transfers.found, state), fail: failIn(byId("kpis")) },
  { needs: ["advice"], everyMs: 60_000, paint: ({ advice }) => paintAdvice(part("advice", "body"), advice), fail: failIn(part("advice", "body")) },
  { needs: ["handoff"], paint: ({ handoff }) => paintHandoff(part("handoff", "body"), handoff.found), fail: failIn(part("handoff", "body")) },
  { needs: ["waste"], everyMs: 60_000, paint: ({ waste }) => paintWaste(part("waste", "body"), waste.found), fail: failIn(part("waste", "body")) },
  { needs: ["proposed-cost"], everyMs: 60_000, paint: ({ "proposed-cost": { proposals } }) => paintSplit(wordsOf(proposals)), fail: () => paintSplit(null) },
  { needs: ["pairs"], paint: ({ pairs }, state) => paintPairs(pairs.found, state), fail: failIn(part("pairs", "body")) },
  { needs: ["engines"], everyMs: figuresEveryMs, paint: ({ engines: { found, step_s: step } }) => keepFigures(found, step), fail: () => (figuresStepMs = 0) },
  { needs: ["slo"], everyMs: 30_000, paint: ({ slo }) => head.slo(slo.found, facts), fail: () => head.slo(null, facts) },
];

function paintSplit(words) {
  part("waste", "split").replaceChildren(...(words ? [words] : []));
  hide(part("waste", "split"), !words);
}

function failIn(body) {
  return (words, again) => {
    const button = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
    button.addEventListener("click", again);
    redraw(body, `failed ${words} ${Date.now()}`, () => [failed(words, button)]);
  };
}

async function refresh(asked = false) {
  if (asked) round += 1;
  askedAt = Date.now();
  const answers = new Map();
  const get = (what) => {
    if (!answers.has(what)) answers.set(what, read(dataUrl(what)));
    return answers.get(what);
  };
  if (asked) feeds.repaint();
  const facing = asked ? read(modelUrl(NAME, "facts")).then(keepFacts) : againFacts();
  const wanted = PANELS.filter((panel) => asked || !(Date.now() - panel.askedAt < everyOf(panel)));
  for (const panel of wanted) panel.askedAt = Date.now();
  running += 1;
  await Promise.all([facing, ...wanted.map((panel) => fill(panel, get))]);
  running -= 1;
}

// Facts change with operations; their version comes with the live rows. A canary's numbers change all the time.
let factsAt = Date.now();
function againFacts() {
  const row = rows.get(TOPIC);
  if (!(facts.canary || (row && row.version !== facts.version)) || Date.now() - factsAt < 9000) return null;
  factsAt = Date.now();
  return read(modelUrl(NAME, "facts")).then(keepFacts);
}

function keepFacts({ ok, document: told }) {
  if (!ok) return;
  ({ model: facts, refused } = told);
  feeds.repaint();
}

async function fill(panel, get) {
  const mine = round;
  const found = await Promise.all(panel.needs.map(get));
  if (mine !== round) return; // another time range was chosen meanwhile
  const bad = found.find(({ ok }) => !ok);
  if (bad) {
    panel.fail(gettext("Could not load this: %(error)s", { error: bad.document.error ?? bad.document.reasons?.[0] ?? `HTTP ${bad.status}` }), () => refresh(true));
    return;
  }
  const told = Object.fromEntries(panel.needs.map((what, index) => [what, found[index].document]));
  const { since, until, now: at } = found[0].document;
  try {
    panel.paint(told, { window: { since, until, now: at }, words: range.words });
  } catch (error) {
    console.error(error);
    panel.fail(error.message, () => refresh(true));
  }
}

// ---- freshness: what the newest figures of a source say of all panels that are drawn from it
const staleSince = { series: null, pool_series: null, transfer_series: null };

function keepStale(name, figure) {
  staleSince[name] = figure?.stale ? (figure.at ?? 0) : null;
}

function paintStale() {
  for (const { source, chart } of charts) {
    const since = staleSince[source];
    chart.node.classList.toggle("is-stale", since !== null);
    text(chart.note, since === null ? "" : since ? gettext("▲ stale since %(age)s", { age: span(now() - since) }) : gettext("▲ nothing recorded"));
  }
}

function paintKpis(figures, of, transfers, { words }) {
  keepStale("series", figures.requests);
  keepStale("pool_series", of[0]?.running ?? figures.requests);
  keepStale("transfer_series", of[0]?.running ?? figures.requests);
  kpis({ figures, pools: of, transfers }, { words, stale: figures.requests.stale });
  paintStale();
}

function paintPairs({ pairs, labels }, { words }) {
  const failedCount = failedPairs(pairs);
  text(part("pairs", "meta"), gettext("%(time)s · ✕ = failed", { time: words }));
  redraw(part("pairs", "said"), `${failedCount}`, () => (failedCount ? [el("span", { class: "say bad" }, gettext("%(n)s failed", { n: number(failedCount) }))] : []));
  paintMatrix(part("pairs", "body"), { pairs, labels }, (prefill, decode) => requestsUrl({ prefill, decode }));
}

function requestsUrl(more = {}) {
  const query = range.query();
  query.set("model", NAME);
  for (const [name, value] of Object.entries(more)) query.set(name, value);
  return `/requests?${query}`;
}

function keepFigures(found, step) {
  figuresStepMs = step * 1000;
  figuresOf.clear();
  for (const one of found) figuresOf.set(`${one.engine} ${one.role}`, one);
  feeds.repaint();
}

// ---- what opens
const taken = ({ url }) => location.assign(url);
async function openMode(mode) {
  if (isOpen()) return;
  const dialog = await import("./modedialog.js");
  dialog.openMode(NAME, mode, taken);
}
async function openEngine(row, verb = null) {
  if (!row || isOpen()) return;
  const dialog = await import("./enginedialog.js");
  dialog.openEngine(row, taken, verb);
}
const head = makeHead(byId("head"), { name: NAME, models: first.models, openMode, requestsUrl });

// ---- once more, all of it
const engines = makeEngines(byId("engines"), openEngine);
const canary = makeCanary(byId("canary"), { start: () => openMode(facts.mode === "disaggregated" ? "conditional" : "disaggregated"), done: taken });
part("pairs", "end").append(el("span", { "data-said": true }), takeAway(gettext("the pairs"), () => dataUrl("pairs")));
part("advice", "end").append(takeAway(gettext("the checks"), () => dataUrl("advice")));
part("handoff", "end").append(takeAway(gettext("the handoff's parts"), () => dataUrl("handoff")));
part("waste", "end").append(takeAway(gettext("the GPU hours"), () => dataUrl("waste")));
part("engines", "end").append(takeAway(gettext("the engines' figures"), () => dataUrl("engines")));
byId("range").append(
  el("span", { class: "end" }, el("span", { class: "meta" }, gettext("key figures")), takeAway(gettext("the key figures"), () => dataUrl("figures")), el("span", { class: "meta" }, gettext("pools")), takeAway(gettext("the pools' figures"), () => dataUrl("pools"))),
);

const paintBody = guard(byId("engines"), () => {
  head.paint(rows.get(TOPIC), facts);
  engines(rows.of("engine"), figuresOf, now(), range.words);
  canary(facts, refused);
  paintStale();
});

function paint({ down }) {
  setDown(down);
  paintBody();
}

const chosen = walk("#engines tbody tr");
const rowOf = (node) => rows.of("engine").find((row) => row.engine === node?.dataset.engine);
key("b", () => location.assign(modelUrl(NAME, "rebalance")));
key("m", () => openMode(facts.mode));
key("d", () => openEngine(rowOf(chosen.chosen()), "hold"));
addEventListener("zonechange", () => refresh(true));
document.addEventListener("visibilitychange", () => due() && refresh());
feeds.repaint();
refresh();
