// The alerts page: what fires, live; everything else as the page's data has it, read anew after a change.
import { gate, read, setDown } from "./act.js";
import { askForChannel, askToSilence } from "./alertdialogs.js";
import { paintChannels, paintOver, paintRules, paintSilences } from "./alerttables.js";
import { factsOf, limitOf, quantity, reasonOf, remedyOf, SEVERITIES, subjectNode, titleOf } from "./alertwords.js";
import { ALERTS } from "./badge.js";
import { now, setServerTime } from "./clock.js";
import { el, hide, keyed, redraw, text } from "./dom.js";
import { follow } from "./follow.js";
import { clock, dateTime, number, span, utc } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { guard } from "./panels.js";
import { say } from "./say.js";
import { takeAway } from "./takeaway.js";
import { walk } from "./walk.js";

const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
let facts = first;
const refused = (model, verb) => (facts.refused[model] ?? facts.refused[""])[verb] ?? "";
const feeds = follow({ topics: [ALERTS], frames: [first.frame], paint: (state) => paint(state) });

async function refresh() {
  const query = new URLSearchParams(location.search);
  const { ok, document } = await read(`/data/alerts?${query}`);
  if (!ok) return;
  facts = document;
  feeds.repaint();
}

// --- What fires

function makeAlert(row) {
  const kind = el("span");
  const title = el("a", { class: "what" });
  const subject = el("span");
  const detail = el("div", { class: "soft" });
  const remedy = el("div", { class: "meta" });
  const value = el("b");
  const limit = el("div", { class: "meta" });
  const since = el("span");
  const quiet = el("div", { class: "meta" });
  const silence = el("button", { class: "btn small", type: "button" }, gettext("Silence"));
  let now_ = row;
  silence.addEventListener("click", () => askToSilence(now_, refresh));
  return {
    node: el("tr", { "data-alert": row.number }, el("td", { class: "wrap" }, kind, " ", title, " ", subject, detail, remedy), el("td", { class: "r" }, value, limit), el("td", { class: "opt r when" }, since), el("td", { class: "r wrap" }, quiet, silence)),
    paint(next) {
      now_ = next;
      const rule = first.rules[next.rule];
      say(kind, next.severity, SEVERITIES[next.severity]);
      text(title, titleOf(next.rule));
      title.href = `/alerts/${next.number}`;
      redraw(subject, `${next.subject} ${next.label}`, () => [subjectNode(next)]);
      text(detail, [factsOf(next), next.last === "unknown" ? gettext("no data now: neither worse nor over") : ""].filter(Boolean).join(" · "));
      text(remedy, remedyOf(next.rule));
      text(value, quantity(rule?.unit, next.value));
      text(limit, limitOf(rule, next.threshold));
      text(since, span(now() - next.fired_at));
      since.title = utc(next.fired_at);
      text(quiet, next.silenced_until ? gettext("silenced until %(time)s by %(who)s: %(why)s", { time: dateTime(next.silenced_until), who: next.silenced_by, why: next.silenced_why }) : "");
      hide(silence, Boolean(next.silenced_until));
      gate(silence, refused(next.model, "silence_alert"));
      silence.setAttribute("aria-label", gettext("Silence %(what)s", { what: `${titleOf(next.rule)} ${next.label}` }));
    },
  };
}

let before = null;
function paintFiring() {
  const rows = [...feeds.rows(ALERTS).of("alert")].sort((a, b) => (b.severity === "bad") - (a.severity === "bad") || b.number - a.number);
  const known = feeds.rows(ALERTS).at !== null;
  keyed(byId("firing").tBodies[0], rows, (row) => row.number, makeAlert);
  hide(byId("firing"), rows.length === 0);
  hide(byId("firing-none"), rows.length > 0 || !known);
  hide(byId("firing-wait"), known);
  const silenced = rows.filter((row) => row.silenced_until).length;
  text(byId("firing-meta"), rows.length ? [ngettext("%(n)s fires", "%(n)s fire", rows.length), silenced ? gettext("%(n)s silenced", { n: number(silenced) }) : ""].filter(Boolean).join(", ") : "");
  const numbers = rows.map((row) => row.number).join();
  if (before !== null && before !== numbers) refresh(); // what is gone is among what was
  before = numbers;
}

