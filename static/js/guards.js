// What a change must keep, and how it stands now.
import { el, redraw } from "./dom.js";
import { clock, latencyText, number, percent } from "./format.js";
import { gettext } from "./i18n.js";
import { MODES, roleWord, verbOf } from "./opwords.js";

const GLYPH = { ok: ["glyph", "✓"], warn: ["glyph warn", "▲"], bad: ["glyph bad", "✕"], watch: ["glyph dim", "○"] };

function floors(facts, plan) {
  const pools = plan?.pools.length ? plan.pools : null;
  if (pools) {
    const low = pools.some((pool) => pool.lowest < pool.floor && pool.now >= pool.floor);
    const words = pools.map((pool) => `${roleWord(pool.pool.split("/").at(-1))} ${number(pool.lowest)}`).join(", ");
    return [low ? "warn" : "ok", gettext("Each pool keeps its floor of serving engines meanwhile"), gettext("lowest: %(pools)s", { pools: words })];
  }
  const words = facts.pools.filter((pool) => pool.desired).map((pool) => `${roleWord(pool.role)} ${number(pool.floor)}`).join(", ");
  return ["ok", gettext("Each pool keeps its floor of serving engines meanwhile"), gettext("floor: %(pools)s", { pools: words })];
}

function others(facts, running) {
  const words = gettext("No other operation on this model");
  if (running) return ["bad", words, `${verbOf(running)} ${running.number}`];
  if (facts.canary) return ["warn", words, gettext("canary %(mode)s %(share)s %", { mode: MODES[facts.canary.mode], share: percent(facts.canary.share) })];
  return ["ok", words, gettext("none")];
}

function slo(name, p99, limit) {
  const kind = p99 == null ? "watch" : p99 > limit ? "warn" : "ok";
  return [kind, gettext("%(name)s p99 under its SLO (watched, stops nothing)", { name }), p99 == null ? gettext("no requests") : `${latencyText(p99)} / ${latencyText(limit)}`];
}

// {facts: of the model, plan or null, row: live model row or null, running: another operation or null, traffic or null}
export function paintGuards(list, { facts, plan, row, running, traffic }) {
  const found = [
    floors(facts, plan),
    ["ok", gettext("A new role counts once KV was seen to move both ways, else the engine goes back"), gettext("each engine")],
    others(facts, running),
  ];
  if (traffic?.lost != null) found.splice(1, 0, [traffic.lost ? "bad" : "ok", gettext("No request lost"), number(traffic.lost)]);
  if (facts.strict) found.push(["ok", gettext("Strict: no pool that the mode needs may be empty"), gettext("refused")]);
  if (facts.frozen) found.push(["bad", facts.frozen.reason || gettext("Changes are forbidden"), gettext("until %(time)s", { time: clock(facts.frozen.until) })]);
  if (row) found.push(slo("TTFT", row.ttft.p99, row.slo_ttft_ms), slo("ITL", row.itl.p99, row.slo_itl_ms));
  redraw(list, JSON.stringify(found), () =>
    found.map(([kind, words, value]) => el("li", {}, el("span", { class: GLYPH[kind][0] }, GLYPH[kind][1]), el("span", {}, words), el("b", { class: "num" }, value))),
  );
}
