// The requests page: the address is the question. The list is asked for anew while frames come, unless it is held, an older page is
// shown or a request is open.
import { read } from "./act.js";
import { now, setServerTime } from "./clock.js";
import { attr, el, hide, keyed, redraw, svg, text } from "./dom.js";
import { follow } from "./follow.js";
import { clockSeconds, latencyText, number, percent, span } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { key } from "./keys.js";
import { emptied, failed } from "./panels.js";
import { makeRange } from "./range.js";
import { reasonCodes, reasonSentence } from "./reasons.js";
import { makeFilters } from "./requestfilters.js";
import { makeDetail, makeLine } from "./requestrow.js";
import { announce } from "./say.js";
import { takeAway } from "./takeaway.js";
import { walk } from "./walk.js";
import { axisOf, scaleOf } from "./waterfall.js";

const EVERY_MS = 5000;
const LIVE_SPAN_S = 3600; // longer lists are not asked for by themselves: they change little and cost much
const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const panel = byId("requests");
const part = (name) => panel.querySelector(`[data-${name}]`);
const list = byId("list");

let shown = null; // what the data address answered last
let askedAt = 0;
let round = 0;
let held = false;
let running = 0;

const feeds = follow({ topics: ["fleet"], paint: () => paintStale(), frame: () => due() && load() });
const asked = (name) => new URLSearchParams(location.search).get(name) ?? "";
const order = () => (asked("order") === "slowest" ? "slowest" : "newest");
const range = makeRange(byId("range"), { fallback: "15m", spans: ["15m", "1h", "6h", "24h", "7d"], changed: () => load() });
const filters = makeFilters(byId("filters"), first.choices, first.engines, () => load());
const due = () => !held && !running && !asked("open") && !asked("cursor") && range.live && range.span <= LIVE_SPAN_S && !document.hidden && Date.now() - askedAt > EVERY_MS;

function dataUrl(cursor = "") {
  const query = range.query();
  filters.write(query);
  query.set("order", order());
  if (cursor) query.set("cursor", cursor);
  return `/data/requests?${query}`;
}

function go(changes, { keep = [] } = {}) {
  const url = new URL(location.href);
  for (const name of ["cursor", "open"]) if (!keep.includes(name)) url.searchParams.delete(name);
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  history.pushState(null, "", url);
}

async function load() {
  const mine = (round += 1);
  askedAt = Date.now();
  attr(list, "aria-busy", "true");
  running += 1;
  const { ok, status, document: found } = await read(dataUrl(asked("cursor")));
  running -= 1;
  if (mine !== round) return;
  attr(list, "aria-busy", null);
  if (!ok) {
    const again = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
    again.addEventListener("click", load);
    byId("state").replaceChildren(failed(gettext("Could not load the requests: %(error)s", { error: found.error ?? found.reasons?.[0] ?? `HTTP ${status}` }), again));
    hide(byId("state"), false);
    return;
  }
  if (found.summary === null) found.summary = shown?.summary ?? null;
  shown = found;
  paint();
}

// ---- the table
const HEADS = [
  ["", gettext("request")],
  ["opt", gettext("start")],
  ["opt", gettext("model")],
  ["r opt", gettext("prompt")],
  ["r opt", gettext("output")],
  ["r opt", gettext("prefix hit")],
  ["", gettext("route")],
  ["opt", gettext("reason")],
  ["wfc", null],
  ["r", gettext("TTFT")],
  ["", gettext("SLO")],
  ["r opt", gettext("rest")],
];
const axis = svg("svg", { class: "chart", height: 16, "aria-hidden": "true" });
const heads = HEADS.map(([className, words], index) => {
  const content = words === null ? [el("span", { class: "sr" }, gettext("stages")), axis] : index === 10 ? [el("span", { class: "sr" }, words)] : [words];
  return el("th", { class: className, scope: "col" }, ...content);
});
list.tHead.append(el("tr", {}, ...heads));

function toggle(row) {
  const open = asked("open") === row.id ? "" : row.id;
  go({ open }, { keep: ["cursor"] });
  paint();
}

function sessionUrl(row) {
  const query = new URLSearchParams({ session: row.session, model: row.model });
  range.write(query);
  return `/requests?${query}`;
}

function paintRows() {
  const { rows, labels } = shown;
  const scale = scaleOf(rows);
  const open = asked("open");
  const items = rows.flatMap((row) => {
    const isOpen = row.id === open;
    const item = { key: `${row.id} ${row.at}`, row, labels, scale, isOpen, make: () => makeLine({ toggle }) };
    return isOpen ? [item, { ...item, key: `${item.key} detail`, make: () => makeDetail(HEADS.length, sessionUrl) }] : [item];
  });
  keyed(list.tBodies[0], items, (item) => item.key, (item) => item.make());
  redraw(axis, JSON.stringify(scale), () => axisOf(scale).map(({ share, ms }) => svg("text", { class: share && ms < scale.top ? "opt" : "", x: `${100 * share}%`, y: 12, "text-anchor": share ? "middle" : "start" }, latencyText(ms))));
  attr(heads[9], "aria-sort", order() === "slowest" ? "descending" : null);
  attr(heads[1], "aria-sort", order() === "newest" ? "descending" : null);
}

