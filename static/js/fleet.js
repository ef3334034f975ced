// The fleet page: one painter per panel, called when a frame came, or once a second while none does (ages count up).
import { makeBand } from "./band.js";
import { now, setServerTime } from "./clock.js";
import { makeConnection } from "./connection.js";
import { el, hide, keyed, redraw } from "./dom.js";
import { makeFeed } from "./feed.js";
import { clockSeconds } from "./format.js";
import { gettext } from "./i18n.js";
import { makeKpis } from "./kpis.js";
import { makeProblems, makeSpares } from "./nodes.js";
import { Rows } from "./rows.js";
import { announce } from "./say.js";
import { LiveSocket } from "./socket.js";

const TOPIC = "fleet";
const ADD_MODEL = ["python3 manage.py register_model NAME --source MODEL --config config.json --mode disaggregated --pool prefill=1 --pool decode=1"];
const JOIN_NODE = ["python3 manage.py join-token NODE", "python3 manage.py agent --address ADDRESS"];
const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
const rows = new Rows();
setServerTime(first.now);
if (first.frame) rows.apply(first.frame);

const scheme = location.protocol === "https:" ? "wss" : "ws";
const socket = new LiveSocket(`${scheme}://${location.host}/ws/live`, [TOPIC]);

// A panel that fails says so in its place; the rest of the page lives on.
function guard(panel, paint) {
  return (...values) => {
    try {
      return paint(...values);
    } catch (error) {
      console.error(error);
      redraw(panel, `failed ${error.message}`, () => [failure(error)]);
      return undefined;
    }
  };
}

function failure(error) {
  const again = el("button", { class: "btn small", type: "button" }, gettext("Load the page again"));
  again.addEventListener("click", () => location.reload());
  return el(
    "div",
    { class: "failed", role: "alert" },
    el("span", { class: "say bad wrap" }, gettext("Could not show this part: %(error)s", { error: error.message })),
    el("span", { class: "meta" }, clockSeconds(now())),
    again,
  );
}

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
  keyed(bandsAt, items, (item) => item.key, (item) => (item.empty ? EMPTY[item.empty]() : makeBand(now)));
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

const connection = makeConnection(byId("live"), problemsAt, socket);
const kpis = guard(byId("kpis"), makeKpis(byId("kpis")));
const problems = guard(problemsAt, makeProblems(problemsAt, now));
const bands = guard(bandsAt, paintBands);
const spares = guard(byId("spare"), makeSpares(byId("spare")));
const feed = guard(byId("operations"), makeFeed(byId("operations")));

function paint() {
  const cut = connection(rows.at === null ? null : now() - rows.at);
  if (rows.at === null) return;
  const fleet = rows.get("fleet");
  if (fleet) kpis(fleet, cut);
  hide(problemsAt, !problems(rows.of("node"), fleet));
  bands();
  spares(rows.of("node"));
  feed(rows.of("operation"));
  speak();
}

let painted = 0;
function repaint() {
  painted = Date.now();
  paint();
}

let heat = null;
async function startHeat() {
  try {
    const { makeHeat } = await import("./heat.js");
    heat = makeHeat(heatPanel, rows, now);
  } catch (error) {
    console.error(error);
    heatPanel.querySelector("[data-plot]").replaceChildren(failure(error));
  }
}

socket.addEventListener("change", repaint);
socket.addEventListener("frame", ({ detail: frame }) => {
  if (frame.topic !== TOPIC) return;
  if (!rows.apply(frame)) {
    socket.resync();
    return;
  }
  repaint();
  heat?.frame();
});
// No timer of its own while frames come; when they do not, ages must still count up.
setInterval(() => Date.now() - painted > 1100 && repaint(), 1000);
repaint();
if (globalThis.requestIdleCallback) requestIdleCallback(startHeat, { timeout: 2000 });
else setTimeout(startHeat, 200);
