// What a tile opens: what can be done with this engine, each with its plan and a reason before it is done.
import { modelUrl, order, read } from "./act.js";
import { ask } from "./dialog.js";
import { el, redraw, text } from "./dom.js";
import { gettext } from "./i18n.js";
import { planNodes, planSummary } from "./planlist.js";

const ACTS = {
  hold: ["drain_engine", gettext("Hold"), gettext("It leaves the routing table, finishes what it has and runs on.")],
  readmit: ["undrain_engine", gettext("Readmit"), gettext("It is back in the routing table and takes requests again.")],
  restart: ["restart_engine", gettext("Restart"), gettext("It drains and stops, and its pool starts a fresh one.")],
  retry: ["retry_engine", gettext("Try again"), gettext("It was given up after too many failures and is started once more.")],
};

export const WORDS = Object.fromEntries(Object.entries(ACTS).map(([verb, [, words]]) => [verb, words]));

// What can be done with an engine in this state, the likeliest first.
export const possible = (row) => (row.state === "failed" ? ["retry", "restart"] : row.held ? ["readmit", "restart"] : ["hold", "restart"]);

export async function openEngine(row, started, wanted = null) {
  const { ok, document: found } = await read(modelUrl(row.model, "facts"));
  const facts = ok ? found.model : null;
  const refused = ok ? found.refused : {};
  const verbs = possible(row);
  let verb = verbs.includes(wanted) ? wanted : verbs[0];
  let answer = null;
  let mine = 0;
  const choices = verbs.map((name) => el("label", {}, el("input", { type: "radio", name: "act", value: name, checked: name === verb }), el("span", {}, ACTS[name][1])));
  const seg = el("fieldset", { class: "seg" }, el("legend", { class: "sr" }, gettext("What to do")), ...choices);
  const help = el("p", { class: "soft" });
  const summary = el("p", { class: "meta" });
  const plan = el("div", { class: "plan" });
  const url = () => `/engines/${encodeURIComponent(row.engine)}/${verb}`;

  async function rehearse() {
    const asked = (mine += 1);
    answer = null;
    text(help, ACTS[verb][2]);
    dialog.update();
    const told = await order(url(), { dry_run: true });
    if (asked !== mine) return;
    answer = told;
    text(summary, told.ok ? planSummary(told.document.plan) : "");
    redraw(plan, JSON.stringify(told.document), () => planNodes(told));
    dialog.update();
  }

  const dialog = ask({
    title: gettext("%(engine)s of %(model)s", { engine: row.label, model: row.model }),
    meta: [row.node, row.reason].filter(Boolean).join(" · "),
    body: [...(location.pathname.startsWith("/engines/") ? [] : [el("p", {}, el("a", { href: `/engines/${encodeURIComponent(row.engine)}` }, gettext("Figures, starts and log of %(engine)s", { engine: row.label })))]), seg, help, el("h3", {}, gettext("Plan")), summary, plan],
    confirm: gettext("Do it"),
    danger: true,
    ready: () => refused[ACTS[verb][0]] || (answer ? (answer.ok ? "" : (answer.document.reasons?.[0] ?? gettext("refused"))) : gettext("The plan is being made")),
    send: (reason) => order(url(), { reason, version: facts?.version }),
    done: started,
  });
  seg.addEventListener("change", (event) => {
    verb = event.target.value;
    rehearse();
  });
  rehearse();
  return dialog;
}

