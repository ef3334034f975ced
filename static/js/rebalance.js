// The rebalance page: a draft (target, forecast, plan, guardrails), and the same page while an operation of the model runs.
import { gate, modelUrl, read, setDown } from "./act.js";
import { setServerTime } from "./clock.js";
import { drawCourse } from "./course.js";
import { ask, isOpen } from "./dialog.js";
import { attr, el, hide, redraw, text } from "./dom.js";
import { makeDraft, rolesOf } from "./draft.js";
import { basisWords, forecastNodes } from "./forecast.js";
import { follow } from "./follow.js";
import { number } from "./format.js";
import { paintGuards } from "./guards.js";
import { gettext, ngettext } from "./i18n.js";
import { key } from "./keys.js";
import { changeOf, isOver, MODES, stateWord, verbOf } from "./opwords.js";
import { guard } from "./panels.js";
import { estimateWords, planNodes, planSummary } from "./planlist.js";
import { enginesById, makeRun } from "./run.js";
import { announce, say } from "./say.js";
import { makeSplit } from "./split.js";
import { makeStale } from "./stale.js";
import { makeSteps, turns } from "./steps.js";

const COURSE_EVERY_MS = 10_000;
const byId = (id) => document.getElementById(id);
const part = (panel, name) => byId(panel).querySelector(`[data-${name}]`);
const first = JSON.parse(byId("first").textContent);
setServerTime(first.now);

const TOPIC = `model:${first.model.name}`;
const roles = rolesOf(first.model);
const feeds = follow({
  topics: [TOPIC, ...(first.operation ? [`operation:${first.operation.number}`] : [])],
  frames: [first.frame, first.operation?.frame],
  paint: (state) => paint(state),
  missing: (topic) => topic === TOPIC || run.missing(),
});
const draft = makeDraft(first.model, { told: () => feeds.repaint(), old: wasOld });
const run = makeRun({ panel: byId("runbar"), first, feeds, topics: [TOPIC], began: () => draft.rest(), ended: sayEnd });
const stale = makeStale(byId("banners"), () => feeds.repaint());

// ---- what the page is made of, beside the template
const discard = el("button", { class: "btn", type: "button" }, gettext("Discard"));
const start = el("button", { class: "btn primary", type: "button" }, gettext("Start run"), " ", el("kbd", {}, "⏎"));
const fresh = el("button", { class: "btn primary", type: "button" }, gettext("New draft"));
run.buttons.prepend(discard, start);
run.buttons.append(fresh);
const steps = el("ol", { class: "steps" });
const paintSteps = makeSteps(steps);
const splitter = makeSplit(part("target", "body"), roles, draft.choose);
const presets = el("span", { class: "seg", role: "group", "aria-label": gettext("Presets") });
const locked = el("a", { class: "say idle" });
const models = el("select", { class: "pick", "aria-label": gettext("Model") }, ...first.models.map((name) => el("option", { value: name, selected: name === first.model.name }, name)));
models.addEventListener("change", () => location.assign(modelUrl(models.value, "rebalance")));
part("target", "end").append(locked, presets, models);
hide(models, first.models.length < 2);
const course = el("div");

// ---- a page that is old, a start, a new draft
function wasOld(document) {
  stale.show(document);
  announce(document.reasons[0]);
  if (rolesOf(document.model).join() !== roles.join()) location.reload();
  else if (document.model.running) run.show(document.model.running);
  draft.renew(document.model);
}

function whyNotStart() {
  if (first.refused.rebalance) return first.refused.rebalance;
  if (!draft.changed()) return gettext("This is the present split: choose another one");
  if (!draft.answer) return gettext("The plan is being made");
  return draft.answer.ok ? "" : (draft.answer.document.reasons?.[0] ?? gettext("refused"));
}

function askToStart() {
  if (start.disabled || start.hasAttribute("hidden") || isOpen()) return;
  ask({
    title: gettext("Start: %(model)s %(split)s", { model: draft.facts.name, split: `${draft.text(draft.desired())} → ${draft.text(draft.sizes)}` }),
    meta: planSummary(draft.plan()),
    confirm: gettext("Start run"),
    send: (reason) => draft.order({ reason }),
    done: ({ operation }) => run.show(operation),
    refused: wasRefused,
  });
}

