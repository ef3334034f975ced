// The audit page: filters in the address, a row per entry, before and after of the chosen one.
import { modelUrl, read, setDown } from "./act.js";
import { setServerTime } from "./clock.js";
import { attr, el, hide, text } from "./dom.js";
import { follow } from "./follow.js";
import { dateTime, utc } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { MODES, roleWord, verbWord } from "./opwords.js";
import { failed } from "./panels.js";
import { walk } from "./walk.js";
import { takeAway } from "./takeaway.js";

const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const KINDS = { model: gettext("models"), engine: gettext("engines"), node: gettext("nodes"), operation: gettext("operations"), key: gettext("API keys"), token: gettext("tokens"), team: gettext("teams"), alert: gettext("alerts"), rule: gettext("rules of alerts"), silence: gettext("silences"), channel: gettext("channels"), price: gettext("prices"), user: gettext("logins"), refusal: gettext("refusals"), audit: gettext("entries left out"), state: gettext("whole state") };
const body = byId("list").tBodies[0];
const asked = new URLSearchParams(Object.entries(first.asked).filter(([, value]) => value));
let newest = Math.max(0, ...first.rows.map((row) => row.number));

// --- Filters

const input = (name, attributes) => el("input", { name, value: first.asked[name], ...attributes });
const field = (words, control) => el("label", { class: "field" }, words, control);
const inside = (control) => el("span", { class: "in" }, control);
const select = (name, all, words) => el("select", { class: "pick", name }, el("option", { value: "" }, all), ...first.choices[name].map((value) => el("option", { value, selected: first.asked[name] === value }, words(value))));
const form = byId("filters");
const fields = [
  field(gettext("Search"), inside(input("q", { type: "search", maxlength: 150, autocomplete: "off", placeholder: gettext("name, subject, reason") }))),
  field(gettext("Who"), select("actor", gettext("anybody"), (value) => value)),
  field(gettext("What"), select("verb", gettext("anything"), verbWord)),
  field(gettext("Of"), select("kind", gettext("everything"), (value) => KINDS[value])),
  field(gettext("From"), inside(input("from", { type: "date" }))),
  field(gettext("To"), inside(input("to", { type: "date" }))),
];
form.append(...fields, el("button", { class: "btn small" }, gettext("Search")), ...(asked.size ? [el("a", { class: "btn small quiet", href: form.action }, gettext("Show all"))] : []));
form.addEventListener("change", (event) => event.target.matches("select") && form.requestSubmit());
// Empty fields would only lengthen the address.
form.addEventListener("formdata", ({ formData }) => {
  for (const [name, value] of [...formData]) if (!value) formData.delete(name);
});

// --- Rows

const OF = { model: modelUrl, engine: (name) => `/engines/${encodeURIComponent(name)}`, node: (name) => `/nodes#${encodeURIComponent(name)}`, operation: (name) => `/operations/${encodeURIComponent(name)}` };

function subjectNode(subject) {
  const [kind, name] = [subject.slice(0, subject.indexOf(":")), subject.slice(subject.indexOf(":") + 1)];
  return OF[kind] ? el("a", { href: OF[kind](name) }, name) : el("span", {}, name || subject);
}

const parsed = (json) => (json ? JSON.parse(json) : {});
const isPlain = (value) => value === null || typeof value !== "object";
const valueText = (value) => (value === undefined || (!isPlain(value) && !Object.keys(value).length) ? "—" : isPlain(value) ? String(MODES[value] ?? value) : Object.entries(value).map(([name, each]) => `${roleWord(name)} ${isPlain(each) ? each : "…"}`).join(", "));

// [name, before, after] of everything that differs.
function changes(row) {
  const [before, after] = [parsed(row.before), parsed(row.after)];
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name])).map((name) => [name, before[name], after[name]]);
}

const summary = (row) => changes(row).map(([name, before, after]) => `${name.replaceAll("_", " ")} ${before == null ? "" : `${valueText(before)} → `}${valueText(after)}`).join(" · ");
const json = (value) => el("pre", { class: "json" }, Object.keys(value).length ? JSON.stringify(value, null, 2) : "—");

