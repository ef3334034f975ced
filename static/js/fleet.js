// The fleet page: one painter per panel, called when a frame came, or once a second while none does (ages count up).
import { modelUrl, setDown } from "./act.js";
import { makeBand } from "./band.js";
import { now, setServerTime } from "./clock.js";
import { el, hide, keyed } from "./dom.js";
import { makeFeed } from "./feed.js";
import { follow } from "./follow.js";
import { gettext } from "./i18n.js";
import { key } from "./keys.js";
import { makeKpis } from "./kpis.js";
import { makeProblems, makeSpares } from "./nodes.js";
import { failure, guard, paintStale } from "./panels.js";
import { announce } from "./say.js";
import { walk } from "./walk.js";

const TOPIC = "fleet";
const ADD_MODEL = ["python3 manage.py register_model NAME --source MODEL --config config.json --mode disaggregated --pool prefill=1 --pool decode=1"];
const JOIN_NODE = ["python3 manage.py join-token NODE", "python3 manage.py agent --address ADDRESS"];
const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const feeds = follow({
  topics: [TOPIC],
  frames: [first.frame],
  paint: (state) => paint(state),
  frame: () => {
    heat?.frame();
    waste?.frame();
  },
});
const rows = feeds.rows(TOPIC);
let heat = null;
let waste = null;

// Clicks and keys open a dialog; its code comes when it is wanted first.
const taken = ({ url }) => location.assign(url);
const acts = {
  async mode(row, mode) {
    const { openMode } = await import("./modedialog.js");
    openMode(row.name, mode, taken);
  },
  async engine(row, verb = null) {
    const { openEngine } = await import("./enginedialog.js");
    openEngine(row, taken, verb);
  },
};

const tiles = walk("#bands [data-engine]", (node) => node.querySelector("button").click());

// The model or engine that a key means: where the focus or the pointer is, else what j and k have chosen, else the first.
const at = (selector) => document.activeElement?.closest(selector) ?? document.querySelector(`${selector}:hover`) ?? tiles.chosen()?.closest(selector);
function modelAt() {
  const name = at("[data-model]")?.dataset.model;
  return rows.of("model").find((row) => row.name === name) ?? rows.of("model")[0];
}
function engineAt() {
  const id = at("[data-engine]")?.dataset.engine;
  return rows.of("engine").find((row) => row.engine === id);
}

key("b", () => modelAt() && location.assign(modelUrl(modelAt().name, "rebalance")));
key("m", () => modelAt() && acts.mode(modelAt(), modelAt().mode));
key("d", () => engineAt() && acts.engine(engineAt(), "hold"));
key("u", () => location.assign("/operations"));

const bandsAt = byId("bands");
const problemsAt = byId("banners");
const heatPanel = byId("heat");

function emptyState(title, words, commands) {
  const body = el("div", { class: "empty" }, el("b", {}, title), el("span", {}, words), ...commands.map((command) => el("code", {}, command)));
  return { node: el("section", { class: "panel" }, body), paint() {} };
}

const EMPTY = {
  nodes: () => emptyState(gettext("No nodes yet"), gettext("Make a token here, then start the agent on the machine with the GPUs and paste the token:"), JOIN_NODE),
  models: () => emptyState(gettext("No models yet"), gettext("A band per model will stand here, with its pools. Add one on this machine:"), ADD_MODEL),
};

// Bands, or what is missing before there can be any.
function paintBands() {
  const models = rows.of("model");
  const items = models.map((row) => ({ key: row.id, row, engines: rows.of("engine").filter((engine) => engine.model === row.name) }));
  if (!rows.of("node").length) items.unshift({ key: "nodes", empty: "nodes" });
  if (!models.length) items.push({ key: "models", empty: "models" });
  byId("loading")?.remove();
  keyed(bandsAt, items, (item) => item.key, (item) => (item.empty ? EMPTY[item.empty]() : makeBand(now, acts)));
}

const spoken = new Map();

// An engine that fails or is lost is said aloud; ordinary states are not.
function speak() {
  for (const row of rows.of("engine")) {
    const before = spoken.get(row.id);
    spoken.set(row.id, row.state);
    if (before && before !== row.state && ["failed", "lost"].includes(row.state)) {
      const params = { engine: row.label, model: row.model, reason: row.reason };
      announce(row.state === "failed" ? gettext("%(engine)s of %(model)s failed: %(reason)s", params) : gettext("%(engine)s of %(model)s is lost", params));
    }
  }
}

const kpis = guard(byId("kpis"), makeKpis(byId("kpis")));
const problems = guard(problemsAt, makeProblems(problemsAt, now));
const bands = guard(bandsAt, paintBands);
const spares = guard(byId("spare"), makeSpares(byId("spare")));
const feed = guard(byId("operations"), makeFeed(byId("operations")));

function paint({ cut, down }) {
  setDown(down);
  if (rows.at === null) return;
  const fleet = rows.get("fleet");
  if (fleet) kpis(fleet, cut);
  paintStale([heatPanel, byId("operations"), byId("spare")], cut ? rows.at : null);
  hide(problemsAt, !problems(rows.of("node"), fleet));
  bands();
  spares(rows.of("node"));
  feed(rows.of("operation"));
  speak();
}

async function startHeat() {
  const { makeHeat } = await import("./heat.js");
  heat = makeHeat(heatPanel, rows, now);
}

async function startWaste() {
  const { makeWaste } = await import("./fleetwaste.js");
  waste = makeWaste(byId("waste"));
}

async function startExports() {
  const { takeAway } = await import("./takeaway.js");
  byId("operations").querySelector("[data-end]").append(takeAway(gettext("operations"), () => "/data/fleet/operations"));
  byId("engine-tables").append(el("span", { class: "meta" }, gettext("engines")), takeAway(gettext("engines"), () => "/data/fleet/engines"), el("span", { class: "meta" }, gettext("GPUs")), takeAway(gettext("GPUs"), () => "/data/gpus"));
}

// Below the first screen: their code comes when the page is usable, and what does not come says so in its place.
function startRest() {
  const fails = (place) => (error) => {
    console.error(error);
    place.replaceChildren(failure(error));
  };
  startHeat().catch(fails(heatPanel.querySelector("[data-plot]")));
  startWaste().catch(fails(byId("waste").querySelector("[data-body]")));
  startExports().catch(fails(byId("engine-tables")));
}

feeds.repaint();
if (globalThis.requestIdleCallback) requestIdleCallback(startRest, { timeout: 2000 });
else setTimeout(startRest, 200);
