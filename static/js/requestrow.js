// One request in the list: its line, and the lines that open under it.
import { attr, el, redraw, text } from "./dom.js";
import { clockSeconds, latencyText, MISSING, number, percent, utc } from "./format.js";
import { gettext, ngettext } from "./i18n.js";
import { isChanged, reasonSentence } from "./reasons.js";
import { waterfall } from "./waterfall.js";

const INK = { prefill: "p-ink", decode: "d-ink", mixed: "m-ink" };
const OUTCOMES = {
  ok: ["ok", gettext("answered")],
  client_error: ["warn", gettext("the client's error")],
  engine_error: ["bad", gettext("failed by us")],
  cancelled: ["idle", gettext("cancelled by the client")],
  cut: ["bad", gettext("cut off")],
};
const STAGES = {
  queue: gettext("queue"),
  retries: gettext("failed legs"),
  prefill: gettext("prefill"),
  handoff: gettext("handoff"),
  first_byte: gettext("to the first byte"),
  decode: gettext("rest of the answer"),
};

export const outcomeWord = (outcome) => OUTCOMES[outcome]?.[1] ?? outcome;
// Ids of one router begin alike: the end tells them apart.
const shortId = (id) => (id.length > 10 ? `…${id.slice(-8)}` : id);
const isLate = (row) => row.stream && row.slo_ttft_ms != null && row.ttft_ms != null && row.ttft_ms > row.slo_ttft_ms;

function engineWord(id, labels) {
  const [label, role] = labels[id] ?? [id, ""];
  return el("span", { class: INK[role] ?? "", title: id }, label);
}

// "P3 → D6", "whole D5", or nothing where no engine was asked.
function route(row, labels) {
  if (row.prefill_engine && row.decode_engine) return [engineWord(row.prefill_engine, labels), el("span", { class: "dim" }, " → "), engineWord(row.decode_engine, labels)];
  const one = row.decode_engine || row.prefill_engine;
  return one ? [el("span", { class: "dim opt" }, `${gettext("whole")} `), engineWord(one, labels)] : [el("span", { class: "dim" }, MISSING)];
}

function verdict(row) {
  if (row.outcome !== "ok") {
    const [kind, word] = OUTCOMES[row.outcome] ?? ["bad", row.outcome];
    return el("span", { class: `say ${kind}`, title: word }, el("span", { class: "sr" }, word));
  }
  const late = isLate(row);
  return el("span", { class: late ? "say bad" : "say ok" }, el("span", { class: "sr" }, late ? gettext("over SLO") : gettext("within SLO")));
}

export function makeLine({ toggle }) {
  const open = el("button", { class: "link mono", type: "button" });
  const cells = Object.fromEntries(["id", "start", "model", "prompt", "output", "cached", "route", "reason", "wf", "ttft", "slo", "rest"].map((name) => [name, el("td")]));
  for (const [name, className] of Object.entries({ start: "soft opt", model: "opt", prompt: "r opt", output: "r opt", cached: "r soft opt", route: "route", reason: "opt", wf: "wfc", ttft: "r", rest: "r soft opt" })) attr(cells[name], "class", className);
  cells.id.append(open);
  const node = el("tr", { class: "req" }, ...Object.values(cells));
  let row = null;
  open.addEventListener("click", () => toggle(row));
  return {
    node,
    paint(item) {
      ({ row } = item);
      const { labels, scale, isOpen } = item;
      attr(node, "data-request", row.id);
      attr(node, "class", isOpen ? "req open" : "req");
      attr(open, "aria-expanded", isOpen ? "true" : "false");
      attr(open, "title", row.id);
      text(open, shortId(row.id));
      text(cells.start, clockSeconds(row.at));
      attr(cells.start, "title", utc(row.at));
      text(cells.model, row.model);
      text(cells.prompt, number(row.prompt_tokens));
      text(cells.output, number(row.output_tokens));
      text(cells.cached, row.prompt_tokens && row.cached_tokens != null ? `${percent(row.cached_tokens / row.prompt_tokens)} %` : MISSING);
      redraw(cells.route, JSON.stringify([row.prefill_engine, row.decode_engine, labels]), () => route(row, labels));
      redraw(cells.reason, row.reason, () => [el("span", { class: isChanged(row.reason) ? "code warn" : "code", title: reasonSentence(row.reason) }, row.reason)]);
      redraw(cells.wf, JSON.stringify([row.stages, scale]), () => [waterfall(row, scale)]);
      redraw(cells.ttft, `${row.ttft_ms}`, () => [el("b", { class: "num" }, latencyText(row.ttft_ms))]);
      redraw(cells.slo, `${row.outcome} ${isLate(row)}`, () => [verdict(row)]);
      text(cells.rest, row.total_ms == null || row.ttft_ms == null ? MISSING : latencyText(row.total_ms - row.ttft_ms));
    },
  };
}

const pairs = (list) => el("dl", { class: "kv" }, ...list.flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]));

function why(row, labels) {
  const lines = [el("h3", {}, gettext("Why this way")), el("p", { class: "soft wrap" }, el("span", { class: isChanged(row.reason) ? "code warn" : "code" }, row.reason), " ", reasonSentence(row.reason))];
  const legs = { prefill: gettext("prefill"), decode: gettext("decode"), whole: gettext("whole") };
  const passed = row.passed.map(({ leg, engine, score_s: score }) => el("li", {}, `${legs[leg] ?? leg}: `, engineWord(engine, labels), ` ${gettext("in %(time)s", { time: latencyText(1000 * score) })}`));
  if (passed.length) lines.push(el("h3", {}, gettext("Passed over, with when they could have begun")), el("ul", { class: "soft" }, ...passed));
  return el("div", {}, ...lines);
}

function facts(row, sessionUrl) {
  const bytes = row.kv_bytes == null ? MISSING : `${number(row.kv_bytes / 1e9, 2)} GB`;
  const list = [
    [gettext("id"), el("span", { class: "mono" }, row.id)],
    [gettext("outcome"), `${outcomeWord(row.outcome)}, HTTP ${row.status}`],
    [gettext("team of its key"), row.team || MISSING],
    [gettext("KV handed over"), bytes],
    [gettext("between tokens p50, p99"), `${latencyText(row.itl_p50_ms)}, ${latencyText(row.itl_p99_ms)}`],
    [gettext("asked again, carried on"), `${number(row.retries)}, ${number(row.resumes)}`],
    [gettext("arm, router"), `${row.arm}, ${row.router}`],
    [gettext("session"), row.session ? el("a", { class: "mono", href: sessionUrl(row) }, row.session) : MISSING],
  ];
  if (row.weight > 1) list.push([gettext("stands for"), ngettext("%(n)s request", "%(n)s requests", row.weight, { n: number(row.weight) })]);
  return pairs(list);
}

// The lines under an open request. columns: of the table; sessionUrl(row): of the requests of its session.
export function makeDetail(columns, sessionUrl) {
  const cell = el("td", { colspan: columns });
  const node = el("tr", { class: "detail" }, cell);
  return {
    node,
    paint({ row, labels }) {
      redraw(cell, JSON.stringify([row, labels]), () => {
        const stages = row.stages.map(({ name, duration_ms: length }) => [STAGES[name] ?? name, latencyText(length)]);
        return [el("div", { class: "grid4" }, why(row, labels), pairs([...stages, [gettext("all of it"), latencyText(row.total_ms)]]), facts(row, sessionUrl))];
      });
    },
  };
}
