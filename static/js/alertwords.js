// Words of alerts: what each rule is called, what to do, and the numbers behind an alert. The control plane writes English,
// for channels; what pages show is made here.
import { modelUrl } from "./act.js";
import { el } from "./dom.js";
import { latencyText, number, percent, rate, roughly, span } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { roleWord } from "./opwords.js";

export const RULES = {
  slo_burn_fast: [gettext("SLO burns fast"), gettext("Compare the model's pools: move GPUs to the one that waits, or take back a change of mode.")],
  slo_burn_slow: [gettext("SLO burns slowly"), gettext("Rebalance the pools or add engines before the budget is gone.")],
  transfer_p99: [gettext("KV transfers are slow"), gettext("Look at the pair matrix: one slow pair is a link, all pairs are the network or too much moved at once.")],
  transfer_failures: [gettext("KV transfers fail"), gettext("Read the decode engines' logs; hold an engine that fails alone, else switch the model to monolithic.")],
  pool_empty: [gettext("A pool has too few engines"), gettext("See why its engines do not serve (page of the engine, its log); give the pool GPUs from another one.")],
  node_lost: [gettext("A node is silent"), gettext("See whether the machine and its agent run and reach Valkey; remove the node if it will not come back.")],
  stale_metrics: [gettext("Metrics are stale"), gettext("See whether ingest runs and PostgreSQL and Valkey answer; of a node or of routers: whether they run.")],
  crash_loop: [gettext("An engine crashes again and again"), gettext("Read the end of its log; take back the last change of the model's arguments or version.")],
  stranded_kv: [gettext("KV is stranded"), gettext("Nobody will fetch it: restart the engine; if it comes again, look for decode engines that vanish.")],
  pool_imbalance: [gettext("The pools of a model are out of balance"), gettext("Open the rebalance page: it proposes a split and forecasts it.")],
  engine_imbalance: [gettext("One engine of a pool has most of its load"), gettext("Look at its GPUs and prefix hits: a slow engine holds its requests longer, a hot prefix draws them.")],
};
export const SEVERITIES = { warn: gettext("warning"), bad: gettext("critical") };
const WINDOWS = { slo_burn_fast: 300, slo_burn_slow: 1800 };
const REASONS = { "good again": gettext("good again"), "what it is about is no more": gettext("what it is about is no more"), "the rule was switched off": gettext("the rule was switched off") };

export const titleOf = (rule) => RULES[rule]?.[0] ?? rule;
export const remedyOf = (rule) => RULES[rule]?.[1] ?? "";
export const reasonOf = (reason) => REASONS[reason] ?? reason;

// "18.2×", "812 ms", "1.2 %", "40 s": a value in a rule's unit.
export function quantity(unit, value) {
  if (value == null) return "—";
  if (unit === "times") return `${plain(value)}×`;
  if (unit === "ms") return latencyText(value);
  if (unit === "share") return `${plain(value * 100)} %`;
  if (unit === "s") return lasting(value);
  if (unit === "starts") return ngettext("%(n)s start", "%(n)s starts", value, { n: number(value) });
  if (unit === "engines") return ngettext("%(n)s engine", "%(n)s engines", value, { n: number(value) });
  return number(value);
}

// With the fewest of two digits behind the point: 6, 1.5, 14.43.
function plain(value) {
  const rounded = Math.round(value * 100) / 100;
  return number(rounded, Number.isInteger(rounded) ? 0 : Number.isInteger(Math.round(rounded * 1000) / 100) ? 1 : 2);
}

// "5 min", "2 min 30 s": no unit that says nothing.
export const lasting = (seconds) => (seconds >= 60 && seconds % 60 === 0 && (seconds < 3600 || seconds % 3600 === 0) ? roughly(seconds) : span(seconds));

// The limit as people say it.
export const limitOf = (rule, threshold) => (rule?.above === false ? gettext("at least %(n)s", { n: quantity(rule.unit, threshold) }) : gettext("limit %(n)s", { n: quantity(rule?.unit, threshold) }));

// A link to what an alert is about.
export function subjectNode({ subject, label, model }) {
  const [kind, name] = [subject.slice(0, subject.indexOf(":")), subject.slice(subject.indexOf(":") + 1)];
  const words = { fleet: gettext("all telemetry"), routers: gettext("the routers' records") }[subject];
  if (words) return el("span", {}, words);
  if (kind === "engine") return el("a", { href: `/engines/${encodeURIComponent(name)}` }, label);
  if (kind === "node") return el("a", { href: `/nodes#${encodeURIComponent(name)}` }, name);
  if (kind === "pool") return el("a", { href: modelUrl(model, "").replace(/\/$/, "") }, `${model} ${name.slice(model.length + 1).split("/").map(roleWord).join(" ")}`);
  return el("a", { href: modelUrl(model, "").replace(/\/$/, "") }, model || label);
}

// The numbers behind an alert in one line; "" where the value says it all.
export function factsOf({ rule, facts }) {
  const n = (name) => number(facts[name]);
  switch (rule) {
    case "slo_burn_fast":
    case "slo_burn_slow": {
      const [slow, all, words] = facts.of === "itl" ? [n("slow_gaps"), n("gaps"), gettext("%(slow)s of %(all)s gaps between tokens beyond the ITL target, %(window)s")] : [n("slow"), n("requests"), gettext("%(slow)s of %(all)s requests failed or beyond the TTFT target, %(window)s")];
      return words.replace("%(slow)s", slow).replace("%(all)s", all).replace("%(window)s", lasting(WINDOWS[rule]));
    }
    case "transfer_p99":
      return gettext("%(n)s transfers in 5 min", { n: n("transfers") });
    case "transfer_failures":
      return gettext("%(failed)s failed, %(expired)s fetched by nobody, %(n)s went well, 5 min", { failed: n("failed"), expired: n("expired"), n: n("transfers") });
    case "pool_empty":
      return gettext("%(n)s of %(all)s engines take work", { n: n("serving"), all: n("desired") });
    case "node_lost":
      return facts.lost ? gettext("its engines are replaced elsewhere") : gettext("not given up yet: its engines stay in the routing table");
    case "crash_loop":
      return [gettext("%(n)s failures in a row, %(starts)s starts in 30 min", { n: n("failures"), starts: n("starts") }), facts.reason].filter(Boolean).join(" · ");
    case "pool_imbalance":
      return gettext("prefill %(p)s % busy, decode %(d)s %, 10 min", { p: percent(facts.prefill), d: percent(facts.decode) });
    case "engine_imbalance":
      return gettext("%(engine)s has %(load)s requests on average, 5 min", { engine: facts.engine, load: rate(facts.load) });
    default:
      return "";
  }
}
