// The page of costs: a month in the viewer's zone, in whole cents that add up, and the price book with its dialogs.
import { gate, link, order, read, setDown } from "./act.js";
import { setServerTime } from "./clock.js";
import { ask, field } from "./dialog.js";
import { el, hide, text } from "./dom.js";
import { ROLE } from "./engines.js";
import { follow } from "./follow.js";
import { clock, dateTime, day, MISSING, number, percent } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { emptied, failed } from "./panels.js";
import { HEADS, rowOf } from "./splitcost.js";
import { takeAway } from "./takeaway.js";
import { isUtc, timeZone } from "./zone.js";

const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const zone = () => timeZone() ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC";
const TERMS = { owned: gettext("owned"), hourly: gettext("rented by the hour") };
const FILES = [["lines", gettext("by day, model, team and key")], ["models", gettext("by model")], ["pools", gettext("by pool")], ["usage", gettext("usage by key")]];

const dollars = (cents) => (cents == null ? MISSING : number(cents / 100, 2));
const perMillion = (value) => (value == null ? MISSING : number(value, 2));
const sum = (rows, of) => rows.reduce((total, row) => total + (row[of] ?? 0), 0);
const right = (words, className = "r") => el("td", { class: className }, words);

// heads: [words, class]; rows and foot: lists of cells.
function table(label, heads, rows, foot = null) {
  const head = el("tr", {}, ...heads.map(([words, className = ""]) => el("th", { class: className, scope: "col" }, words)));
  const feet = foot ? [el("tfoot", {}, el("tr", { class: "sum" }, ...foot))] : [];
  const node = el("table", { class: "table" }, el("thead", {}, head), el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells))), ...feet);
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, node);
}

const nothing = () => emptied(gettext("Nothing known"), gettext("Costs are made from hours, about a quarter of an hour after each has passed."));
const put = (id, rows, node) => byId(id).replaceChildren(rows.length ? node() : nothing());
const poolName = (pool) => (pool.model ? [el("td", { class: "wrap" }, pool.model), el("td", {}, el("span", { class: `chip ${ROLE[pool.role]?.letter ?? "s"}` }, ROLE[pool.role]?.word ?? pool.role))] : [el("td", { colspan: 2 }, gettext("in no pool"))]);

// --- The month

let asked = first.month;
let shown = null;

function shiftMonth(name, by) {
  const [year, month] = name.split("-").map(Number);
  return new Date(Date.UTC(year, month - 1 + by, 1)).toISOString().slice(0, 7);
}

const picker = el("input", { type: "month", name: "month", min: "2020-01", pattern: "[0-9]{4}-[0-9]{2}", value: asked, "aria-label": gettext("Month") });
const step = (by, words, label) => {
  const button = el("button", { class: "btn small", type: "button", "aria-label": label }, words);
  button.addEventListener("click", () => shown && go(shiftMonth(shown.month, by)));
  return button;
};
const later = step(1, "›", gettext("Next month"));
const form = byId("months");
form.append(step(-1, "‹", gettext("Month before")), field(gettext("Month"), picker), later);
form.addEventListener("submit", (event) => event.preventDefault());
picker.addEventListener("change", () => /^[0-9]{4}-[0-9]{2}$/.test(picker.value) && go(picker.value));

function go(month) {
  asked = month;
  history.replaceState(null, "", `?month=${encodeURIComponent(month)}`);
  load();
}

const query = () => new URLSearchParams({ ...(asked && { month: asked }), zone: zone() });

let newest = 0;
async function load() {
  const mine = (newest += 1);
  const { ok, status, document: found } = await read(`/data/costs?${query()}`);
  if (mine !== newest) return;
  hide(byId("said"), ok);
  if (!ok) {
    const again = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
    again.addEventListener("click", load);
    byId("said").replaceChildren(failed(gettext("Could not load: %(error)s", { error: found.error ?? found.reasons?.[0] ?? status }), again));
    return;
  }
  shown = found;
  if (picker.value !== found.month) picker.value = found.month;
  later.disabled = found.ends * 1000 > Date.now();
  paint(found);
}

function paint(found) {
  const { statement } = found;
  const until = found.until == null ? gettext("no hour is made yet") : found.until < found.ends ? gettext("up to %(day)s %(time)s", { day: day(found.until), time: clock(found.until) }) : gettext("whole month");
  text(byId("span"), `${found.month} · ${found.zone} · ${until}`);
  paintGaps(found);
  paintKpis(found);
  put("models", statement.models, () => modelTable(statement));
  put("pools", statement.pools, () => poolTable(statement));
  put("teams", statement.lines, () => teamTable(statement));
  put("usage", found.usage, () => usageTable(found.usage));
  put("days", statement.lines, () => dayTable(statement));
}

