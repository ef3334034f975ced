// The list of proposals: those that are open, how the planner stands to each model, and what was decided. Filters are the
// address; rows follow their topic.
import { modelUrl, read, setDown } from "./act.js";
import { now, setServerTime } from "./clock.js";
import { attr, el, hide, keyed, text } from "./dom.js";
import { follow } from "./follow.js";
import { dateTime, latencyText, roughly, utc } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { askedQuery, makeFilters, makeFoot } from "./listpage.js";
import { guard, paintStale } from "./panels.js";
import { accuracyWords, causeWord, changeWords, holdOf, LEVELS, stateOf, stateWord } from "./proposalwords.js";
import { announce, say } from "./say.js";
import { takeAway } from "./takeaway.js";
import { walk } from "./walk.js";

const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const TOPIC = "proposals";
const STANCE_EVERY_MS = 15_000;
const feeds = follow({ topics: [TOPIC], frames: [first.frame], paint: (state) => paint(state), frame: () => askStance() });
const known = new Map(first.rows.map((row) => [row.number, row]));
let planners = first.planners;

const FILTERS = [
  ["model", gettext("Model"), (name) => name],
  ["state", gettext("State"), stateWord],
];

const matches = (row) => (!first.asked.model || [row.model, row.giver].includes(first.asked.model)) && (!first.asked.state || row.state === first.asked.state);

// ---- lines
const arrow = ([from, to]) => `${latencyText(from)} → ${latencyText(to)}`;
const link = () => el("a", { class: "what" });

function paintWhat(node, why, row) {
  attr(node, "href", `/proposals/${row.number}`);
  text(node, changeWords(row));
  attr(node, "title", row.title);
  const giver = row.giver ? [gettext("with %(model)s", { model: row.giver })] : [];
  text(why, [causeWord(row.cause), ...giver].join(" · "));
}

function waitingLine() {
  const model = el("td", { class: "wrap" });
  const what = link();
  const why = el("span", { class: "meta" });
  const reason = el("span", { class: "why", lang: "en" });
  const ttft = el("td", { class: "r opt" });
  const itl = el("td", { class: "r opt" });
  const left = el("span", { class: "num" });
  const level = el("span", { class: "meta" });
  const node = el("tr", {}, model, el("td", { class: "wrap" }, what, " ", why, reason), ttft, itl, el("td", { class: "r wrap" }, left, " ", level));
  return {
    node,
    paint(row) {
      attr(node, "data-proposal", row.number);
      text(model, row.model);
      paintWhat(what, why, row);
      text(reason, row.hindrance || row.reason);
      text(ttft, arrow(row.ttft_p99_ms));
      text(itl, arrow(row.itl_p99_ms));
      text(left, row.level === "advise" ? "—" : roughly(row.expires_at - now()));
      text(level, LEVELS[row.level] ?? row.level);
    },
  };
}

function endedLine() {
  const when = el("td", { class: "when" });
  const model = el("td", { class: "wrap" });
  const what = link();
  const why = el("span", { class: "meta" });
  const state = el("span");
  const who = el("span", { class: "meta" });
  const node = el("tr", {}, when, model, el("td", { class: "wrap" }, what, " ", why), el("td", { class: "wrap" }, state, " ", who));
  return {
    node,
    paint(row) {
      const at = row.decided_at ?? row.created_at;
      const [kind, word] = stateOf(row.state);
      attr(node, "data-proposal", row.number);
      text(when, dateTime(at));
      attr(when, "title", utc(at));
      text(model, row.model);
      paintWhat(what, why, row);
      say(state, kind, word);
      text(who, [row.decided_by, row.decision || row.hindrance].filter(Boolean).join(" · "));
    },
  };
}

function plannerLine() {
  const model = el("a", { class: "what" });
  const level = el("td");
  const state = el("span");
  const why = el("span", { class: "why", lang: "en" });
  const off = el("td", { class: "r opt" });
  const node = el("tr", {}, el("td", { class: "wrap" }, model), level, el("td", { class: "wrap" }, state, why), off);
  return {
    node,
    paint(one) {
      text(model, one.model);
      attr(model, "href", modelUrl(one.model, "planner"));
      text(level, LEVELS[one.level] ?? one.level);
      if (one.proposal) say(state, "run", gettext("proposal %(n)s is open", { n: one.proposal }));
      else if (one.hold) say(state, ...holdOf(one.hold.code));
      else say(state, "idle", gettext("has not looked yet"));
      text(why, one.hold?.reason ?? "");
      text(off, accuracyWords(one.accuracy));
    },
  };
}

// ---- painting
let stanceAt = Date.now();
async function askStance() {
  if (document.hidden || Date.now() - stanceAt < STANCE_EVERY_MS) return;
  stanceAt = Date.now();
  const { ok, document: told } = await read("/data/planners");
  if (!ok) return;
  planners = told.planners;
  feeds.repaint();
}

function fresh() {
  for (const row of feeds.rows(TOPIC).of("proposal")) {
    const before = known.get(row.number);
    if (before?.state === "open" && row.state !== "open") announce(gettext("Proposal %(n)s: %(state)s", { n: row.number, state: stateWord(row.state) }));
    if (before || row.state === "open" || first.newest) known.set(row.number, row);
  }
  return [...known.values()].filter(matches).sort((a, b) => b.number - a.number);
}

function paintAll({ cut, down }) {
  setDown(down);
  const rows = fresh();
  const waiting = first.newest ? rows.filter((row) => row.state === "open") : [];
  const ended = rows.filter((row) => row.state !== "open");
  keyed(byId("waiting").tBodies[0], waiting, (row) => row.number, waitingLine);
  keyed(byId("ended").tBodies[0], ended, (row) => row.number, endedLine);
  keyed(byId("planners").tBodies[0], planners, (one) => one.model, plannerLine);
  for (const [name, list] of [["waiting", waiting], ["ended", ended], ["planners", planners]]) {
    hide(byId(name), list.length === 0);
    hide(byId(`${name}-none`), list.length > 0);
  }
  hide(byId("waiting-panel"), !first.newest);
  const asked = feeds.rows(TOPIC).get("proposals")?.asked;
  text(byId("waiting-meta"), asked == null ? "" : ngettext("%(n)s waits for a decision", "%(n)s wait for a decision", asked));
  paintStale([byId("waiting-panel"), byId("ended-panel")], cut ? feeds.rows(TOPIC).at : null);
}
const paint = guard(byId("waiting-none"), paintAll);

byId("take-planners").append(takeAway(gettext("Planner by model"), () => "/data/planners"));
byId("take").append(takeAway(gettext("proposals"), () => `/data/proposals?${askedQuery(first.asked)}`));
makeFilters(byId("filters"), FILTERS, first);
makeFoot(byId("foot"), first, Math.min(...first.rows.filter((row) => row.state !== "open").map((row) => row.number)));
walk("#waiting tbody tr, #planners tbody tr, #ended tbody tr");
feeds.repaint();
