// The engine page: the live row of its model's topic, figures and tables of telemetry every few seconds, its log.
import { gate, modelUrl, read, setDown } from "./act.js";
import { now, setServerTime } from "./clock.js";
import { isOpen } from "./dialog.js";
import { el, hide, redraw, text } from "./dom.js";
import { drawCharts, paintKpis } from "./enginefigures.js";
import { possible, openEngine, WORDS } from "./enginedialog.js";
import { doneNodes, launchNodes, peersNodes, startsNodes } from "./enginetables.js";
import { contents, ROLE, staleFor, stateOf } from "./engines.js";
import { follow } from "./follow.js";
import { clockSeconds, duration, number, span, utc } from "./format.js";
import { gettext } from "./i18n.js";
import { key } from "./keys.js";
import { makeLog } from "./logtail.js";
import { failed, guard, paintStale } from "./panels.js";
import { announce } from "./say.js";
import { takeAway } from "./takeaway.js";
import { isUtc } from "./zone.js";

const FIGURES_EVERY_MS = 10_000;
const SPAN_S = 1790; // just under half an hour is told in cells of ten seconds
const byId = (id) => document.getElementById(id);
const part = (panel, name) => byId(panel).querySelector(`[data-${name}]`);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
let facts = first.engine;
const ID = `engine:${facts.id}`;
const TOPIC = `model:${facts.model}`;
const dataUrl = (what, query = "") => `/data/engines/${encodeURIComponent(facts.id)}/${what}${query}`;
const feeds = follow({ topics: [TOPIC], frames: [first.frame], paint: (state) => paint(state), frame: () => due(), missing: () => true });
const rows = feeds.rows(TOPIC);
const log = makeLog(byId("log"), { engine: facts.id, refused: first.refused.engine_log ?? "", ranks: facts.ranks });
const found = { figures: null, peers: null, gpus: null };
let down = false;

// What a live row has, of an engine that has none (any more).
const gone = () => ({
  ...{ id: ID, type: "engine", engine: facts.id, label: facts.label, model: facts.model, role: facts.role, state: facts.state, state_since: facts.state_since },
  ...{ reason: facts.reason, node: facts.ranks.map((rank) => rank.node).join(", "), gpu_indices: [], gpu_uuids: [], incarnation: facts.incarnation, tensor: [], dram: [] },
  ...{ running: null, waiting: null, kv_usage: null, sampled_at: null, arm: facts.arm, held: facts.held, next_role: facts.next_role, move_phase: facts.move_phase },
});
const live = () => rows.get(ID) ?? gone();

// --- The head: what it is, how it is, what may be done

const buttons = Object.fromEntries(Object.entries(WORDS).map(([verb, words]) => [verb, el("button", { class: verb === "restart" ? "btn danger" : "btn", type: "button" }, words)]));
for (const [verb, button] of Object.entries(buttons)) button.addEventListener("click", () => act(verb));
part("head", "end").append(...Object.values(buttons));
const act = (verb = null) => !isOpen() && openEngine(live(), ({ url }) => location.assign(url), verb);
const NEEDS = { hold: "drain_engine", readmit: "undrain_engine", restart: "restart_engine", retry: "retry_engine" };

function headFacts(row) {
  const [kind, word] = stateOf(row);
  const stale = staleFor(row, now());
  const state = el("span", { class: kind ? `say ${kind}` : "" }, word, row.held ? ` · ${gettext("held")}` : "");
  const place = facts.ranks.map((rank) => `${rank.node} GPU ${rank.gpus.map((gpu) => gpu.index).join(", ")}`).join("; ");
  const about = contents(row, now());
  return [
    [gettext("model"), el("a", { href: modelUrl(row.model) }, row.model)],
    [gettext("role"), el("span", { class: `chip ${ROLE[row.role]?.letter ?? "s"}` }, ROLE[row.role]?.word ?? row.role, row.arm === "main" ? "" : ` · ${row.arm}`)],
    [gettext("state"), state],
    [gettext("for"), el("span", { title: utc(row.state_since) }, span(now() - row.state_since))],
    [gettext("on"), place ? el("a", { href: `/nodes#${encodeURIComponent(facts.ranks[0].node)}` }, place) : gettext("no node")],
    [gettext("start"), number(row.incarnation)],
    ...(stale === null ? [] : [[gettext("samples"), el("span", { class: "say warn" }, gettext("stale since %(age)s", { age: span(stale) }))]]),
    ...(row.reason || about.words ? [[gettext("note"), el("span", { class: "wrap" }, row.reason || about.note)]] : []),
  ];
}

