// One band per model: its mode, whether it keeps its SLO, and the lanes of its pools with the transfer between them.
import { modelUrl } from "./act.js";
import { attr, el, hide, keyed, redraw, text } from "./dom.js";
import { byLabel, isFresh, mean, ROLE, staleFor } from "./engines.js";
import { makeFlow } from "./flow.js";
import { latencyText, MISSING, number, percent, rate } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { makeMode } from "./modeswitch.js";
import { MODES } from "./opwords.js";
import { makeTile } from "./tile.js";

const MODE_ROLES = { disaggregated: ["prefill", "decode"], monolithic: ["mixed"], conditional: ["prefill", "decode"] };

// [class, words] of the verdicts on a model's SLO, worst first.
function verdicts(row) {
  const over = [
    ["TTFT", row.ttft.p99, row.slo_ttft_ms],
    ["ITL", row.itl.p99, row.slo_itl_ms],
  ].filter(([, p99, limit]) => p99 != null && p99 > limit);
  if (over.length) {
    return over.map(([name, p99, limit]) => [
      "badge bad",
      gettext("%(name)s p99 %(p99)s, SLO %(limit)s", { name, p99: latencyText(p99), limit: latencyText(limit) }),
    ]);
  }
  if (row.ttft.p99 == null && row.itl.p99 == null) return [["say idle", gettext("no requests in 5 min")]];
  return [["say ok", gettext("SLO met, 5 min")]];
}

function laneNumbers(role, pool) {
  if (!pool) return "";
  const load = gettext("queue %(q)s", { q: pool.waiting == null ? MISSING : number(pool.waiting) });
  const running = gettext("running %(r)s", { r: pool.running == null ? MISSING : number(pool.running) });
  if (role === "prefill") return `${gettext("tensor %(n)s %", { n: percent(pool.tensor) })} · ${load}`;
  if (role === "decode") return `${gettext("memory bandwidth %(n)s %", { n: percent(pool.dram) })} · ${load} · ${running}`;
  return `${gettext("tensor %(n)s %", { n: percent(pool.tensor) })} · ${gettext("memory bw %(n)s %", { n: percent(pool.dram) })}`;
}

function laneSize(pool, engines) {
  const n = engines.length;
  const gpus = engines.reduce((sum, row) => sum + row.gpu_indices.length, 0);
  const words = ngettext("%(n)s engine", "%(n)s engines", n, { n: number(n) });
  const all = `${words}, ${ngettext("%(n)s GPU", "%(n)s GPUs", gpus, { n: number(gpus) })}`;
  const ready = engines.filter((row) => row.state === "ready").length;
  const desired = pool?.desired ?? n;
  if (ready === n && desired === n) return all;
  return `${all} · ${gettext("%(ready)s of %(desired)s ready", { ready: number(ready), desired: number(desired) })}`;
}

function makeLane(role, clock, open) {
  const name = el("b", { class: `chip ${ROLE[role].letter}` }, ROLE[role].word);
  const size = el("span");
  const stale = el("span", { class: "say warn" });
  const end = el("span", { class: "end" });
  const tiles = el("ul", { class: "tiles" });
  const none = el("p", { class: "none" }, gettext("No engine in this pool. The control loop starts what the pool asks for."));
  const node = el("div", { class: "lane", "data-role": role }, el("header", {}, name, size, stale, end), tiles, none);
  return {
    node,
    paint(row, engines, wide) {
      const pool = row.pools[role];
      const out = engines.filter((engine) => staleFor(engine, clock()) !== null).length;
      text(size, laneSize(pool, engines));
      text(stale, ngettext("%(n)s stale engine left out", "%(n)s stale engines left out", out, { n: number(out) }));
      hide(stale, out === 0);
      text(end, laneNumbers(role, pool));
      attr(tiles, "class", wide ? "tiles four" : "tiles");
      keyed(tiles, engines, (engine) => engine.id, () => makeTile(clock, open));
      hide(tiles, engines.length === 0);
      hide(none, engines.length > 0);
    },
  };
}

// Beside a lone mixed pool: what the model's requests see, since there is no second pool to show.
function makeOutcome(clock) {
  const list = el("dl", { class: "whatif" });
  const header = el("header", {}, el("b", {}, gettext("What requests see")), gettext("5 min"));
  const node = el("div", { class: "lane" }, header, list);
  const freshOf = (engines) => engines.filter((engine) => isFresh(engine, clock()));
  const share = (value) => (value === null ? MISSING : `${percent(value)} %`);
  const facts = (row, engines) => [
    [gettext("TTFT p99"), latencyText(row.ttft.p99), gettext("SLO %(limit)s", { limit: latencyText(row.slo_ttft_ms) })],
    [gettext("ITL p99"), latencyText(row.itl.p99), gettext("SLO %(limit)s", { limit: latencyText(row.slo_itl_ms) })],
    [gettext("Requests"), gettext("%(n)s req/s", { n: rate(row.requests_per_s) }), gettext("1 min")],
    [gettext("KV cache"), share(mean(freshOf(engines).map((engine) => engine.kv_usage))), gettext("used, mean, now")],
  ];
  return {
    node,
    paint(row, engines) {
      const shown = facts(row, engines);
      redraw(list, JSON.stringify(shown), () =>
        shown.map(([term, value, note]) => el("div", {}, el("dt", {}, term), el("dd", {}, value), el("dd", {}, note))),
      );
    },
  };
}

