// The planner of one model: how it is set, how it stands, what held it, and how right it was.
import { gate, link, modelUrl, order, setDown } from "./act.js";
import { setServerTime } from "./clock.js";
import { ask, isOpen } from "./dialog.js";
import { el, hide, redraw } from "./dom.js";
import { follow } from "./follow.js";
import { dateTime, latencyText, MISSING, number, span, utc } from "./format.js";
import { gettext } from "./i18n.js";
import { emptied, guard } from "./panels.js";
import { makeForm, partWords } from "./plannerform.js";
import { accuracyWords, holdOf, LEVELS } from "./proposalwords.js";
import { takeAway } from "./takeaway.js";

const byId = (id) => document.getElementById(id);
const part = (panel, name) => byId(panel).querySelector(`[data-${name}]`);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const NAME = first.model.name;
const feeds = follow({ topics: [`model:${NAME}`], frames: [first.frame], paint: (state) => paint(state), missing: () => true });

// ---- the head
const others = el("select", { class: "pick", "aria-label": gettext("Model") }, ...first.models.map((name) => el("option", { value: name, selected: name === NAME }, name)));
others.addEventListener("change", () => location.assign(modelUrl(others.value, "planner")));
hide(others, first.models.length < 2);
part("head", "end").append(others, el("a", { class: "btn", href: `/proposals?model=${encodeURIComponent(NAME)}` }, gettext("Proposals")), el("a", { class: "btn", href: modelUrl(NAME) }, gettext("Model")));
const fact = (words, value) => el("div", {}, el("dt", {}, words), el("dd", {}, value));
part("head", "facts").append(fact(gettext("level"), LEVELS[first.planner.level]), fact(gettext("priority"), number(first.planner.priority)), fact(gettext("predictions off by"), accuracyWords(first.stance.accuracy)));

// ---- the form
const save = el("button", { class: "btn primary" }, gettext("Set"));
const undo = el("button", { class: "btn", type: "reset" }, gettext("Discard"));
const note = el("span", { class: "meta" });
const update = () => gate(save, whyNot());
const form = makeForm(first, { priorityRefused: first.refused.set_priority, changed: () => update() });
byId("form").append(...form.nodes, el("div", { class: "save-row" }, save, undo, note));

function whyNot() {
  if (first.refused.set_planner) return first.refused.set_planner;
  return Object.keys(form.changes()).length ? "" : gettext("Nothing is changed yet");
}

function submit(event) {
  event.preventDefault();
  const changes = form.changes();
  if (save.disabled || isOpen()) return;
  ask({
    title: gettext("Set the planner of %(model)s", { model: NAME }),
    body: [el("p", {}, gettext("Changed: %(parts)s", { parts: Object.keys(changes).map((name) => partWords[name]).join(", ") }))],
    confirm: gettext("Set"),
    send: (reason) => order(modelUrl(NAME, "planner/set"), { ...changes, version: first.model.version, last: first.model.last, reason }),
    done: () => location.reload(),
    refused: ({ kind }) => {
      if (kind === "stale") note.replaceChildren(el("a", { href: location.href }, gettext("The model has changed meanwhile: load the page again")));
    },
  });
}
byId("form").addEventListener("input", update);
byId("form").addEventListener("reset", () => location.reload());
byId("form").addEventListener("submit", submit);
link.addEventListener("change", update);
update();

// ---- how it stands, what held it, how right it was
function stanceNodes({ level, hold, proposal }) {
  if (proposal) return [el("p", {}, el("a", { href: `/proposals/${proposal}` }, gettext("Proposal %(n)s is open", { n: proposal })))];
  if (!hold) return [emptied(gettext("It has not looked yet"), level === "off" ? gettext("It is off for this model.") : gettext("It looks at every model each minute."))];
  const [kind, words] = holdOf(hold.code);
  return [el("p", {}, el("span", { class: `say ${kind}` }, words)), el("p", { class: "soft", lang: "en" }, hold.reason), el("p", { class: "meta" }, gettext("for %(time)s", { time: span(hold.seen_at - hold.since) }))];
}

function heldNodes() {
  if (!first.held.length) return [emptied(gettext("Nothing yet"), gettext("Why the planner left this model alone, and from when to when."))];
  const rows = first.held.map((each) => {
    const [kind, words] = holdOf(each.code);
    return el("tr", {}, el("td", { class: "when", title: utc(each.since) }, dateTime(each.since)), el("td", { class: "wrap" }, el("span", { class: `say ${kind}` }, words), el("span", { class: "why", lang: "en" }, each.reason)), el("td", { class: "r soft" }, span(each.seen_at - each.since)));
  });
  const heads = [gettext("since"), gettext("what"), gettext("for")].map((words, index) => el("th", { class: index === 2 ? "r" : "" }, words));
  return [el("div", { class: "scroll", tabindex: "0", role: "group", "aria-labelledby": "held-title" }, el("table", { class: "table ops" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)))];
}

const twice = (side) => (side ? `${latencyText(side.ttft_p99_ms)} · ${latencyText(side.itl_p99_ms)}` : MISSING);
function rightNodes() {
  if (!first.outcomes.length) return [emptied(gettext("Nothing measured yet"), gettext("Proposals that were carried out stand here beside what came: TTFT p99 and ITL p99."))];
  const rows = first.outcomes.map((each) => el("tr", {}, el("td", {}, el("a", { href: `/proposals/${each.number}`, title: each.title }, `${each.number}`)), el("td", { class: "r soft" }, twice(each.predicted)), el("td", { class: "r" }, twice(each.expected)), el("td", { class: "r" }, el("b", { class: "num" }, twice(each.actual)))));
  const heads = [gettext("proposal"), gettext("predicted"), gettext("for the load that came"), gettext("actual")].map((words, index) => el("th", { class: index ? "r wrap" : "" }, words));
  return [el("div", { class: "scroll", tabindex: "0", role: "group", "aria-labelledby": "right-title" }, el("table", { class: "table" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows))), el("p", { class: "panel-foot" }, gettext("Off by, median: %(off)s. TTFT p99 · ITL p99.", { off: accuracyWords(first.stance.accuracy) }))];
}
part("right", "end").append(takeAway(gettext("predicted and actual"), () => `/data/models/${NAME.split("/").map(encodeURIComponent).join("/")}/planner`));

const paintBody = guard(part("stance", "body"), () => {
  redraw(part("stance", "body"), "stance", () => stanceNodes(first.stance));
  redraw(part("held", "body"), "held", heldNodes);
  redraw(part("right", "body"), "right", rightNodes);
});

function paint({ down }) {
  setDown(down);
  paintBody();
}
feeds.repaint();
