// The bar on top of a run: where it is, what it empties, whether anything was lost, how long it takes.
import { now } from "./clock.js";
import { attr, el, redraw, svg, text } from "./dom.js";
import { clockSeconds, duration, latency, latencyText, MISSING, number } from "./format.js";
import { gettext } from "./i18n.js";
import { isOver, outcomeOf, stateOf, stepVerb, verbOf } from "./opwords.js";
import { countdown, draining } from "./steps.js";
import { say } from "./say.js";

const fact = (term, value, unit = "", mark = null) => el("div", {}, el("dt", {}, term), el("dd", {}, value, unit && el("small", {}, ` ${unit}`), mark && " ", mark));
const mark = (kind) => el("span", { class: `say ${kind}` });

function stepFact(row, steps) {
  const at = steps.find((step) => step.state === "running") ?? steps.find((step) => step.state === "waiting");
  return [gettext("step"), at ? number(at.index + 1) : number(row.steps_done), gettext("of %(n)s", { n: number(row.steps_total) })];
}

function lostFact(traffic) {
  if (traffic?.lost == null) return [gettext("requests lost"), MISSING, gettext("not counted yet")];
  const of = traffic.requests == null ? "" : gettext("of %(n)s", { n: number(traffic.requests) });
  return [gettext("requests lost"), number(traffic.lost), of, traffic.lost ? "bad" : "ok"];
}

function timeFact(row, estimate) {
  const spent = (row.finished_at ?? now()) - row.created_at;
  return [gettext("elapsed"), duration(spent), estimate && !row.finished_at ? gettext("of ~%(time)s", { time: duration(estimate) }) : ""];
}

function ttftFact(model) {
  if (!model) return null;
  const { value, unit } = latency(model.ttft.p99);
  return [gettext("TTFT p99, 5 min"), value, gettext("%(unit)s, SLO %(limit)s", { unit, limit: latencyText(model.slo_ttft_ms) })];
}

// Facts of a running or ended operation; `engines` by id, `model` the live row of its model or null.
export function runFacts({ row, steps, traffic, engines, model, estimate }) {
  const facts = [stepFact(row, steps)];
  const empties = isOver(row) ? null : draining(steps, engines);
  const count = empties && countdown(empties);
  if (count) facts.push([gettext("in flight on %(engine)s", { engine: empties.label }), number(count.left), gettext("of %(n)s", { n: number(count.from) })]);
  facts.push(lostFact(traffic), timeFact(row, estimate));
  if (ttftFact(model)) facts.push(ttftFact(model));
  return facts;
}

export function paintFacts(list, facts) {
  redraw(list, JSON.stringify(facts), () => facts.map(([term, value, unit, kind]) => fact(term, value, unit, kind ? mark(kind) : null)));
}

// One sentence for who cannot see the bar; spoken when the step changes, never for ticking numbers.
export function runSentence(row, steps, traffic) {
  const at = steps.find((step) => step.state === "running");
  const where = at ? gettext("Step %(n)s of %(total)s, %(what)s.", { n: at.index + 1, total: row.steps_total, what: stepVerb(at.verb) }) : `${stateOf(row)[1]}.`;
  return traffic?.lost == null ? where : `${where} ${gettext("%(n)s requests lost.", { n: traffic.lost })}`;
}

export function progressBar(node, steps) {
  const width = 800 / Math.max(1, steps.length);
  const states = steps.map((step) => step.state);
  const done = states.filter((state) => ["done", "skipped"].includes(state)).length;
  attr(node, "aria-label", gettext("%(done)s of %(total)s steps done", { done, total: steps.length }));
  redraw(node, states.join(), () =>
    states.map((state, index) => {
      const share = state === "running" ? 0.45 : 1;
      const kind = state === "failed" ? "fill-bad" : state === "waiting" ? "fill-track" : "fill-x";
      const path = (className, part) => svg("path", { class: className, d: `M${index * width + 1} 0h${(width - 2) * part}v3h-${(width - 2) * part}z` });
      return state === "running" ? svg("g", {}, path("fill-track", 1), path(kind, share)) : path(kind, 1);
    }),
  );
}

export const makeProgress = () => svg("svg", { class: "progress", viewBox: "0 0 800 3", preserveAspectRatio: "none", role: "img" });

// "run 419 · started 14:33:05 by ops-1 · reason"
export function paintMeta(node, row) {
  text(node, [gettext("run %(n)s · started %(time)s by %(who)s", { n: row.number, time: clockSeconds(row.created_at), who: row.actor }), row.reason].filter(Boolean).join(" · "));
}

export function outcomeNode(row) {
  const [kind, word] = stateOf(row);
  const node = el("span");
  const outcome = outcomeOf(row);
  say(node, kind, row.state === "done" ? outcome || word : [word, outcome].filter(Boolean).join(": "));
  node.classList.add("wrap");
  return node;
}

export const runTitle = (row) => `${verbOf(row)} ${row.model}`.trim();
