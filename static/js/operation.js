// One operation: live while it runs, a record afterwards.
import { modelUrl, setDown } from "./act.js";
import { setServerTime } from "./clock.js";
import { drawCourse } from "./course.js";
import { el, hide, redraw, text } from "./dom.js";
import { follow } from "./follow.js";
import { clockSeconds, number, utc } from "./format.js";
import { gettext } from "./i18n.js";
import { measuredNodes } from "./measured.js";
import { changeOf, isOver, MODES, roleWord, stateWord, verbWord } from "./opwords.js";
import { emptied, guard } from "./panels.js";
import { enginesById, makeRun } from "./run.js";
import { runTitle } from "./runbar.js";
import { announce, say } from "./say.js";
import { makeSteps } from "./steps.js";

const COURSE_EVERY_MS = 10_000;
const byId = (id) => document.getElementById(id);
const part = (panel, name) => byId(panel).querySelector(`[data-${name}]`);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);
const TOPIC = `operation:${first.number}`;
const begun = first.frame.rows.find((row) => row.id === TOPIC);
const MODEL = begun.model ? `model:${begun.model}` : "fleet"; // so that the page knows whether it is connected
const feeds = follow({
  topics: isOver(begun) ? [MODEL] : [TOPIC, MODEL],
  also: [TOPIC],
  frames: [first.frame],
  paint: (state) => paint(state),
  missing: (topic) => topic === TOPIC && run.missing(),
});
const run = makeRun({ panel: byId("runbar"), first: { ...first, operation: first }, feeds, topics: [MODEL], ended: sayEnd });
run.show = (number) => location.assign(`/operations/${number}`);
const title = byId("runbar").querySelector("h1");
const list = el("ol", { class: "steps" });
part("plan", "body").append(first.frame.rows.some((row) => row.type === "step") ? list : emptied(gettext("No steps"), gettext("This change was done with the order itself.")));
const paintSteps = makeSteps(list);

function sayEnd(row) {
  courseAt = 0;
  if (!isOver(begun)) announce(`${runTitle(row)}: ${stateWord(row.state)}`);
}

function changedNodes() {
  const pools = [...new Set([...Object.keys(run.facts.before.pools ?? {}), ...Object.keys(run.facts.after.pools ?? {})])];
  const line = (name, before, after) => [el("dt", {}, name), el("dd", {}, `${before ?? "—"} → ${after ?? "—"}`)];
  const found = pools.flatMap((pool) => line(gettext("pool %(role)s", { role: roleWord(pool) }), run.facts.before.pools?.[pool], run.facts.after.pools?.[pool]));
  if (run.facts.after.mode) found.push(...line(gettext("mode"), MODES[run.facts.before.mode] ?? run.facts.before.mode, MODES[run.facts.after.mode]));
  for (const [engine, held] of Object.entries(run.facts.after.held ?? {})) found.push(...line(engine, run.facts.before.held?.[engine] ? gettext("held") : gettext("in the table"), held ? gettext("held") : gettext("in the table")));
  for (const [name, value] of Object.entries(run.facts.after.settings ?? {})) found.push(...line(name, short(run.facts.before.settings?.[name]), short(value)));
  const story = run.facts.audit.map((entry) => el("li", {}, el("span", { class: "when", title: utc(entry.at) }, clockSeconds(entry.at)), el("span", {}, el("b", { class: "what" }, verbWord(entry.verb)), ` ${entry.actor}`), el("span"), el("span", { class: "why" }, entry.reason)));
  const kv = found.length ? [el("dl", { class: "kv" }, ...found)] : [el("p", { class: "soft" }, gettext("Neither mode nor pools."))];
  return [...kv, el("h3", { class: "who-why" }, gettext("Who and why")), el("ul", { class: "feed inset" }, ...story)];
}

function short(value) {
  const words = typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "—");
  return words.length > 60 ? `${words.slice(0, 60)}…` : words;
}

function linkNodes(row) {
  const link = (href, words) => el("a", { href }, words);
  const links = [];
  if (row.undoes) links.push(link(`/operations/${row.undoes}`, gettext("takes back operation %(n)s", { n: row.undoes })));
  if (run.facts.undone_by) links.push(link(`/operations/${run.facts.undone_by}`, gettext("taken back by operation %(n)s", { n: run.facts.undone_by })));
  if (row.model && row.verb === "rebalance") links.push(link(modelUrl(row.model, "rebalance"), gettext("rebalance page of %(model)s", { model: row.model })));
  return links;
}

let courseAt = 0;
function paintCourse(row, steps, model) {
  hide(byId("course"), !row.model);
  if (!row.model || !model || document.hidden || (courseAt && (isOver(row) || Date.now() - courseAt < COURSE_EVERY_MS))) return;
  courseAt = Date.now();
  drawCourse(part("course", "body"), row.number, steps, { ttft_ms: model.slo_ttft_ms, itl_ms: model.slo_itl_ms });
}

function paintRows({ cut, down }) {
  setDown(down);
  const { row, rows } = run.rows();
  if (!row) return;
  const live = feeds.rows(MODEL);
  const model = row.model ? (live.get(MODEL) ?? null) : null;
  const steps = rows.of("step");
  const { facts } = run;
  text(title, gettext("%(what)s · operation %(n)s", { what: runTitle(row), n: row.number }));
  run.paint({ row, rows, engines: enginesById(live, rows), model });
  redraw(links, JSON.stringify([row.undoes, facts.undone_by]), () => linkNodes(row));
  byId("plan").classList.toggle("is-stale", cut && !isOver(row));
  text(part("plan", "meta"), changeOf(facts));
  const done = steps.filter((step) => ["done", "skipped"].includes(step.state)).length;
  say(part("plan", "end"), "idle", gettext("%(done)s of %(total)s done", { done: number(done), total: number(steps.length) }));
  part("plan", "end").classList.add("end");
  paintSteps(steps, enginesById(live, rows), facts.after.mode);
  redraw(part("changed", "body"), JSON.stringify([facts.before, facts.after, facts.audit]), changedNodes);
  redraw(part("measured", "body"), JSON.stringify([facts.measured, row.state]), () => measuredNodes(facts.measured, row));
  paintCourse(row, steps, model);
}
const links = el("p", { class: "meta links" });
byId("runbar").querySelector("h1").parentElement.append(links);
const paint = guard(part("plan", "body"), paintRows);
feeds.repaint();
