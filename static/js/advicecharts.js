// What the advisor draws: the least time to a first token by prompt length, and latencies by rate. Plotly comes when seen.
import { el } from "./dom.js";
import { latencyText, number, rate } from "./format.js";
import { gettext } from "./i18n.js";
import { MODES } from "./opwords.js";
import { failed } from "./panels.js";
import { CONFIG, css, plain, plotly, template } from "./plotly.js";
import { valueTicks } from "./ticks.js";

const COLORS = { monolithic: "--mixed", disaggregated: "--ink", conditional: "--decode" };
const LINK_DASH = { 10: "dot", 25: "dash", 100: "solid" };
const SLO_ROOM = 2.5; // the axis ends at so many times the target at most: a pool that cannot keep up has no scale

const note = (text, more) => ({ text: plain(text), showarrow: false, font: { size: 11, color: css("--ink-2") }, ...more });
const sloLine = (limit) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit, line: { color: css("--ink-2"), width: 1, dash: "dash" } });
const sloWords = (limit) => note(gettext("SLO %(limit)s", { limit: latencyText(limit) }), { xref: "paper", x: 0, xanchor: "left", y: limit, yanchor: "bottom" });

function layout({ height, top, ticks, most, xTicks, xWords, limit, shapes = [], annotations = [] }) {
  const base = template();
  const free = ticks.filter((tick) => Math.abs(tick - limit) > top / 10); // the limit has words of its own
  return {
    ...base,
    height,
    margin: { l: 0, r: 8, t: 16, b: 20 },
    hovermode: "x unified",
    xaxis: { ...base.xaxis, type: "linear", range: [0, most], tickvals: xTicks, ticktext: xTicks.map((tick) => plain(xWords(tick))), ticks: "", tickfont: { size: 11, color: css("--ink-3") } },
    yaxis: { ...base.yaxis, autorange: false, range: [0, top], ticks: "", ticklabelposition: "inside top", tickfont: { size: 11, color: css("--ink-3") }, tickvals: free, ticktext: free.map((tick) => plain(latencyText(tick))) },
    shapes: [...(limit <= top ? [sloLine(limit)] : []), ...shapes],
    annotations: [...(limit <= top ? [sloWords(limit)] : []), ...annotations],
  };
}

const line = (name, x, y, color, more = {}) => ({ type: "scatter", mode: "lines", name: plain(name), x, y, text: y.map((value) => plain(latencyText(value))), hovertemplate: "%{text}", connectgaps: false, line: { color, width: 1.6, ...more.line }, ...more.trace });

function firstToken({ tokens, prefill_ms: prefill, links, mean_tokens: mean }, inputs) {
  const limit = inputs.slo.ttft_ms;
  const { top, ticks } = valueTicks(Math.max(prefill.at(-1) * 1.5, limit * 1.05));
  const own = inputs.transport === "tcp" ? null : inputs.network_gbps;
  const traces = [
    line(gettext("prefill"), tokens, prefill, css("--prefill"), { trace: { fill: "tozeroy", fillcolor: `${css("--prefill")}26` } }),
    ...links.map(({ gbps, ttft_ms: ms }) => line(gettext("at %(gbps)s Gb/s", { gbps: number(gbps, Number.isInteger(gbps) ? 0 : 1) }), tokens, ms, css(gbps === own ? "--ink" : "--ink-3"), { line: { dash: LINK_DASH[gbps] ?? "solid", width: gbps === own ? 2 : 1.3 } })),
  ];
  // Names at the end of each line, from below; those that leave the chart at its top have theirs there, and none too near another.
  const names = [];
  const ends = [];
  for (const { gbps, ttft_ms: ms } of links) {
    const past = ms.findIndex((value) => value > top * 0.93);
    const at = past < 0 ? ms.length - 1 : Math.max(1, past - 1);
    const place = { x: tokens[at] / tokens.at(-1), y: ms[at] / top };
    if (names.some((other) => Math.abs(other.x - place.x) < 0.16 && Math.abs(other.y - place.y) < 0.07)) continue;
    names.push(place);
    ends.push(note(gettext("%(gbps)s Gb/s", { gbps: number(gbps, Number.isInteger(gbps) ? 0 : 1) }), { x: tokens[at], y: ms[at], xanchor: "right", yanchor: "bottom", font: { size: 11, color: css(gbps === own ? "--ink" : "--ink-3") } }));
  }
  const mark = { type: "line", x0: mean, x1: mean, yref: "paper", y0: 0, y1: 1, line: { color: css("--ink-3"), width: 1, dash: "dot" } };
  const word = note(gettext("your prompt"), { x: mean, xanchor: "left", xshift: 4, y: 1, yref: "paper", yanchor: "top" });
  const xTicks = [0.25, 0.5, 0.75].map((share) => Math.round(tokens.at(-1) * share));
  return { traces, layout: layout({ height: 292, top, ticks, most: tokens.at(-1), xTicks, xWords: (tick) => gettext("%(n)s tok", { n: number(tick) }), limit, shapes: [mark], annotations: [word, ...ends] }) };
}

