// The draft of a rebalance: sizes that are chosen, the plan to them (a dry run) and the forecast of them. Nothing is changed.
import { modelUrl, order } from "./act.js";
import { askForecast, strain } from "./forecast.js";
import { splitText } from "./opwords.js";

const MODE_ROLES = { disaggregated: ["prefill", "decode"], conditional: ["prefill", "decode"], monolithic: ["mixed"] };
const WAIT_MS = 250; // after the last click, before the plan is asked for
const AROUND = 3; // splits shown on each side of the present one
const BETTER = 0.98; // a split must use that much less of its SLO to be advised

export const rolesOf = (facts) => MODE_ROLES[facts.mode];

// told(): something of it is new. old(document): the page was old; the document says how the model is now.
export function makeDraft(facts, { told, old }) {
  const roles = rolesOf(facts);
  const draft = { facts, roles, sizes: {}, answer: null, forecast: { splits: {} } };
  let stop = () => {};
  let asked = 0;
  let timer = 0;

  draft.desired = () => Object.fromEntries(roles.map((role) => [role, draft.facts.pools.find((pool) => pool.role === role)?.desired ?? 0]));
  draft.changed = () => roles.some((role) => draft.sizes[role] !== draft.desired()[role]);
  draft.text = (sizes) => splitText(sizes, roles);
  draft.order = (more) => order(modelUrl(draft.facts.name, "rebalance/start"), { sizes: draft.sizes, version: draft.facts.version, last: draft.facts.last, ...more });
  draft.plan = () => (draft.answer?.ok ? draft.answer.document.plan : null);

  async function askPlan() {
    const mine = (asked += 1);
    if (!draft.changed()) return;
    const found = await draft.order({ dry_run: true });
    if (mine !== asked) return;
    draft.answer = found;
    if (found.document.kind === "stale") old(found.document);
    told();
  }

  draft.choose = (sizes) => {
    draft.sizes = sizes;
    draft.answer = null;
    asked += 1;
    clearTimeout(timer);
    timer = setTimeout(askPlan, WAIT_MS);
    draft.foresee(draft.desired(), sizes);
    told();
  };

  // The splits around two: both, and some on either side. One pool has no split.
  draft.around = (now, then) => {
    if (roles.length < 2) return [...new Set([draft.text(now), draft.text(then)])];
    const [a, b] = roles;
    const total = then[a] + then[b];
    const [from, to] = [Math.min(now[a], then[a]) - AROUND, Math.max(now[a], then[a]) + AROUND];
    const found = [];
    for (let n = Math.max(1, from); n <= Math.min(total - 1, to); n += 1) found.push(`${n}:${total - n}`);
    return found;
  };

  draft.foresee = (now, then) => {
    stop();
    const wanted = [...new Set([draft.text(now), draft.text(then), ...draft.around(now, then)])].filter((split) => /[1-9]/.test(split));
    stop = askForecast(draft.facts.name, draft.facts.mode, wanted, (found) => {
      draft.forecast = found;
      told();
    });
  };

  // The split whose worse latency uses least of its SLO, if it is better than the present one; null if nobody knows.
  draft.best = () => {
    const known = Object.entries(draft.forecast.splits).filter(([, one]) => one?.figures);
    const present = known.find(([split]) => split === draft.text(draft.desired()));
    if (roles.length < 2 || known.length < 3 || !present) return null;
    const rank = ([, { figures }]) => strain(figures, draft.facts.slo);
    const top = known.reduce((low, one) => (rank(one) < BETTER * rank(low) ? one : low), present);
    return top === present ? null : top[0];
  };

  // The model is another by now: the choice stays, plan and forecast are asked anew.
  draft.renew = (next, sizes = draft.sizes) => {
    draft.facts = next;
    draft.choose(sizes);
  };

  draft.rest = () => {
    asked += 1;
    clearTimeout(timer);
  };

  draft.sizes = draft.desired();
  return draft;
}
