// A chart of lines over time in a panel of its own: name and last values in the header, the SLO dashed, operations dotted, gaps
// open, one crosshair for all charts of the page. Drawn by Plotly, only while it is seen.
import { attr, el, redraw } from "./dom.js";
import { clock, day } from "./format.js";
import { gettext } from "./i18n.js";
import { verbWord } from "./opwords.js";
import { emptied, failed } from "./panels.js";
import { CONFIG, css, plain, plotly, template, wall } from "./plotly.js";
import { above, valueTicks } from "./ticks.js";

const HEIGHT = 158;
const NEAR = 0.09; // names of operations nearer than this share of the width are left out
const DAY_S = 86400;
const charts = new Set();

// A moment under an axis: with its day where the chart spans several.
export const moment = (at, span) => (span > 1.5 * DAY_S ? `${day(at)} ${span > 8 * DAY_S ? "" : clock(at)}`.trim() : clock(at));

function timeLabels({ since, until }, shares = [0, 0.25, 0.5, 0.75, 1]) {
  return shares.map((share) => ({
    text: moment(since + share * (until - since), until - since),
    x: share,
    xref: "paper",
    xanchor: share === 0 ? "left" : share === 1 ? "right" : "center",
    y: 0,
    yref: "paper",
    yanchor: "top",
    yshift: -2,
    showarrow: false,
  }));
}

const dotted = (color, dash) => ({ color, width: 1, dash });

// {shapes, annotations} of operations that began within the window.
function operations(markers, { since, until }) {
  const shapes = [];
  const annotations = [];
  let last = -1;
  for (const marker of markers) {
    const share = (marker.started_at - since) / (until - since);
    if (share < 0 || share > 1) continue;
    shapes.push({ type: "line", x0: wall(marker.started_at), x1: wall(marker.started_at), y0: 0, y1: 1, yref: "paper", line: dotted(css("--ink-3"), "dot") });
    if (share - last < NEAR) continue;
    last = share;
    annotations.push({ text: plain(verbWord(marker.verb)), x: wall(marker.started_at), y: 1, yref: "paper", yanchor: "bottom", xanchor: share < 0.1 ? "left" : share > 0.9 ? "right" : "center", showarrow: false, font: { color: css("--ink-2") } });
  }
  return { shapes, annotations };
}

// Layout of every chart over `window`; `y` is added to its value axis.
export function layoutOf({ window, markers }, y, more = { shapes: [], annotations: [] }) {
  const base = template();
  const marks = operations(markers, window);
  return {
    ...base,
    height: HEIGHT,
    hovermode: "x unified",
    xaxis: { ...base.xaxis, range: [wall(window.since), wall(window.until)], showticklabels: false, showspikes: false, ticks: "", hoverformat: "%d %b %H:%M:%S" },
    yaxis: { ...base.yaxis, autorange: false, ticks: "", ticklabelposition: "inside top", tickfont: { size: 11, color: css("--ink-3") }, ...y },
    shapes: [...marks.shapes, ...more.shapes],
    annotations: [...timeLabels(window), ...marks.annotations, ...more.annotations],
  };
}

// One line: cells as points at their middle. A point alone between two gaps is no line: it gets a dot.
function tracesOf(line, { start, step_s: step, values }, show) {
  const x = values.map((_, index) => wall(start + (index + 0.5) * step));
  const color = css(line.color);
  const alone = values.flatMap((value, index) => (value != null && values[index - 1] == null && values[index + 1] == null ? [index] : []));
  const dots = { type: "scatter", mode: "markers", x: alone.map((index) => x[index]), y: alone.map((index) => values[index]), hoverinfo: "skip", marker: { color, size: 4 } };
  return [
    {
      type: "scatter",
      mode: "lines",
      name: plain(line.words),
      x,
      y: values,
      text: values.map((value) => plain(show(value))),
      hovertemplate: "%{text}",
      connectgaps: false,
      line: { color, width: line.width ?? 1.6, dash: line.dash ?? "solid" },
    },
    ...(alone.length ? [dots] : []),
  ];
}

function overTrace(found, limit) {
  const xs = found.values.map((_, index) => found.start + (index + 0.5) * found.step_s);
  const { x, y } = above(found.values, xs, limit);
  return { type: "scatter", mode: "lines", x: x.map((at) => (at === null ? null : wall(at))), y, fill: "toself", fillcolor: css("--over"), line: { width: 0 }, hoverinfo: "skip" };
}

function limitMarks(limit, show) {
  const line = { type: "line", xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit, line: dotted(css("--ink-2"), "dash") };
  const words = { text: gettext("SLO %(limit)s", { limit: show(limit) }), xref: "paper", x: 0, xanchor: "left", y: limit, yanchor: "bottom", showarrow: false, font: { color: css("--ink-2") } };
  return { shapes: [line], annotations: [words] };
}

