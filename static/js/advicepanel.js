// The advice on a model's page: the verdict and its checks from the model's own traffic, and how the planner stands to it.
import { basis, GLYPHS, LIMITS, title, TITLES } from "./adviceview.js";
import { el, redraw } from "./dom.js";
import { span } from "./format.js";
import { gettext } from "./i18n.js";
import { accuracyWords, holdOf, LEVELS } from "./proposalwords.js";

const STATES = { pass: ["glyph ok", "✓"], fail: ["glyph bad", "✕"], unknown: ["glyph dim", "○"] };
const WARNS = ["kv_network", "prefix_hits"]; // these never decide

function checkNode(check) {
  const [className, glyph] = check.state === "fail" && WARNS.includes(check.name) ? ["glyph warn", "▲"] : STATES[check.state];
  const facts = [gettext("threshold: %(limit)s", { limit: LIMITS[check.name] ?? check.threshold_text }), basis(check)].join(" · ");
  return el("li", { title: check.sentence }, el("span", { class: className, "aria-hidden": "true" }, glyph), el("span", {}, TITLES[check.name] ?? check.title), el("b", { class: "num" }, check.value_text), el("span", { class: "why" }, facts), el("span", { class: "why", lang: "en" }, check.sentence));
}

function stanceNodes({ level, hold, proposal, accuracy }, settings) {
  const buttons = [...(proposal ? [el("a", { class: "btn small primary", href: `/proposals/${proposal}` }, gettext("Review proposal %(n)s", { n: proposal }))] : []), el("a", { class: "btn small", href: settings }, gettext("Planner: %(level)s", { level: LEVELS[level] ?? level }))];
  const holds = !proposal && hold ? [el("p", {}, el("span", { class: `say ${holdOf(hold.code)[0]}` }, holdOf(hold.code)[1]), " ", el("span", { class: "soft", lang: "en" }, hold.reason), " ", el("span", { class: "meta" }, gettext("for %(time)s", { time: span(hold.seen_at - hold.since) })))] : [];
  const waits = !proposal && !hold ? [el("p", { class: "soft" }, gettext("The planner has not looked yet: it looks at every model each minute."))] : [];
  return [el("h3", {}, gettext("Planner")), ...holds, ...waits, el("p", { class: "row-btns" }, ...buttons, el("span", { class: "meta" }, gettext("predictions off by: %(off)s", { off: accuracyWords(accuracy) })))];
}

// found: {advice, stance, advisor, settings}.
export function paintAdvice(body, { advice, stance, advisor, settings }) {
  redraw(body, JSON.stringify([advice, stance]), () => {
    const [kind, glyph] = GLYPHS[advice.verdict];
    return [
      el("div", { class: "verdict" }, el("strong", {}, el("span", { class: `verdict-glyph ${kind}`, "aria-hidden": "true" }, glyph), title(advice)), el("span", { class: "soft", lang: "en" }, advice.sentence)),
      el("ul", { class: "checks" }, ...advice.checks.map(checkNode)),
      el("p", { class: "row-btns" }, el("a", { class: "btn small", href: advisor }, gettext("Open in the advisor"))),
      ...stanceNodes(stance, settings),
    ];
  });
}