// What is in the way is followed, even if it has ended since: the draft was made of the model as it was before.
function wasRefused(told) {
  if (told.kind === "stale") wasOld(told);
  else if (told.operation) run.noticed(told.operation);
  else feeds.repaint();
}

async function newDraft() {
  const { ok, document } = await read(modelUrl(draft.facts.name, "facts"));
  if (!ok) return;
  if (rolesOf(document.model).join() !== roles.join()) {
    location.reload();
    return;
  }
  run.leave();
  stale.hide();
  draft.renew(document.model);
  draft.choose(draft.desired());
  if (document.model.running) run.show(document.model.running);
}

function sayEnd(row) {
  announce(gettext("%(what)s %(model)s: %(state)s", { what: verbOf(row), model: row.model, state: stateWord(row.state) }));
  courseAt = 0;
}

// ---- painting
// [now, then] as sizes: of the draft, or of the operation that is shown.
function compared() {
  if (!run.facts) return [draft.desired(), draft.sizes];
  const then = { ...draft.desired(), ...run.facts.after.pools };
  return [{ ...then, ...run.facts.before.pools }, then];
}

function paintDraftBar() {
  const plan = draft.plan();
  const count = (verb) => (plan ? number(plan.steps.filter((step) => step.verb === verb).length) : "—");
  const [time, unit] = plan ? estimateWords(plan.estimate) : ["—", ""];
  const { mode, team, engines } = draft.facts;
  run.paintDraft(
    [gettext("draft"), MODES[mode], team && gettext("team %(team)s", { team })],
    [
      [gettext("engines that change role"), count("retask"), gettext("of %(n)s", { n: number(engines.length) })],
      [gettext("engines started"), count("start"), ""],
      [gettext("lowest capacity on the way"), plan?.pools.length ? number(plan.pools.reduce((sum, pool) => sum + pool.lowest, 0)) : "—", gettext("engines")],
      [gettext("estimated time"), time, unit],
    ],
  );
  gate(start, whyNotStart());
  gate(discard, draft.changed() ? "" : gettext("There is nothing to discard"));
}

function engineList(live) {
  const rows = live.of("engine").filter((engine) => engine.arm === "main" && !["stopping", "stopped"].includes(engine.state));
  const source = rows.length ? rows.map((engine) => ({ id: engine.engine, label: engine.label, role: engine.next_role || engine.role })) : draft.facts.engines;
  return source.filter((engine) => roles.includes(engine.role)).sort((a, b) => a.label.slice(1) - b.label.slice(1));
}

function paintPresets() {
  const [keep, best, mine] = [draft.text(draft.desired()), draft.best(), draft.text(draft.sizes)];
  const items = [[gettext("Keep %(split)s", { split: keep }), keep], ...(best ? [[gettext("Best forecast %(split)s", { split: best }), best]] : [])];
  redraw(presets, JSON.stringify([items, mine, first.refused.rebalance]), () =>
    items.map(([words, value]) => {
      const input = el("input", { type: "radio", name: "preset", checked: value === mine });
      input.addEventListener("change", () => draft.choose(Object.fromEntries(value.split(":").map((n, index) => [roles[index], Number(n)]))));
      return el("label", {}, input, el("span", {}, words));
    }),
  );
  hide(presets, Boolean(run.facts));
}

function paintTarget(live, row, opRows) {
  const running = Boolean(row) && !isOver(row);
  const planned = run.facts ? opRows.of("step") : (draft.plan()?.steps ?? []);
  const engines = engineList(live);
  const why = run.facts ? gettext("locked while run %(n)s is running", { n: run.facts.number }) : "";
  splitter.paint({ sizes: compared()[1], engines, turning: run.facts && !running ? new Map() : turns(planned), lock: Boolean(run.facts), why });
  const degree = draft.facts.pools.find((pool) => roles.includes(pool.role))?.tensor_parallel ?? 1;
  const gpus = engines.length * degree;
  text(part("target", "meta"), `${ngettext("%(n)s engine", "%(n)s engines", engines.length, { n: number(engines.length) })} × TP${degree}, ${ngettext("%(n)s GPU", "%(n)s GPUs", gpus, { n: number(gpus) })}`);
  hide(locked, !run.facts);
  attr(locked, "href", run.facts ? `/operations/${run.facts.number}` : null);
  text(locked, running || !run.facts ? why : gettext("run %(n)s has ended", { n: run.facts.number }));
  paintPresets();
}

