// The newest operations: what, on which model, by whom, why, and how it ended.
import { attr, el, hide, keyed, text } from "./dom.js";
import { clock, utc } from "./format.js";
import { gettext } from "./i18n.js";
import { outcomeOf, progress, stateOf, subjectOf, verbOf } from "./opwords.js";
import { announce, say } from "./say.js";

const SHOWN = 20;

function makeEntry() {
  const when = el("span", { class: "when" });
  const what = el("a", { class: "what" });
  const whom = el("span");
  const state = el("span");
  const why = el("span", { class: "why" });
  const node = el("li", {}, when, el("span", {}, what, " ", whom), el("span", { class: "act" }, state), why);
  let before = null;
  return {
    node,
    paint(row) {
      const [kind, word] = stateOf(row);
      text(when, clock(row.created_at));
      attr(when, "title", utc(row.created_at));
      attr(what, "href", `/operations/${row.number}`);
      text(what, verbOf(row));
      text(whom, subjectOf(row));
      say(state, kind, word);
      text(why, [row.actor, row.reason, outcomeOf(row) || progress(row)].filter(Boolean).join(" · "));
      if (before && before !== row.state) announce(gettext("%(what)s %(model)s: %(state)s", { what: verbOf(row), model: subjectOf(row), state: word }));
      before = row.state;
    },
  };
}

export function makeFeed(panel) {
  const list = panel.querySelector("[data-feed]");
  const empty = panel.querySelector("[data-empty]");
  return (operations) => {
    const newest = [...operations].sort((a, b) => b.number - a.number).slice(0, SHOWN);
    keyed(list, newest, (row) => row.id, makeEntry);
    hide(list, newest.length === 0);
    hide(empty, newest.length > 0);
  };
}
