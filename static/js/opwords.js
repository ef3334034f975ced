// Words of operations and their steps. The control plane writes English, for logs; what pages show is made here.
import { number } from "./format.js";
import { gettext, ngettext } from "./i18n.js";

const VERBS = {
  add_node: gettext("Add node"),
  remove_node: gettext("Remove node"),
  cordon_node: gettext("Cordon"),
  uncordon_node: gettext("Uncordon"),
  register_model: gettext("Register"),
  update_model: gettext("Update"),
  retire_model: gettext("Retire"),
  remove_model: gettext("Remove"),
  roll_out: gettext("Roll out"),
  set_mode: gettext("Mode"),
  rebalance: gettext("Rebalance"),
  scale_pool: gettext("Scale"),
  move_gpus: gettext("Move GPUs"),
  exchange_roles: gettext("Exchange roles"),
  drain_engine: gettext("Hold engine"),
  undrain_engine: gettext("Readmit engine"),
  restart_engine: gettext("Restart engine"),
  retry_engine: gettext("Retry engine"),
  set_canary: gettext("Canary"),
  promote_canary: gettext("Promote canary"),
  rollback: gettext("Roll back"),
  freeze: gettext("Freeze"),
  unfreeze: gettext("Unfreeze"),
  pause: gettext("Pause"),
  resume: gettext("Go on"),
  cancel: gettext("Cancel"),
  silence_alert: gettext("Silence alert"),
  unsilence_alert: gettext("End silence"),
  set_alert_rule: gettext("Set rule of alerts"),
  set_planner: gettext("Set planner"),
  approve_proposal: gettext("Approve proposal"),
  modify_proposal: gettext("Modify proposal"),
  reject_proposal: gettext("Reject proposal"),
  expire_proposal: gettext("Let proposal expire"),
  set_price: gettext("Set price"),
  remove_price: gettext("Remove price"),
  add_channel: gettext("Add channel"),
  update_channel: gettext("Change channel"),
  remove_channel: gettext("Remove channel"),
  login: gettext("Sign in"),
  login_failed: gettext("Could not sign in"),
  refused: gettext("Refused"),
  secret_shown: gettext("Secret shown"),
  left_out: gettext("Entries left out"),
  grant_model: gettext("Give model to user"),
  ungrant_model: gettext("Take model from user"),
  set_team: gettext("Set team"),
  remove_team: gettext("Remove team"),
  apply_model: gettext("Apply to model"),
  apply_state: gettext("Apply state"),
};

const STATES = {
  pending: ["idle", gettext("waiting")],
  running: ["run", gettext("running")],
  paused: ["warn", gettext("paused")],
  rolling_back: ["run", gettext("rolling back")],
  done: ["ok", gettext("done")],
  failed: ["bad", gettext("failed")],
  refused: ["bad", gettext("refused")],
  cancelled: ["idle", gettext("cancelled")],
  rolled_back: ["warn", gettext("rolled back")],
};

const STEPS = {
  start: gettext("Start"),
  stop: gettext("Stop"),
  retask: gettext("New role"),
  switch: gettext("Switch"),
  hold: gettext("Hold"),
  release: gettext("Readmit"),
  replace: gettext("Replace"),
};

const STEP_STATES = {
  waiting: ["idle", gettext("waiting")],
  running: ["run", gettext("running")],
  done: ["ok", gettext("done")],
  failed: ["bad", gettext("failed")],
  skipped: ["idle", gettext("not needed")],
};

export const MODES = {
  monolithic: gettext("Monolithic"),
  conditional: gettext("Conditional"),
  disaggregated: gettext("Disaggregated"),
};

const ROLES = { prefill: gettext("prefill"), decode: gettext("decode"), mixed: gettext("mixed") };
const ORDER = ["prefill", "decode", "mixed"];
const LETTERS = { prefill: "P", decode: "D", mixed: "M" };
const ENDED = ["done", "failed", "refused", "cancelled", "rolled_back"];

export const verbOf = (row) => VERBS[row.verb] ?? row.verb;
export const verbWord = (verb) => VERBS[verb] ?? verb;
export const subjectOf = (row) => row.model || row.subject.replace(/^[a-z]+:/, "");
export const stateOf = (row) => STATES[row.state] ?? ["idle", row.state];
export const stateWord = (state) => STATES[state]?.[1] ?? state;
export const stepVerb = (verb) => STEPS[verb] ?? verb;
export const stepState = (state) => STEP_STATES[state] ?? ["idle", state];
export const roleWord = (role) => ROLES[role] ?? role;
export const isOver = (row) => ENDED.includes(row.state);
// P8 of D8: an engine keeps its number in another role.
export const labelAs = (label, role) => (LETTERS[role] && /^[PDM]\d+$/.test(label) ? LETTERS[role] + label.slice(1) : label);

export function progress(row) {
  if (row.finished_at != null || !row.steps_total) return "";
  return gettext("step %(done)s of %(total)s", { done: number(row.steps_done), total: number(row.steps_total) });
}

// The outcome in the viewer's language.
export function outcomeOf(row) {
  if (row.state === "done") {
    return row.steps_total ? ngettext("%(n)s step done", "%(n)s steps done", row.steps_total, { n: number(row.steps_total) }) : "";
  }
  const newer = /^superseded by operation (\d+)$/.exec(row.outcome);
  if (newer) return gettext("superseded by operation %(n)s", { n: newer[1] });
  const failed = /^(\d+) of (\d+) steps? failed: (.*)$/s.exec(row.outcome);
  if (failed) {
    const params = { failed: number(Number(failed[1])), total: number(Number(failed[2])), why: failed[3] };
    return ngettext("%(failed)s of %(total)s step failed: %(why)s", "%(failed)s of %(total)s steps failed: %(why)s", Number(failed[2]), params);
  }
  const cancelled = /^cancelled by (.*)$/s.exec(row.outcome);
  if (cancelled) return gettext("cancelled by %(who)s", { who: cancelled[1] });
  const back = /^taken back by (.*)$/s.exec(row.outcome);
  if (back) return gettext("taken back by %(who)s", { who: back[1] });
  return row.outcome === "the pool has its size without it" ? gettext("the pool has its size without it") : row.outcome;
}

// A split as people say it: "7:6" of prefill and decode, one number of a single pool.
export function splitText(pools, roles = ORDER) {
  return roles
    .filter((role) => pools[role] != null)
    .map((role) => number(pools[role]))
    .join(":");
}

// What is desired, in words: {"mode": …, "pools": {…}} of an operation's before or after.
function desireText(desire) {
  const parts = [];
  if (desire?.mode) parts.push(MODES[desire.mode] ?? desire.mode);
  const pools = Object.entries(desire?.pools ?? {}).sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
  if (pools.length) parts.push(pools.map(([pool, n]) => `${roleWord(pool)} ${number(n)}`).join(", "));
  return parts.join(" · ");
}

// "prefill 5, decode 8 → prefill 7, decode 6"; "" when it changes neither mode nor pools.
export function changeOf({ before, after }) {
  const [old, fresh] = [desireText(before), desireText(after)];
  return old || fresh ? `${old} → ${fresh}` : "";
}
