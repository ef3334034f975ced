// The newest operations: what, on which model, by whom, why, and how it ended.
import { attr, el, hide, keyed, text } from "./dom.js";
import { clock, number, utc } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { announce, say } from "./say.js";

const SHOWN = 20;

const VERBS = {
  add_node: gettext("Add node"),
  register_model: gettext("Register"),
  scale_pool: gettext("Scale"),
  exchange_roles: gettext("Exchange roles"),
  retry_engine: gettext("Retry engine"),
  remove_model: gettext("Remove"),
};

const STATES = {
  pending: ["idle", gettext("waiting")],
  running: ["run", gettext("running")],
  rolling_back: ["run", gettext("rolling back")],
  done: ["ok", gettext("done")],
  failed: ["bad", gettext("failed")],
  refused: ["bad", gettext("refused")],
  cancelled: ["idle", gettext("cancelled")],
  rolled_back: ["warn", gettext("rolled back")],
};

const verbOf = (row) => VERBS[row.verb] ?? row.verb;
const subjectOf = (row) => row.model || row.subject.replace(/^[a-z]+:/, "");
const stateOf = (row) => STATES[row.state] ?? ["idle", row.state];

function progress(row) {
  if (row.finished_at != null || !row.steps_total) return "";
  return gettext("step %(done)s of %(total)s", { done: number(row.steps_done), total: number(row.steps_total) });
}

// The outcome in the viewer's language: what the control loop writes is English, for logs.
function outcomeOf(row) {
  if (row.state === "done") {
    return row.steps_total ? ngettext("%(n)s step done", "%(n)s steps done", row.steps_total, { n: number(row.steps_total) }) : "";
  }
  const newer = /^superseded by operation (\d+)$/.exec(row.outcome);
  if (newer) return gettext("superseded by operation %(n)s", { n: newer[1] });
  const failed = /^(\d+) of (\d+) steps? failed: (.*)$/s.exec(row.outcome);
  if (failed) {
    const params = { failed: number(Number(failed[1])), total: number(Number(failed[2])), why: failed[3] };
    return ngettext("%(failed)s of %(total)s step failed: %(why)s", "%(failed)s of %(total)s steps failed: %(why)s", Number(failed[2]), params);
  }
  return row.outcome === "the pool has its size without it" ? gettext("the pool has its size without it") : row.outcome;
}

function makeEntry() {
  const when = el("span", { class: "when" });
  const what = el("span", { class: "what" });
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