function byRate(key, { rates, modes }, limit) {
  const known = modes.flatMap((mode) => mode[key].filter((value) => value != null && value <= limit * SLO_ROOM));
  const { top, ticks } = valueTicks(Math.max(limit * 1.15, ...known) * 1.02);
  const traces = modes.map((mode) => line(MODES[mode.mode], rates, mode[key].map((value) => (value == null ? null : Math.min(value, 2 * top))), css(COLORS[mode.mode]), { line: { dash: mode.mode === "conditional" ? "dash" : "solid" } }));
  const xTicks = [0.25, 0.5, 0.75].map((share) => rates.at(-1) * share);
  return { traces, layout: layout({ height: 190, top, ticks, most: rates.at(-1), xTicks, xWords: (tick) => gettext("%(rate)s req/s", { rate: rate(tick) }), limit }) };
}

// A plot in `node`, drawn when it is seen and anew after a change of theme; alone: whether the plot is still on the page.
function drawn(node, label, url, draw) {
  const plot = el("div", { class: "plot chartplot", role: "img", "aria-label": label });
  node.append(plot);
  let seen = false;
  const show = async () => {
    if (!seen || !plot.isConnected) return;
    try {
      const lib = await plotly(url);
      const { traces, layout: made } = draw();
      if (plot.isConnected) await lib.react(plot, traces, made, CONFIG);
    } catch (error) {
      plot.replaceChildren(failed(error.message));
    }
  };
  const again = () => (plot.isConnected ? show() : removeEventListener("themechange", again));
  addEventListener("themechange", again);
  const watch = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return;
    seen = true;
    watch.disconnect();
    show();
  });
  watch.observe(plot);
}

const chart = (id, title, meta, ...words) => {
  const body = el("div", { class: "body chartbody" });
  const node = el("section", { class: "panel", id, "aria-labelledby": `${id}-title` }, el("header", {}, el("h2", { id: `${id}-title` }, title), el("span", { class: "meta" }, meta), el("span", { class: "end" }, el("span", { class: "series" }, ...words))), body);
  return { node, body };
};

export function firstTokenPanel(advice, url) {
  const found = advice.charts.first_token;
  if (!found) return null;
  const { node, body } = chart("first-token", gettext("Lowest possible TTFT"), gettext("prefill + KV transfer, empty queues, %(engine)s", { engine: found.engine }));
  drawn(body, gettext("Lowest possible TTFT by length of the prompt: %(ms)s of prefill for %(n)s tokens", { ms: latencyText(found.mean_prefill_ms), n: number(found.mean_tokens) }), url, () => firstToken(found, advice.inputs));
  return node;
}

// Two: TTFT and ITL.
export function ratePanels(advice, url) {
  const found = advice.charts.by_rate;
  if (!found) return [];
  const words = found.modes.map(({ mode }) => el("span", { class: { monolithic: "m", disaggregated: "x", conditional: "d" }[mode] }, MODES[mode]));
  return [
    ["ttft_p99_ms", gettext("TTFT p99 by rate"), advice.inputs.slo.ttft_ms],
    ["itl_p99_ms", gettext("ITL p99 by rate"), advice.inputs.slo.itl_ms],
  ].map(([key, title, limit]) => {
    const { node, body } = chart(`rate-${key.slice(0, 4).replace("_", "")}`, title, gettext("best layouts, closed form"), ...words.map((word) => word.cloneNode(true)));
    drawn(body, title, url, () => byRate(key, found, limit));
    return node;
  });
}