function detail(row) {
  const side = (words, value) => el("div", {}, el("h3", {}, words), json(value));
  const facts = el("p", { class: "soft" }, [utc(row.at), row.actor, row.subject, row.reason].filter(Boolean).join(" · "));
  return el("tr", { class: "detail" }, el("td", { colspan: 6 }, facts, el("div", { class: "sides" }, side(gettext("Before"), parsed(row.before)), side(gettext("After"), parsed(row.after)))));
}

function line(row) {
  const open = el("button", { class: "btn quiet small", type: "button", "aria-expanded": "false", "aria-label": gettext("Before and after of %(what)s", { what: `${verbWord(row.verb)} ${row.subject}` }) }, "▸");
  const when = el("td", { class: "when", title: utc(row.at) }, dateTime(row.at));
  const what = el("td", { class: "wrap" }, el("span", { class: "what" }, verbWord(row.verb)), " ", subjectNode(row.subject));
  const operation = row.operation == null ? "" : el("a", { href: `/operations/${row.operation}` }, `${row.operation}`);
  const node = el("tr", { "data-entry": row.number }, when, el("td", { class: "wrap" }, row.actor), what, el("td", { class: "opt wrap" }, row.reason), el("td", { class: "opt wrap soft" }, summary(row)), el("td", { class: "r" }, operation, " ", open));
  let below = null;
  function toggle() {
    if (below) below.remove();
    below = below ? null : detail(row);
    if (below) node.after(below);
    attr(open, "aria-expanded", String(Boolean(below)));
    text(open, below ? "▾" : "▸");
    node.classList.toggle("open", Boolean(below));
  }
  open.addEventListener("click", toggle);
  node.addEventListener("dblclick", toggle);
  return node;
}

body.append(...first.rows.map(line));
hide(byId("list"), first.rows.length === 0);
hide(byId("none"), first.rows.length > 0 || Boolean(first.problem));
if (first.problem) byId("none").before(failed(first.problem));
walk("#list [data-entry]", (node) => node.querySelector("[aria-expanded]").click());
byId("take").append(takeAway(gettext("entries"), () => `/data/audit?${asked}`));

// --- Newer and older ones

const more = el("button", { class: "btn small", type: "button" });
const older = new URLSearchParams(asked);
if (first.rows.length) older.set("before", first.rows.at(-1).number);
const feet = [more, ...(first.newest ? [] : [el("a", { class: "btn small", href: `?${asked}` }, gettext("Newest"))]), ...(first.more ? [el("a", { class: "btn small", href: `?${older}` }, gettext("Older"))] : [])];
byId("foot").replaceChildren(...feet.flatMap((node) => [node, " "]));
hide(more, true);
let waiting = [];

more.addEventListener("click", () => {
  body.prepend(...waiting.map(line));
  hide(byId("list"), false);
  hide(byId("none"), true);
  newest = Math.max(newest, ...waiting.map((row) => row.number));
  waiting = [];
  paintFoot();
});

function paintFoot() {
  text(more, ngettext("Show %(n)s newer entry", "Show %(n)s newer entries", waiting.length));
  hide(more, waiting.length === 0);
  hide(byId("foot"), feet.length === 1 && waiting.length === 0);
}
paintFoot();
addEventListener("zonechange", () => location.reload()); // rows are written once

// Entries come with operations: a new one on the fleet's topic is the sign to look.
let seen = null;
async function look() {
  const query = new URLSearchParams(asked);
  query.set("after", newest);
  const { ok, document: rows } = await read(`/data/audit?${query}`);
  if (!ok) return;
  waiting = rows;
  paintFoot();
}

const feeds = follow({
  topics: ["fleet"],
  paint: ({ down }) => {
    setDown(down);
    const last = Math.max(0, ...feeds.rows("fleet").of("operation").map((row) => row.number));
    if (seen !== null && last > seen && first.newest) look();
    if (last) seen = last;
  },
});