function paintGaps({ gaps, statement }) {
  const hours = gaps.reduce((total, gap) => total + (gap.until - gap.since) / 3600, 0);
  const spans = gaps.map((gap) => el("li", {}, `${dateTime(gap.since)} – ${dateTime(gap.until)}`));
  const notes = [
    ...(hours ? [el("details", {}, el("summary", { class: "say warn wrap" }, ngettext("%(n)s hour without any record: its cost is not known", "%(n)s hours without any record: their cost is not known", hours, { n: number(hours) })), el("ul", { class: "reasons" }, ...spans))] : []),
    ...(statement.guess ? [el("p", { class: "say warn wrap" }, gettext("Some GPUs count at a list price that is a guess: set theirs in the price book."))] : []),
    ...statement.gaps.map((words) => el("p", { class: "say bad wrap" }, words)),
  ];
  byId("said").replaceChildren(...notes);
  hide(byId("said"), notes.length === 0);
}

function paintKpis({ statement, recorded, until }) {
  const known = until != null;
  const tokens = sum(statement.models, "output_tokens");
  const of = (name) => sum(statement.pools, name);
  const share = (cents) => (statement.total_cents ? gettext("%(n)s % of all", { n: percent(cents / statement.total_cents) }) : "");
  const cell = (title, value, unit, foot) => el("div", { class: "kpi" }, el("dt", {}, title), el("dd", { class: "line" }, el("span", { class: "big" }, value, el("small", {}, value === MISSING ? "" : unit))), el("dd", { class: "meter" }), el("dd", { class: "foot" }, foot));
  const money = (cents) => (known ? `$${dollars(cents)}` : MISSING);
  byId("kpis").replaceChildren(
    cell(gettext("Total"), money(statement.total_cents), "", gettext("%(n)s GPU h", { n: number(of("gpu_hours"), 1) })),
    cell(gettext("Idle"), money(of("idle_cents")), "", share(of("idle_cents"))),
    cell(gettext("Stranded"), money(of("stranded_cents")), "", share(of("stranded_cents"))),
    cell(gettext("Output cost"), known && tokens ? `$${number(statement.total_cents / 100 / tokens * 1e6, 2)}` : MISSING, gettext("/ 1M tok"), gettext("all GPUs ÷ %(n)s output tokens", { n: number(tokens) })),
    cell(gettext("Recorded"), recorded == null ? MISSING : number(Math.floor(recorded * 1000) / 10, 1), "%", gettext("of the time so far")),
  );
}

function modelTable({ models, unassigned_cents: unassigned, total_cents: total }) {
  const heads = [[gettext("model")], [gettext("cost"), "r"], [gettext("prefill"), "r opt"], [gettext("decode"), "r opt"], [gettext("mixed"), "r opt"], [gettext("of it idle"), "r"], [gettext("of it stranded"), "r opt"], [gettext("input, per 1M"), "r"], [gettext("output, per 1M"), "r"], [gettext("all, per 1M output"), "r opt"]];
  const rows = models.map((row) => [
    el("th", { scope: "row", class: "wrap" }, row.model, ...(row.gaps.length ? [" ", el("span", { class: "say warn", title: row.gaps.join("; ") }, el("span", { class: "sr" }, row.gaps.join("; ")))] : [])),
    right(dollars(row.cents)), right(dollars(row.prefill_cents), "r opt"), right(dollars(row.decode_cents), "r opt"), right(dollars(row.mixed_cents), "r opt"), right(dollars(row.idle_cents)), right(dollars(row.stranded_cents), "r opt"), right(perMillion(row.per_million_input)), right(perMillion(row.per_million_output)), right(perMillion(row.per_million_tokens), "r opt"),
  ]);
  if (unassigned) rows.push([el("th", { scope: "row" }, gettext("in no pool")), right(dollars(unassigned)), el("td", { class: "opt", colspan: 3 }), right(MISSING), right(dollars(unassigned), "r opt"), el("td", { colspan: 3 })]);
  return table(gettext("Models"), heads, rows, [el("th", { scope: "row" }, gettext("total")), right(dollars(total)), el("td", { colspan: 8 })]);
}

const STATES = [["busy", gettext("busy")], ["underused", gettext("not filled")], ["idle", gettext("idle")], ["stranded", gettext("stranded")], ["unknown", gettext("not told")]];

