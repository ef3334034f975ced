// What an order would do, as the control plane answered to a dry run: steps in order, each with its reason; or why not.
import { el } from "./dom.js";
import { refusal } from "./dialog.js";
import { duration, number } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { labelAs, MODES, roleWord, stepVerb } from "./opwords.js";

function planWords(step) {
  if (step.verb === "switch") return gettext("the routing table to %(mode)s", { mode: MODES[step.role] ?? step.role });
  if (step.verb === "retask" && step.label) return `${step.label} → ${labelAs(step.label, step.role)}`;
  return [step.label, step.role && roleWord(step.role)].filter(Boolean).join(" · ");
}

function planStep(step, index) {
  const part = (className, words) => el("span", { class: className }, words);
  const why = step.reason ? [part("why", step.reason)] : [];
  return el("li", { "data-step": index }, part("n", number(index + 1)), part("verb", stepVerb(step.verb)), part("", planWords(step)), part("dim", step.node), ...why);
}

export function planSummary(plan) {
  const kind = plan.instant ? gettext("instant: no engine is restarted") : gettext("rolling: engines change a few at a time");
  return plan.steps.length ? `${ngettext("%(n)s step", "%(n)s steps", plan.steps.length, { n: number(plan.steps.length) })} · ${kind}` : gettext("nothing to do");
}

// "3:35 min ± 0:40", or that nobody knows yet.
export function estimateWords(estimate) {
  if (!estimate) return ["—", gettext("no earlier run to tell from")];
  const range = `${duration(estimate.low_s)} – ${duration(estimate.high_s)}`;
  return [duration(estimate.median_s), gettext("min, half of %(n)s earlier: %(range)s", { range, n: number(estimate.operations) })];
}

// Nodes for the panel: the steps, or the refusal.
export function planNodes(answer) {
  if (!answer.ok) return [el("div", { class: "body" }, refusal(answer.document))];
  const { plan } = answer.document;
  if (!plan.steps.length) return [el("div", { class: "empty" }, el("b", {}, gettext("Nothing to do")), el("span", {}, gettext("This is how it is already.")))];
  const waits = plan.waits.map((why) => el("li", {}, el("span", { class: "say warn wrap" }, gettext("It would wait: %(why)s", { why }))));
  const more = plan.complete ? [] : [el("p", { class: "panel-foot" }, gettext("More steps follow than are shown."))];
  return [...(waits.length ? [el("ul", { class: "body reasons" }, ...waits)] : []), el("ol", { class: "steps" }, ...plan.steps.map(planStep)), ...more];
}
