// Tables of the engine page: what it was launched with, whom it hands KV to, its starts, and what was done with it.
import { el } from "./dom.js";
import { ROLE } from "./engines.js";
import { byteRate, clock, clockSeconds, date, duration, latencyText, MISSING, number, utc } from "./format.js";
import { gettext } from "./i18n.js";
import { outcomeOf, stateOf, verbOf } from "./opwords.js";
import { emptied } from "./panels.js";
import { now } from "./clock.js";

const moment = (at) => el("span", { title: utc(at) }, `${date(at)} ${clockSeconds(at)}`);

function table(name, heads, lines) {
  const head = heads.map(([words, className]) => el("th", { class: className, scope: "col" }, words));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": name }, el("table", { class: "table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...lines)));
}

const shown = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : String(value));

export function launchNodes(facts) {
  const { launch } = facts;
  const gpus = facts.ranks.flatMap((rank) => rank.gpus);
  const kinds = [...new Set(gpus.map((gpu) => gpu.kind))].join(", ");
  const line = (name, value) => (value === "" || value == null ? [] : [el("dt", {}, name), el("dd", {}, value)]);
  return [
    el(
      "dl",
      { class: "kv" },
      ...line(gettext("kind"), facts.kind),
      ...line(gettext("source"), launch.source),
      ...line(gettext("GPUs"), gpus.length ? `${number(gpus.length)} × ${kinds}` : ""),
      ...line(gettext("tensor × pipeline"), `${launch.tensor_parallel} × ${launch.pipeline_parallel}`),
      ...line(gettext("connector"), launch.connector),
      ...line(gettext("KV lease"), `${number(launch.kv_lease_s)} s`),
      ...line(gettext("address"), el("span", { class: "mono" }, facts.url || MISSING)),
      ...line(gettext("pairs with"), facts.compat ? el("span", { class: "mono" }, facts.compat.slice(0, 16)) : ""),
      ...line(gettext("pool wants"), facts.pool ? gettext("%(n)s engines, floor %(floor)s", { n: number(facts.pool.desired), floor: number(facts.pool.floor) }) : ""),
      ...line(gettext("share of work"), facts.weight === 1 ? "" : number(facts.weight, 2)),
      ...line(gettext("failures in a row"), facts.failures ? number(facts.failures) : ""),
      ...line(gettext("next try"), facts.retry_at && facts.state === "failed" ? clockSeconds(facts.retry_at) : ""),
      ...line(gettext("moving to"), facts.next_role ? `${ROLE[facts.next_role]?.word ?? facts.next_role} · ${facts.move_phase}` : ""),
      ...Object.entries(launch.args).flatMap(([name, value]) => line(el("span", { class: "mono" }, name), el("span", { class: "mono" }, shown(value)))),
    ),
    ...(launch.outdated ? [el("p", { class: "say warn wrap" }, gettext("Its pool launches something else now: a roll-out or a restart replaces it."))] : []),
    ...(facts.wanted ? [] : [el("p", { class: "say idle wrap" }, gettext("It is not wanted any more: this is what is left of it."))]),
  ];
}

const PROBE = { verified: ["ok", gettext("verified")], failed: ["bad", gettext("failed")], asked: ["run", gettext("being probed")] };

function peerLine(peer, labels) {
  const [label, role] = labels[peer.peer] ?? [peer.peer, ""];
  const [kind, word] = PROBE[peer.state] ?? ["idle", gettext("not probed")];
  const moved = byteRate(peer.bytes_per_s?.value);
  const cells = [peer.handoffs?.value == null ? MISSING : number(peer.handoffs.value), latencyText(peer.p50?.value), latencyText(peer.p99?.value), `${moved.value} ${moved.unit}`.trim(), peer.failed?.value == null ? MISSING : number(peer.failed.value)];
  return el(
    "tr",
    {},
    el("td", {}, el("span", { class: "dim" }, peer.direction === "to" ? gettext("to") : gettext("from")), " ", el("a", { class: `chip ${ROLE[role]?.letter ?? "s"}`, href: `/engines/${encodeURIComponent(peer.peer)}` }, label)),
    el("td", { title: peer.probe_reason }, el("span", { class: `say ${kind}` }, word), peer.probe_ms == null ? "" : ` ${latencyText(peer.probe_ms)}`),
    ...cells.map((value) => el("td", { class: "r" }, value)),
  );
}

export function peersNodes({ peers, labels }, facts) {
  if (!peers.length) {
    const words = facts.launch.connector === "none" || facts.role === "mixed" ? gettext("It serves whole requests: no KV goes from or to it.") : gettext("Once a pair is probed or a request was handed over it stands here.");
    return [emptied(gettext("No peers"), words)];
  }
  const heads = [[gettext("peer"), ""], [gettext("probe"), ""], [gettext("handoffs"), "r"], ["p50", "r"], ["p99", "r"], [gettext("KV by the clock"), "r"], [gettext("failed"), "r"]];
  return [table(gettext("peers"), heads, peers.map((peer) => peerLine(peer, labels)))];
}

function startLine(start) {
  const until = start.ended_at ?? now();
  return el(
    "tr",
    {},
    el("td", { class: "r" }, number(start.number)),
    el("td", {}, moment(start.started_at)),
    el("td", { class: "r" }, start.ready_at ? duration(start.ready_at - start.started_at) : MISSING),
    el("td", { class: "r" }, start.ended_at ? duration(until - start.started_at) : gettext("runs")),
    el("td", { class: "wrap" }, start.reason),
  );
}

export function startsNodes(facts) {
  if (!facts.starts.length) return [emptied(gettext("Not started yet"), gettext("Each start stands here, with how long it took and how it ended."))];
  const heads = [["#", "r"], [gettext("began"), ""], [gettext("ready after"), "r"], [gettext("lasted"), "r"], [gettext("how it ended"), ""]];
  return [table(gettext("starts"), heads, facts.starts.map(startLine))];
}

export function doneNodes(facts) {
  if (!facts.operations.length) return [el("li", {}, el("span"), el("span", { class: "soft" }, gettext("Nothing yet.")))];
  return facts.operations.map((row) => {
    const [kind, word] = stateOf(row);
    return el(
      "li",
      {},
      el("span", { class: "when", title: utc(row.created_at) }, clock(row.created_at)),
      el("a", { class: "what", href: `/operations/${row.number}` }, verbOf(row)),
      el("span", { class: "act" }, el("span", { class: `say ${kind}` }, word)),
      el("span", { class: "why" }, [row.actor, row.reason, outcomeOf({ ...row, steps_total: 0 })].filter(Boolean).join(" · ")),
    );
  });
}
