// The nodes page: a card per node, filters in the address, cordon with a reason.
import { order, read, setDown } from "./act.js";
import { now, setServerTime } from "./clock.js";
import { ask } from "./dialog.js";
import { el, figure, hide, keyed, text } from "./dom.js";
import { follow } from "./follow.js";
import { gibibytes, MISSING, number, percent } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { key } from "./keys.js";
import { meter } from "./meters.js";
import { gpusOf, makeNodeCard } from "./nodecard.js";
import { makeProblems } from "./nodes.js";
import { emptied, guard } from "./panels.js";
import { walk } from "./walk.js";
import { takeAway } from "./takeaway.js";

const TOPIC = "nodes";
const SHOWN = 100; // cards at once: more is for the filter
const AGAIN_MS = 10_000;
const STATES = { all: gettext("all"), problem: gettext("silent or lost"), cordoned: gettext("cordoned"), spare: gettext("with spare GPUs") };
const JOIN = ["python3 manage.py join-token NODE", "python3 manage.py agent --address ADDRESS"];
const byId = (id) => document.getElementById(id);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
let facts = new Map(first.nodes.map((node) => [node.name, node]));
const asked = new URLSearchParams(location.search);
const feeds = follow({ topics: [TOPIC], frames: [first.frame], paint: (state) => paint(state), missing: () => true });
const rows = feeds.rows(TOPIC);
const cards = new Map();

function cordon(row) {
  const verb = row.cordoned ? "uncordon" : "cordon";
  ask({
    title: row.cordoned ? gettext("Uncordon %(node)s", { node: row.name }) : gettext("Cordon %(node)s", { node: row.name }),
    body: [el("p", { class: "soft" }, row.cordoned ? gettext("It is given new engines again.") : gettext("It is given no new engines. Those it has serve on; move them away to empty it."))],
    confirm: row.cordoned ? gettext("Uncordon") : gettext("Cordon"),
    send: (reason) => order(`/nodes/${encodeURIComponent(row.name)}/${verb}`, { reason }),
    done: () => feeds.repaint(),
  });
}

const word = el("input", { type: "search", name: "q", value: asked.get("q") ?? "", placeholder: gettext("Name, GPU kind, label, engine"), autocomplete: "off", maxlength: 100, "aria-label": gettext("Filter nodes") });
const pick = el("select", { class: "pick", name: "state", "aria-label": gettext("State") }, ...Object.entries(STATES).map(([value, words]) => el("option", { value, selected: asked.get("state") === value }, words)));
const count = el("span", { class: "meta" });

function filtered() {
  const query = new URLSearchParams();
  if (word.value.trim()) query.set("q", word.value.trim());
  if (pick.value !== "all") query.set("state", pick.value);
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  feeds.repaint();
}

function matches({ row, gpus, facts: known }) {
  if (pick.value === "problem" && row.state === "ok") return false;
  if (pick.value === "cordoned" && !row.cordoned) return false;
  if (pick.value === "spare" && !row.spare.length) return false;
  const wanted = word.value.trim().toLowerCase();
  if (!wanted) return true;
  const labels = Object.entries(known?.labels ?? {}).map(([name, value]) => `${name}=${value}`);
  return [row.name, row.gpu_kind, known?.address, ...labels, ...(gpus?.labels ?? []), ...(gpus?.engines ?? []), ...(gpus?.models ?? [])].some((each) => each?.toLowerCase().includes(wanted));
}

byId("filters").append(el("label", { class: "field" }, el("span", { class: "in" }, word)), pick, count, el("span", { class: "end" }, el("span", { class: "meta" }, gettext("nodes")), takeAway(gettext("nodes"), () => "/data/nodes"), el("span", { class: "meta" }, gettext("GPUs")), takeAway(gettext("GPUs"), () => "/data/gpus")));
word.addEventListener("input", filtered);
pick.addEventListener("change", filtered);

function makeKpi(name) {
  const big = figure("span", "big");
  const bar = el("dd", { class: "meter" });
  const foot = el("dd", { class: "foot" });
  byId("kpis").append(el("div", { class: "kpi" }, el("dt", {}, name), el("dd", { class: "line" }, big.node), bar, foot));
  return { big, bar, foot };
}
const kpi = { nodes: makeKpi(gettext("Nodes")), gpus: makeKpi(gettext("GPUs")), busy: makeKpi(gettext("Busy now")), memory: makeKpi(gettext("GPU memory")), power: makeKpi(gettext("Power")) };
const sum = (list, of) => {
  const known = list.map(of).filter((value) => value != null);
  return known.length ? known.reduce((total, value) => total + value, 0) : null;
};