function poolTable({ pools, total_cents: total }) {
  const heads = [[gettext("model")], [gettext("pool")], [gettext("GPU kind")], [gettext("GPU hours"), "r"], ...STATES.map(([, words]) => [words, "r"]), [gettext("cost"), "r"]];
  const rows = pools.map((pool) => [
    ...poolName(pool),
    el("td", {}, pool.kind || MISSING, ...(pool.guess ? [el("small", { class: "dim" }, ` ${gettext("list price")}`)] : [])),
    right(number(pool.gpu_hours, 1)),
    ...STATES.map(([state]) => el("td", { class: "r", title: gettext("%(n)s GPU h", { n: number(pool[`${state}_hours`], 1) }) }, dollars(pool[`${state}_cents`]))),
    right(dollars(pool.cents)),
  ]);
  const foot = [el("th", { scope: "row", colspan: 3 }, gettext("total")), right(number(sum(pools, "gpu_hours"), 1)), ...STATES.map(([state]) => right(dollars(sum(pools, `${state}_cents`)))), right(dollars(total))];
  return table(gettext("Pools"), heads, rows, foot);
}

// Rows of lines together by what nameOf says, the dearest first.
function grouped(lines, nameOf) {
  const found = new Map();
  for (const line of lines) {
    const name = nameOf(line);
    found.set(name, [...(found.get(name) ?? []), line]);
  }
  return [...found].map(([name, rows]) => ({ name, cents: rows.some((row) => row.cents == null) ? null : sum(rows, "cents"), requests: sum(rows, "requests"), prompt_tokens: sum(rows, "prompt_tokens"), output_tokens: sum(rows, "output_tokens") }));
}

const teamOf = (line) => (line.served ? line.team || gettext("without a key") : line.model ? gettext("no traffic") : gettext("in no pool"));
const counted = (row) => [right(number(row.requests)), right(number(row.prompt_tokens)), right(number(row.output_tokens))];
const COUNTS = [[gettext("requests"), "r"], [gettext("prompt tokens"), "r"], [gettext("output tokens"), "r"]];

function sums(title, head, { lines, total_cents: total }, groups) {
  const rows = groups.map((row) => [el("th", { scope: "row", class: "wrap" }, row.name), ...counted(row), right(dollars(row.cents))]);
  const all = { requests: sum(lines, "requests"), prompt_tokens: sum(lines, "prompt_tokens"), output_tokens: sum(lines, "output_tokens") };
  return table(title, [[head], ...COUNTS, [gettext("cost"), "r"]], rows, [el("th", { scope: "row" }, gettext("total")), ...counted(all), right(dollars(total))]);
}

const teamTable = (statement) => sums(gettext("Teams"), gettext("team"), statement, grouped(statement.lines, teamOf).sort((a, b) => (b.cents ?? 0) - (a.cents ?? 0)));
const dayTable = (statement) => sums(gettext("Days"), gettext("day"), statement, grouped(statement.lines, (line) => line.day));

function usageTable(usage) {
  const rows = usage.map((row) => {
    const about = row.estimated ? "≈ " : "";
    const title = row.estimated ? ngettext("%(n)s request is estimated", "%(n)s requests are estimated", row.estimated, { n: number(row.estimated) }) : null;
    return [el("td", { class: "wrap" }, row.team || gettext("without a key")), el("td", { class: "wrap" }, row.key || MISSING), el("td", { class: "wrap" }, row.model), el("td", { class: "r", title }, `${about}${number(row.requests)}`), right(`${about}${number(row.prompt_tokens)}`), right(`${about}${number(row.cached_tokens)}`, "r opt"), right(`${about}${number(row.output_tokens)}`), right(dollars(row.cents))];
  });
  return table(gettext("Usage by API key"), [[gettext("team")], [gettext("key")], [gettext("model")], COUNTS[0], COUNTS[1], [gettext("of them cached"), "r opt"], COUNTS[2], [gettext("cost"), "r"]], rows);
}

// --- Files

const menu = el("details", { class: "menu takeaway" }, el("summary", { class: "btn small" }, gettext("CSV for finance")), el("div", { class: "menu-body" }));
menu.addEventListener("toggle", () => {
  const anchor = ([by, words]) => el("a", { class: "btn quiet small", download: "", href: `/data/costs?${query()}&format=csv&by=${by}` }, words);
  menu.lastElementChild.replaceChildren(...FILES.map(anchor));
});
menu.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !menu.open) return;
  menu.open = false;
  menu.firstElementChild.focus();
});
byId("take").append(menu);

// --- At the recommended split

async function loadProposed() {
  const { ok, status, document: found } = await read("/data/proposed-costs");
  if (!ok) {
    byId("proposed").replaceChildren(failed(gettext("Could not load: %(error)s", { error: found.error ?? found.reasons?.[0] ?? status })));
    return;
  }
  byId("proposed").replaceChildren(found.proposals.length ? table(gettext("At the recommended split"), HEADS, found.proposals.map(rowOf)) : emptied(gettext("No open proposal"), gettext("The planner proposes nothing else for any model now; what it holds for is on each model's page.")));
}

