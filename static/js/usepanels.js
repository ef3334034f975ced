// Two panels of a model's page: what a handoff's time is made of, and what its GPUs were held for.
import { el, redraw, svg } from "./dom.js";
import { latencyText, MISSING, number, percent } from "./format.js";
import { gettext } from "./i18n.js";
import { roleWord } from "./opwords.js";
import { emptied } from "./panels.js";

const PARTS = [
  ["transfer", gettext("KV transfer"), "fill-x"],
  ["decode_queue", gettext("decode queue"), "fill-s"],
  ["first_step", gettext("first step"), "fill-d"],
  ["rest", gettext("way there and back"), "fill-line"],
];

export function paintHandoff(body, split) {
  redraw(body, JSON.stringify(split), () => {
    if (split.handoff.value == null) return [emptied(gettext("No handoffs in this time"), gettext("Transfer, decode queue and first step of the mean handoff stand here."))];
    const known = PARTS.filter(([name]) => split[name].value != null);
    const total = known.reduce((sum, [name]) => sum + split[name].value, 0) || 1;
    let x = 0;
    const bars = known.map(([name, , className]) => {
      const width = (100 * split[name].value) / total;
      const bar = svg("rect", { class: className, x, y: 0, width, height: 10 });
      x += width;
      return bar;
    });
    const rows = PARTS.flatMap(([name, words, className]) => [el("dt", {}, svg("svg", { class: "key", viewBox: "0 0 9 9", "aria-hidden": "true" }, svg("rect", { class: className, width: 9, height: 9, rx: 2 })), words), el("dd", {}, latencyText(split[name].value))]);
    const sum = [el("dt", {}, el("b", {}, gettext("handoff, as routers saw it"))), el("dd", {}, el("b", {}, latencyText(split.handoff.value)))];
    const note = known.length < PARTS.length ? [el("p", { class: "meta" }, gettext("— : the engines do not tell this part."))] : [];
    return [svg("svg", { class: "splitbar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars), el("dl", { class: "kv" }, ...rows, ...sum), ...note];
  });
}

export const hours = (figure) => (figure?.value == null ? MISSING : number(figure.value, figure.value < 100 ? 1 : 0));

function spanRows(words, waste) {
  if (!waste) return [el("tr", {}, el("th", { scope: "row" }, words), el("td", { colspan: 4, class: "dim" }, gettext("nothing recorded")))];
  const line = (name, pool, className) => {
    const { effective_gpus: working, gpus } = pool;
    return el("tr", { class: className }, el("th", { scope: "row" }, name), el("td", { class: "r" }, hours(pool.held)), el("td", { class: "r" }, hours(pool.wasted), el("small", { class: "dim" }, pool.held.value ? ` ${percent(pool.wasted.value / pool.held.value)} %` : "")), el("td", { class: "r soft opt" }, hours(pool.unknown)), el("td", { class: "r" }, gettext("%(a)s of %(b)s", { a: number(working.value, 1), b: number(gpus.value, 1) })));
  };
  return [line(words, waste.total, "sum"), ...(waste.pools.length > 1 ? waste.pools.map((pool) => line(roleWord(pool.role), pool, "part")) : [])];
}

// found: {"today": …, "30 d": …}, each of the model or null.
export function paintWaste(body, found) {
  redraw(body, JSON.stringify(found), () => {
    if (!found.today && !found["30 d"]) return [el("div", { class: "body" }, emptied(gettext("No GPU held yet"), gettext("GPU hours that this model held, used and wasted, today and over 30 days.")))];
    const head = el("tr", {}, el("th", {}, el("span", { class: "sr" }, gettext("Time"))), ...[gettext("held"), gettext("wasted")].map((words) => el("th", { class: "r", scope: "col" }, words)), el("th", { class: "r opt", scope: "col" }, gettext("not known")), el("th", { class: "r", scope: "col" }, gettext("effective GPUs")));
    return [el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": gettext("Table of GPU hours") }, el("table", { class: "table waste" }, el("thead", {}, head), el("tbody", {}, ...spanRows(gettext("today"), found.today), ...spanRows(gettext("30 days"), found["30 d"]))))];
  });
}