function paintHead(row) {
  const shown = headFacts(row);
  redraw(part("head", "facts"), JSON.stringify(shown.map(([term, node]) => [term, node.textContent ?? node, node.className])), () => shown.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
  const able = facts.wanted ? possible(row) : [];
  for (const [verb, button] of Object.entries(buttons)) {
    hide(button, !able.includes(verb));
    gate(button, first.refused[NEEDS[verb]] ?? "");
  }
}

// --- Figures and tables: asked anew when a frame comes, never more often than every few seconds

let askedAt = 0;
let state = facts.state;

async function load(what, query, show, panel) {
  const { ok, status, document } = await read(dataUrl(what, query));
  if (ok) {
    found[what] = document.found;
    show(document.found);
  } else if (panel && !found[what]) {
    const again = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
    again.addEventListener("click", () => load(what, query, show, panel));
    part(panel, "body").replaceChildren(failed(gettext("Could not load: %(error)s", { error: document.error ?? document.reasons?.[0] ?? status }), again));
  }
}

// Draws a panel anew when what it shows is another, or the zone of its times.
const drawn = (panel, shown, nodes) => redraw(part(panel, "body"), `${isUtc()} ${JSON.stringify(shown)}`, nodes);

function refresh() {
  askedAt = Date.now();
  load("figures", "?range=15m", () => feeds.repaint(), null);
  load("series", `?from=${encodeURIComponent(new Date((now() - SPAN_S) * 1000).toISOString())}`, (series) => drawCharts(part("charts", "body"), series, live(), facts), "charts");
  load("peers", "?range=1h", (peers) => drawn("peers", peers, () => peersNodes(peers, facts)), "peers");
  load("gpus", "?range=15m", () => feeds.repaint(), null);
}

function due() {
  log.frame(down);
  if (!document.hidden && Date.now() - askedAt >= FIGURES_EVERY_MS) refresh();
  const row = live();
  if (row.state !== state || row.incarnation !== facts.incarnation) renew(row);
}

// It changed: what its rows tell of starts and operations is asked for again.
async function renew(row) {
  if (row.state !== state) announce(gettext("%(engine)s is %(state)s", { engine: row.label, state: stateOf(row)[1] || row.state }));
  state = row.state;
  const { ok, document } = await read(`/engines/${encodeURIComponent(facts.id)}/rows`);
  if (!ok) return;
  const restarted = document.engine.incarnation !== facts.incarnation;
  facts = document.engine;
  paintFacts();
  if (restarted) log.anew?.();
}

function paintFacts() {
  drawn("launch", facts, () => launchNodes(facts));
  drawn("starts", facts.starts, () => startsNodes(facts));
  drawn("done", facts.operations, () => doneNodes(facts));
}

function paintAll(connection) {
  down = connection.down;
  setDown(connection.down);
  const row = live();
  byId("kpis").classList.toggle("is-stale", connection.cut || staleFor(row, now()) !== null);
  paintStale(["charts", "peers"].map(byId), connection.cut ? rows.at : null);
  paintHead(row);
  paintKpis(byId("kpis"), row, found.figures, found.gpus, facts);
}
const paint = guard(byId("head"), paintAll);

part("charts", "end").append(el("span", { class: "meta" }, gettext("series")), takeAway(gettext("series"), () => dataUrl("series", "?range=1h")), el("span", { class: "meta" }, gettext("figures")), takeAway(gettext("figures"), () => dataUrl("figures", "?range=15m")));
part("peers", "end").append(takeAway(gettext("peers"), () => dataUrl("peers", "?range=1h")));
part("starts", "end").append(takeAway(gettext("starts"), () => dataUrl("starts")));
part("launch", "end").append(el("span", { class: "mono" }, facts.id));
text(part("starts", "meta"), facts.created_at ? gettext("made %(time)s, up %(age)s now", { time: clockSeconds(facts.created_at), age: facts.started_at ? duration(now() - facts.started_at) : "—" }) : "");

key("d", () => Object.values(buttons).some((button) => !button.hidden && !button.disabled) && act());
key("l", () => {
  byId("log").scrollIntoView({ block: "start" });
  log.focus();
});
key("c", () => navigator.clipboard?.writeText(facts.id).then(() => announce(gettext("%(id)s is copied", { id: facts.id }))));
addEventListener("zonechange", paintFacts);
paintFacts();
feeds.repaint();
refresh();