let forecastShown = "";
function paintForecast(model) {
  const [now, then] = compared();
  const [nowText, thenText] = [draft.text(now), draft.text(then)];
  const splits = run.facts ? [] : draft.around(now, then);
  const signature = JSON.stringify([draft.forecast, nowText, thenText, splits, Boolean(run.facts)]);
  if (forecastShown === signature) return;
  forecastShown = signature;
  text(part("forecast", "meta"), basisWords(draft.forecast.basis));
  const nodes = forecastNodes({ answers: draft.forecast, splits, nowText, thenText, slo: draft.facts.slo, model, again: () => draft.foresee(now, then) });
  part("forecast", "body").replaceChildren(...nodes, ...(run.facts ? [course] : []));
}

let courseAt = 0;
function paintCourse(row, steps) {
  if (!row || document.hidden || (courseAt && (isOver(row) || Date.now() - courseAt < COURSE_EVERY_MS))) return;
  courseAt = Date.now();
  drawCourse(course, row.number, steps, draft.facts.slo);
}

let planShown = "";
function paintPlan(row, rows, engines) {
  const body = part("plan", "body");
  const end = part("plan", "end");
  if (run.facts) {
    const list = rows.of("step");
    const done = list.filter((step) => ["done", "skipped"].includes(step.state)).length;
    text(part("plan", "meta"), changeOf(run.facts));
    say(end, row && isOver(row) ? "idle" : "ok", gettext("%(done)s of %(total)s done", { done: number(done), total: number(list.length) }));
    end.classList.add("end");
    if (planShown !== "run") body.replaceChildren(steps);
    planShown = "run";
    paintSteps(list, engines, run.facts.after.mode);
    return;
  }
  text(part("plan", "meta"), draft.plan() ? planSummary(draft.plan()) : gettext("each step can be undone"));
  text(end, "");
  attr(end, "class", "end");
  const signature = draft.changed() ? JSON.stringify(draft.answer?.document ?? "asked") : "same";
  if (planShown === signature) return;
  planShown = signature;
  if (!draft.changed()) body.replaceChildren(el("div", { class: "empty" }, el("b", {}, gettext("Choose a split")), el("span", {}, gettext("The steps to it stand here, each with its reason, before anything is done."))));
  else if (draft.answer) body.replaceChildren(...planNodes(draft.answer));
  else body.replaceChildren(el("div", { class: "body stack sk late" }, ...Array.from({ length: 3 }, () => el("div", { class: "skeleton" }))));
}

// Somebody started something on this model: the page follows it.
function followOthers(live) {
  const other = live.of("operation").find((row) => !isOver(row) && row.number > draft.facts.last);
  if (other) run.noticed(other.number);
}

const panels = {
  target: guard(part("target", "body"), paintTarget),
  forecast: guard(part("forecast", "body"), paintForecast),
  plan: guard(part("plan", "body"), paintPlan),
  guards: guard(part("guards", "list"), (model, row, traffic) =>
    paintGuards(part("guards", "list"), { facts: draft.facts, plan: draft.plan(), row: model, running: row && !isOver(row) && row.verb !== "rebalance" ? row : null, traffic }),
  ),
};

function paint({ cut, down }) {
  setDown(down);
  const live = feeds.rows(TOPIC);
  followOthers(live);
  const model = live.get(TOPIC) ?? null;
  const { row, rows } = run.rows();
  const engines = enginesById(live, rows);
  byId("main").classList.toggle("is-run", Boolean(run.facts));
  for (const name of Object.keys(panels)) byId(name).classList.toggle("is-stale", cut && live.at !== null);
  for (const node of [start, discard]) hide(node, Boolean(run.facts));
  hide(fresh, !(row && isOver(row)));
  if (row) run.paint({ row, rows, engines, model });
  else paintDraftBar();
  panels.target(live, row, rows);
  panels.forecast(model);
  paintCourse(row, rows.of("step"));
  panels.plan(row, rows, engines);
  panels.guards(model, row, rows.get(`traffic:${run.facts?.number}`) ?? null);
  text(part("guards", "meta"), gettext("a change that cannot keep them is refused or taken back"));
}

discard.addEventListener("click", () => draft.choose(draft.desired()));
start.addEventListener("click", askToStart);
fresh.addEventListener("click", newDraft);
key("Enter", askToStart);
draft.foresee(...compared());
feeds.repaint();