// --- The price book

const add = el("button", { class: "btn small", type: "button" }, gettext("Set a price"));
add.addEventListener("click", () => askPrice({}));
byId("price-acts").append(takeAway(gettext("Price book"), () => "/data/prices"), add);
link.addEventListener("change", () => gate(add, first.refusals.set_price));
gate(add, first.refusals.set_price);

function askPrice(row) {
  const kinds = el("datalist", { id: "kinds" }, ...first.kinds.map((kind) => el("option", { value: kind })));
  const kind = el("input", { name: "kind", list: "kinds", maxlength: 32, required: true, autocomplete: "off", value: row.kind ?? "" });
  const price = el("input", { name: "per_hour", inputmode: "decimal", maxlength: 24, required: true, autocomplete: "off", value: row.per_hour ?? "" });
  const terms = el("select", { name: "terms" }, ...Object.entries(TERMS).map(([value, words]) => el("option", { value, selected: value === (row.terms ?? "hourly") }, words)));
  // Half hours, because some zones lie half an hour off the whole hours (UTC) at which prices change.
  const since = el("input", { name: "valid_from", type: "datetime-local", step: 1800 });
  const moment = () => (since.value ? new Date(isUtc() ? `${since.value}Z` : since.value).toISOString() : "");
  ask({
    title: gettext("Set a price"),
    body: [
      el("p", { class: "soft" }, gettext("It holds from a whole hour on until the next price of the kind; empty: from this hour on. A time that is past changes what was spent then.")),
      el("div", { class: "form" }, field(gettext("GPU kind"), kind), kinds, field(gettext("Price"), price, gettext("US$ per GPU hour")), field(gettext("Terms"), terms), field(gettext("From"), since)),
    ],
    confirm: gettext("Set"),
    ready: () => (kind.value.trim() && price.value.trim() ? "" : gettext("Say which kind and what price")),
    send: (reason) => order("/prices", { kind: kind.value, per_hour: price.value.replace(",", "."), terms: terms.value, valid_from: moment(), reason }),
    done: changed,
  });
}

function askRemoval(row) {
  ask({ title: gettext("Remove the price"), meta: `${row.kind} · ${row.per_hour}`, body: [el("p", { class: "soft" }, gettext("As if it had never been given: the price before it holds instead."))], confirm: gettext("Remove"), danger: true, send: (reason) => order(`/prices/${row.number}/remove`, { reason }), done: changed });
}

function changed() {
  loadPrices();
  loadProposed();
  load();
}

function acts(row) {
  const change = el("button", { class: "btn quiet small", type: "button" }, gettext("Change"));
  change.addEventListener("click", () => askPrice(row));
  gate(change, first.refusals.set_price);
  if (row.number == null) return [change];
  const remove = el("button", { class: "btn quiet small", type: "button" }, gettext("Remove"));
  remove.addEventListener("click", () => askRemoval(row));
  gate(remove, first.refusals.remove_price);
  return [change, remove];
}

const moment = (iso) => (iso ? new Date(iso).toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short", hour12: false, timeZone: timeZone() }) : MISSING);

async function loadPrices() {
  const { ok, status, document: found } = await read("/data/prices");
  if (!ok) {
    byId("prices").replaceChildren(failed(gettext("Could not load: %(error)s", { error: found.error ?? found.reasons?.[0] ?? status })));
    return;
  }
  const rows = found.prices.map((row) => [
    el("th", { scope: "row" }, row.kind),
    right(row.per_hour),
    el("td", {}, row.guess ? el("span", { class: "say warn" }, gettext("list price, a guess")) : TERMS[row.terms]),
    el("td", {}, moment(row.valid_from)), el("td", { class: "opt" }, moment(row.valid_until)), right(number(row.gpus), "r opt"),
    el("td", { class: "r" }, ...acts(row)),
  ]);
  const heads = [[gettext("GPU kind")], [gettext("US$ per hour"), "r"], [gettext("terms")], [gettext("from")], [gettext("until"), "opt"], [gettext("GPUs now"), "r opt"], ["", "r"]];
  byId("prices").replaceChildren(rows.length ? table(gettext("Price book"), heads, rows) : emptied(gettext("No prices"), gettext("The fleet has no GPUs yet, and nobody set a price.")));
}

addEventListener("zonechange", changed);
follow({ topics: ["fleet"], paint: ({ down }) => setDown(down) });
load();
loadProposed();
loadPrices();