// Which lanes stand left, right and below. A pool is shown when its mode needs it, it has engines, or it should have some.
export function layout(row, engines) {
  const has = (role) =>
    engines.some((engine) => engine.role === role) || MODE_ROLES[row.mode]?.includes(role) || (row.pools[role]?.desired ?? 0) > 0;
  const roles = ["prefill", "decode", "mixed"].filter(has);
  if (!roles.includes("mixed")) return { left: "prefill", right: "decode", below: null };
  if (!roles.includes("prefill") && !roles.includes("decode")) return { left: "mixed", right: null, below: null };
  if (roles.length === 3) return { left: "prefill", right: "decode", below: "mixed" };
  return roles.includes("prefill") ? { left: "prefill", right: "mixed", below: null } : { left: "mixed", right: "decode", below: null };
}

function headline(row) {
  const wide = `TP${row.tensor_parallel} · ${ngettext("%(n)s GPU", "%(n)s GPUs", row.gpus, { n: number(row.gpus) })} · `;
  return [el("span", { class: "wide" }, wide), gettext("%(n)s req/s", { n: rate(row.requests_per_s) })];
}

// A canary that runs, else from which prompts on mode conditional splits.
function trialText(row) {
  if (row.canary) return gettext("canary: %(mode)s %(share)s %", { mode: (MODES[row.canary.mode] ?? row.canary.mode).toLowerCase(), share: percent(row.canary.share) });
  if (row.mode === "conditional" && row.min_uncached_tokens != null) return gettext("split from %(n)s uncached tokens", { n: number(row.min_uncached_tokens) });
  return "";
}

let bands = 0;

// acts: {mode(row, mode), engine(row)}, what clicks ask for.
export function makeBand(clock, acts) {
  const id = `band-${(bands += 1)}`;
  const name = el("a");
  const title = el("h2", { id }, name);
  const meta = el("span", { class: "meta" });
  const mode = makeMode(acts.mode);
  const said = el("span", { class: "said" });
  const trial = el("a", { class: "badge" });
  const rebalance = el("a", { class: "btn small" }, gettext("Rebalance"));
  const end = el("span", { class: "end" }, said, rebalance);
  const lanes = Object.fromEntries(Object.keys(ROLE).map((role) => [role, makeLane(role, clock, acts.engine)]));
  const flow = makeFlow();
  const outcome = makeOutcome(clock);
  const twin = el("div", { class: "twin" });
  const header = el("header", {}, title, meta, mode.node, mode.note, trial, end);
  const node = el("section", { class: "panel band", "aria-labelledby": id }, header, twin);

  function arrange({ left, right, below }) {
    redraw(twin, `${left} ${right} ${below}`, () => {
      for (const lane of Object.values(lanes)) lane.node.classList.remove("whole");
      if (below) lanes[below].node.classList.add("whole");
      return [lanes[left].node, flow.node, right ? lanes[right].node : outcome.node, ...(below ? [lanes[below].node] : [])];
    });
  }

  function paint({ row, engines }) {
    const of = (role) => engines.filter((engine) => engine.role === role).sort(byLabel);
    const places = layout(row, engines);
    const { left, right, below } = places;
    attr(node, "data-model", row.name);
    text(name, row.name);
    attr(name, "href", modelUrl(row.name));
    redraw(meta, JSON.stringify([row.tensor_parallel, row.gpus, rate(row.requests_per_s)]), () => headline(row));
    mode.paint(row);
    const found = verdicts(row);
    redraw(said, JSON.stringify(found), () => found.map(([className, words]) => el("span", { class: className }, words)));
    attr(rebalance, "href", modelUrl(row.name, "rebalance"));
    attr(rebalance, "class", found.some(([className]) => className === "badge bad") ? "btn small primary" : "btn small");
    hide(trial, !trialText(row));
    text(trial, trialText(row));
    attr(trial, "href", `${modelUrl(row.name)}#canary`);
    attr(mode.note, "href", modelUrl(row.name, "rebalance"));
    arrange(places);
    lanes[left].paint(row, of(left), false);
    if (right) lanes[right].paint(row, of(right), true);
    else outcome.paint(row, of(left));
    if (below) lanes[below].paint(row, of(below), true);
    flow.paint(row, Math.max(1, of(left).length), Math.max(1, right ? of(right).length : of(left).length));
  }

  return { node, paint };
}
