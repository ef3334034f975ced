// What the states of an engine look like, and what its tile says in each. Pure apart from words.
import { clock, duration, MISSING, number, percent, span } from "./format.js";
import { gettext, ngettext } from "./i18n.js";

export const STALE_S = 5;
export const QUEUE_HOT = 10; // waiting requests from which a queue is marked

export const ROLE = {
  prefill: { letter: "p", fill: "fill-p", word: gettext("Prefill") },
  decode: { letter: "d", fill: "fill-d", word: gettext("Decode") },
  mixed: { letter: "m", fill: "fill-m", word: gettext("Mixed") },
};

// state -> [kind of `say`, word, class of the tile]; kind "" is plain grey text: quiet when fine.
const STATE = {
  planned: ["idle", gettext("planned"), "starting"],
  starting: ["run", gettext("starting"), "starting"],
  verifying: ["run", gettext("verifying"), "starting"],
  ready: ["", gettext("ready"), ""],
  draining: ["drain", gettext("draining"), "draining"],
  stopping: ["drain", gettext("stopping"), "draining"],
  stopped: ["idle", gettext("stopped"), "draining"],
  failed: ["bad", gettext("failed"), "down"],
  lost: ["bad", gettext("lost"), "down"],
};

const SERVING = ["ready", "draining"];

export const stateOf = (row) => STATE[row.state] ?? ["idle", row.state, ""];

// Seconds since the newest sample when that is too long ago, else null. Only an engine that serves is sampled.
export function staleFor(row, now) {
  if (!SERVING.includes(row.state) || row.sampled_at == null) return null;
  const age = now - row.sampled_at;
  return age > STALE_S ? age : null;
}

// Whether its last sample still says how it is now.
export const isFresh = (row, now) => SERVING.includes(row.state) && row.sampled_at != null && now - row.sampled_at <= STALE_S;

export function mean(shares) {
  const known = shares.filter((share) => share != null);
  return known.length ? known.reduce((sum, share) => sum + share, 0) / known.length : null;
}

export const busy = (tensor, dram) => (tensor == null && dram == null ? null : Math.max(tensor ?? 0, dram ?? 0));

// The bars of a tile: what the role is bound by; a mixed engine shows both, side by side per GPU while there is room.
// An engine that does not serve has no activity, whatever its last sample said.
export function barsOf(row) {
  if (!SERVING.includes(row.state)) return row.gpu_indices.map(() => null);
  if (row.role === "prefill") return row.tensor;
  if (row.role === "decode") return row.dram;
  if (row.tensor.length > 4) return row.tensor.map((share, index) => busy(share, row.dram[index]));
  return row.tensor.flatMap((share, index) => [share, row.dram[index]]);
}

// [value, unit] pairs of the tile's first line.
function activity(row) {
  if (row.role === "prefill") return [[percent(mean(row.tensor)), gettext("% tensor")]];
  if (row.role === "decode") return [[percent(mean(row.dram)), gettext("% mem bw")]];
  return [
    [percent(mean(row.tensor)), "%"],
    [percent(mean(row.dram)), "%"],
  ];
}

const count = (value) => (value == null ? MISSING : number(value));

function load(row) {
  if (row.role === "prefill") return gettext("queue %(n)s", { n: count(row.waiting) });
  return gettext("q %(q)s · run %(r)s", { q: count(row.waiting), r: count(row.running) });
}

const left = (row) => {
  const n = (row.running ?? 0) + (row.waiting ?? 0);
  return ngettext("%(n)s left", "%(n)s left", n, { n: number(n) });
};

// {figures: [[value, unit]] | null, words, note, hot}: `words` stands instead of figures where there are none.
export function contents(row, now) {
  const inState = Math.max(0, now - row.state_since);
  switch (row.state) {
    case "planned":
      return { words: gettext("waiting"), note: row.reason || duration(inState) };
    case "starting":
      return { words: gettext("loading"), note: duration(inState) };
    case "verifying":
      return { words: gettext("first token"), note: duration(inState) };
    case "stopping":
    case "stopped":
      return { words: left(row), note: duration(inState) };
    case "failed":
    case "lost":
      return { words: gettext("since %(time)s", { time: clock(row.state_since) }), note: row.reason || gettext("no reason given") };
    case "draining":
      return { figures: activity(row), note: left(row) };
    default:
      return { figures: activity(row), note: load(row), hot: (row.waiting ?? 0) >= QUEUE_HOT };
  }
}

// The whole of what is known, for the tooltip.
export function details(row, now) {
  const age = row.sampled_at == null ? gettext("no sample yet") : gettext("sampled %(age)s ago", { age: span(now - row.sampled_at) });
  return [
    gettext("%(engine)s on %(node)s, start %(n)s", { engine: row.engine, node: row.node || MISSING, n: row.incarnation }),
    gettext("KV cache %(n)s %", { n: percent(row.kv_usage) }),
    age,
    row.reason,
  ]
    .filter(Boolean)
    .join(" · ");
}

// P2 before P10.
export const byLabel = (a, b) => a.label.localeCompare(b.label, "en", { numeric: true }) || a.id.localeCompare(b.id);