// Totals leave out the nodes that do not report, and say how many GPUs they count.
function paintKpis(nodes, all) {
  const fresh = all.filter(({ row }) => row.state === "ok").flatMap(({ gpus }) => gpusOf(gpus));
  const out = all.reduce((total, { row }) => total + row.gpus, 0) - fresh.length;
  const wrong = nodes.filter((row) => row.state !== "ok").length;
  const closed = nodes.filter((row) => row.cordoned).length;
  const of = gettext("of %(n)s", { n: number(fresh.length) });
  const left = out ? gettext("%(n)s stale left out", { n: number(out) }) : gettext("all GPUs that report");
  kpi.nodes.big.set(number(nodes.length));
  text(kpi.nodes.foot, [wrong ? gettext("%(n)s silent or lost", { n: number(wrong) }) : gettext("all report"), closed && gettext("%(n)s cordoned", { n: number(closed) })].filter(Boolean).join(" · "));
  const spare = fresh.filter((gpu) => !gpu.engine).length;
  kpi.gpus.big.set(number(fresh.length - spare), of);
  text(kpi.gpus.foot, ngettext("%(n)s spare", "%(n)s spare", spare, { n: number(spare) }));
  const busy = sum(fresh, (gpu) => gpu.busy);
  kpi.busy.big.set(number(busy, 1), of);
  text(kpi.busy.foot, left);
  const [used, size, power] = [sum(fresh, (gpu) => gpu.used), sum(fresh, (gpu) => gpu.memory) ?? 0, sum(fresh, (gpu) => gpu.power)];
  kpi.memory.big.set(gibibytes(used), gettext("of %(n)s GiB", { n: gibibytes(size) }));
  text(kpi.memory.foot, used == null || !size ? MISSING : gettext("%(n)s % used", { n: percent(used / size) }));
  kpi.power.big.set(power == null ? MISSING : number(power / 1000, 1), power == null ? "" : "kW");
  text(kpi.power.foot, power == null ? gettext("no GPU tells it") : gettext("%(n)s W per GPU", { n: number(power / fresh.filter((gpu) => gpu.power != null).length) }));
  meter(kpi.nodes.bar, [{ className: "fill-x2", value: nodes.length - wrong }, { className: "fill-bad", value: wrong }], Math.max(1, nodes.length));
  meter(kpi.gpus.bar, [{ className: "fill-x2", value: fresh.length - spare }], Math.max(1, fresh.length));
  meter(kpi.busy.bar, [{ className: "fill-x2", value: busy ?? 0 }], Math.max(1, fresh.length));
  meter(kpi.memory.bar, [{ className: "fill-x2", value: used ?? 0 }], Math.max(1, size));
  meter(kpi.power.bar, [], 1);
}

let askedAt = 0;
// A node joined since the page was made: what the live rows do not tell is asked for again.
async function renew() {
  if (Date.now() - askedAt < AGAIN_MS) return;
  askedAt = Date.now();
  const { ok, document: found } = await read("/data/nodes");
  if (ok) facts = new Map(found.map((node) => [node.name, node]));
}

function empty() {
  const node = emptied(gettext("No nodes yet"), gettext("Make a token here, then start the agent on the machine with the GPUs and paste the token:"));
  node.append(...JOIN.map((command) => el("code", {}, command)));
  return el("section", { class: "panel" }, node);
}

function makeItem(item) {
  if (item.empty) return { node: item.empty(), paint() {} };
  const card = makeNodeCard(now, cordon);
  cards.set(item.row.name, card);
  return card;
}

const problems = makeProblems(byId("banners"), now);
let shownOnce = false;

function paintAll({ cut, down }) {
  setDown(down);
  if (rows.at === null) return;
  const nodes = rows.of("node");
  const all = nodes.map((row) => ({ key: row.id, row, gpus: rows.get(`gpus:${row.name}`), facts: facts.get(row.name), refused: first.refused }));
  if (nodes.some((row) => !facts.has(row.name))) renew();
  byId("loading")?.remove();
  byId("kpis").classList.toggle("is-stale", cut);
  paintKpis(nodes, all);
  const found = all.filter(matches);
  const shown = found.slice(0, SHOWN);
  if (!nodes.length) shown.push({ key: "empty", empty });
  else if (!found.length) shown.push({ key: "none", empty: () => el("section", { class: "panel" }, emptied(gettext("No node here"), gettext("None matches these filters."))) });
  hide(byId("banners"), !problems(nodes, null));
  text(count, found.length > SHOWN ? gettext("first %(n)s of %(all)s nodes", { n: number(SHOWN), all: number(found.length) }) : ngettext("%(n)s node", "%(n)s nodes", found.length, { n: number(found.length) }));
  keyed(byId("list"), shown, (item) => item.key, makeItem);
  if (!shownOnce && location.hash) byId(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView({ block: "center" });
  shownOnce = true;
}

const { chosen } = walk("#list [data-node]", () => {});
key("c", () => chosen() && cards.get(chosen().dataset.node)?.ask());
const paint = guard(byId("list"), paintAll);
feeds.repaint();
