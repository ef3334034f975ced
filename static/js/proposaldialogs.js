// What is asked before somebody decides on a proposal: the plan (a dry run), and the reason. Nothing is done by opening one.
import { order } from "./act.js";
import { ask, field } from "./dialog.js";
import { el, redraw, text } from "./dom.js";
import { gettext } from "./i18n.js";
import { MODES, roleWord, splitText } from "./opwords.js";
import { planNodes, planSummary } from "./planlist.js";
import { changeWords } from "./proposalwords.js";

const ROLES = { disaggregated: ["prefill", "decode"], conditional: ["prefill", "decode"], monolithic: ["mixed"] };
const WAIT_MS = 250;

// A part of a dialog that shows what an order would do. body(): the order; ask() has it rehearsed; ready(): "" or why not yet.
function makePlan(url, body, told) {
  const summary = el("p", { class: "meta" });
  const plan = el("div", { class: "plan" });
  let answer = null;
  let mine = 0;
  async function rehearse() {
    const asked = (mine += 1);
    answer = null;
    told();
    const found = await order(url, { ...body(), dry_run: true });
    if (asked !== mine) return;
    answer = found;
    text(summary, found.ok ? planSummary(found.document.plan) : "");
    redraw(plan, JSON.stringify(found.document), () => planNodes(found));
    told();
  }
  const ready = () => (!answer ? gettext("The plan is being made") : answer.ok ? "" : (answer.document.reasons?.[0] ?? gettext("refused")));
  return { nodes: [el("h3", {}, gettext("Plan")), summary, plan], rehearse, ready };
}

// done(document): the order was taken; old(): the proposal or its model is another by now.
export function askToApprove({ row }, done, old) {
  const url = `/proposals/${row.number}/approve`;
  const plan = makePlan(url, () => ({}), () => dialog?.update());
  let dialog = null;
  dialog = ask({
    title: gettext("Approve: %(model)s %(change)s", { model: row.model, change: changeWords(row) }),
    meta: gettext("proposal %(n)s", { n: row.number }),
    body: plan.nodes,
    confirm: gettext("Approve"),
    ready: plan.ready,
    send: (reason) => order(url, { reason }),
    done,
    refused: ({ kind }) => kind === "stale" && old(),
  });
  plan.rehearse();
  return dialog;
}

export function askToModify({ row, proposal }, done, old) {
  const url = `/proposals/${row.number}/modify`;
  const engines = Object.fromEntries(proposal.pools.map((pool) => [pool.role, pool.engines]));
  const before = Object.fromEntries(proposal.before.map((pool) => [pool.role, pool.engines]));
  const inputs = {};
  const sizes = el("div", { class: "form full" });
  const mode = el("select", { name: "mode", class: "pick" }, ...Object.entries(MODES).map(([value, words]) => el("option", { value, selected: value === row.mode }, words)));
  const hint = el("p", { class: "meta" });
  let dialog = null;
  let timer = 0;
  const chosen = () => Object.fromEntries(ROLES[mode.value].map((role) => [role, Number(inputs[role].value)]));
  const plan = makePlan(url, () => ({ mode: mode.value, sizes: chosen() }), () => dialog?.update());

  function show() {
    const total = Object.values(engines).reduce((sum, n) => sum + n, 0);
    const roles = ROLES[mode.value];
    for (const role of roles) inputs[role] ??= el("input", { type: "number", name: role, min: 0, max: 4096, step: 1, required: true, value: engines[role] ?? before[role] ?? Math.max(1, Math.round(total / roles.length)) });
    sizes.replaceChildren(...roles.map((role) => field(roleWord(role), inputs[role], gettext("engines"))));
    text(hint, gettext("Proposed: %(split)s. What you make of it counts as your own change: the planner adopts it.", { split: splitText(engines) }));
  }
  function soon() {
    clearTimeout(timer);
    timer = setTimeout(plan.rehearse, WAIT_MS);
  }

  show();
  dialog = ask({
    title: gettext("Modify: %(model)s", { model: row.model }),
    meta: gettext("proposal %(n)s", { n: row.number }),
    body: [el("div", { class: "form" }, field(gettext("Mode"), mode)), sizes, hint, ...plan.nodes],
    confirm: gettext("Carry it out"),
    ready: plan.ready,
    send: (reason) => order(url, { mode: mode.value, sizes: chosen(), reason }),
    done,
    refused: ({ kind }) => kind === "stale" && old(),
  });
  mode.addEventListener("change", () => {
    show();
    soon();
  });
  sizes.addEventListener("input", soon);
  plan.rehearse();
  return dialog;
}

export const askToReject = ({ row }, done, old) =>
  ask({
    title: gettext("Reject: %(model)s %(change)s", { model: row.model, change: changeWords(row) }),
    meta: gettext("proposal %(n)s", { n: row.number }),
    body: [el("p", { class: "soft" }, gettext("The same change is not proposed again for as long as a change by hand is kept."))],
    confirm: gettext("Reject"),
    danger: true,
    send: (reason) => order(`/proposals/${row.number}/reject`, { reason }),
    done,
    refused: ({ kind }) => kind === "stale" && old(),
  });
