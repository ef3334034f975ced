// One proposal: open ones can be decided on; afterwards it is a record of what was predicted and what came.
import { gate, modelUrl, read, setDown } from "./act.js";
import { now, setServerTime } from "./clock.js";
import { isOpen } from "./dialog.js";
import { el, hide, redraw, text } from "./dom.js";
import { follow } from "./follow.js";
import { dateTime, roughly, utc } from "./format.js";
import { gettext } from "./i18n.js";
import { key } from "./keys.js";
import { stateWord as operationWord } from "./opwords.js";
import { guard, paintStale } from "./panels.js";
import { askToApprove, askToModify, askToReject } from "./proposaldialogs.js";
import { cameNodes, changeNodes, figuresNodes, inputNodes, inputsAt, otherNodes, tradeNodes } from "./proposalview.js";
import { accuracyWords, causeWord, LEVELS, movesWords, stateOf, stateWord } from "./proposalwords.js";
import { announce, say } from "./say.js";
import { takeAway } from "./takeaway.js";

const byId = (id) => document.getElementById(id);
const part = (panel, name) => byId(panel).querySelector(`[data-${name}]`);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const TOPIC = "proposals";
const NUMBER = first.row.number;
const ROW = `proposal:${NUMBER}`;
let facts = first;
const feeds = follow({ topics: [TOPIC], frames: [first.frame], paint: (state) => paint(state) });

// ---- the bar
const button = (className, words, name) => el("button", { class: className, type: "button" }, words, " ", el("kbd", {}, name));
const approve = button("btn primary", gettext("Approve"), "a");
const modify = button("btn", gettext("Modify"), "m");
const reject = button("btn danger", gettext("Reject"), "x");
const list = el("dl", { class: "facts" });
const state = el("span");
byId("bar").append(list, el("div", { class: "btns" }, modify, reject, approve));
byId("bar").querySelector("h1").append(" ", state);
part("others", "end").append(takeAway(gettext("the layouts"), () => `/data/proposals/${NUMBER}`));

const DIALOGS = [
  [approve, "approve_proposal", askToApprove, "a"],
  [modify, "modify_proposal", askToModify, "m"],
  [reject, "reject_proposal", askToReject, "x"],
];
for (const [node, , open, name] of DIALOGS) {
  const act = () => node.disabled || node.hidden || isOpen() || open(facts, taken, refresh);
  node.addEventListener("click", act);
  key(name, act);
}

function taken() {
  refresh();
  announce(gettext("Proposal %(n)s is decided", { n: NUMBER }));
}

function whyNot(verb) {
  if (facts.refused[verb]) return facts.refused[verb];
  if (facts.row.expires_at <= now()) return gettext("It is void: the planner will look again");
  if (verb === "modify_proposal" && facts.row.giver) return gettext("GPUs of two models move in this proposal: approve or reject it as it is");
  if (verb === "approve_proposal" && ["off", "advise"].includes(facts.model.level)) return gettext("The planner only advises for this model: set its level to approve, or make the change yourself");
  return "";
}

// ---- fresh facts when its row is another
let asked = false;
async function refresh() {
  if (asked) return;
  asked = true;
  const { ok, document: told } = await read(`/proposals/${NUMBER}/facts`);
  asked = false;
  if (!ok) return;
  if (facts.row.state !== told.row.state) announce(gettext("Proposal %(n)s: %(state)s", { n: NUMBER, state: stateWord(told.row.state) }));
  facts = told;
  feeds.repaint();
}

function look() {
  const live = feeds.rows(TOPIC).get(ROW);
  if (live && (live.state !== facts.row.state || live.seen_at > facts.row.seen_at || live.measured !== facts.row.measured || live.hindrance !== facts.row.hindrance)) refresh();
}

// ---- painting
function listItems({ row, operation, accuracy }) {
  const open = row.state === "open";
  const item = (words, ...value) => el("div", {}, el("dt", {}, words), el("dd", {}, ...value));
  const decided = row.decided_at ? [item(gettext("decided"), dateTime(row.decided_at), row.decided_by ? ` ${row.decided_by}` : "")] : [];
  const run = row.operation ? [item(gettext("operation"), el("a", { href: `/operations/${row.operation}` }, `${row.operation}`), operation ? ` ${operationWord(operation)}` : "")] : [];
  return [
    item(gettext("model"), el("a", { href: modelUrl(row.model) }, row.model)),
    item(gettext("level"), el("a", { href: modelUrl(row.model, "planner") }, LEVELS[row.level] ?? row.level)),
    item(gettext("moves"), movesWords(row.moves)),
    ...(open && row.level !== "advise" ? [item(gettext("void in"), el("span", { "data-left": true }))] : []),
    ...decided,
    ...run,
    item(gettext("predictions off by"), accuracyWords(accuracy)),
  ];
}

function whyNodes({ row, proposal }) {
  const reasons = proposal.reasons.map((reason) => el("li", { lang: "en" }, reason));
  const hindrance = row.hindrance ? [el("p", { class: "panel-foot" }, el("span", { class: "say warn wrap", lang: "en" }, row.hindrance))] : [];
  const decision = row.decision ? [el("p", { class: "panel-foot" }, [row.decided_by, row.decision].filter(Boolean).join(": "))] : [];
  return [el("div", { class: "body" }, el("ol", { class: "because" }, ...reasons)), ...hindrance, ...decision];
}

const PARTS = [
  ["change", changeNodes, ({ row, proposal }) => [row, proposal.modified]],
  ["figures", figuresNodes, ({ proposal }) => [proposal.present, proposal.predicted]],
  ["others", otherNodes, ({ proposal }) => proposal.alternatives],
  ["why", whyNodes, ({ row, proposal }) => [row, proposal.reasons]],
  ["inputs", inputNodes, ({ proposal }) => proposal.inputs],
  ["trade", tradeNodes, ({ proposal }) => [proposal.trade, proposal.returned]],
  ["came", cameNodes, ({ row, proposal }) => [row.state, proposal.actual]],
];

function paintBar() {
  const { row } = facts;
  say(state, ...stateOf(row.state));
  text(part("bar", "meta"), `${causeWord(row.cause)} · ${dateTime(row.created_at)}`);
  part("bar", "meta").title = utc(row.created_at);
  redraw(list, JSON.stringify([row, facts.operation, facts.accuracy, document.documentElement.lang]), () => listItems(facts));
  const left = list.querySelector("[data-left]");
  if (left) text(left, row.expires_at > now() ? roughly(row.expires_at - now()) : gettext("void"));
  for (const [node, verb] of DIALOGS) {
    hide(node, row.state !== "open");
    gate(node, whyNot(verb));
  }
}

function paintParts() {
  for (const [name, draw, of] of PARTS) {
    if (name === "trade") hide(byId("trade"), !facts.row.giver);
    if (name === "trade" && !facts.row.giver) continue;
    redraw(part(name, "body"), JSON.stringify(of(facts)), () => draw(facts));
  }
  text(part("why", "meta"), causeWord(facts.row.cause));
  text(part("inputs", "meta"), inputsAt(facts));
  text(part("trade", "meta"), facts.row.giver);
}

const paintAll = guard(part("change", "body"), () => {
  paintBar();
  paintParts();
});

function paint({ cut, down }) {
  setDown(down);
  look();
  paintAll();
  paintStale([byId("change"), byId("figures"), byId("why"), byId("inputs")], cut && facts.row.state === "open" ? feeds.rows(TOPIC).at : null);
}

feeds.repaint();
