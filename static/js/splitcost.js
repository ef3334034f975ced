// What the planner's open proposals would make of the cost of the same traffic: a table of all, or the lines of one model.
import { el } from "./dom.js";
import { MISSING, number } from "./format.js";
import { gettext, ngettext } from "./i18n.js";

const dollars = (value) => (value == null ? MISSING : `$${number(value, 2)}`);
const gpus = (kinds) => Object.values(kinds).reduce((sum, count) => sum + count, 0);
const saved = (cost) => (cost.saved_per_month < 0 ? gettext("%(n)s more a month", { n: dollars(-cost.saved_per_month) }) : cost.saved_per_month > 0 ? gettext("%(n)s less a month", { n: dollars(cost.saved_per_month) }) : gettext("the same cost"));
const perMillion = (cost) => (cost.per_million_tokens_now == null ? MISSING : `${dollars(cost.per_million_tokens_now)} → ${dollars(cost.per_million_tokens_then)}`);
const guess = (gaps) => (gaps.length ? [" ", el("span", { class: "say warn", title: gaps.join("; ") }, el("span", { class: "sr" }, gaps.join("; ")))] : []);
const link = ({ proposal, title }) => el("a", { href: `/proposals/${proposal}`, title }, gettext("proposal %(n)s", { n: proposal }));

// Cells of a row per proposal, for a table of the page of costs.
export const HEADS = [[gettext("model")], [gettext("recommended")], [gettext("GPUs"), "r"], [gettext("an hour"), "r"], [gettext("difference"), "r"], [gettext("all, per 1M output"), "r opt"]];
export function rowOf(found) {
  const { model, now, then, cost, gaps, why_not: why } = found;
  const known = cost
    ? [el("td", { class: "r" }, `${dollars(cost.now_per_hour)} → ${dollars(cost.then_per_hour)}`), el("td", { class: "r" }, saved(cost)), el("td", { class: "r opt" }, perMillion(cost))]
    : [el("td", { class: "wrap", colspan: 3 }, el("span", { class: "say warn wrap" }, why))];
  return [el("th", { scope: "row", class: "wrap" }, model, ...guess(gaps)), el("td", { class: "wrap" }, link(found)), el("td", { class: "r" }, `${number(gpus(now))} → ${number(gpus(then))}`), ...known];
}

// One model's, in words; null without an open proposal.
export function wordsOf([found]) {
  if (!found) return null;
  const { now, then, cost, gaps, why_not: why } = found;
  if (!cost) return el("p", { class: "say warn wrap" }, why);
  const counts = ngettext("%(now)s → %(n)s GPU", "%(now)s → %(n)s GPUs", gpus(then), { now: number(gpus(now)), n: number(gpus(then)) });
  return el("p", {}, el("b", {}, gettext("At the recommended split:")), ` ${counts}, ${dollars(cost.now_per_hour)} → ${gettext("%(n)s an hour", { n: dollars(cost.then_per_hour) })}, ${saved(cost)}`, ...guess(gaps), " · ", link(found));
}
