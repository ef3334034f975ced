// What an operation brought: figures of the time before it and of the time after it.
import { el } from "./dom.js";
import { latencyText, MISSING, number, percent } from "./format.js";
import { gettext } from "./i18n.js";
import { isOver } from "./opwords.js";
import { emptied } from "./panels.js";

const money = (value) => (value == null ? MISSING : `$${number(value, 2)}`);
const FIGURES = [
  [gettext("TTFT p99"), (side) => side.ttft_ms?.p99, latencyText],
  [gettext("TTFT p50"), (side) => side.ttft_ms?.p50, latencyText],
  [gettext("ITL p99"), (side) => side.itl_ms?.p99, latencyText],
  [gettext("Effective GPUs"), (side) => side.effective_gpus, (value) => number(value, 1)],
  [gettext("Cost per 1M out"), (side) => side.cost_per_million_tokens, money],
  [gettext("Requests"), (side) => side.requests, (value) => number(value)],
];

function change(before, after) {
  if (before == null || after == null || before === 0) return MISSING;
  const share = after / before - 1;
  return `${share > 0 ? "+" : share < 0 ? "−" : ""}${percent(Math.abs(share))} %`;
}

export function measuredNodes(measured, row) {
  const { before, after } = measured ?? {};
  if (!before || !after) {
    const words = measured?.gaps ? measured.gaps.join(" · ") : isOver(row) ? gettext("The time after it is still being measured; then both stand here.") : gettext("Once it has ended, the 15 minutes before it stand here beside the 15 minutes after it.");
    return [emptied(gettext("Not measured yet"), words)];
  }
  const cells = ([words, of, show]) => [el("td", {}, words), el("td", { class: "r now" }, show(of(before))), el("td", { class: "r then" }, show(of(after))), el("td", { class: "r soft" }, change(of(before), of(after)))];
  const lines = FIGURES.map((figure) => el("tr", {}, ...cells(figure)));
  const head = el("tr", {}, ...[gettext("metric"), gettext("before"), gettext("after"), gettext("change")].map((words, index) => el("th", { class: index ? "r" : "" }, words)));
  const gaps = [...before.gaps.map((gap) => gettext("before: %(gap)s", { gap })), ...after.gaps.map((gap) => gettext("after: %(gap)s", { gap }))];
  const foot = gaps.length ? [el("p", { class: "panel-foot" }, gaps.join(" · "))] : [];
  return [el("div", { class: "scroll", tabindex: "0", role: "group", "aria-labelledby": "measured-title" }, el("table", { class: "table fc" }, el("thead", {}, head), el("tbody", {}, ...lines))), ...foot];
}
