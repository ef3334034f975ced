// The list of operations. Filters are the address; rows follow the fleet's topic.
import { gate, setDown } from "./act.js";
import { setServerTime } from "./clock.js";
import { isOpen } from "./dialog.js";
import { attr, el, hide, keyed, text } from "./dom.js";
import { follow } from "./follow.js";
import { dateTime, utc } from "./format.js";
import { gettext } from "./i18n.js";
import { key } from "./keys.js";
import { makeFilters, makeFoot } from "./listpage.js";
import { isOver, outcomeOf, progress, stateOf, stateWord, subjectOf, verbOf, verbWord } from "./opwords.js";
import { guard } from "./panels.js";
import { say } from "./say.js";
import { askToSteer, canUndo } from "./steer.js";
import { takeAway } from "./takeaway.js";

const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const feeds = follow({ topics: ["fleet"], paint: (state) => paint(state) });
const known = new Map(first.rows.map((row) => [row.number, row]));
const undone = new Set(first.rows.map((row) => row.undoes).filter(Boolean));
let chosen = null;

const FILTERS = [
  ["model", gettext("Model"), (name) => name],
  ["verb", gettext("What"), verbWord],
  ["state", gettext("Outcome"), stateWord],
  ["actor", gettext("Who"), (name) => name],
];

const matches = (row) => FILTERS.every(([name]) => !first.asked[name] || row[name] === first.asked[name]);

function undo(row) {
  const over = isOver(row);
  askToSteer("rollback", { number: row.number, words: "" }, { title: gettext("Roll back %(what)s", { what: `${verbOf(row)} ${subjectOf(row)}` }), confirm: gettext("Roll back"), done: ({ url }) => (over ? location.assign(url) : feeds.repaint()) });
}

function makeLine(row) {
  const when = el("td", { class: "when" });
  const link = el("a", { class: "what", href: `/operations/${row.number}` });
  const whom = el("span", { class: "dim" });
  const who = el("td", { class: "opt wrap" });
  const state = el("span");
  const outcome = el("span", { class: "meta" });
  const button = el("button", { class: "btn small", type: "button" }, gettext("Undo"));
  const node = el("tr", { "data-operation": row.number }, when, el("td", {}, link, " ", whom), who, el("td", { class: "wrap" }, state, " ", outcome), el("td", { class: "r" }, button));
  let now = row;
  button.addEventListener("click", () => undo(now));
  node.addEventListener("click", (event) => event.target.closest("a, button") || choose(now.number));
  return {
    node,
    undo: () => button.disabled || button.hidden || undo(now),
    paint(next) {
      now = next;
      const [kind, word] = stateOf(next);
      text(when, dateTime(next.created_at));
      attr(when, "title", utc(next.created_at));
      text(link, verbOf(next));
      text(whom, subjectOf(next));
      text(who, [next.actor, next.reason].filter(Boolean).join(" · "));
      say(state, kind, word);
      text(outcome, outcomeOf(next) || progress(next));
      hide(button, !canUndo(next, first.undoable) || undone.has(next.number));
      gate(button, first.refused[next.model]?.rollback ?? "");
      attr(node, "aria-selected", next.number === chosen ? "true" : null);
    },
  };
}

const lines = new Map();
function line(row) {
  const part = makeLine(row);
  lines.set(row.number, part);
  return part;
}

function choose(number) {
  chosen = number;
  feeds.repaint();
  lines.get(number)?.node.scrollIntoView({ block: "nearest" });
}

function move(by) {
  const shown = shownRows();
  const at = shown.findIndex((row) => row.number === chosen);
  const next = shown[at < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, at + by))];
  if (next) choose(next.number);
}

// Live rows replace what the page came with; new ones come on the first page only.
function shownRows() {
  for (const row of feeds.rows("fleet").of("operation")) {
    if (known.has(row.number) || (first.newest && matches(row))) known.set(row.number, row);
    if (row.undoes) undone.add(row.undoes);
  }
  return [...known.values()].sort((a, b) => b.number - a.number);
}

function paintAll({ down }) {
  setDown(down);
  const shown = shownRows();
  keyed(byId("list").tBodies[0], shown, (row) => row.number, line);
  hide(byId("list"), shown.length === 0);
  hide(byId("none"), shown.length > 0);
}
const paint = guard(byId("list"), paintAll);

byId("take").append(takeAway(gettext("operations"), () => "/data/fleet/operations"));
makeFilters(byId("filters"), FILTERS, first);
makeFoot(byId("foot"), first, Math.min(...first.rows.map((row) => row.number)));
key("j", () => move(1));
key("k", () => move(-1));
key("Enter", () => chosen && !isOpen() && location.assign(`/operations/${chosen}`));
key("u", () => !isOpen() && lines.get(chosen ?? shownRows().find((row) => canUndo(row, first.undoable) && !undone.has(row.number))?.number)?.undo());
feeds.repaint();
