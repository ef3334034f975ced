// What all GPUs were held for, by model and pool: today and over 30 days. Asked for when seen, and once a minute then.
import { read } from "./act.js";
import { el, hide, redraw, text } from "./dom.js";
import { ROLE } from "./engines.js";
import { number, percent } from "./format.js";
import { gettext } from "./i18n.js";
import { emptied, failed } from "./panels.js";
import { takeAway } from "./takeaway.js";
import { hours } from "./usepanels.js";

const EVERY_MS = 60_000;
const SPANS = [
  ["today", gettext("today")],
  ["30 d", gettext("30 days")],
];

// [key, how to find the line in a span, its head cell, class]: a model, its pools, the spare GPUs, all together.
function linesOf(found) {
  const models = [...new Set(SPANS.flatMap(([span]) => found[span].models.map((each) => each.model)))];
  const pick = (model) => (waste) => waste.models.find((each) => each.model === model);
  const lines = models.flatMap((model) => {
    const had = SPANS.flatMap(([span]) => pick(model)(found[span])?.pools.map((pool) => pool.role) ?? []);
    const roles = [...new Set([...Object.keys(ROLE), ...had])].filter((role) => had.includes(role));
    const pool = (role) => ({ of: (waste) => pick(model)(waste)?.pools.find((each) => each.role === role), head: el("span", { class: `chip ${ROLE[role]?.letter ?? "s"}` }, ROLE[role]?.word ?? role), className: "part" });
    return [{ of: (waste) => pick(model)(waste)?.total, head: model, className: "sum" }, ...(roles.length > 1 ? roles.map(pool) : [])];
  });
  return [...lines, { of: (waste) => waste.spare, head: el("span", { class: "chip s" }, gettext("Spare")), className: "sum" }, { of: (waste) => waste.total, head: gettext("All GPUs"), className: "sum" }];
}

function cells(pool) {
  if (!pool) return [el("td", { class: "r dim", colspan: 4 }, gettext("nothing recorded"))];
  const { effective_gpus: working, gpus, held, wasted, unknown } = pool;
  const share = held.value ? ` ${percent(wasted.value / held.value)} %` : "";
  return [
    el("td", { class: "r" }, gettext("%(a)s of %(b)s", { a: number(working.value, 1), b: number(gpus.value, 1) })),
    el("td", { class: "r opt" }, hours(held)),
    el("td", { class: "r" }, hours(wasted), el("small", { class: "dim" }, share)),
    el("td", { class: "r soft opt" }, hours(unknown)),
  ];
}

function table(found) {
  const span = (words, colspan, className) => el("th", { class: `r span ${className}`, colspan, scope: "colgroup" }, words);
  const over = el("tr", {}, el("td"), ...SPANS.flatMap(([, words]) => [span(words, 4, "opt"), span(words, 2, "only-narrow")])); // two columns are left out where it is narrow
  const names = SPANS.flatMap(() => [[gettext("effective GPUs"), "r"], [gettext("held"), "r opt"], [gettext("wasted"), "r"], [gettext("not known"), "r opt"]]);
  const heads = el("tr", {}, el("th", { scope: "col" }, gettext("model, pool")), ...names.map(([words, className]) => el("th", { class: className, scope: "col" }, words)));
  const lines = linesOf(found).map(({ of, head, className }) => el("tr", { class: className }, el("th", { scope: "row" }, head), ...SPANS.flatMap(([span]) => cells(of(found[span])))));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": gettext("GPU hours") }, el("table", { class: "table waste" }, el("thead", {}, over, heads), el("tbody", {}, ...lines)));
}

export function makeWaste(panel) {
  const body = panel.querySelector("[data-body]");
  const foot = panel.querySelector("[data-foot]");
  const url = () => `${panel.dataset.url}?midnight=${Math.floor(new Date().setHours(0, 0, 0, 0) / 1000)}`;
  let nextAt = 0;
  let visible = false;

  async function load() {
    nextAt = Date.now() + EVERY_MS;
    const { ok, status, document: found } = await read(url());
    if (!ok) {
      const again = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
      again.addEventListener("click", load);
      redraw(body, `failed ${nextAt}`, () => [failed(gettext("Could not load: %(error)s", { error: found.error ?? found.reasons?.[0] ?? status }), again)]);
      return;
    }
    const some = found["30 d"].total.held.value;
    redraw(body, JSON.stringify(found), () => (some ? [table(found)] : [emptied(gettext("No GPU held yet"), gettext("GPU hours that models held, used and wasted, today and over 30 days."))]));
    const covered = found["30 d"].covered.value;
    hide(foot, !some || covered == null);
    text(foot, covered == null ? "" : gettext("Of the 30 days %(n)s % are recorded; hours are of those alone.", { n: covered < 0.01 ? number(100 * covered, 2) : percent(covered) }));
  }

  const frame = () => visible && !document.hidden && Date.now() >= nextAt && load();
  panel.querySelector("[data-end]").append(takeAway(gettext("GPU hours"), url));
  new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    frame();
  }).observe(panel);
  return { frame };
}
