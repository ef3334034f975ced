// What a click on the mode switch opens: the plan, the thresholds of mode conditional, a canary instead, and the reason.
// Nothing is changed by the click itself.
import { modelUrl, order, read } from "./act.js";
import { askForecast, basisWords } from "./forecast.js";
import { ask, field, refusal } from "./dialog.js";
import { el, hide, redraw, text } from "./dom.js";
import { latencyText, number, percent } from "./format.js";
import { gettext } from "./i18n.js";
import { MODES, splitText } from "./opwords.js";
import { planNodes, planSummary } from "./planlist.js";

const ROLES = { disaggregated: ["prefill", "decode"], conditional: ["prefill", "decode"], monolithic: ["mixed"] };
const SHARES = [0.05, 0.1, 0.25, 0.5];
const WAIT_MS = 250;

const input = (attributes) => el("input", attributes);
const sizesOf = (facts, mode) => Object.fromEntries(ROLES[mode].map((role) => [role, facts.pools.find((pool) => pool.role === role)?.desired ?? 0]));

function thresholds(facts) {
  const tokens = input({ type: "number", min: 0, max: 16777216, value: facts.thresholds.tokens, name: "tokens" });
  const ratio = input({ type: "number", min: 0, max: 1, step: 0.01, value: facts.thresholds.ratio, name: "ratio" });
  const node = el("div", { class: "form" }, field(gettext("Split from uncached tokens"), tokens, gettext("tokens")), field(gettext("and from uncached share"), ratio, "0 – 1"));
  return { node, values: () => ({ min_uncached_tokens: Number(tokens.value), min_uncached_ratio: Number(ratio.value) }) };
}

function waysNode(name) {
  const option = (value, words, checked) => el("label", {}, input({ type: "radio", name, value, checked }), el("span", {}, words));
  return el("fieldset", { class: "seg" }, el("legend", { class: "sr" }, gettext("How")), option("all", gettext("All at once"), true), option("canary", gettext("Canary first"), false));
}

function forecastLine(nowFigures, thenFigures) {
  const figure = (name, key) => `${name} ${nowFigures ? `${latencyText(nowFigures[key].p99)} → ` : ""}${latencyText(thenFigures[key].p99)}`;
  return gettext("Forecast: %(ttft)s, %(itl)s, %(gpus)s effective GPUs", { ttft: figure("TTFT p99", "ttft_ms"), itl: figure("ITL p99", "itl_ms"), gpus: number(thenFigures.effective_gpus, 1) });
}

// mode: the one that was clicked; started(document) once an order was taken.
export async function openMode(model, mode, started) {
  const { ok, document: found } = await read(modelUrl(model, "facts"));
  if (!ok) {
    const asked = ask({ title: model, body: [refusal(found)], confirm: gettext("Change the mode"), ready: () => gettext("Nothing can be changed now"), send: async () => ({ ok: false }), done: () => {} });
    return asked;
  }
  return show(found, mode, started);
}

function show({ model: facts, refused }, mode, started) {
  const limits = thresholds(facts);
  const ways = waysNode("way");
  const share = el("select", { name: "share", class: "pick" }, ...SHARES.map((value) => el("option", { value, selected: value === 0.1 }, `${percent(value)} %`)));
  const shareField = el("label", { class: "field" }, gettext("Share of sessions at first"), share);
  const plan = el("div", { class: "plan" });
  const summary = el("p", { class: "meta" });
  const forecast = el("p", { class: "soft" });
  let answer = null;
  let mine = 0;
  let timer = 0;
  const same = mode === facts.mode;
  const canary = () => ways.querySelector("input:checked").value === "canary";

  function body(more) {
    const base = { mode, version: facts.version, last: facts.last, ...more };
    if (canary()) return { ...base, share: Number(share.value), steps: SHARES.filter((value) => value > Number(share.value)), shared: shared() };
    return mode === "conditional" ? { ...base, ...limits.values() } : base;
  }
  const shared = () => [mode, facts.mode].sort().join() === "conditional,disaggregated";
  const url = () => modelUrl(facts.name, canary() ? "canary" : "mode");

  async function rehearse() {
    const asked = (mine += 1);
    answer = null;
    dialog.update();
    const found = await order(url(), body({ dry_run: true }));
    if (asked !== mine) return;
    answer = found;
    text(summary, found.ok ? planSummary(found.document.plan) : "");
    redraw(plan, JSON.stringify(found.document), () => planNodes(found));
    dialog.update();
  }
  function soon() {
    hide(shareField, !canary());
    answer = null; // at once: nobody sends what its plan does not show
    dialog.update();
    clearTimeout(timer);
    timer = setTimeout(rehearse, WAIT_MS);
  }

  function ready() {
    const why = refused[canary() ? "set_canary" : "set_mode"];
    if (why) return why;
    if (!answer) return gettext("The plan is being made");
    return answer.ok ? "" : (answer.document.reasons?.[0] ?? gettext("refused"));
  }

  const dialog = ask({
    title: gettext("%(model)s to %(mode)s", { model: facts.name, mode: MODES[mode] }),
    meta: gettext("now %(mode)s", { mode: MODES[facts.mode] }),
    body: [...(same ? [] : [ways, shareField]), ...(mode === "conditional" ? [limits.node] : []), forecast, el("h3", {}, gettext("Plan")), summary, plan],
    confirm: same ? gettext("Change the thresholds") : gettext("Change the mode"),
    ready,
    send: (reason) => order(url(), body({ reason })),
    done: started,
    refused: (told) => {
      if (told.kind === "stale") facts = told.model;
      rehearse();
    },
  });
  ways.addEventListener("change", soon);
  share.addEventListener("change", soon);
  limits.node.addEventListener("input", soon);
  hide(shareField, true);
  rehearse();
  const stop = foresee(facts, mode, () => answer, (words) => text(forecast, words));
  dialog.node.addEventListener("close", stop);
  return dialog;
}

// One line from the forecast of the new mode with as many engines, beside that of now.
function foresee(facts, mode, answerOf, tell) {
  const total = facts.pools.reduce((sum, pool) => sum + pool.desired, 0);
  if (!total) return () => {};
  const now = splitText(sizesOf(facts, facts.mode), ROLES[facts.mode]);
  const guess = ROLES[mode].length === 1 ? `${total}` : `${Math.max(1, Math.round(total / 3))}:${total - Math.max(1, Math.round(total / 3))}`;
  const planned = answerOf()?.document?.plan?.after?.pools;
  const then = planned ? splitText(planned, ROLES[mode]) : ROLES[mode].join() === ROLES[facts.mode].join() ? now : guess;
  let before = null;
  let basis = null;
  const stops = [askForecast(facts.name, facts.mode, [now], (told) => (before = told.splits?.[now]?.figures ?? null)), askForecast(facts.name, mode, [then], heard)];
  function heard(told) {
    basis = told.basis;
    const one = told.splits?.[then];
    if (told.refused || told.error) tell(told.refused ?? told.error);
    else if (one?.refused) tell(one.refused);
    else tell(one?.figures ? `${forecastLine(before, one.figures)} · ${basisWords(basis)}` : gettext("The forecast is being made"));
  }
  return () => stops.forEach((stop) => stop());
}