// --- One alert

const EVENTS = { fired: gettext("that it fires"), resolved: gettext("that it is over") };
const STATES = { waiting: ["run", gettext("on its way")], sent: ["ok", gettext("told")], failed: ["bad", gettext("given up")] };

function paintChosen() {
  const row = first.chosen;
  hide(byId("chosen"), !row);
  if (!row) return;
  const rule = first.rules[row.rule];
  const pair = (name, ...values) => [el("dt", {}, name), el("dd", {}, ...values)];
  const told = row.told.map((each) => {
    const state = el("span");
    say(state, ...STATES[each.state]);
    return el("li", {}, el("span", { class: "when", title: utc(each.at) }, clock(each.at)), el("span", {}, el("b", {}, each.channel), ` ${EVENTS[each.event] ?? each.event}`), state, el("span", { class: "why" }, each.error));
  });
  redraw(byId("chosen-body"), "once", () => [
    el("dl", { class: "kv" }, ...pair(gettext("What"), titleOf(row.rule), " ", subjectNode(row)), ...pair(gettext("Severity"), SEVERITIES[row.severity]), ...pair(gettext("Worst"), quantity(rule?.unit, row.peak), ` (${limitOf(rule, row.threshold)})`), ...pair(gettext("Behind it"), factsOf(row) || "—"), ...pair(gettext("Began"), dateTime(row.began_at)), ...pair(gettext("Fired"), dateTime(row.fired_at)), ...pair(gettext("Over"), row.resolved_at ? `${dateTime(row.resolved_at)} (${reasonOf(row.reason)})` : gettext("it still fires")), ...pair(gettext("What to do"), remedyOf(row.rule))),
    el("h3", { class: "who-why" }, gettext("Who was told")),
    told.length ? el("ul", { class: "feed inset" }, ...told) : el("p", { class: "soft" }, gettext("Nobody: it was silenced, or no channel asks for it.")),
  ]);
}

// --- Filters of what was

function makeFilters() {
  const form = byId("filters");
  const pick = (name, words, all, pairs) => el("label", { class: "field" }, words, el("select", { name, class: "pick" }, el("option", { value: "" }, all), ...pairs.map(([value, shown]) => el("option", { value, selected: first.asked[name] === value }, shown))));
  form.append(pick("rule", gettext("Rule"), gettext("all"), Object.keys(first.rules).map((rule) => [rule, titleOf(rule)])), pick("model", gettext("Model"), gettext("all"), first.models.map((name) => [name, name])));
  form.addEventListener("change", () => form.requestSubmit());
  form.addEventListener("formdata", ({ formData }) => [...formData].forEach(([name, value]) => value || formData.delete(name)));
  const query = new URLSearchParams(Object.entries(first.asked).filter(([, value]) => value));
  const nodes = [];
  if (!first.newest) nodes.push(el("a", { class: "btn small", href: `/alerts?${query}` }, gettext("Newest")));
  if (first.more) {
    const older = new URLSearchParams(query);
    older.set("before", first.rows.at(-1).number);
    nodes.push(el("a", { class: "btn small", href: `/alerts?${older}` }, gettext("Older")));
  }
  byId("foot").replaceChildren(...nodes);
  hide(byId("foot"), nodes.length === 0);
  byId("take").append(takeAway(gettext("alerts that are over"), () => `/data/alerts/history?${query}`));
}

function paintAll({ cut, down }) {
  setDown(down);
  byId("firing-panel").classList.toggle("is-stale", cut);
  paintFiring();
  paintOver(facts, first.rules);
  paintSilences(facts, refused, refresh);
  paintRules(facts, first.rules, first.models, refused, refresh);
  paintChannels(facts, refresh);
}
const paint = guard(byId("firing-none"), paintAll);

makeFilters();
paintChosen();
for (const node of document.querySelectorAll("[data-add-channel]")) node.addEventListener("click", () => askForChannel(first.mail, refresh));
walk("#firing tbody tr, #over tbody tr", (node) => node.querySelector("a.what").click());
feeds.repaint();
