// The steps of an operation while it runs and after: each with its engine, what is being done, and why it waits.
import { now } from "./clock.js";
import { attr, el, hide, keyed, svg, text } from "./dom.js";
import { duration, number } from "./format.js";
import { gettext } from "./i18n.js";
import { MODES, roleWord, stepState, stepVerb } from "./opwords.js";
import { announce, say } from "./say.js";

const WHAT = {
  start: (step) => gettext("a new %(role)s engine %(engine)s", { role: roleWord(step.role), engine: step.label }),
  stop: (step) => gettext("%(engine)s of pool %(role)s drains and stops", { role: roleWord(step.role), engine: step.label || gettext("one engine") }),
  retask: (step) => gettext("%(engine)s becomes %(role)s without a restart", { engine: step.label || gettext("one engine"), role: roleWord(step.role) }),
  switch: (_, mode) => gettext("the routing table to %(mode)s", { mode: MODES[mode] ?? mode ?? "" }),
  hold: (step) => gettext("%(engine)s leaves the routing table and runs on", { engine: step.label }),
  release: (step) => gettext("%(engine)s is back in the routing table", { engine: step.label }),
  replace: (step) => gettext("%(engine)s by one of the newest version", { engine: step.label || gettext("one engine") }),
};

const PHASES = { leaving: gettext("leaves its pool"), verifying: gettext("KV is sent both ways") };

export const inFlight = (engine) => (engine?.running == null ? null : engine.running + (engine.waiting ?? 0));

// The most that an engine had in flight since its step began: what "10 of 19 left" counts down from.
const most = new Map();
export function countdown(engine) {
  const left = inFlight(engine);
  if (left === null) return null;
  const from = Math.max(left, most.get(engine.id) ?? 0);
  most.set(engine.id, from);
  return { left, from };
}

// The engine that a running step empties, if there is one.
export function draining(steps, engines) {
  for (const step of steps) {
    const engine = engines.get(step.engine);
    if (step.state !== "running" || !engine) continue;
    if (engine.move_phase === "leaving" || engine.state === "draining" || step.verb === "stop" || step.verb === "hold") return engine;
  }
  return null;
}

function makeStep() {
  const place = el("span", { class: "n" });
  const verb = el("span", { class: "verb" });
  const what = el("span");
  const state = el("span");
  const why = el("span", { class: "why" });
  const done = svg("path", { class: "fill-x" });
  const bar = svg("svg", { class: "bar", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { class: "fill-track", d: "M0 0h100v4H0z" }), done);
  const node = el("li", {}, place, verb, what, el("span", {}, state), bar, why);
  let before = null;

  function words(step, count) {
    const [kind, word] = stepState(step.state);
    if (step.state === "running" && count?.from) return [kind, gettext("%(left)s of %(from)s left", { left: number(count.left), from: number(count.from) })];
    if (step.state === "done" && step.started_at && step.finished_at) return [kind, gettext("done %(time)s", { time: duration(step.finished_at - step.started_at) })];
    if (step.state === "running" && step.started_at) return [kind, duration(now() - step.started_at)];
    return [kind, word];
  }

  return {
    node,
    paint({ step, engine, mode }) {
      const empties = step.state === "running" && engine && (engine.move_phase === "leaving" || ["stop", "hold"].includes(step.verb));
      const count = empties ? countdown(engine) : null;
      const [kind, word] = words(step, count);
      attr(node, "class", step.state === "running" ? "active" : "");
      attr(node, "data-step", step.index);
      text(place, number(step.index + 1));
      text(verb, stepVerb(step.verb));
      text(what, (WHAT[step.verb] ?? (() => step.label))(step, mode));
      say(state, kind, word);
      hide(bar, !count?.from);
      if (count?.from) attr(done, "d", `M0 0h${Math.round((100 * (count.from - count.left)) / count.from)}v4H0z`);
      const phase = step.state === "running" ? PHASES[engine?.move_phase] : "";
      text(why, [phase, step.reason].filter(Boolean).join(" · "));
      hide(why, !why.textContent);
      if (before && before !== step.state) announce(gettext("Step %(n)s, %(what)s: %(state)s", { n: step.index + 1, what: stepVerb(step.verb), state: stepState(step.state)[1] }));
      before = step.state;
    },
  };
}

// Paints rows of an operation's topic. `mode`: the one it switches to.
export function makeSteps(list) {
  return (steps, engines, mode) => {
    const items = steps.map((step) => ({ step, engine: engines.get(step.engine), mode })).sort((a, b) => a.step.index - b.step.index);
    keyed(list, items, ({ step }) => step.id, makeStep);
  };
}

// Engine -> role, of the steps that give one another role.
export const turns = (steps) => new Map(steps.filter((step) => step.verb === "retask" && step.engine).map((step) => [step.engine, step.role]));