// What a chart of lines shows: {traces, layout}; null when nothing is known. spec: {lines: [{key, words, color, width, dash}],
// show(value), limit, most}; found: key -> series.
export function linesOf(spec, found, state) {
  const lines = spec.lines.filter(({ key }) => found[key]?.values.some((value) => value != null));
  if (!lines.length) return null;
  const known = lines.flatMap(({ key }) => found[key].values.filter((value) => value != null));
  const { top, ticks } = valueTicks(spec.most ?? Math.max(...known, spec.limit ?? 0) * 1.04);
  const over = spec.limit ? [overTrace(found[lines.at(-1).key], spec.limit)] : [];
  const traces = [...over, ...lines.flatMap((line) => tracesOf(line, found[line.key], spec.show))];
  const free = ticks.filter((tick) => !spec.limit || Math.abs(tick - spec.limit) > top / 8); // the limit has words of its own
  const y = { range: [0, top], tickvals: free, ticktext: free.map((tick) => plain(spec.show(tick))) };
  return { traces, layout: layoutOf(state, y, spec.limit ? limitMarks(spec.limit, spec.show) : undefined) };
}

export const lastOf = (found) => found?.values.findLast((value) => value != null) ?? null;

function cross(event) {
  const at = event?.points?.[0]?.x ?? null;
  for (const chart of charts) chart.cross(at);
}

// panel -> {node, paint(found, state), failed(error, again)}. draw(found, state) -> {traces, layout} or null; header(found) ->
// [[class, words]].
export function makeChart({ id, title, meta = "", draw, header, source, tools = [] }) {
  const series = el("span", { class: "series" });
  const note = el("span", { class: "stale-note" });
  const plot = el("div", { class: "plot chartplot" });
  const line = el("div", { class: "cross", hidden: true });
  const body = el("div", { class: "body chartbody" }, plot, el("div", { class: "crosswrap", "aria-hidden": "true" }, line));
  const node = el("section", { class: "panel c6", id, "aria-labelledby": `${id}-title`, "data-source": source }, el("header", {}, el("h2", { id: `${id}-title` }, title), el("span", { class: "meta" }, meta), note, el("span", { class: "end" }, series, ...tools)), body);
  let shown = null; // {found, state}
  let seen = false;
  let drawn = null;
  let url = "";

  function skeleton() {
    plot.replaceChildren(el("div", { class: "stack sk late" }, ...[0, 1, 2].map(() => el("div", { class: "skeleton" }))));
  }

  async function show() {
    if (!shown || !seen || document.hidden || drawn === shown) return;
    const mine = shown;
    const lib = await plotly(url);
    if (mine !== shown) return;
    const made = draw(mine.found, mine.state);
    const first = drawn === null || plot.querySelector(".empty, .failed, .sk");
    if (first) clear(lib);
    drawn = mine;
    picture(made ? mine.label : "");
    if (!made) {
      plot.replaceChildren(emptied(gettext("Nothing in this time"), gettext("What is measured from now on will be drawn here.")));
      return;
    }
    await lib.react(plot, made.traces, made.layout, CONFIG);
    if (first) {
      plot.on("plotly_hover", cross);
      plot.on("plotly_unhover", () => cross(null));
    }
  }

  function clear(lib) {
    if (plot.classList.contains("js-plotly-plot")) lib.purge(plot);
    plot.replaceChildren();
  }

  // A picture with words in place of it, or words that need none.
  function picture(label) {
    attr(plot, "role", label ? "img" : null);
    attr(plot, "aria-label", label || null);
  }

  const tell = (error) => {
    shown = null;
    drawn = null;
    picture("");
    plot.replaceChildren(failed(error.message));
  };
  const again = () => {
    drawn = null;
    show().catch(tell);
  };
  new IntersectionObserver(([entry]) => {
    seen = entry.isIntersecting;
    show().catch(tell);
  }).observe(node);
  document.addEventListener("visibilitychange", () => show().catch(tell));
  addEventListener("themechange", again);
  addEventListener("zonechange", again);
  skeleton();
  const chart = {
    node,
    note,
    paint(found, state, plotlyUrl) {
      url = plotlyUrl;
      const words = header(found);
      shown = { found, state, label: `${title}, ${state.words}: ${words.map(([, value]) => value).join(", ")}` };
      redraw(series, JSON.stringify(words), () => words.map(([className, value]) => el("span", { class: className }, value)));
      show().catch(tell);
    },
    failed(words, retry) {
      shown = null;
      drawn = null;
      if (plot.classList.contains("js-plotly-plot")) globalThis.Plotly?.purge(plot);
      picture("");
      const button = el("button", { class: "btn small", type: "button" }, gettext("Try again"));
      button.addEventListener("click", retry);
      plot.replaceChildren(failed(words, button));
    },
    cross(at) {
      const window = drawn?.state.window;
      const share = at === null || !window ? -1 : (Date.parse(`${String(at).replace(" ", "T")}Z`) - Date.parse(`${wall(window.since)}Z`)) / (1000 * (window.until - window.since));
      line.hidden = share < 0 || share > 1;
      if (!line.hidden) line.style.setProperty("left", `${100 * share}%`);
    },
  };
  charts.add(chart);
  return chart;
}
