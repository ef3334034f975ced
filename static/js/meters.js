// Small SVG marks: meters with a limit, sparklines, GPU bars, histograms. Geometry is attributes, colors are classes.
import { redraw, svg } from "./dom.js";

const round = (value) => Math.round(value * 10) / 10;
const box = (x, y, width, height) => `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h-${round(width)}z`;

// A bar on a track. parts: [{className, value}] side by side, `scale` is the value of the full track, `limit` the tick.
export function meter(node, parts, scale, limit = null) {
  const widths = parts.map(({ className, value }) => [className, round((100 * Math.max(0, value)) / scale)]);
  redraw(node, JSON.stringify([widths, limit, scale]), () => {
    const shapes = [svg("path", { class: "fill-track", d: box(0, 2, 100, 5) })];
    let x = 0;
    for (const [className, width] of widths) {
      const shown = Math.min(width, 100 - x);
      if (shown > 0) shapes.push(svg("path", { class: className, d: box(x, 2, shown, 5) }));
      x += shown;
    }
    if (limit !== null) shapes.push(svg("path", { class: "limit", d: `M${round((100 * limit) / scale)} 0v9` }));
    return [svg("svg", { width: "100%", height: 9, viewBox: "0 0 100 9", preserveAspectRatio: "none", "aria-hidden": "true" }, ...shapes)];
  });
}

// A value against its limit; what lies beyond the limit is the one status fill there is.
export function limitMeter(node, value, limit) {
  if (value == null || !limit) return meter(node, [], 1);
  const parts = [{ className: "fill-x2", value: Math.min(value, limit) }];
  if (value > limit) parts.push({ className: "fill-bad", value: value - limit });
  return meter(node, parts, Math.max(limit * 1.2, value * 1.05), limit);
}

// The path of a line through values at x(index), y(value). A missing one breaks it; it is never joined and never 0. `dot` is
// drawn where a value stands alone.
export function brokenLine(values, x, y, dot = "") {
  let pen = "M";
  let path = "";
  values.forEach((value, index) => {
    if (value == null) {
      pen = "M";
      return;
    }
    path += `${pen}${x(index)} ${y(value)}${values[index + 1] == null && pen === "M" ? dot : ""}`;
    pen = "L";
  });
  return path;
}

function sparkPath(values) {
  const known = values.filter((value) => value != null);
  if (known.length < 2) return "";
  const low = Math.min(...known);
  const range = Math.max(...known) - low || 1;
  return brokenLine(values, (index) => round((100 * index) / (values.length - 1)), (value) => round(24 - (22 * (value - low)) / range));
}

export function spark(className = "ln thin x2") {
  const line = svg("path", { class: className });
  const node = svg("svg", { class: "spark", viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
  return {
    node,
    set(values) {
      const path = sparkPath(values ?? []);
      if (line.getAttribute("d") !== path) line.setAttribute("d", path);
    },
  };
}

// One bar per value (a share 0..1 or null) of a tile; null is a bare track.
export function bars(node, className, shares) {
  const gap = shares.length > 8 ? 1 : 2;
  const width = (44 - gap * (shares.length - 1)) / Math.max(1, shares.length);
  const heights = shares.map((share) => (share == null ? null : round(26 * Math.min(1, Math.max(0, share)))));
  redraw(node, `${className} ${JSON.stringify(heights)}`, () =>
    heights.flatMap((height, index) => {
      const x = index * (width + gap);
      const track = svg("path", { class: "t", d: box(x, 0, width, 26) });
      return height === null ? [track] : [track, svg("path", { class: className, d: box(x, 26 - height, width, height) })];
    }),
  );
}

// counts in buckets side by side; those from index `tail` on are faint.
export function histogram(node, counts, tail) {
  redraw(node, JSON.stringify([counts, tail]), () => {
    const most = Math.max(1, ...counts);
    return counts.map((count, index) => {
      const height = count ? Math.max(0.6, (23 * count) / most) : 0.3;
      return svg("path", { class: index >= tail ? "fill-x2" : "fill-x", d: box(4 * index, 24 - height, 3, height) });
    });
  });
  node.setAttribute("viewBox", `0 0 ${4 * counts.length - 1} 24`);
}
