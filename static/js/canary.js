// The canary of a model: both arms side by side, how far the test has come, and what ends it. Its buttons ask first.
import { gate, modelUrl, order } from "./act.js";
import { now } from "./clock.js";
import { ask } from "./dialog.js";
import { el, redraw, text } from "./dom.js";
import { latencyText, MISSING, number, percent, roughly } from "./format.js";
import { gettext } from "./i18n.js";
import { MODES } from "./opwords.js";
import { emptied } from "./panels.js";
import { planNodes, planSummary } from "./planlist.js";

const points = (share) => (share == null ? MISSING : `${share > 0 ? "+" : share < 0 ? "−" : ""}${number(Math.abs(100 * share), 1)} %`);
const shareOf = (arm, name) => (arm?.sessions ? arm[name] / arm.sessions : null);
const shown = (share) => (share == null ? MISSING : `${number(100 * share, 1)} %`);

function row(words, main, canary, difference, verdict) {
  return el("tr", {}, el("th", { scope: "row" }, words), el("td", { class: "r" }, main), el("td", { class: "r" }, canary), el("td", { class: "r" }, difference), el("td", {}, verdict));
}

// What is shown of a measure: harm at 1 or more is certain.
function judged(harm) {
  if (harm == null) return el("span", { class: "say idle" }, gettext("nothing yet"));
  if (harm >= 1) return el("span", { class: "say bad" }, gettext("worse"));
  return el("span", { class: "say idle" }, gettext("not shown to be worse"));
}

function measured({ verdict, mode }, model) {
  const { canary = {}, main = {}, difference = {}, harm = {}, no_worse: noWorse } = verdict.numbers ?? {};
  const share = (name) => row(...WORDS[name], shown(shareOf(main, name)), shown(shareOf(canary, name)), name === "over" ? between(difference) : points(minus(shareOf(canary, name), shareOf(main, name))), judged(harm[name]));
  const none = el("span", { class: "dim" }, gettext("shown, not tested"));
  const latency = (words, name) => row(words, latencyText(main[name]), latencyText(canary[name]), signed(minus(canary[name], main[name])), none.cloneNode(true));
  const head = el("tr", {}, ...[gettext("sessions"), gettext("main, %(mode)s", { mode: MODES[model.mode] ?? model.mode }), gettext("canary, %(mode)s", { mode: MODES[mode] ?? mode }), gettext("difference"), gettext("verdict")].map((words, index) => el("th", { scope: "col", class: index > 0 && index < 4 ? "r" : "" }, words)));
  const counted = row(gettext("counted"), number(main.sessions), number(canary.sessions), "", noWorse >= 1 ? el("span", { class: "say ok" }, gettext("no worse")) : el("span", { class: "say idle" }, gettext("%(n)s % of the proof", { n: percent(Math.max(0, noWorse ?? 0)) })));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": gettext("Table of both arms") }, el("table", { class: "table ab" }, el("thead", {}, head), el("tbody", {}, counted, share("over"), share("failed"), share("kv_lost"), latency(gettext("TTFT p99"), "ttft_p99_ms"), latency(gettext("ITL p99"), "itl_p99_ms"))));
}

const WORDS = { over: [gettext("over the SLO")], failed: [gettext("failed")], kv_lost: [gettext("KV lost")] };
const minus = (a, b) => (a == null || b == null ? null : a - b);
const signed = (ms) => (ms == null ? MISSING : `${ms > 0 ? "+" : ms < 0 ? "−" : ""}${latencyText(Math.abs(ms))}`);
const between = ({ seen, lower, upper }) => (seen == null ? MISSING : `${points(seen)} (${points(lower)} – ${points(upper)})`);

function limits({ guardrails, steps }) {
  const next = steps.length ? gettext("Next share %(n)s %, once it is shown to be no worse.", { n: percent(steps[0]) }) : gettext("After this share its mode is the model's, once it is shown to be no worse.");
  const params = { margin: number(100 * guardrails.margin, 1), failed: number(100 * guardrails.max_failed, 1), time: roughly(guardrails.max_duration_s) };
  return `${next} ${gettext("Rolls back by itself when over the SLO or failing more than main (by %(failed)s % of sessions), or when nothing is shown after %(time)s. No worse: less than %(margin)s % above main.", params)}`;
}

// Asks for the reason, shows the plan first. done(document) when it was taken.
async function act(verb, facts, title, danger, done) {
  const url = modelUrl(facts.name, `canary/${verb}`);
  const body = { version: facts.version, last: facts.last };
  const plan = await order(url, { ...body, dry_run: true });
  const said = plan.ok ? planSummary(plan.document.plan) : "";
  ask({ title, body: [el("p", { class: "meta" }, said), el("div", { class: "plan" }, ...planNodes(plan))], confirm: title, danger, ready: () => (plan.ok ? "" : (plan.document.reasons?.[0] ?? gettext("refused"))), send: (reason) => order(url, { ...body, reason }), done });
}

// paint(model facts, refused): of the newest facts. start(): begins one.
export function makeCanary(panel, { start, done }) {
  const part = (name) => panel.querySelector(`[data-${name}]`);
  let facts = null;
  const button = (words, danger, verb) => {
    const node = el("button", { class: danger ? "btn small danger" : "btn small", type: "button" }, words);
    node.addEventListener("click", () => act(verb, facts, words, danger, done));
    return node;
  };
  const promote = button(gettext("Promote"), false, "promote");
  const end = button(gettext("End canary"), true, "end");
  const begin = el("button", { class: "btn small", type: "button" }, gettext("Start a canary"));
  begin.addEventListener("click", start);

  return (next, refused) => {
    facts = next;
    const { canary } = facts;
    gate(promote, refused.promote_canary);
    gate(end, refused.end_canary);
    gate(begin, refused.set_canary);
    redraw(part("badge"), canary ? `${canary.mode} ${canary.share}` : "", () => (canary ? [el("span", { class: "badge" }, `${MODES[canary.mode] ?? canary.mode} ${percent(canary.share)} %`)] : []));
    redraw(part("end"), canary ? "runs" : "none", () => (canary ? [promote, end] : []));
    text(part("meta"), canary ? [gettext("since %(time)s", { time: roughly(now() - canary.started_at) }), canary.shared ? gettext("on shared engines") : "", canary.paused ? gettext("paused while an operation runs") : ""].filter(Boolean).join(" · ") : "");
    redraw(part("body"), JSON.stringify([canary, facts.mode]), () => {
      if (!canary) {
        const empty = emptied(gettext("No canary on this model"), gettext("Send a share of sessions to another mode and compare."));
        empty.append(begin);
        return [empty];
      }
      const sentence = canary.verdict.sentence ? [el("p", { class: "panel-foot soft" }, canary.verdict.sentence)] : [];
      return [measured(canary, facts), ...sentence, el("p", { class: "panel-foot" }, limits(canary))];
    });
  };
}