// ---- what is said of them
const said = { slow: el("span", { class: "say bad" }), lost: el("span"), matched: el("span", { class: "meta" }) };
const orders = [
  ["newest", gettext("Newest first")],
  ["slowest", gettext("Slowest first")],
].map(([value, words]) => {
  const input = el("input", { type: "radio", name: "order", value });
  input.addEventListener("change", () => {
    go({ order: value === "newest" ? "" : value });
    load();
  });
  return { value, input, node: el("label", {}, input, el("span", {}, words)) };
});
const hold = el("button", { class: "btn small", type: "button" });
hold.addEventListener("click", switchHold);
byId("told").append(said.slow, said.lost, said.matched, el("span", { class: "end" }, el("fieldset", { class: "seg" }, el("legend", { class: "sr" }, gettext("Order")), ...orders.map(({ node }) => node)), hold, takeAway(gettext("these requests"), () => dataUrl())));

function switchHold() {
  held = !held;
  announce(held ? gettext("The list is held") : gettext("The list follows"));
  paintHold();
  if (due()) load();
}

function paintHold() {
  redraw(hold, `${held}`, () => [held ? gettext("Follow") : gettext("Hold"), " ", el("kbd", {}, ".")]);
  attr(hold, "aria-pressed", held ? "true" : "false");
}

function paintSummary() {
  const { summary, matched, matched_more: more, rows } = shown;
  for (const { value, input } of orders) input.checked = value === order();
  text(said.matched, gettext("%(shown)s of %(all)s records", { shown: number(rows.length), all: `${number(matched)}${more ? "+" : ""}` }));
  hide(said.slow, !summary?.over_slo.value);
  hide(said.lost, !summary);
  if (!summary) return;
  const all = summary.requests.value;
  text(part("meta"), `${range.words} · ${ngettext("%(n)s request", "%(n)s requests", all, { n: number(all) })}`);
  attr(part("meta"), "title", gettext("Busy routers tell some of those that went well; each of those stands for several. Slow, failed and retried ones are always told."));
  text(said.slow, gettext("%(n)s over SLO, %(share)s %", { n: number(summary.over_slo.value), share: percent(all ? summary.over_slo.value / all : 0) }));
  attr(said.lost, "class", summary.failed.value ? "say bad" : "say ok");
  text(said.lost, ngettext("%(n)s lost", "%(n)s lost", summary.failed.value, { n: number(summary.failed.value) }));
}

function paintStale() {
  const figure = shown?.summary?.requests;
  panel.classList.toggle("is-stale", Boolean(figure?.stale));
  text(part("stale"), !figure?.stale ? "" : figure.at ? gettext("▲ stale since %(age)s", { age: span(now() - figure.at) }) : gettext("▲ nothing recorded"));
}

const foot = {
  newest: el("button", { class: "btn small", type: "button" }, gettext("First page")),
  next: el("button", { class: "btn small", type: "button" }, gettext("Next page")),
  codes: el("button", { class: "btn quiet small", type: "button" }, gettext("What the reasons mean")),
  at: el("span", { class: "meta" }),
};
byId("foot").append(...Object.values(foot));
foot.newest.addEventListener("click", () => {
  go({});
  load();
});
foot.next.addEventListener("click", () => {
  go({ cursor: shown.next });
  load();
  panel.scrollIntoView();
});
foot.codes.addEventListener("click", () => {
  const close = el("button", { class: "btn small" }, gettext("Close"), " ", el("kbd", {}, "Esc"));
  const terms = reasonCodes.flatMap((code) => [el("dt", {}, el("span", { class: "code" }, code)), el("dd", {}, reasonSentence(code))]);
  const dialog = el("dialog", { class: "panel help ask codes", "aria-labelledby": "codes-title" }, el("header", {}, el("h2", { id: "codes-title" }, gettext("Reasons")), el("form", { class: "end", method: "dialog" }, close)), el("div", { class: "body" }, el("dl", { class: "kv" }, ...terms)));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
});

function paint() {
  paintRows();
  paintSummary();
  paintStale();
  const none = shown.rows.length === 0;
  hide(list, none);
  hide(byId("state"), !none);
  if (none) byId("state").replaceChildren(emptied(gettext("No requests here"), gettext("None matches these filters in this time.")));
  hide(foot.newest, !asked("cursor"));
  hide(foot.next, !shown.next);
  text(foot.at, gettext("as of %(time)s", { time: clockSeconds(shown.now) }));
}

const walked = walk("#list tr.req", (node) => node.querySelector("button").click());
key("f", () => filters.focus());
key(".", switchHold);
key("c", async () => {
  const id = walked.chosen()?.dataset.request ?? asked("open");
  if (!id) return;
  await navigator.clipboard.writeText(id);
  announce(gettext("Copied"));
});
addEventListener("popstate", () => load());
addEventListener("zonechange", () => shown && paint());
paintHold();
feeds.repaint();
load();
