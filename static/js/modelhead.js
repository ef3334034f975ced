// The head of a model's page: its mode, who owns it, its split, and how it does now; the way to its requests and its rebalancing.
import { modelUrl } from "./act.js";
import { attr, el, hide, redraw, text } from "./dom.js";
import { latencyText, MISSING, number, rate } from "./format.js";
import { gettext } from "./i18n.js";
import { makeMode } from "./modeswitch.js";
import { roleWord } from "./opwords.js";

const SLO_TARGET = 0.99; // an SLO is of the p99
const INK = { prefill: "p-ink", decode: "d-ink", mixed: "m-ink" };

// What stands in for the live row until one comes.
function desired(facts) {
  const ready = (role) => facts.engines.filter((engine) => engine.role === role && engine.state === "ready").length;
  const pools = facts.pools.map(({ role, desired: wanted }) => [role, { desired: wanted, engines: 0, ready: ready(role), waiting: null }]);
  return { name: facts.name, mode: facts.mode, served_mode: facts.served_mode, requests_per_s: null, pools: Object.fromEntries(pools) };
}

function splitNodes(parts) {
  return parts.flatMap(([role, { ready, desired: wanted }], index) => [
    index ? " : " : "",
    el("span", { class: INK[role] }, `${number(ready)}${ready === wanted ? "" : ` / ${number(wanted)}`} ${roleWord(role)}`),
  ]);
}

// openMode(mode): its dialog. requestsUrl(): with the page's time range. {paint(live row or undefined, facts), slo(found or
// null, facts)}: the last of the last hour's requests.
export function makeHead(panel, { name, models, openMode, requestsUrl }) {
  const mode = makeMode((_row, wanted) => openMode(wanted));
  const list = el("dl", { class: "facts" });
  const requests = el("a", { class: "btn" }, gettext("Requests"));
  const rebalance = el("a", { class: "btn primary", href: modelUrl(name, "rebalance") }, gettext("Rebalance"), " ", el("kbd", {}, "b"));
  const others = el("select", { class: "pick", "aria-label": gettext("Model") }, ...models.map((each) => el("option", { value: each, selected: each === name }, each)));
  others.addEventListener("change", () => location.assign(`${modelUrl(others.value)}${location.search}`));
  hide(others, models.length < 2);
  panel.append(mode.node, mode.note, list, el("span", { class: "end" }, others, requests, rebalance));

  function fact(words, className = "") {
    const value = el("dd", {}, MISSING);
    list.append(el("div", { class: className }, el("dt", {}, words), value));
    return value;
  }
  const owner = fact(gettext("owner"), "wide");
  const split = fact(gettext("split"));
  const within = fact(gettext("TTFT within SLO, 1 h"));
  const traffic = fact(gettext("traffic, 1 min"));
  const queue = fact(gettext("waiting now"), "wide");

  return {
    paint(live, facts) {
      const row = live ?? desired(facts);
      mode.paint(row);
      const parts = Object.entries(row.pools).filter(([, pool]) => pool.desired || pool.engines);
      redraw(split, JSON.stringify(parts.map(([role, pool]) => [role, pool.ready, pool.desired])), () => splitNodes(parts));
      text(owner, facts.team || MISSING);
      text(traffic, row.requests_per_s == null ? MISSING : gettext("%(n)s req/s", { n: rate(row.requests_per_s) }));
      const waiting = Object.values(row.pools).map((pool) => pool.waiting);
      text(queue, waiting.every((value) => value == null) ? MISSING : number(waiting.reduce((sum, value) => sum + (value ?? 0), 0)));
      attr(requests, "href", requestsUrl());
    },
    slo(found, facts) {
      const all = found?.requests.value;
      const good = all ? 1 - found.over_slo.value / all : null;
      const target = () => el("span", { class: "say bad" }, gettext("target %(n)s %", { n: number(100 * SLO_TARGET) }));
      redraw(within, `${good}`, () => (good === null ? [MISSING] : [`${number(100 * good, 1)} % `, good < SLO_TARGET ? target() : ""]));
      attr(within, "title", found ? gettext("%(over)s of %(all)s requests began later than %(limit)s", { over: number(found.over_slo.value), all: number(all), limit: latencyText(facts.slo.ttft_ms) }) : null);
    },
  };
}
