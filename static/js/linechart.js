// A few lines over time as plain SVG, for small charts that need no library: Y from 0, gaps stay gaps, a dashed limit with
// its words, dotted verticals for what was done.
import { el, svg } from "./dom.js";
import { clock, MISSING } from "./format.js";
import { brokenLine } from "./meters.js";

const WIDTH = 1000;
const TOP = 16;
const FOOT = 18; // below the axis
const EDGE = 0.92; // a name further right than this ends at its line
const NEAR = 0.07; // names of marks nearer than this share of the width are left out

const tenths = (value) => Math.round(10 * value) / 10;
const lastOf = (values) => values.findLast((value) => value != null);

function line(values, y) {
  const last = values.length - 1;
  return brokenLine(values, (index) => (last ? tenths((WIDTH * index) / last) : WIDTH), y, "h.1");
}

// marks: [{at (Unix s), words}] in order of time, those outside left out.
function placed(marks, from, to) {
  const share = (at) => (to > from ? (at - from) / (to - from) : 1);
  const found = [];
  let last = -1;
  for (const { at, words } of marks) {
    if (at == null || share(at) < 0 || share(at) > 1) continue;
    found.push({ at: share(at), words: share(at) - last > NEAR ? words : "" });
    if (found.at(-1).words) last = found.at(-1).at;
  }
  return found;
}

// lines: [{words, className, values}], each with a value per cell between `from` and `to` (Unix s); limit: {value, words} or
// null; show(value): its text with the unit; least: the top of the chart is never lower. A lone line needs no words.
export function lineChart({ title, lines, from, to, limit = null, marks = [], show, height = 168, least = 0 }) {
  const floor = height - FOOT;
  const known = lines.flatMap(({ values }) => values.filter((value) => value != null));
  const most = 1.15 * Math.max(limit?.value ?? 0, least, ...known) || 1;
  const y = (value) => tenths(floor - ((floor - TOP) * value) / most);
  const at = placed(marks, from, to);
  const frame = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", width: "100%", height },
    svg("path", { class: "axis", d: `M0 ${floor}H${WIDTH}` }),
    ...at.map((mark) => svg("path", { class: "mark dot", d: `M${Math.round(WIDTH * mark.at)} 12V${floor}` })),
    ...lines.map(({ className, values }) => svg("path", { class: `ln ${className}`, d: line(values, y) })),
    ...(limit ? [svg("path", { class: "slo", d: `M0 ${y(limit.value)}H${WIDTH}` })] : []),
  );
  const words = (x, down, text, anchor, className = "") => svg("text", { class: className, x, y: down, "text-anchor": anchor }, text);
  const latest = lines.map(({ words: name, className, values }) => ({ name, className, value: show(lastOf(values)) }));
  const said = latest.map(({ name, value }) => [name, value === "" ? MISSING : value].filter(Boolean).join(" ")).join(", ");
  const legend = latest.length > 1 ? el("span", { class: "series" }, ...latest.map(({ name, className, value }) => el("span", { class: className }, `${name} ${value}`))) : el("span", { class: "dim" }, said);
  return el(
    "div",
    {},
    el("h3", { class: "chart-head" }, title, " ", legend),
    svg(
      "svg",
      { class: "chart", height, role: "img", "aria-label": `${title}: ${said}` },
      frame,
      limit ? words(0, y(limit.value) - 4, limit.words, "start", "lab") : known.length ? words(0, TOP - 6, show(most / 1.15), "start") : null,
      ...at.filter((mark) => mark.words).map((mark) => words(`${tenths(100 * mark.at)}%`, 10, mark.words, mark.at > EDGE ? "end" : "middle", "lab")),
      words("0%", height - 4, clock(from), "start"),
      words("100%", height - 4, clock(to), "end"),
    ),
  );
}
