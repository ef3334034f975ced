// A request's time as stages side by side. Up to the first byte all rows share one scale; the rest of the answer is a faint tail
// behind it, as long as its share of the longest one. Pure geometry in an SVG of 1,000 units.
import { svg } from "./dom.js";
import { valueTicks } from "./ticks.js";

export const WIDTH = 1000;
const HEAD = 800; // of it, for the time to the first byte
const CLASS = { queue: "q", retries: "retry", prefill: "fill-p", handoff: "fill-x", first_byte: "fill-m", decode: "tail" };
const THIN = ["queue", "decode"];
const FIRST = 5;

const round = (value) => Math.round(value * 10) / 10;
const headOf = (row) => row.stages.filter(({ name }) => name !== "decode").reduce((sum, stage) => sum + stage.duration_ms, 0);
const tailOf = (row) => row.stages.find(({ name }) => name === "decode")?.duration_ms ?? 0;

// What all rows of a page share: {top (ms), ticks, tail (ms)}.
export function scaleOf(rows) {
  const { top, ticks } = valueTicks(Math.max(0, ...rows.map(headOf)), 4);
  return { top, ticks, tail: Math.max(1, ...rows.map(tailOf)) };
}

export function waterfall(row, scale) {
  const x = (ms) => (HEAD * ms) / scale.top;
  const box = (className, from, width, thin) => svg("path", { class: className, d: thin ? `M${round(from)} 4h${round(width)}v6h-${round(width)}z` : `M${round(from)} 1h${round(width)}v12h-${round(width)}z` });
  const shapes = scale.ticks.map((tick) => svg("path", { class: "tick", d: `M${round(x(tick))} 0v14` }));
  for (const { name, start_ms: start, duration_ms: length } of row.stages) {
    if (name === "decode") shapes.push(box("tail", x(start) + (row.ttft_ms == null ? 0 : FIRST), ((WIDTH - HEAD - FIRST) * length) / scale.tail, true));
    else shapes.push(box(CLASS[name] ?? "q", x(start), Math.max(0.6, x(length)), THIN.includes(name)));
  }
  if (row.ttft_ms != null) shapes.push(box("first", x(headOf(row)), FIRST, false));
  return svg("svg", { class: "wf", viewBox: `0 0 ${WIDTH} 14`, preserveAspectRatio: "none", "aria-hidden": "true" }, ...shapes);
}

// The axis over them: [{share of the width, ms}].
export const axisOf = (scale) => [0, ...scale.ticks].map((tick) => ({ share: (HEAD * tick) / scale.top / WIDTH, ms: tick }));
