// Words of the planner: states, levels, causes, what holds it, and layouts. The planner's own sentences are English.
import { number } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { MODES, roleWord, splitText } from "./opwords.js";

const STATES = {
  open: ["run", gettext("open")],
  approved: ["run", gettext("approved")],
  executed: ["ok", gettext("executed")],
  failed: ["bad", gettext("failed")],
  rejected: ["idle", gettext("rejected")],
  expired: ["idle", gettext("expired")],
  superseded: ["idle", gettext("superseded")],
};

export const LEVELS = {
  off: gettext("off"),
  advise: gettext("advise"),
  approve: gettext("approve"),
  automatic: gettext("automatic"),
};

const CAUSES = {
  slo: gettext("a target is missed"),
  growth: gettext("load grows"),
  mix: gettext("the split does not suit the mix"),
  mode: gettext("another mode serves the same better"),
  idle: gettext("GPUs are not needed"),
  schedule: gettext("a known peak"),
  trade: gettext("GPUs from another model"),
  give_back: gettext("GPUs given back"),
};

const HOLDS = {
  off: ["idle", gettext("off")],
  stale: ["warn", gettext("metrics are stale")],
  empty: ["idle", gettext("nothing measured")],
  few_samples: ["idle", gettext("too little traffic")],
  warming: ["idle", gettext("engines are starting")],
  operation: ["run", gettext("an operation runs")],
  manual: ["idle", gettext("changed by hand")],
  cooldown: ["idle", gettext("cools down")],
  budget: ["warn", gettext("moves are used up")],
  freeze: ["idle", gettext("frozen")],
  window: ["idle", gettext("outside its change windows")],
  floor: ["idle", gettext("at its floor")],
  ceiling: ["warn", gettext("at its ceiling")],
  consolidation: ["idle", gettext("one fewer would not do")],
  hysteresis: ["ok", gettext("nothing clearly better")],
  infeasible: ["bad", gettext("the target is out of reach")],
  no_gpus: ["bad", gettext("no GPU is spare")],
  no_hardware: ["warn", gettext("cannot be planned for")],
  good: ["ok", gettext("good as it is")],
};

export const stateOf = (state) => STATES[state] ?? ["idle", state];
export const stateWord = (state) => STATES[state]?.[1] ?? state;
export const causeWord = (cause) => CAUSES[cause] ?? cause;
export const holdOf = (code) => HOLDS[code] ?? ["idle", code];

// "7:6 → 5:8", with the modes where they change too.
export function changeWords({ mode_before: before, mode: after, before: old, sizes }) {
  const modes = before === after ? "" : `${MODES[before]} → ${MODES[after]} · `;
  return `${modes}${splitText(old)} → ${splitText(sizes)}`;
}

// Pools of a layout: "prefill 5 × TP4 h100-sxm".
export const poolWords = (pool) => `${roleWord(pool.role)} ${number(pool.engines)} × TP${pool.tensor_parallel} ${pool.gpu}`;
export const layoutWords = (pools) => pools.map(poolWords).join(" · ");

export const movesWords = (n) => ngettext("%(n)s engine moves", "%(n)s engines move", n, { n: number(n) });
export const offBy = (share) => (share == null ? "—" : gettext("%(n)s %", { n: number(Math.round(100 * share)) }));

// How far predictions were off, or how many are missing until that can be said.
export function accuracyWords({ proposals, ttft, itl }) {
  if (ttft == null && itl == null) return proposals ? ngettext("%(n)s measured, 3 are needed", "%(n)s measured, 3 are needed", proposals, { n: number(proposals) }) : gettext("none measured yet");
  return gettext("TTFT %(ttft)s, ITL %(itl)s", { ttft: offBy(ttft), itl: offBy(itl) });
}
